"""Plans worked out by hand, and plans against a search of all partitions."""

import random
from dataclasses import replace
from itertools import product

import pytest

from seer_dllm.costs import DEFAULT_COSTS, PATHS, CostModel, PathCost
from seer_dllm.router import MODES, Limits, RowSize, padding_waste, route

CUDA = DEFAULT_COSTS["cuda"]


def rows_of(*fed, past=0, steps=4):
    return [RowSize(i, n, n + past, steps) for i, n in enumerate(fed)]


def flat(static=(0, 1, 0), varlen=(0, 1, 0), eager=(0, 1, 0)):
    """Costs in round numbers: (fixed, per token, per pair, per row) of each path."""
    return CostModel(PathCost(*static), PathCost(*varlen), PathCost(*eager), label="round numbers")


def cut(plan):
    """[(path, lengths)] of a plan."""
    return [(g.path, [row.fed for row in g.rows]) for g in plan.groups]


def test_padding_waste_by_hand():
    assert padding_waste([4, 4, 4]) == 0
    assert padding_waste([1, 1, 4]) == 0.5
    assert padding_waste([7]) == padding_waste([]) == 0
    (group,) = route(
        [RowSize("a", 8, 8, 2), RowSize("b", 16, 16, 8)], Limits(), flat(static=(9, 1, 0)), "static"
    ).groups
    assert (group.pwr, group.step_waste) == (0.25, 1 - (16 + 128) / (2 * 128))
    assert (group.seconds, group.run_seconds) == (9 + 32, 8 * 41)


def test_a_fixed_cost_decides_where_to_cut():
    """Static, buckets of 1, 2, 4 rows.

    Fixed 10: {8 8 8}{64} is 42 + 74 = 116, {8 8}{8}{64} is 26 + 18 + 74 = 118, one group 266.
    Fixed 1: 33 + 65 = 98 against 17 + 9 + 65 = 91. Fixed 300: one group is 556, two are 698 at least.
    """
    rows = rows_of(8, 64, 8, 8)
    plans = {fixed: route(rows, Limits(), flat(static=(fixed, 1, 0)), "static") for fixed in (1, 10, 300)}
    assert cut(plans[10]) == [("static", [8, 8, 8]), ("static", [64])]
    assert [g.bucket for g in plans[10].groups] == [(4, 8, 8), (1, 64, 64)]
    assert [g.padded_tokens for g in plans[10].groups] == [32, 64]
    assert [g.padded_pairs for g in plans[10].groups] == [32 * 8, 64 * 64]
    assert plans[10].seconds == 116 and plans[10].run_seconds == 4 * 116
    assert sorted(map(len, (fed for _, fed in cut(plans[1])))) == [1, 1, 2] and plans[1].seconds == 91
    assert cut(plans[300]) == [("static", [8, 8, 8, 64])]


def test_the_cheapest_path_by_hand():
    """100 and 130 tokens fill 230 of 256. Static 2 x 160 + 20 = 340, varlen 256 + 40 = 296, eager 230 + 90 = 320."""
    costs = flat(static=(20, 1, 0), varlen=(40, 1, 0), eager=(90, 1, 0))
    # Apart: static 112 + 20 and 160 + 20, 312 in all.
    plan = route(rows_of(100, 130), Limits(), costs)
    assert cut(plan) == [("varlen", [100, 130])] and plan.groups[0].bucket == (256,) and plan.seconds == 296
    # 100 and 220 are 320 tokens, a bucket: 360. Apart, static 132 and 244 are 376, less than a packed 390.
    assert route(rows_of(100, 220), Limits(), costs).seconds == 360
    assert cut(route(rows_of(100, 220), Limits(), replace(costs, varlen=PathCost(70, 1, 0)))) == [
        ("static", [100]),
        ("static", [220]),
    ]
    # Two short rows: 2 x 8 + 20 on the static path; eager wins once it is as good as free.
    assert cut(route(rows_of(3, 3), Limits(), costs)) == [("static", [3, 3])]
    assert cut(route(rows_of(3, 3), Limits(), replace(costs, eager=PathCost(29, 1, 0)))) == [("eager", [3, 3])]


