"""Rows in groups: the loop as a stepper, what moves between groups, attention of packed and padded rows."""

import random
from unittest import mock

import pytest
import torch
from scripted import LAYERS, Script, Scripted, differences, random_prompt, tiny, words
from workloads import COSTS, Recorder, family_cases, random_routing, run_in_waves, scripted_cases

from seer_dllm import GenerationConfig, Truncation, attention, denoise, groups
from seer_dllm.api import prepare, result_of
from seer_dllm.attention import RUNS, attend, library
from seer_dllm.backbone import DevicePacking, DeviceRoom, Packing, Room
from seer_dllm.canvas import Canvas, Dense, prefill
from seer_dllm.config import CACHES
from seer_dllm.denoise import Loop
from seer_dllm.groups import Routing
from seer_dllm.host import HostRead
from seer_dllm.router import MODES, Limits

FAMILIES = ["llada", "llada_gqa", "dream", "lavida_llada", "lavida_dream", "mmada"]
pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")


@pytest.fixture(scope="module")
def pool():
    return [scripted_cases(40, seed) for seed in (0, 1)]  # both shifts


def test_both_shifts_are_in_the_pool(pool):
    assert {cases[0].model.backbone.config.shift for cases in pool} == {False, True}


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_random_workloads_equal_one_by_one(pool, first):
    """Any batch, mode, limits and time of arrival, captured or not: tokens and work are those of the row alone."""
    for seed in range(first, first + 50):
        draw = random.Random(seed)
        cases = draw.sample(pool[seed % 2], draw.randint(1, 6))
        routing = random_routing(draw, Recorder() if draw.random() < 0.4 else None)
        results, _ = run_in_waves(cases, routing, draw)
        for case, result in zip(cases, results, strict=True):
            assert not differences(result, case.alone), (seed, case)


@pytest.mark.parametrize("family", FAMILIES)
def test_real_models_equal_one_by_one(family):
    cases, paths = family_cases(family, 12, 5), set()
    for seed, mode in enumerate(MODES):
        draw = random.Random(seed)
        routing = Routing(Limits(max_rows=4, max_tokens=256), COSTS, mode, Recorder() if seed % 2 else None)
        some = draw.sample(cases, 6)
        results, loop = run_in_waves(some, routing, draw)
        paths |= set(loop.counts.tokens)
        for case, result in zip(some, results, strict=True):
            assert not differences(result, case.alone), (mode, case)
    assert paths == {"static", "varlen", "eager", "step 0"}


@pytest.mark.parametrize("cache", ["none", "prompt"])
def test_the_static_path_computes_the_same_logits(cache):
    """Rows of 3, 7 and 12 prompt tokens and windows of 8, 16 and 8, padded beyond their need."""
    model, config = tiny("llada_gqa"), [GenerationConfig(window=g, cache=cache) for g in (8, 16, 8)]
    rows, _ = prepare(model, [random_prompt(i, n, "llada_gqa") for i, n in enumerate((3, 7, 12))], None, config, None)
    with torch.inference_mode():
        held = prefill(model.backbone, rows)
        tight = Canvas(model.backbone, rows, held)
        dense = Dense(4, 20, 14) if cache == "prompt" else Dense(4, 30, 0)
        padded = tight.remade(rows, dense=dense)
        slots = torch.arange(32)
        logits = [c.logits(c.forward(c.embeddings()), slots) for c in (tight, padded)]
    assert padded.packing.total == 4 * dense.fed and padded.mask.shape == (4, 1, 1, dense.past + dense.fed)
    assert padded.mask.sum(-1).flatten().tolist() == [11, 23, 20, 1]  # nobody sees padding; a dead lane sees itself
    assert (logits[0] - logits[1]).abs().max() < 1e-5 * logits[0].abs().max()
    even = tight.remade([rows[0], rows[2]], dense=Dense(2, 20, 0) if cache == "none" else Dense(2, 8, 12))
    assert even.mask is not None
    assert tight.remade(rows[:1], dense=Dense(1, 11, 0) if cache == "none" else Dense(1, 8, 3)).mask is None


