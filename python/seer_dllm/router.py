"""Cuts a batch of rows of different lengths into groups, and chooses how each group runs. Knows no tensors.

Three paths: *static*, a dense batch padded to a bucket, one captured graph per shape; *varlen*, packed and captured per
room for rows and tokens; *eager*, packed and not captured, for sizes that no bucket fits or fits badly.
A plan holds for one step. Whoever runs it calls `route` again when rows leave, are cut, or grow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from seer_dllm.buckets import Buckets
from seer_dllm.config import check_choice, check_number, check_positive
from seer_dllm.costs import PATHS, CostModel

MODES = ("cost", "pwr", *PATHS)
_TIE = 1 + 1e-12  # costs nearer than this differ by rounding only


@dataclass(frozen=True)
class RowSize:
    """What a row asks of a forward.

    Args:
        key: names the row for the caller.
        fed: tokens that each of its forwards computes (with a prompt cache: window slots alone).
        attended: tokens that those see, themselves included: at least `fed`.
        steps: forwards still to come.
    """

    key: Hashable
    fed: int
    attended: int
    steps: int

    def __post_init__(self) -> None:
        for name in ("fed", "attended", "steps"):
            check_positive(name, getattr(self, name))
        if self.attended < self.fed:
            raise ValueError(f"attended must be at least fed={self.fed}, got {self.attended}")


@dataclass(frozen=True)
class Limits:
    """What a group may hold, the buckets that follow from it, and the cut-offs of mode "pwr". Defaults are ours.

    Args:
        max_rows: rows of a group.
        max_tokens: tokens of a group, its padding included. A row above it runs alone.
        max_length: tokens that a row of a static group may attend to, padding included; longer rows run packed.
        static_pwr: up to this padding waste a batch runs static.
        varlen_pwr: up to this padding waste a batch runs packed; above, its longest rows leave it.

    Attributes:
        rows, lengths: buckets of a static group's rows, and of the tokens that each feeds and attends to.
        tokens, cached: buckets of a varlen group's tokens, and of the cached ones that all of its rows see.
    """

    max_rows: int = 32
    max_tokens: int = 16384
    max_length: int = 4096
    static_pwr: float = 0.05
    varlen_pwr: float = 0.5
    rows: Buckets = field(init=False, repr=False, compare=False)
    lengths: Buckets = field(init=False, repr=False, compare=False)
    tokens: Buckets = field(init=False, repr=False, compare=False)
    cached: Buckets = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_tokens", "max_length"):
            check_positive(name, getattr(self, name))
        check_number("static_pwr", self.static_pwr, 0.0, 1.0)
        check_number("varlen_pwr", self.varlen_pwr, self.static_pwr, 1.0)
        # Padding a row pads all of them, so that a dense batch wants finer steps, from smaller sizes on.
        object.__setattr__(self, "rows", Buckets(self.max_rows, doubling_until=8))
        object.__setattr__(self, "lengths", Buckets(self.max_length, smallest=8, doubling_until=32))
        object.__setattr__(self, "tokens", Buckets(self.max_tokens, smallest=16))
        object.__setattr__(self, "cached", Buckets(self.max_rows * self.max_length, smallest=16))


def padding_waste(sizes: Sequence[int]) -> float:
    """PWR, `1 - sum(sizes) / (B * max(sizes))`: the share of padding in a dense batch of rows of these sizes.

    Lengths give the waste of one forward, lengths times steps that of a whole run. The paper's term.
    """
    return 1 - sum(sizes) / (len(sizes) * max(sizes)) if sizes else 0.0


def sizes_of(rows: Iterable[RowSize]) -> int:
    """How many different sizes these rows have."""
    return len({(row.fed, row.attended) for row in rows})


@dataclass(frozen=True)
class Group:
    """Rows that share each forward, shortest first.

    Attributes:
        path: "static", "varlen" or "eager".
        bucket: of a static group (rows, fed, attended), of a varlen group (tokens,); () where nothing is captured.
        tokens: tokens of the rows.
        padded_rows, padded_tokens, padded_pairs: what is computed, as a `Measurement` of this group counts it.
        pwr, step_waste: `padding_waste` of the lengths, and of lengths times steps.
        seconds: predicted, of one forward.
        reason: why these rows, this way.
        miss: a row that no bucket holds.
    """

    rows: tuple[RowSize, ...]
    path: str
    bucket: tuple[int, ...]
    padded_rows: int
    padded_tokens: int
    padded_pairs: int
    seconds: float
    reason: str
    miss: bool = False

    @property
    def tokens(self) -> int:
        return sum(row.fed for row in self.rows)

    @property
    def pwr(self) -> float:
        return padding_waste([row.fed for row in self.rows])

    @property
    def step_waste(self) -> float:
        return padding_waste([row.fed * row.steps for row in self.rows])

    @property
    def run_seconds(self) -> float:
        """Predicted until the last row is done, if the group stays as it is: more than it takes when formed anew."""
        return self.seconds * max(row.steps for row in self.rows)


@dataclass(frozen=True)
class Plan:
    """Groups that together hold every row once, in ascending order of length; they run one after the other."""

    groups: tuple[Group, ...]
    mode: str
    costs: str  # label of the cost model

    @property
    def seconds(self) -> float:
        """Predicted, of one forward of every group."""
        return sum(group.seconds for group in self.groups)

    @property
    def run_seconds(self) -> float:
        return sum(group.run_seconds for group in self.groups)

    @property
    def misses(self) -> int:
        """Rows that no bucket holds."""
        return sum(group.miss for group in self.groups)

    def explain(self) -> str:
        """The plan as an aligned table, for people."""
        rows = [row for group in self.groups for row in group.rows]
        pwr = padding_waste([row.fed for row in rows])
        head = ("path", "bucket", "rows", "fed", "tokens", "padded", "PWR", "step waste", "ms/step", "s/run", "reason")
        lines = [head]
        for group in self.groups:
            lengths = sorted({group.rows[0].fed, group.rows[-1].fed})
            cells = (group.path, "x".join(map(str, group.bucket)) or "-", len(group.rows), "-".join(map(str, lengths)))
            cells += (group.tokens, group.padded_tokens, f"{group.pwr:.3f}", f"{group.step_waste:.3f}")
            cells += (f"{1e3 * group.seconds:.3f}", f"{group.run_seconds:.3f}", group.reason)
            lines.append(tuple(map(str, cells)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ("  ".join(cell.ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines)
        title = f"{len(rows)} rows in {len(self.groups)} groups, PWR as one {pwr:.3f}, {self.misses} misses; "
        title += f"predicted {1e3 * self.seconds:.3f} ms a step, at most {self.run_seconds:.3f} s in all"
        return "\n".join([f"{title} (mode {self.mode}; costs: {self.costs})", *table])


def route(
    rows: Iterable[RowSize],
    limits: Limits,
    costs: CostModel,
    mode: str = "cost",
    regroup: bool = True,
    captured: bool = True,
) -> Plan:
    """Group rows so that they take the least time.

    All rows step together whatever their groups, so which are left later does not depend on the grouping: where groups
    are formed anew whenever a row leaves, the cheapest steps make the cheapest run.

    Args:
        costs: anything with a `label` and the `seconds` of `CostModel`.
        mode: "cost" takes the cheapest groups and paths; "static", "varlen" and "eager" the cheapest groups of that
            path; "pwr" goes by the cut-offs of `limits`. Rows that no path of the mode takes run alone and eager.
        regroup: groups will be formed anew when rows leave. False: they stay as they are until their last row is done,
            so a group is charged its forward times the most steps of its rows. "pwr" ignores it.
        captured: groups are padded to their buckets. False: static groups to their longest row, varlen groups not.
    Raises:
        ValueError: an unknown mode, or two rows of one key.
    """
    check_choice("mode", mode, MODES)
    rows = sorted(rows, key=lambda row: (row.fed, row.attended))  # stable: the caller's order decides ties
    if len({row.key for row in rows}) < len(rows):
        keys = [row.key for row in rows]
        raise ValueError(f"rows must have keys of their own, got {next(k for k in keys if keys.count(k) > 1)!r} twice")
    if not rows:
        return Plan((), mode, costs.label)
    tokens = sum(row.fed for row in rows)
    fit = len(rows) <= limits.max_rows and tokens <= limits.max_tokens
    if fit and mode in ("varlen", "eager") and regroup and not captured:
        # Nothing is padded, so one group saves the fixed costs of others: what most steps come to needs no search.
        pairs = sum(row.fed * row.attended for row in rows)
        sizes = sizes_of(rows), tokens, pairs
        group = Group(tuple(rows), mode, (), *sizes, float(costs.seconds(mode, *sizes)), f"mode {mode}, and all fit")
        return Plan((group,), mode, costs.label)
    prices = _Prices(rows, limits, costs, captured)
    groups = _by_waste(prices) if mode == "pwr" else _by_cost(prices, PATHS if mode == "cost" else (mode,), regroup)
    return Plan(tuple(groups), mode, costs.label)


class _Prices:
    """Predicted seconds of every group of neighbours: `seconds[path][j, w]` of the `w + 1` rows that end in row j.

    Sums of a group are differences of two prefix sums, its longest row is its last. What may not be is inf.
    """

    def __init__(self, rows: list[RowSize], limits: Limits, costs: CostModel, captured: bool) -> None:
        self.rows, self.limits, self.captured = rows, limits, captured

        def padded(buckets: Buckets, sizes: np.ndarray) -> np.ndarray:
            return _round_up(buckets, sizes) if captured else np.where(sizes <= buckets.maximum, sizes, np.inf)

        fed = np.array([row.fed for row in rows])
        attended = np.array([row.attended for row in rows])
        last = np.arange(len(rows))[:, None]
        width = np.arange(1, min(len(rows), limits.max_rows) + 1)
        first = last - width + 1
        exists = first >= 0
        first = first.clip(0)

        def within(values: np.ndarray) -> np.ndarray:
            total = np.concatenate(([0], values.cumsum()))
            return total[last + 1] - total[first]

        pairs = within(fed * attended)
        # A dense batch attends as far as its longest row: the bucket of a maximum is the maximum of the buckets.
        deepest = np.maximum.accumulate(padded(limits.lengths, attended)[first], axis=1)
        self.most_steps = np.maximum.accumulate(np.array([row.steps for row in rows])[first], axis=1)
        lanes = padded(limits.rows, width)
        dense = lanes * padded(limits.lengths, fed)[:, None]
        packed = np.where(exists, within(fed), np.inf)
        differs = np.diff(fed, prepend=fed[:1]).astype(bool) | np.diff(attended, prepend=attended[:1]).astype(bool)
        differs = differs.cumsum()
        unlike = 1 + differs[last] - differs[first]
        self.sizes = {  # rows, tokens and pairs as in `Measurement`
            "static": (lanes, np.where(exists, dense, np.inf), dense * deepest),
            "varlen": (lanes if captured else unlike, padded(limits.tokens, packed), pairs),
            "eager": (unlike, packed, pairs),
        }
        self.seconds = {}
        for path, (count, tokens, pairs) in self.sizes.items():
            fits = (tokens <= limits.max_tokens) & (pairs < np.inf)
            # Infinite sizes stay out of the arithmetic: a cost of 0 would make them nan.
            priced = costs.seconds(path, count, np.where(fits, tokens, 0.0), np.where(fits, pairs, 0.0))
            self.seconds[path] = np.where(fits, priced, np.inf)
        self.eager_alone = costs.seconds("eager", 1, fed, fed * attended)

    def group(self, first: int, last: int, path: str, reason: str) -> Group:
        """Rows `first..last` by a path that takes them."""
        rows, limits = tuple(self.rows[first : last + 1]), self.limits
        bucket = ()
        if self.captured and path == "static":
            lengths = (rows[-1].fed, max(row.attended for row in rows))
            bucket = (limits.rows.bucket_for(len(rows)), *map(limits.lengths.bucket_for, lengths))
        elif self.captured and path == "varlen":
            bucket = (limits.tokens.bucket_for(sum(row.fed for row in rows)),)
        at = last, last - first
        sizes = (int(np.broadcast_to(n, self.seconds[path].shape)[at]) for n in self.sizes[path])
        return Group(rows, path, bucket, *sizes, float(self.seconds[path][at]), reason)

    def alone(self, row: int, paths: Sequence[str]) -> Group:
        """A row that none of the paths takes."""
        size, limits = self.rows[row], self.limits
        reason = f"no {' or '.join(paths)} bucket: {size.fed} fed, {size.attended} attended to"
        reason += f"; max_tokens {limits.max_tokens}, max_length {limits.max_length}"
        sizes = 1, size.fed, size.fed * size.attended
        return Group((size,), "eager", (), *sizes, float(self.eager_alone[row]), reason, True)


def _round_up(buckets: Buckets, sizes: np.ndarray) -> np.ndarray:
    """`Buckets.bucket_for` of an array, as floats; inf is a miss."""
    return np.array([*buckets.sizes, np.inf])[np.searchsorted(buckets.sizes, sizes)]


def _by_cost(prices: _Prices, paths: Sequence[str], regroup: bool) -> list[Group]:
    """The cheapest cut of the sorted rows into neighbours, by dynamic programming over where the last group begins.

    Why neighbours: let a group's cost depend on its number of rows, its longest row and its farthest sight, and grow
    with each, as on the static path, limits included; let fed, attended and, where they count, steps ascend together.
    Take any partition, order its groups by their longest row, longest first, and deal the sorted rows out to them anew
    in the same numbers. If r rows are dealt before a group, the longest it now gets ranks r + 1. Before, the groups
    ahead held r rows, so one of the r + 1 longest lay in this group or behind it, and this group's longest row was no
    shorter. No group got dearer: some cut into neighbours costs least.
    Packed groups of linear cost come to the same whoever is in them, while max_tokens does not bind. There is no proof
    where both kinds mix (shortest and longest packed together, static between them), sums are rounded up to token
    buckets, max_tokens makes it bin packing, or fed and attended ascend apart. Against a search of all partitions of
    random batches of up to 7 rows (in the tests) that costs less than 1 % on average, at worst some 15 %.
    """
    ways = np.stack([prices.seconds[path] for path in paths])
    price, way = ways.min(axis=0), ways.argmin(axis=0)  # on ties the first path
    missed = np.isinf(price[:, 0])
    price[missed, 0] = prices.eager_alone[missed]
    if not regroup:
        price = price * prices.most_steps
    count, widest = len(prices.rows), price.shape[1]
    best, groups = np.zeros(count + 1), np.zeros(count + 1, dtype=int)  # of the first i rows
    width_at = np.zeros(count, dtype=int)
    for j in range(count):
        total = best[j::-1][:widest] + price[j, : j + 1]
        cheapest = np.flatnonzero(total <= total.min() * _TIE)
        w = cheapest[groups[j - cheapest].argmin()]  # of equal costs the fewest groups
        best[j + 1], groups[j + 1], width_at[j] = total[w], groups[j - w] + 1, w
    cut, last = [], count - 1
    while last >= 0:
        w = width_at[last]
        if missed[last]:
            cut.append(prices.alone(last, paths))
        else:
            offers = ", ".join(f"{path} {1e3 * prices.seconds[path][last, w]:.3f} ms" for path in paths)
            reason = f"cheapest of {offers}".replace("inf ms", "no") if len(paths) > 1 else f"mode {paths[0]}"
            cut.append(prices.group(last - w, last, paths[way[last, w]], reason))
        last -= w + 1
    return cut[::-1]


def _by_waste(prices: _Prices) -> list[Group]:
    """Cut-offs on the padding waste, without a look at the costs; the rule is ours.

    Rows shorter than any bucket run eager, and so do the longest, one after the other, until the rest is even enough.
    What is left is filled into groups from the longest down.
    """
    rows, limits = prices.rows, prices.limits
    total = np.concatenate(([0], np.cumsum([row.fed for row in rows])))
    start = sum(row.fed < limits.lengths.smallest for row in rows)
    stop = len(rows)

    def waste(first: int, end: int) -> float:
        return 1 - (total[end] - total[first]) / ((end - first) * rows[end - 1].fed)

    while stop > start and (rows[stop - 1].fed > limits.max_tokens or waste(start, stop) > limits.varlen_pwr):
        stop -= 1
    groups = []

    def fill(first: int, end: int, even: bool, why: str) -> None:
        while end > first:
            if rows[end - 1].fed > limits.max_tokens:
                groups.append(prices.alone(end - 1, ("static", "varlen")))
                end -= 1
                continue
            widest = min(end - first, prices.seconds["eager"].shape[1])
            begin = end - int(np.isfinite(prices.seconds["eager"][end - 1, :widest]).sum())
            pwr, path = waste(begin, end), "eager"
            if even:
                dense = pwr <= limits.static_pwr and np.isfinite(prices.seconds["static"][end - 1, end - begin - 1])
                path = "static" if dense else "varlen"
            groups.append(prices.group(begin, end - 1, path, f"{why}, PWR {pwr:.3f}"))
            end = begin

    fill(stop, len(rows), False, f"longest rows of a PWR above {limits.varlen_pwr:g}")
    fill(start, stop, True, f"cut-offs {limits.static_pwr:g} and {limits.varlen_pwr:g}")
    fill(0, start, False, f"shorter than the smallest bucket of {limits.lengths.smallest}")
    return groups[::-1]