def test_rows_that_cost_by_themselves():
    """Ten rows of 8 and two of 104: static 10 + 80 and 10 + 208. Packed rows cost 30 beside tokens, then nothing."""
    rows = rows_of(*[8] * 10, 104, 104)
    plan = route(rows, Limits(), flat((10, 1, 0), (20, 1, 0, 30), (20, 1, 0, 30)), captured=False)
    assert cut(plan) == [("static", [8] * 10), ("static", [104, 104])] and plan.seconds == 90 + 218
    assert [g.padded_rows for g in plan.groups] == [10, 2]
    # Of two sizes in the packed group: dearer than the static ones, but cheaper than twelve rows.
    packed = flat((110, 1, 0), (20, 1, 0, 30), (20, 1, 0, 30))
    (group,) = route(rows, Limits(), packed, captured=False).groups
    assert (group.path, group.padded_rows, group.seconds) == ("varlen", 2, 20 + 288 + 60)
    plan = route(rows, Limits(), flat((110, 1, 0), (20, 1, 0), (20, 1, 0, 1)), captured=False)
    assert cut(plan) == [("varlen", [8] * 10 + [104, 104])] and plan.seconds == 20 + 288
    # Captured: buckets of 4 rows and 32 tokens; eager is free of both.
    rooms = flat((900, 1, 0, 9), (20, 1, 0, 2), (20, 1, 0, 2))
    for mode, seconds in (("static", 900 + 32 + 36), ("varlen", 20 + 32 + 8), ("cost", 20 + 24 + 2)):
        assert route(rows_of(8, 8, 8), Limits(), rooms, mode).seconds == seconds


def test_nothing_is_rounded_up_where_nothing_is_captured():
    """100 and 130: static 2 x 130 + 20, varlen 230 + 39; 100 and 110: 2 x 110 + 20 against 210 + 39. Limits hold."""
    costs = flat(static=(20, 1, 0), varlen=(39, 1, 0), eager=(90, 1, 0))
    (group,) = route(rows_of(100, 130), Limits(), flat(static=(40, 1, 0)), "static", captured=False).groups
    assert (group.padded_tokens, group.padded_pairs, group.seconds, group.bucket) == (260, 260 * 130, 300, ())
    plan = route(rows_of(100, 130), Limits(), costs, captured=False)  # apart, static: 120 + 150
    assert cut(plan) == [("varlen", [100, 130])] and plan.seconds == 269 and "ms/step" in plan.explain()
    assert cut(route(rows_of(100, 110), Limits(), costs, captured=False)) == [("static", [100, 110])]
    assert route(rows_of(701, 30), Limits(max_tokens=700, max_length=700), costs, captured=False).misses == 1


def test_attention_sees_the_prompt():
    """A static group sees as far as its farthest row: 2 rows x 8 fed x bucket 64 of 50; packed 8 x 10 + 8 x 50."""
    rows = [RowSize("near", 8, 10, 1), RowSize("far", 8, 50, 1)]
    costs = flat((5, 0, 1), (5, 0, 1), (7, 0, 1))
    (group,) = route(rows, Limits(), flat((5000, 0, 1)), "static").groups
    assert group.bucket == (2, 8, 56) and group.padded_pairs == 2 * 8 * 56
    plan = route(rows, Limits(), costs)
    assert cut(plan) == [("varlen", [8, 8])] and plan.groups[0].padded_pairs == plan.seconds - 5 == 480


def test_ties_take_the_fewest_groups():
    rows = rows_of(*range(1, 257))
    assert len(route(rows, Limits(max_rows=256, max_tokens=1 << 16), flat(eager=(0, 0.1, 0.01)), "eager").groups) == 1
    assert len(route(rows, Limits(max_rows=100, max_tokens=1 << 16), flat(eager=(0, 0.1, 0.01)), "eager").groups) == 3


def test_equal_prices_take_the_first_path():
    assert cut(route(rows_of(8, 8), Limits(), flat((5, 0, 0), (5, 0, 0), (5, 0, 0)))) == [("static", [8, 8])]


