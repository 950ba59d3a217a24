"""Groups of rows that share a forward: which rows, laid out how, and what it computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from torch import Tensor

from seer_dllm.backbone import Backbone
from seer_dllm.canvas import Canvas, Dense, lanes_of
from seer_dllm.capture import Capturer, Packed
from seer_dllm.config import BLOCK_CACHES, check_choice
from seer_dllm.costs import DEFAULT_COSTS, CostModel
from seer_dllm.router import MODES, Limits, RowSize, route, sizes_of
from seer_dllm.row import Row

STEP_0 = "step 0"  # in the counts beside the router's paths: packed, and not captured


@dataclass(frozen=True)
class Routing:
    """How a loop forms its groups.

    Args:
        limits: of a group; a group that runs captured is padded to their buckets.
        costs: what the mode "cost" goes by.
        mode: as in `seer_dllm.router.route`. "varlen" packs all rows into as few groups as the limits allow.
        capturer: runs static and varlen groups as captured graphs; None: nothing is captured, static groups are padded
            to their longest row alone, and varlen groups not at all.
    """

    limits: Limits = field(default_factory=Limits)
    costs: CostModel = DEFAULT_COSTS["cpu"]
    mode: str = "varlen"
    capturer: Capturer | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)

    def check(self, backbone: Backbone) -> None:
        """ValueError if the mode pads rows and the model takes no mask."""
        if not backbone.masks and self.mode not in ("varlen", "eager"):
            raise ValueError(f"mode must be varlen or eager for a model that takes no mask, got {self.mode!r}")


class Part(NamedTuple):
    """Rows that the router puts together; `dense` is what they are padded to, `packed` the room of their recording."""

    rows: list[Row]
    path: str
    dense: Dense | None = None
    packed: Packed | None = None
    miss: bool = False


@dataclass
class Counts:
    """What a loop has done so far.

    Attributes:
        forwards: of groups. plans: made by the router. misses: forwards of rows that no bucket holds.
        tokens: real tokens by path ("static", "varlen", "eager", "step 0"). padded_tokens: computed beside them, in
            dense batches and in recordings of packed ones.
    """

    forwards: int = 0
    plans: int = 0
    misses: int = 0
    padded_tokens: int = 0
    tokens: Counter[str] = field(default_factory=Counter)


def size_of(row: Row) -> RowSize:
    """What the row's next forward asks for. A row with a twin counts as one of twice the length."""
    start, stop = row.span
    attended = len(row.prompt) + row.window if row.reuses else stop - start
    steps = sum(plan.steps for plan in row.blocks[row.at :]) - row.step
    lanes = len(lanes_of([row]))
    return RowSize(row, lanes * (stop - start), lanes * attended, max(1, steps))


def full_size(row: Row) -> RowSize:
    """What its step 0 asks for at most."""
    tokens = len(lanes_of([row])) * (len(row.prompt) + row.window)
    return RowSize(row, tokens, tokens, 1)


def _by_cache(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows without a cache, with a prompt cache and with a block cache apart, as memory is bounded by kind.

    A group with cached keys has room for those of all its rows, and keeps those of all its rows for block caches: what
    a row computes would be held for all layers where its cache never asks for it.
    """
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault("block" if row.config.cache in BLOCK_CACHES else row.config.cache, []).append(row)
    return list(kinds.values())


def whole(rows: Sequence[Row], routing: Routing | None) -> list[list[Row]]:
    """The rows of one step 0, which runs packed, within the limits."""
    if routing is None:
        return _by_cache(rows)
    plans = [
        route(map(full_size, alike), routing.limits, routing.costs, "varlen", captured=False)
        for alike in _by_cache(rows)
    ]
    return [[size.key for size in group.rows] for plan in plans for group in plan.groups]


def parts_of(rows: Sequence[Row], routing: Routing | None) -> list[Part]:
    """The groups of the next step; without routing one, in the order of the rows and one per kind of cache.

    A row with guidance has a twin, which must be beside it: such rows run packed.
    """
    if routing is None:
        return [Part(alike, "varlen") for alike in _by_cache(rows)]
    parts, captured = [], routing.capturer is not None
    for alike, (guided, mode) in product(_by_cache(rows), ((False, routing.mode), (True, "varlen"))):
        sizes = [size_of(row) for row in alike if (row.config.cfg_scale > 0) == guided]
        for group in route(sizes, routing.limits, routing.costs, mode, captured=captured).groups:
            part = Part([size.key for size in group.rows], group.path, miss=group.miss)
            if part.path == "static":
                part = part._replace(dense=_dense(part.rows, routing))
            elif part.path == "varlen" and captured:
                packed = _packed(part.rows, routing.limits)
                part = part._replace(packed=packed) if packed else part._replace(path="eager", miss=True)
            parts.append(part)
    return parts


def _dense(rows: list[Row], routing: Routing) -> Dense | None:
    """What a static group is padded to: buckets where it is captured, else its longest row; None if that pads nothing.

    Packed rows of one size are a dense batch.
    """
    sizes = [size_of(row) for row in rows]
    # Cached keys are padded apart from the others, so that both lie where the graph expects them.
    dense = Dense(len(rows), max(s.fed for s in sizes), max(s.attended - s.fed for s in sizes))
    if routing.capturer is None:
        return dense if sizes_of(sizes) > 1 else None
    buckets = routing.limits.lengths
    past = buckets.bucket_for(dense.past) if dense.past else 0
    return Dense(routing.limits.rows.bucket_for(dense.rows), buckets.bucket_for(dense.fed), past)


def _packed(rows: list[Row], limits: Limits) -> Packed | None:
    """The buckets of a varlen group, whose rows all have a twin or none; None if no bucket holds its cached keys."""
    sizes = [size_of(row) for row in rows]
    fed, past = sum(s.fed for s in sizes), sum(s.attended - s.fed for s in sizes)
    held = limits.cached.bucket_for(past) if past else 0
    if held is None:
        return None
    lanes = len(lanes_of(rows)) // len(rows)
    return Packed(lanes * limits.rows.bucket_for(len(rows)), limits.tokens.bucket_for(fed), held)


@dataclass(eq=False)
class Group:
    """A canvas, the path it runs by, the room it has where packed rows are captured, and its last hidden states."""

    canvas: Canvas
    path: str = STEP_0
    packed: Packed | None = None
    miss: bool = False
    hidden: Tensor | None = None

    def forward(self, capturer: Capturer | None, counts: Counts) -> None:
        """One whole forward of the rows as they stand."""
        canvas, shape, run = self.canvas, self.packed or self.canvas.dense, None
        if capturer is not None and shape is not None and not any(row.keeps for row in canvas.rows):
            run = capturer.bound(canvas.backbone, shape)
        self.hidden = canvas.forward(canvas.embeddings(), run=run)
        self.count(counts, self.packed.fed if run is not None and self.packed else canvas.packing.total)

    def count(self, counts: Counts, computed: int) -> None:
        """Book a forward of so many tokens, padding included."""
        real = sum(self.canvas.lengths)
        counts.forwards += 1
        counts.misses += self.miss
        counts.tokens[self.path] += real
        counts.padded_tokens += computed - real
