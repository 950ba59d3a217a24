"""Fast-dLLM's caches: what each forward computes and attends to, in batches, when a window is cut and when it grows."""

from contextlib import contextmanager
from unittest import mock

import pytest
from reference import CachedRow
from scripted import EAGER, LAYERS, Call, Script, Scripted, Written, differences, random_prompt, tiny, words

from seer_dllm import GenerationConfig, Truncation, generate
from seer_dllm.canvas import Canvas

BLOCK_CACHES = ["prefix", "dual"]
FAMILIES = ["llada", "dream"]


@contextmanager
def forwards(model):
    """Per call of the backbone: number of layers, packed lengths, and per row the cached tokens that it attends to."""
    seen, plain = [], model.backbone.run

    def run(hidden, packing, start, stop, *, past, **more):
        if past is not None:
            tokens = past.packing.total
            assert len(past.layers) == LAYERS
            assert all(len(k) == len(v) == tokens for k, v in past.layers)
        seen.append((stop - start, packing.lengths, None if past is None else past.packing.cached))
        return plain(hidden, packing, start, stop, past=past, **more)

    with mock.patch.object(model.backbone, "run", run):
        yield seen


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
@pytest.mark.parametrize("truncation", [None, "carry", "restart"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_ragged_batch_are_the_rows_alone(family, truncation):
    """Other prompts, windows, blocks and steps, with guidance, sampling and thresholds, and other caches beside."""
    model = tiny(family)
    rows = [
        (3, {"window": 32, "block": 8, "steps": 16, "cache": "prefix"}),
        (9, {"window": 48, "block": 16, "steps": 12, "cache": "dual"}),
        (5, {"window": 24, "block": 12, "steps": 8, "cache": "prefix", "cfg_scale": 1.0}),
        (1, {"window": 40, "block": 8, "steps": 20, "cache": "dual", "temperature": 0.8, "seed": 3, "top_p": 0.9}),
        (4, {"window": 32, "block": 16, "steps": 16}),
        (6, {"window": 32, "block": 16, "steps": 8, "cache": "prompt"}),
        (2, {"window": 32, "block": 16, "threshold": 0.3, "cache": "dual"}),
        (7, {"window": 32, "block": 16, "steps": 16, "threshold": 0.3, "hold_back": True, "cache": "prefix"}),
        (1, {"window": 32, "block": 16, "factor": 1.0, "cache": "prefix"}),
        (8, {"window": 32, "block": 16, "steps": 12, "schedule": "dream", "cache": "dual", "commit": "entropy"}),
    ]
    prompts = [random_prompt(i, length, family) for i, (length, _) in enumerate(rows)]
    configs = [GenerationConfig(**settings) for _, settings in rows]
    how = None if truncation is None else Truncation(EAGER, truncation)
    together, written = Written(), Written()
    with forwards(model) as seen:
        results = generate(model, prompts, config=configs, truncation=how, on_step=together)
    assert sum(layers * sum(fed) for layers, fed, _ in seen) == sum(r.token_forwards for r in results) * LAYERS
    for i, result in enumerate(results):
        (alone,) = generate(model, [prompts[i]], config=configs[i], truncation=how, on_step=written)
        assert not differences(result, alone), f"row {i}"
        assert together.ids[i] == written.ids[0]
        written.ids.clear()
    assert len({tuple(r.window_ids) for r in results}) == len(rows)
    if truncation is not None:
        assert any(r.truncated for r in results)


# Prompt of 5 and a window of 16 in blocks of 8, 4 steps each: 21 tokens begin a block.
PLANS = [
    ("none", {}, [21] * 8),
    ("prefix", {}, [21, 16, 16, 16, 21, 8, 8, 8]),
    ("dual", {}, [21, 8, 8, 8, 21, 8, 8, 8]),
    ("prefix", {"steps": 2}, [21, 21]),  # a step a block: nothing to be cached
    ("prefix", {"block": 16}, [21] + [16] * 7),
    ("dual", {"block": 4, "steps": 8}, [21, 4] * 4),
    ("dual", {"cfg_scale": 1.0}, [42, 16, 16, 16, 42, 16, 16, 16]),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("cache", "more", "lengths"), PLANS)
def test_what_is_computed(family, cache, more, lengths):
    config = GenerationConfig(**{"window": 16, "block": 8, "steps": 8, "cache": cache} | more)
    with forwards(tiny(family)) as seen:
        (result,) = generate(tiny(family), [random_prompt(0, 5, family)], config=config, truncation=None)
    assert [sum(fed) for _, fed, _ in seen] == lengths
    assert (result.token_forwards, result.forwards, result.steps) == (sum(lengths), len(lengths), len(lengths))
    twins = 2 if "cfg_scale" in more else 1
    for _, fed, past in seen:  # fed or cached, every token is there once
        assert sum(fed) + sum(past or ()) == 21 * twins


@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_that_a_draft_fills_cost_nothing(family, cache):
    """The draft fills block 0 and the first half of block 1, whose full forward sees it; it stays."""
    model, draft = tiny(family), [5] * 12
    cached, plain = Written(), Written()
    given = {"truncation": None, "drafts": [draft]}
    config = GenerationConfig(window=24, block=8, steps=6, cache=cache)
    with forwards(model) as seen:
        (result,) = generate(model, [random_prompt(0, 5, family)], config=config, on_step=cached, **given)
    assert result.window_ids[:12] == draft
    assert [sum(fed) for _, fed, _ in seen] == {"prefix": [29, 16, 29, 8], "dual": [29, 8, 29, 8]}[cache]
    config = GenerationConfig(window=24, block=8, steps=6)
    generate(model, [random_prompt(0, 5, family)], config=config, on_step=plain, **given)
    assert cached.ids[0][0] == plain.ids[0][0]


@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_prompt(family, cache):
    """In the first block a prefix cache has nothing to hold then; alone and beside a row with a prompt that leaves."""
    model, empty = tiny(family), random_prompt(0, 0, family)
    configs = [GenerationConfig(window=16, block=8, steps=steps, cache=cache) for steps in (2, 16)]
    prompts, drafts = [random_prompt(1, 4, family), empty], [None, [7]]  # without the 7 all slots would be alike
    with forwards(model) as seen:
        (alone,) = generate(model, [empty], config=configs[1], truncation=None, drafts=[[7]])
    assert [sum(fed) for _, fed, _ in seen] == [16] + [{"prefix": 16, "dual": 8}[cache]] * 6 + [16] + [8] * 7
    assert not differences(generate(model, prompts, config=configs, truncation=None, drafts=drafts)[1], alone)


@pytest.mark.parametrize(
    ("config", "content", "kept", "later"),
    [
        # one block of 16 slots, a slot a step
        ({"window": 64}, 12, 16, {"prefix": [16] * 15, "dual": [16] * 15}),
        # two blocks of 16 slots, 4 steps each
        (
            {"window": 64, "block": 16, "steps": 16},
            20,
            32,
            {"prefix": [32] * 3 + [37] + [16] * 3, "dual": [16] * 3 + [37] + [16] * 3},
        ),
    ],
)
@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("step0", [None, "carry", "restart"])
def test_no_work_on_removed_slots(config, content, kept, later, cache, step0):
    """case P9, and the way step 0 goes where none is asked for: anew."""
    scripted = Scripted([Script(content)])
    result = scripted.answer(GenerationConfig(**config, cache=cache), Truncation(step0=step0))
    assert (result.window_tokens, result.ids) == (kept, words(content))
    probe, first, *others = scripted.backbone.calls
    assert probe == Call(0, 7, (5 + 64,))
    assert first == Call(7 if step0 == "carry" else 0, LAYERS, (5 + kept,))
    assert others == [Call(0, LAYERS, (n,)) for n in later[cache]]
    assert result.token_forwards * LAYERS == scripted.backbone.token_layers
    assert result.forwards == len(scripted.backbone.calls) - (step0 == "carry")


@pytest.mark.parametrize("prompt", [6, 1])
@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_row_against_a_dense_model(family, cache, step0, prompt):
    """48 slots in blocks of 8, 24 of them kept: ids after every step, logits, and what is attended to, layer by layer.

    The reference (float64, one row, no packing) computes layers 0..6 of the full window, cuts, and computes the rest
    on what is kept; keys and values of all layers are those of the kept tokens.
    """
    model, embedded = tiny(family), random_prompt(11, prompt, family)
    config = GenerationConfig(window=48, block=8, steps=24, cache=cache)
    reference = CachedRow(model.backbone, embedded, window=24, block=8, per_step=2, dual=cache == "dual")
    reference.answer(full_window=48 if step0 == "carry" else None)
    history, logits, past = Written(), [], []

    plain_logits, plain_run = Canvas.logits, model.backbone.run

    def spied_logits(canvas, hidden, slots):
        out = plain_logits(canvas, hidden, slots)
        logits.append((slots.tolist(), out.clone()))
        return out

    def spied_run(*args, **kwargs):
        past.append(kwargs["past"])
        return plain_run(*args, **kwargs)

    truncation = Truncation(EAGER, step0, safety_net=False)
    with (
        mock.patch("seer_dllm.denoise.kept_window", return_value=(24, 8)),
        mock.patch.object(Canvas, "logits", spied_logits),
        mock.patch.object(model.backbone, "run", spied_run),
    ):
        (result,) = generate(model, [embedded], config=config, truncation=truncation, on_step=history)
    assert result.truncated and result.window_tokens == 24 and result.steps == 12
    assert history.ids[0] == reference.history

    for (slots, got), want in zip(logits, reference.logits, strict=True):
        assert (got - want[slots]).abs().max() < 1e-3
    probe, *steps = past
    assert probe is None
    if step0 == "carry":
        assert steps.pop(0) is None  # the second half of step 0
        steps.insert(0, None)
    for got, want in zip(steps, reference.attended, strict=True):
        tokens = len(want[0][0])
        if tokens == 0:
            assert got is None
            continue
        assert got.packing.cached == (tokens,)
        for ours, theirs in zip(got.layers, want, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert a.shape[1:] == b.shape[1:] and (a[:tokens] - b).abs().max() < 1e-3


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
def test_rows_that_leave_take_their_cache_along():
    """After every change the cache holds the rows that go on with it and no others, and what is laid is theirs."""
    model, plain, seen = tiny("llada"), Canvas.remade, []

    def remade(canvas, rows, *others, **layout):
        new = plain(canvas, rows, *others, **layout)
        held = {lane.row for lane in new.cache.pieces}
        assert held == {row for row in rows if row.reuses}
        want = sum(len(row.prompt) + row.window - (row.span[1] - row.span[0]) for row in held)
        assert want == (0 if new.past is None else sum(new.past.packing.cached))
        seen.append((len(rows), len(held)))
        return new

    settings = [("prefix", 4), ("dual", 8), ("none", 8), ("prompt", 12), ("prefix", 16)]
    configs = [GenerationConfig(window=16, block=8, steps=steps, cache=cache) for cache, steps in settings]
    with mock.patch.object(Canvas, "remade", remade):
        generate(model, [random_prompt(i, 3 + i) for i in range(5)], config=configs, truncation=None)
    assert [rows for rows, _ in seen] == sorted((rows for rows, _ in seen), reverse=True)
    # Each kind of cache has a group of its own: those of one row are never laid anew.
    assert {rows for rows, _ in seen} == {3, 2, 1}
    assert max(held for _, held in seen) == 3


def fed(scripted: Scripted) -> list[tuple[int, int]]:
    """First layer and tokens of each pass of the only row."""
    return [(call.start, sum(call.lengths)) for call in scripted.backbone.calls]


@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("shift", [False, True])
def test_early_net_grows_by_full_forwards(cache, step0, shift):
    """Windows of 8, 16 and 32 slots show no end; nothing of them is kept when the one of 64 is written."""
    scripted = Scripted([Script(40, jump=8)], shift=shift)
    result = scripted.answer(GenerationConfig(window=128, cache=cache), Truncation(step0=step0))
    assert (result.net_early, result.net_late, result.window_tokens, result.ids) == (3, 0, 64, words(40))
    first = (7 if step0 == "carry" else 0, 13)
    assert fed(scripted) == [(0, 133), first, (0, 21), (0, 37), (0, 69)] + [(0, 64)] * 63
    assert (result.net_forwards, result.net_token_forwards) == (3, 21 + 37 + 69)


@pytest.mark.parametrize("cache", BLOCK_CACHES)
@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("shift", [False, True])
def test_late_net_begins_a_block_with_a_full_forward(cache, step0, shift):
    """8 slots are filled without an end; 8, 16 and 32 new ones follow, four slots a step."""
    scripted, written = Scripted([Script(6, jump=8, later=40)], shift=shift), Written()
    config = GenerationConfig(window=128, steps=32, cache=cache)
    result = scripted.answer(config, Truncation(step0=step0), on_step=written)
    assert (result.net_early, result.net_late, result.ids) == (0, 3, words(40))
    assert written.per_step() == [4] * 16
    blocks = [[(0, 5 + end)] + [(0, new)] * (new // 4 - 1) for new, end in ((8, 8), (8, 16), (16, 32), (32, 64))]
    blocks[0][0] = (7 if step0 == "carry" else 0, 13)
    assert fed(scripted) == [(0, 133), *(call for block in blocks for call in block)]
    # 1, 3 and 7 steps of 8, 16 and 32 slots follow a full forward each
    assert (result.net_forwards, result.net_token_forwards) == (14, 21 + 8 + 37 + 3 * 16 + 69 + 7 * 32)


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
@pytest.mark.parametrize("cache", ["prompt", *BLOCK_CACHES])
@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("shift", [False, True])
def test_growing_rows_disturb_nobody(cache, step0, shift):
    """One grows early, one late, one leaves early, one is not cut; beside rows without a cache."""
    scripts = [Script(40, jump=8), Script(6, jump=8, later=40), Script(5), Script(128)] * 2
    configs = [GenerationConfig(window=128, steps=64, block=64, cache=c) for c in (cache, "none") for _ in range(4)]
    scripted, truncation = Scripted(scripts, shift=shift), Truncation(step0=step0)
    together = scripted.answers(configs, truncation)
    assert [r.useful_tokens for r in together] == [40, 40, 5, 128] * 2
    for script, config, result in zip(scripts, configs, together, strict=True):
        assert not differences(result, Scripted([script], shift=shift).answer(config, truncation))
    assert sum(r.token_forwards for r in together) * LAYERS == scripted.backbone.token_layers