def test_steps_count_where_groups_are_kept():
    """Together 34 a step, apart 18 and 26. Kept until both are done, 34 x 100 against 18 x 2 + 26 x 100."""
    rows = [RowSize("soon", 8, 8, 2), RowSize("late", 16, 16, 100)]
    costs = flat(eager=(10, 1, 0))
    assert cut(route(rows, Limits(), costs, "eager")) == [("eager", [8, 16])]
    assert cut(route(rows, Limits(), costs, "eager", regroup=False)) == [("eager", [8]), ("eager", [16])]


@pytest.mark.parametrize("mode", MODES)
def test_a_row_above_the_maximum_runs_eager_and_is_counted(mode):
    """The largest bucket is the configured maximum: 700 tokens fit, 701 miss."""
    limits = Limits(max_tokens=700, max_length=700)
    assert 700 in limits.tokens.sizes and 700 in limits.lengths.sizes
    plan = route(rows_of(700), limits, CUDA, mode)
    assert plan.misses == 0 and plan.groups[0].bucket in ((1, 700, 700), (700,), ())
    plan = route(rows_of(701, 30), limits, CUDA, mode)
    assert plan.misses == 1
    over = plan.groups[-1]
    assert (over.path, over.bucket, len(over.rows), over.miss) == ("eager", (), 1, True)
    assert over.seconds == pytest.approx(CUDA.seconds("eager", 1, 701, 701 * 701))
    assert "701 fed" in over.reason and "max_tokens 700" in over.reason


def test_what_no_static_bucket_holds_goes_eager_in_static_mode():
    limits = Limits(max_length=1000)
    rows = [RowSize("a", 8, 900, 1), RowSize("b", 8, 1001, 1), RowSize("c", 16, 900, 1)]
    plan = route(rows, limits, CUDA, "static")
    assert [(g.path, [r.key for r in g.rows]) for g in plan.groups if g.miss] == [("eager", ["b"])]
    assert plan.misses == 1
    packed = route(rows, limits, CUDA)  # where it may be packed, nothing is missed
    assert packed.misses == 0


def test_cut_offs_by_hand():
    costs = CUDA
    # PWR 1 - 390/400 = 0.025
    assert cut(route(rows_of(100, 95, 100, 95), Limits(), costs, "pwr")) == [("static", [95, 95, 100, 100])]
    # 1 - 230/400 = 0.425
    assert cut(route(rows_of(40, 50, 40, 100), Limits(), costs, "pwr")) == [("varlen", [40, 40, 50, 100])]
    # 1 - 1130/4000 = 0.7175; without the longest 1 - 130/150 = 0.133; 4 is shorter than the bucket of 8
    plan = route(rows_of(40, 4, 40, 50, 1000), Limits(), costs, "pwr")
    assert cut(plan) == [("eager", [4]), ("varlen", [40, 40, 50]), ("eager", [1000])]
    assert "smallest bucket of 8" in plan.groups[0].reason and "PWR 0.133" in plan.groups[1].reason
    assert cut(route(rows_of(8, 8, 7), Limits(), costs, "pwr")) == [("eager", [7]), ("static", [8, 8])]
    strict = Limits(static_pwr=0.0, varlen_pwr=0.0)
    assert cut(route(rows_of(40, 40, 41), strict, costs, "pwr")) == [("static", [40, 40]), ("eager", [41])]
    # Two rows of 100 pad to 2 x 112 > 210 tokens: even, but packed.
    assert cut(route(rows_of(100, 100), Limits(max_tokens=210), costs, "pwr")) == [("varlen", [100, 100])]


def price(group, limits, costs, path, captured=True):
    """Seconds of any rows by a path, from the words of the design alone; inf if they may not be a group."""

    def up(buckets, n):
        return min(
            (size for size in (buckets.sizes if captured else range(n, n + 1)) if size >= n), default=float("inf")
        )

    count, tokens, pairs = len(group), sum(r.fed for r in group), sum(r.fed * r.attended for r in group)
    if path == "static" or path == "varlen" and captured:
        count = up(limits.rows, count)
    else:  # rows of one size share a call
        count = len({(r.fed, r.attended) for r in group})
    if path == "static":
        tokens = count * up(limits.lengths, max(r.fed for r in group))
        pairs = tokens * up(limits.lengths, max(r.attended for r in group))
    elif path == "varlen":
        tokens = up(limits.tokens, tokens)
    if len(group) > limits.max_rows or tokens > limits.max_tokens or pairs == float("inf"):
        return float("inf")
    cost = getattr(costs, path)
    return cost.fixed + cost.per_row * count + cost.per_token * tokens + cost.per_pair * pairs