def attention_case(dtype=torch.float32):
    """Query, key and value of rows of 3, 3, 0, 5, 0 and 5 tokens behind 2, 2, 4, 0, 0 and 1 cached ones."""
    generator = torch.Generator().manual_seed(3)
    packing, past_packing = Packing([3, 3, 0, 5, 0, 5]), Packing([2, 2, 4, 0, 0, 1])
    q = torch.randn(16, 4, 8, generator=generator, dtype=dtype)
    k, v = (torch.randn(16, 2, 8, generator=generator, dtype=dtype) for _ in range(2))
    past = tuple(torch.randn(9, 2, 8, generator=generator, dtype=dtype) for _ in range(2))
    return q, k, v, packing, past, past_packing


# Places of the nine in a `Room` for these rows, of 5, 5, 4, 5, 0 and 6 keys.
CACHED_AT = torch.tensor([0, 1, 5, 6, 10, 11, 12, 13, 19])


def attention_by_hand(q, k, v, packing, past=None, past_packing=None):
    """float64, a row and a head at a time; two query heads share a key head."""
    out = []
    for b, n in enumerate(packing.lengths):
        own = slice(packing.starts[b], packing.starts[b] + n)
        keys, values = k[own], v[own]
        if past is not None:
            cached = slice(past_packing.starts[b], past_packing.starts[b + 1])
            keys, values = torch.cat((past[0][cached], keys)), torch.cat((past[1][cached], values))
        for i in range(own.start, own.stop):
            heads = []
            for h in range(q.shape[1]):
                weights = (keys[:, h // 2].double() @ q[i, h].double() / q.shape[-1] ** 0.5).softmax(0)
                heads.append(weights @ values[:, h // 2].double())
            out.append(torch.cat(heads))
    return torch.stack(out)


def looped_varlen(q, k, v, cu_q, cu_k, longest_q, longest_k):
    """A library's call, by its own arguments alone."""
    assert longest_q == int(cu_q.diff().max()) and longest_k == int(cu_k.diff().max())
    out = torch.empty_like(q)
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        row = [t.transpose(0, 1)[None] for t in (q[a:b], k[c:d], v[c:d])]
        out[a:b] = torch.nn.functional.scaled_dot_product_attention(*row, enable_gqa=True)[0].transpose(0, 1)
    return out


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("way", ["apart", "runs", "library", "on the device"])
def test_packed_attention(way, cached, monkeypatch):
    """Neighbours of one length share a call, empty rows cost nothing, and no library gives anything else; nor do sizes
    on the device, with room for 2 more rows, 3 more tokens and 5 more cached ones, all of them NaN.
    """
    q, k, v, packing, past, past_packing = attention_case()
    given = (past, past_packing) if cached else (None, None)
    want = attention_by_hand(q, k, v, packing, *given)
    if way == "library":
        monkeypatch.setattr(attention, "library", lambda *_: ("by its own arguments", looped_varlen))
    room = Room(past_packing.lengths, packing.lengths)
    if cached and way != "apart":
        given = tuple(torch.full((25, 2, 8), torch.nan).index_copy(0, CACHED_AT, t) for t in past), room
    if way == "on the device":
        wide = DevicePacking(8, 19, 14 if cached else 0)
        wide.take(packing, room if cached else None)
        if cached:
            nan = torch.full((8, 2, 8), torch.nan)
            given = tuple(torch.cat((t, nan)) for t in given[0]), wide.room
        more = (torch.cat((t, torch.full((3, *t.shape[1:]), torch.nan))) for t in (q, k, v))
        got = attend(*more, wide, *given)[:16]
    else:
        got = attend(q, k, v, packing, *given)
    assert got.shape == (16, 32) and (got - want).abs().max() < 1e-5
    if cached:  # nothing but the rows' own keys and values is written
        kept = given[0] if way == "apart" else tuple(t[CACHED_AT] for t in given[0])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, attention_case()[4], strict=True))


def test_a_room_by_hand():
    """Rows of 3, 0 and 2 tokens behind 1, 2 and 0 cached ones."""
    room = Room([1, 2, 0], [3, 0, 2])
    assert (room.lengths, room.cached, room.starts, room.total) == ((4, 2, 2), (1, 2, 0), (0, 4, 6, 8), 8)
    assert room.keys_at.tolist() == [1, 2, 3, 6, 7] and room.cu_seqlens.tolist() == [0, 4, 6, 8]
    assert Room([], []).keys_at.tolist() == []
    wide = DeviceRoom(4, 7, 5)
    wide.take(room, 5)
    assert wide.cu_seqlens.tolist() == [0, 4, 6, 8, 8]
    assert wide.keys_at.tolist() == [1, 2, 3, 6, 7, 10, 11]


def test_runs_of_equal_rows():
    packing, past = Packing([3, 3, 0, 5, 0, 5]), Packing([2, 2, 4, 0, 0, 1])
    assert packing.runs(packing) == [(0, 2), (3, 4), (5, 6)]
    assert packing.runs(past) == packing.runs(Room(past.lengths, packing.lengths)) == [(0, 2), (3, 4), (5, 6)]
    even = Packing([4, 4, 4])
    assert even.runs(even) == [(0, 3)]
    assert even.runs(Packing([1, 2, 2])) == even.runs(Room([1, 2, 2], even.lengths)) == [(0, 1), (1, 3)]
    assert even.runs(even) == [(0, 3)]  # not those of the room
    for none in ([0, 0], []):
        assert Packing(none).runs(Packing(none)) == []
    assert attend(*(torch.ones(0, 2, 8) for _ in range(3)), Packing([0, 0])).shape == (0, 16)


def test_the_library_is_chosen_once_and_named():
    assert library("cpu", torch.float32) == (RUNS, None) == library("cuda", torch.float32)
    assert library("cuda", torch.bfloat16) is library("cuda", torch.bfloat16)


def test_the_router_is_asked_only_when_something_changed():
    """Three rows of 4, 4 and 12 steps: one plan after step 0, one when two left, and one when the last did."""
    scripted = Scripted([Script(4), Script(4), Script(12)])
    configs = [GenerationConfig(window=n, steps=n) for n in (4, 4, 12)]
    rows, profile = prepare(scripted.model, [scripted.prompt(i) for i in range(3)], None, configs, None)
    loop, asked, plain = Loop(scripted.backbone, Routing(costs=COSTS)), [], denoise.parts_of

    def counted(rows, routing):
        asked.append(len(rows))
        return plain(rows, routing)

    with mock.patch("seer_dllm.denoise.parts_of", counted):
        loop.add(rows, profile)
        finished = [len(loop.step()) for _ in range(12)]
    assert finished == [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1] and not loop.rows
    assert asked == [3, 1, 0] and loop.counts.plans == 3


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
@pytest.mark.parametrize("mode", ["varlen", "static"])
@pytest.mark.parametrize("cache", CACHES)
def test_groups_that_change_nothing_are_not_laid_anew(mode, cache):
    """Rows of one size are a dense batch as they lie; packed rows may stand in any order."""
    model = tiny("llada_gqa")
    sizes = [(8, 7), (8, 7), (8, 7)] if mode == "static" else [(16, 7), (8, 20), (8, 3)]
    prompts = [random_prompt(i, n, "llada_gqa") for i, (_, n) in enumerate(sizes)]
    configs = [GenerationConfig(window=n, block=n, steps=8, cache=cache) for n, _ in sizes]
    rows, profile = prepare(model, prompts, None, configs, None)
    loop, plain, laid = Loop(model.backbone, Routing(costs=COSTS, mode=mode)), Canvas.remade, []

    def counted(canvas, rows, *others, **layout):
        laid.append(len(rows))
        return plain(canvas, rows, *others, **layout)

    loop.add(rows, profile)
    with mock.patch.object(Canvas, "remade", counted):
        while loop.rows:
            loop.step()
    # Rows of a block cache feed less after their first step.
    assert laid == ([3] if cache in ("prefix", "dual") else [])
    assert loop.counts.padded_tokens == 0


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
@pytest.mark.parametrize("routing", [None, Routing(), Routing(costs=COSTS, mode="cost")])
def test_no_room_for_keys_of_rows_without_a_cache(routing):
    """Long rows without a cache beside short ones with one: what is held is what the latter's sequences need."""
    model = tiny("llada_gqa")
    caches = ["none", "prompt", "none", "dual", "prefix"]
    prompts = [random_prompt(i, 90 if cache == "none" else 6, "llada_gqa") for i, cache in enumerate(caches)]
    configs = [GenerationConfig(window=16, block=8, steps=8, cache=cache) for cache in caches]
    rows, profile = prepare(model, prompts, None, configs, None)
    loop, held = Loop(model.backbone, routing), []
    loop.add(rows, profile)
    while loop.rows:
        loop.step()
        for group in loop._groups:
            assert len({row.config.cache == "none" for row in group.canvas.rows}) == 1
            if group.canvas.past is not None:
                held.append(len(group.canvas.past.layers[0][0]))
    # Padded, where rows are dense: to the longest of them.
    assert 0 < max(held) <= 3 * (6 + 16)
    assert all(row.finished for row in rows)


def test_removed_rows_are_gone():
    """One before its first step, one in the middle; the third never notices."""
    scripted = Scripted([Script(9)] * 3)
    config = GenerationConfig(window=16, cache="prompt")
    rows, profile = prepare(scripted.model, [scripted.prompt(i) for i in range(3)], None, config)
    loop = Loop(scripted.backbone)
    loop.add(rows, profile)
    loop.remove(rows[0])
    loop.step()
    assert loop.rows == rows[1:]
    loop.remove(rows[1])
    scripted.backbone.calls.clear()
    while loop.rows:
        loop.step()
    assert {len(call.lengths) for call in scripted.backbone.calls} == {1}
    result = result_of(scripted.model, rows[2])
    assert result.ids == words(9) and not differences(result, Scripted([Script(9)]).answer(config))


def test_one_read_a_step():
    """One wait for step 0's boundaries however the rows differ, one for the net, and one for what each step wrote."""
    scripted = Scripted([Script(20), Script(30), Script(25)])
    config = GenerationConfig(window=64, steps=8)
    drafts = [None, [1, 2, 3], [1]]
    rows, profile = prepare(scripted.model, [scripted.prompt(i) for i in range(3)], None, config, Truncation(), drafts)
    loop, before = Loop(scripted.backbone), HostRead.waits
    loop.add(rows, profile)
    loop.step()
    assert HostRead.waits - before == 3
    loop.step()
    assert HostRead.waits - before == 4


def test_real_and_padded_tokens_are_counted():
    """Windows of 4 and 6 behind prompts of 5: step 0 packed, then a static group padded to 11 tokens a row."""
    scripted = Scripted([Script(4), Script(6)])
    configs = [GenerationConfig(window=4, steps=2), GenerationConfig(window=6, steps=2)]
    rows, profile = prepare(scripted.model, [scripted.prompt(i) for i in range(2)], None, configs, None)
    loop = Loop(scripted.backbone, Routing(costs=COSTS, mode="static"))
    loop.add(rows, profile)
    loop.step()
    loop.step()
    assert loop.counts.tokens == {"step 0": 20, "static": 20} and loop.counts.padded_tokens == 2
    assert not loop.rows and scripted.backbone.token_layers == (20 + 22) * LAYERS


def test_rows_with_guidance_keep_their_twin():
    cases = [(i, GenerationConfig(window=8, cfg_scale=s)) for i, s in enumerate((0.0, 1.0, 0.0))]
    rows, _ = prepare(tiny("llada"), [random_prompt(i, 4) for i, _ in cases], None, [c for _, c in cases], None)
    parts = groups.parts_of(rows, Routing(costs=COSTS, mode="static"))
    assert [([r.index for r in part.rows], part.path) for part in parts] == [([0, 2], "static"), ([1], "varlen")]
    assert groups.size_of(rows[1]).fed == 2 * 12


def test_a_model_without_masks_is_not_padded():
    backbone = mock.Mock(masks=False)
    for mode in ("static", "cost", "pwr"):
        with pytest.raises(ValueError, match="mode must be varlen or eager for a model that takes no mask, got"):
            Loop(backbone, Routing(mode=mode))
    with pytest.raises(ValueError, match="mode must be one of cost, pwr, static, varlen, eager, got 'dense'"):
        Routing(mode="dense")