def cheapest(group, limits, costs, paths, regroup=True, captured=True):
    times = 1 if regroup else max(r.steps for r in group)
    return times * min(price(group, limits, costs, path, captured) for path in paths)


def best_of_all_partitions(rows, limits, costs, paths, regroup=True):
    best = [0.0]
    for mask in range(1, 1 << len(rows)):
        first, rest = mask & -mask, mask & (mask - 1)
        low, part = float("inf"), rest
        while True:  # every group that holds the first row of what is left
            group = [r for i, r in enumerate(rows) if (first | part) >> i & 1]
            low = min(low, cheapest(group, limits, costs, paths, regroup) + best[mask ^ (first | part)])
            if not part:
                break
            part = (part - 1) & rest
        best.append(low)
    return best[-1]


def best_of_neighbours(rows, limits, costs, paths, regroup, captured):
    rows = sorted(rows, key=lambda r: (r.fed, r.attended))
    found = []
    for walls in product((False, True), repeat=len(rows) - 1):
        groups = [[rows[0]]]
        for row, wall in zip(rows[1:], walls, strict=True):
            groups.append([row]) if wall else groups[-1].append(row)
        found.append(sum(cheapest(group, limits, costs, paths, regroup, captured) for group in groups))
    return min(found)


def random_case(draw, past):
    """Rows, limits and costs; `past` makes prompts of different lengths that are attended to but not fed."""
    count, top = draw.randint(1, 7), draw.choice((40, 300, 1200))
    fed = [draw.randint(1, top) for _ in range(count)]
    rows = [RowSize(i, n, n + (draw.randint(0, 900) if past else 0), draw.randint(1, 9)) for i, n in enumerate(fed)]
    limits = Limits(draw.randint(1, 8), draw.choice((2000, 16384)), 4096)
    most = 500, 3, 1e-3, 100
    costs = [PathCost(*(draw.uniform(0, n) for n in most)) for _ in PATHS]
    return rows, limits, CostModel(*costs, label="random")


def spent(plan, regroup):
    return plan.seconds if regroup else plan.run_seconds


@pytest.mark.parametrize("mode", ["cost", *PATHS])
@pytest.mark.parametrize(("regroup", "captured"), [(True, True), (False, True), (True, False), (False, False)])
def test_no_cut_into_neighbours_is_cheaper(mode, regroup, captured):
    draw = random.Random(1)
    paths = PATHS if mode == "cost" else (mode,)
    for _ in range(60):
        rows, limits, costs = random_case(draw, past=True)
        plan = route(rows, limits, costs, mode, regroup, captured)
        best = best_of_neighbours(rows, limits, costs, paths, regroup, captured)
        assert spent(plan, regroup) == pytest.approx(best, rel=1e-9)


def test_static_groups_are_the_best_of_all_partitions():
    """Where rows see what they feed, a dense group costs by its count and longest row: neighbours are exact."""
    draw = random.Random(2)
    for _ in range(60):
        rows, limits, costs = random_case(draw, past=False)
        best = best_of_all_partitions(rows, limits, costs, ("static",))
        assert route(rows, limits, costs, "static").seconds == pytest.approx(best, rel=1e-9)


def test_packed_groups_are_the_best_of_all_partitions_while_all_fit():
    draw = random.Random(3)
    for _ in range(60):
        rows, limits, costs = random_case(draw, past=True)
        limits = replace(limits, max_tokens=16384)
        best = best_of_all_partitions(rows, limits, costs, ("eager",))
        assert route(rows, limits, costs, "eager").seconds == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("costs", [CUDA, None], ids=["default", "random"])
@pytest.mark.parametrize("past", [False, True])
def test_the_gap_to_all_partitions_is_small(costs, past):
    """Mixed paths and token buckets break the proof: bounds on what that costs, which `_by_cost` names."""
    draw = random.Random(4)
    gaps = []
    for _ in range(150):
        rows, limits, drawn = random_case(draw, past)
        best = best_of_all_partitions(rows, limits, costs or drawn, PATHS)
        gaps.append(route(rows, limits, costs or drawn).seconds / best - 1)
    assert min(gaps) > -1e-9
    assert sum(gaps) / len(gaps) < 0.01 and max(gaps) < 0.16, (sum(gaps) / len(gaps), max(gaps))


@pytest.mark.parametrize("mode", MODES)
def test_every_row_once_within_the_limits(mode):
    draw = random.Random(6)
    for size in (1, 2, 31, 64, 256):
        rows = [RowSize(("row", i), n, n + 700, 1 + n // 2) for i, n in enumerate(draw.choices(range(1, 900), k=size))]
        limits = Limits(max_rows=draw.randint(1, 40), max_tokens=draw.choice((800, 4096)), max_length=1400)
        plan = route(rows, limits, CUDA, mode)
        held = [row for group in plan.groups for row in group.rows]
        assert len(held) == size and set(held) == set(rows)
        assert [row.fed for row in held] == sorted(row.fed for row in rows)
        for group in plan.groups:
            assert len(group.rows) <= limits.max_rows
            assert group.padded_tokens >= group.tokens
            if group.miss:
                assert len(group.rows) == 1 and group.path == "eager"
            else:
                assert group.padded_tokens <= limits.max_tokens
                assert group.seconds == pytest.approx(price(group.rows, limits, CUDA, group.path), rel=1e-9)
        assert plan == route(rows, limits, CUDA, mode)
        draw.shuffle(rows)
        again = route(rows, limits, CUDA, mode)
        assert cut(again) == cut(plan) and again.seconds == plan.seconds


@pytest.mark.parametrize("mode", MODES)
def test_no_rows_no_groups(mode):
    plan = route([], Limits(), CUDA, mode)
    assert plan.groups == () and plan.seconds == plan.run_seconds == plan.misses == 0
    assert plan.explain().startswith("0 rows in 0 groups, PWR as one 0.000, 0 misses")


def test_explain_is_an_aligned_table():
    title, head, *lines = (
        route(rows_of(8, 64, 8, 8, 9000), Limits(max_tokens=1000), flat((10, 1, 0), (99, 1, 0), (99, 2, 0)))
        .explain()
        .split("\n")
    )
    assert title.startswith("5 rows in 3 groups") and "round numbers" in title and "mode cost" in title
    for word in ("bucket", "rows", "PWR", "step waste", "ms/step", "reason"):
        column = head.index(word)
        assert all(line[column - 1] == " " and line[column] != " " for line in lines)
    assert lines[0].split()[:4] == ["static", "4x8x8", "3", "8"]
    assert "static 42000.000 ms" in lines[0] and "varlen 131000.000 ms" in lines[0]
    assert lines[2].split()[:5] == ["eager", "-", "1", "9000", "9000"]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: RowSize("a", 0, 4, 1), "fed must be a positive whole number, got 0"),
        (lambda: RowSize("a", 4, 4, 0), "steps must be a positive whole number, got 0"),
        (lambda: RowSize("a", 4, 3, 1), "attended must be at least fed=4, got 3"),
        (lambda: Limits(max_rows=0), "max_rows must be a positive whole number, got 0"),
        (lambda: Limits(max_tokens=1.5), "max_tokens must be a positive whole number, got 1.5"),
        (lambda: Limits(static_pwr=0.6), r"varlen_pwr must be a number in \[0.6, 1\], got 0.5"),
        (lambda: Limits(static_pwr=-1), r"static_pwr must be a number in \[0, 1\], got -1"),
        (lambda: route([], Limits(), CUDA, "fast"), "mode must be one of cost, pwr, static, varlen, eager, got 'fast'"),
        (lambda: route(2 * rows_of(4), Limits(), CUDA), "rows must have keys of their own, got 0 twice"),
    ],
)
def test_bad_arguments_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
