"""What holds for the model of every family: batches, padding, drafts, guidance, and what Dream does with slot 0."""

import warnings
from dataclasses import replace
from unittest import mock

import pytest
import torch
from scripted import EAGER, Written, differences, random_prompt, tiny

from seer_dllm import GenerationConfig, Profile, Truncation, generate
from seer_dllm.backbone import KeyValues, Packing, Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.config import CACHES
from seer_dllm.detection import find_boundary
from seer_dllm.row import Row

FAMILIES = ["llada", "llada_gqa", "dream", "lavida_llada", "lavida_dream", "mmada"]
every_family = pytest.mark.parametrize("family", FAMILIES)
every_cache = pytest.mark.parametrize("cache", CACHES)
pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")


@torch.inference_mode()
def step0_logits(family, prompts, cache="none", window=16):
    """Per row the logits `[window, V]` of the all-masked window, all rows in one packed forward."""
    backbone = tiny(family).backbone
    mask_id = backbone.config.mask_id
    config = GenerationConfig(window=window, cache=cache)
    rows = [
        Row(i, p, torch.full((window,), mask_id), config, None, mask_id, (), backbone.config.shift)
        for i, p in enumerate(prompts)
    ]
    cached = prefill(backbone, rows)
    for row in rows:
        row.begin_block()
    canvas = Canvas(backbone, rows, cached)
    logits = canvas.logits(canvas.forward(canvas.embeddings()), torch.arange(len(canvas.ids)))
    return logits.split(window)


@torch.inference_mode()
def dense_logits(family, prompt, ids):
    """Logits `[window, V]` that decide the window's slots: one row, everything computed, the shift by hand."""
    backbone = tiny(family).backbone
    hidden = backbone.run(torch.cat((prompt, backbone.embed(torch.tensor(ids)))), Packing([len(prompt) + len(ids)]))
    logits, shift = backbone.logits(hidden), int(backbone.config.shift)
    return logits[len(prompt) - shift : len(logits) - shift]


@every_cache
@every_family
def test_p1_a_batch_mate_changes_nothing(family, cache):
    """case P1: rows of 3 and 7 prompt tokens; nothing is padded, so nothing padded can be attended.

    1e-5 is meant relative to the largest logit: other sizes of a product round differently.
    """
    short, long, other = (random_prompt(i, n, family) for i, n in ((1, 3), (2, 7), (3, 11)))
    (alone,) = step0_logits(family, [short], cache)
    with_long = step0_logits(family, [short, long], cache)
    near = 1e-5 * alone.abs().max()
    assert (with_long[0] - alone).abs().max() < near
    assert (step0_logits(family, [other, short], cache)[1] - alone).abs().max() < near
    assert (step0_logits(family, [long], cache)[0] - with_long[1]).abs().max() < near
    assert (with_long[1] - alone).abs().max() > 1000 * near  # the logits do depend on the prompt
    if cache != "prompt":  # there the prompt does not see the window
        masks = [tiny(family).backbone.config.mask_id] * 16
        assert (dense_logits(family, short, masks) - alone).abs().max() < near


@every_cache
@every_family
def test_p2_equal_prompts(family, cache):
    """case P2: three equal prompts give three equal rows, equal to the row alone."""
    model, prompt = tiny(family), random_prompt(4, 6, family)
    config = GenerationConfig(window=24, steps=12, block=12, cache=cache)
    (alone,) = generate(model, [prompt], config=config, truncation=None)
    rows = generate(model, [prompt] * 3, config=config, truncation=None)
    assert [r.window_ids for r in rows] == [alone.window_ids] * 3
    (other,) = generate(model, [random_prompt(5, 6, family)], config=config, truncation=None)
    assert other.window_ids != alone.window_ids


@pytest.mark.parametrize("truncation", [None, Truncation(EAGER)])
@every_cache
@every_family
def test_p8_cache_and_batch(family, cache, truncation):
    """case P8: two rows, prompt of 5, window 16; each is the row alone, work and all."""
    model, prompts = tiny(family), [random_prompt(i, 5, family) for i in (6, 7)]
    config = GenerationConfig(window=16, steps=8, block=8, cache=cache)
    both = generate(model, prompts, config=config, truncation=truncation)
    for prompt, result in zip(prompts, both, strict=True):
        assert not differences(result, generate(model, [prompt], config=config, truncation=truncation)[0])
    assert both[0].window_ids != both[1].window_ids


@torch.inference_mode()
@every_family
def test_p12_padding_changes_nothing(family):
    """case P12: padded prompts are packed by their mask; a dense forward with that mask gives the same logits."""
    model = tiny(family)
    backbone, pad = model.backbone, model.backbone.config.eos_id
    ids, window = torch.tensor([17, 101, 5, 122]), torch.full((16,), backbone.config.mask_id)
    plain = backbone.logits(backbone.run(backbone.embed(torch.cat((ids, window))), Packing([20])))
    near = 1e-5 * plain.abs().max()
    for left in (True, False):
        pads = torch.full((5,), pad)
        padded = torch.cat((pads, ids) if left else (ids, pads))
        (packed,) = step0_logits(family, [model.embed_ids(padded[padded != pad])])
        assert torch.equal(packed, step0_logits(family, [model.embed_ids(ids)])[0])

        row, real = torch.cat((padded, window)), torch.cat((padded != pad, torch.ones(16, dtype=torch.bool)))
        packing = Packing([25])
        packing.positions = (real.cumsum(0) - 1).clamp(min=0).int()  # pads take no position
        hidden = backbone.run(backbone.embed(row), packing, mask=real.expand(1, 1, 25, 25))
        assert (backbone.logits(hidden[real]) - plain).abs().max() < near
        unmasked = backbone.logits(backbone.run(backbone.embed(row), packing)[real])
        assert (unmasked - plain).abs().max() > 1000 * near  # the mask is what keeps the pads out


@every_cache
@every_family
def test_drafts_and_infilling(family, cache):
    """Words in the middle of the window stay, and what is written around them depends on them."""
    model, mask = tiny(family), tiny(family).backbone.config.mask_id
    prompts = [random_prompt(i, 5, family) for i in (8, 9)]
    draft, written = [mask] * 5 + [3, 4, 5, mask, 6], Written()
    config = GenerationConfig(window=16, block=8, steps=16, cache=cache)
    given = {"config": config, "truncation": None}
    filled, free = generate(model, prompts, **given, drafts=[draft, None], on_step=written)
    for ids in written.ids[0]:
        assert (ids[5:8], ids[9]) == ([3, 4, 5], 6)
    known = int(model.backbone.config.shift and cache == "prompt")  # the prefill writes slot 0
    assert (filled.steps, free.steps) == (12 - known, 16 - known)
    assert not differences(filled, generate(model, prompts[:1], **given, drafts=[draft])[0])
    assert not differences(free, generate(model, prompts[1:], **given)[0])
    assert filled.window_ids != generate(model, prompts[:1], **given)[0].window_ids


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@every_family
def test_the_first_step_around_a_draft(family, cache):
    """One slot a step. What comes behind the draft is predicted from it, in Dream by the logits of its last word."""
    model, mask = tiny(family), tiny(family).backbone.config.mask_id
    prompt, draft, written = random_prompt(10, 5, family), [7] + [mask] * 3 + [3, 4, 5, 6] + [mask] * 8, Written()
    masked, seen, plain = [1, 2, 3, *range(8, 16)], [], Canvas.logits

    def spied(canvas, hidden, slots):
        seen.append((slots.tolist(), plain(canvas, hidden, slots)))
        return seen[-1][1]

    config = GenerationConfig(window=16, block=16, steps=16, cache=cache)
    with mock.patch.object(Canvas, "logits", spied):
        generate(model, [prompt], config=config, truncation=None, drafts=[draft], on_step=written)
    want = dense_logits(family, prompt, draft)
    slots, logits = seen[0]
    assert slots == masked and (logits - want[masked]).abs().max() < 1e-4 * want.abs().max()
    best = want.softmax(-1).max(-1)
    slot = max(masked, key=lambda i: float(best.values[i]))
    draft[slot] = int(best.indices[slot])
    assert written.ids[0][0] == draft


@every_family
def test_guidance_by_hand(family):
    """un + (scale + 1) * (cond - un), where un has masks for a prompt."""
    model, mask = tiny(family), tiny(family).backbone.config.mask_id
    prompt, written = random_prompt(11, 6, family), Written()
    config = GenerationConfig(window=16, cfg_scale=1.5)
    generate(model, [prompt], config=config, truncation=None, on_step=written)
    ids = [mask] * 16
    cond, un = (dense_logits(family, p, ids) for p in (prompt, model.backbone.embed(torch.tensor([mask] * 6))))
    best = (un + 2.5 * (cond - un)).softmax(-1).max(-1)
    slot = int(best.values.argmax())
    ids[slot] = int(best.indices[slot])
    assert written.ids[0][0] == ids


@pytest.mark.parametrize("step0", ["carry", "restart"])
@every_cache
@every_family
def test_the_twin_is_cut_alike(family, cache, step0):
    """The row's own curve decides; in every forward its twin has as many tokens as the row, fed and cached."""
    model, prompt, seen = tiny(family), random_prompt(12, 6, family), []
    plain_run = model.backbone.run

    def run(hidden, packing, *args, past=None, **more):
        seen.append((packing.lengths, (0, 0) if past is None else past.packing.cached))
        return plain_run(hidden, packing, *args, past=past, **more)

    config = GenerationConfig(window=48, block=16, steps=24, cfg_scale=1.0, cache=cache)
    truncation = Truncation(EAGER, step0, safety_net=False)
    with (
        mock.patch.object(model.backbone, "run", run),
        mock.patch("seer_dllm.denoise.find_boundary", return_value=([20], [5.0])),
    ):
        (result,) = generate(model, [prompt], config=config, truncation=truncation)
    assert (result.truncated, result.window_tokens) == (True, 32)
    assert all(fed[0] == fed[1] and past[0] == past[1] for fed, past in seen)
    totals = [fed[0] + past[0] for fed, past in seen]
    prefilled = [6] * (cache == "prompt")
    assert totals == [*prefilled, 6 + 48] + [6 + 32] * (len(totals) - 1 - len(prefilled))
    assert result.forwards == len(seen) - (step0 == "carry")


@pytest.mark.parametrize("cache", ["none", "prompt"])
@every_family
def test_five_ragged_rows_restart_as_stock_on_their_short_windows(family, cache):
    """Rows of 1 to 12 prompt tokens whose ends lie all over the window: stock with window', block' and steps'.

    By hand, from (window, block, steps, boundary): up to one block a single one, rounded up to 8 with its share of the
    steps; beyond it whole blocks with the steps each had.
    """
    model = tiny(family)
    plan = [  # window, block, steps, boundary -> window', block', steps'
        ((48, 16, 24, 20), (32, 16, 16)),
        ((48, 16, 24, 3), (8, 8, 4)),
        ((32, 32, 16, 17), (24, 24, 12)),
        ((40, 8, 20, 25), (32, 8, 16)),
        ((24, 24, 24, 1), (8, 8, 8)),
    ]
    prompts = [random_prompt(20 + i, n, family) for i, n in enumerate((4, 1, 12, 6, 9))]
    full = [GenerationConfig(window=w, block=b, steps=s, cache=cache) for (w, b, s, _), _ in plan]
    short = [GenerationConfig(window=w, block=b, steps=s, cache=cache) for _, (w, b, s) in plan]
    truncation = Truncation(EAGER, step0="restart", safety_net=False)
    boundaries = [row[0][3] for row in plan]
    with mock.patch("seer_dllm.denoise.find_boundary", return_value=(boundaries, [5.0] * 5)):
        cut = generate(model, prompts, config=full, truncation=truncation)
    for result, prompt, config in zip(cut, prompts, short, strict=True):
        (stock,) = generate(model, [prompt], config=config, truncation=None)
        assert result.truncated and result.window_ids == stock.window_ids
        assert result.steps == stock.steps and result.forwards == stock.forwards + 1


@every_cache
@every_family
def test_a_suppressed_end_is_never_predicted(family, cache):
    """Neither by a prefill that knows the first slot, nor where filters leave one token, which would be the end."""
    model, prompt = tiny(family), random_prompt(13, 5, family)
    config = GenerationConfig(window=1, cache=cache)
    (free,) = generate(model, [prompt], config=config, truncation=None)
    (wanted,) = free.window_ids
    with mock.patch.object(model.backbone, "config", replace(model.backbone.config, eos_id=wanted)):
        for filters in ({}, {"top_k": 1}, {"top_p": 0.0}, {"top_k": 1, "temperature": 0.1}):
            suppressed = replace(config, suppress_eos=True, **filters)
            (result,) = generate(model, [prompt], config=suppressed, truncation=None)
            if not filters:
                second = result.window_ids
                assert second != [wanted]
            assert result.window_ids == second, filters


@every_family
def test_the_prompt_cache_is_approximate_where_it_was_not_trained(family):
    model, prompt = tiny(family), [random_prompt(14, 4, family)]
    config = GenerationConfig(window=8, steps=1, cache="prompt")
    if family.startswith("lavida"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            generate(model, prompt, config=config)
    else:
        name = model.family.name
        with pytest.warns(UserWarning, match=f"the prompt cache is an approximation for {name} models"):
            generate(model, prompt, config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cache in ("none", "prefix", "dual"):
            generate(model, prompt, config=replace(config, cache=cache))


# Slot 0 is far quieter than all others, of which the next eight are alike: the steepest jump of all is behind it.
# The answer's other slots vary, so that the end at 16 is a jump with more noise.
MISLEADING = [0.0] + [0.30] * 8 + [0.25, 0.35, 0.25, 0.35, 0.25, 0.35, 0.25] + [0.80] * 24


def test_slots_that_are_not_looked_at():
    profile = Profile(margin=0)
    curves, lengths = torch.tensor([MISLEADING] * 3), torch.tensor([40] * 3)
    boundaries, snrs = find_boundary(curves, lengths, profile, [0, 0, 1], [0, 1, 1])
    assert boundaries == [1, 16, 16]
    # 0.3 over the floor of 1e-3; 0.5125 over the deviation of one 0.30, three 0.35 and four 0.25, pooled with none
    assert snrs[0] == pytest.approx(300, rel=1e-5) and 10 < snrs[1] == snrs[2] < 20
    assert find_boundary(curves[:1], lengths[:1], profile, [30], [1])[0] == [40]  # none inside a draft


@pytest.mark.parametrize(
    ("family", "cache", "boundary"),
    [
        ("lavida_dream", "prompt", 16),
        ("dream", "prompt", 16),
        ("lavida_dream", "none", 1),
        ("lavida_dream", "dual", 1),
        ("lavida_llada", "prompt", 1),
    ],
)
def test_what_a_prefill_wrote_is_not_part_of_the_curve(family, cache, boundary):
    """With shifted logits and the prompt cached, slot 0 holds a word at step 0."""
    model, prompts = tiny(family), [random_prompt(i, 3 + i, family) for i in range(2)]
    config = GenerationConfig(window=40, block=40, cache=cache)
    before = [0 if cache == "prompt" else len(p) for p in prompts]
    packed = torch.tensor([x for n in before for x in [0.5] * n + MISLEADING])
    truncation = Truncation(Profile(margin=0), safety_net=False)
    with mock.patch.object(Probe, "mean", lambda probe: packed):
        results = generate(model, prompts, config=config, truncation=truncation)
    assert [r.boundary for r in results] == [boundary] * 2
    assert [r.window_tokens for r in results] == [16 if boundary == 16 else 8] * 2


DREAMS = pytest.mark.parametrize("family", ["dream", "lavida_dream"])


@torch.inference_mode()
def first_token(family, prompt) -> int:
    """What the last token of the prompt, computed alone, predicts."""
    backbone = tiny(family).backbone
    hidden = backbone.run(prompt, Packing([len(prompt)]), keep=KeyValues(Packing([len(prompt)])))
    return int(backbone.logits(hidden[-1:]).argmax())


@DREAMS
def test_the_prefill_writes_slot_0(family):
    """Before the first step, and the steps are made for the other slots."""
    prompts, written = [random_prompt(i, 3 + i, family) for i in range(3)], Written()
    config = GenerationConfig(window=16, steps=5, cache="prompt")
    results = generate(tiny(family), prompts, config=config, truncation=None, on_step=written)
    mask = tiny(family).backbone.config.mask_id
    for i, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        assert all(ids[0] == first_token(family, prompt) for ids in written.ids[i])
        assert written.filled(i, mask) == [4, 7, 10, 13, 16]  # three a step
        assert (result.steps, result.forwards) == (5, 6)


@DREAMS
@pytest.mark.parametrize("truncation", [None, "default"])
def test_a_window_of_one_slot(family, truncation):
    """The prefill is all that runs; beside a row that goes on."""
    prompts = [random_prompt(i, 4, family) for i in range(2)]
    configs = [GenerationConfig(window=n, steps=1, cache="prompt") for n in (1, 8)]
    (alone,) = generate(tiny(family), prompts[:1], config=configs[0], truncation=truncation)
    assert alone.window_ids == [first_token(family, prompts[0])]
    assert (alone.steps, alone.forwards, alone.token_forwards) == (0, 1, 4)
    both = generate(tiny(family), prompts, config=configs, truncation=truncation)
    assert not differences(both[0], alone) and both[1].forwards == 2


@DREAMS
def test_a_draft_in_slot_0_stays(family):
    config = GenerationConfig(window=8, steps=7, cache="prompt")
    prompt, drafts = random_prompt(0, 4, family), [[3], None]
    drafted, free = generate(tiny(family), [prompt] * 2, config=config, truncation=None, drafts=drafts)
    assert drafted.window_ids[0] == 3 != free.window_ids[0] == first_token(family, prompt)
    assert drafted.steps == free.steps == 7


@pytest.mark.parametrize(("family", "seed"), [("llada", 19), ("dream", 16)])  # no token is nearly sure
def test_samples_follow_what_the_filters_leave(family, seed):
    """400 seeds in one batch, beside a row that is not filtered: shares within four standard deviations."""
    prompt, n = random_prompt(seed, 5, family), 400
    settings = {"window": 1, "temperature": 0.5}
    configs = [GenerationConfig(**settings, top_k=3, seed=i) for i in range(n)]
    results = generate(tiny(family), [prompt] * (n + 1), config=[*configs, GenerationConfig(**settings)])
    drawn = torch.tensor([r.window_ids[0] for r in results[:n]])
    best = dense_logits(family, prompt, [tiny(family).backbone.config.mask_id])[0].topk(3)
    for token, p in zip(best.indices, (best.values / 0.5).softmax(-1).tolist(), strict=True):
        assert abs(float((drawn == token).double().mean()) - p) < 4 * (p * (1 - p) / n) ** 0.5
    assert torch.isin(drawn, best.indices).all()


@every_cache
@DREAMS
def test_without_a_prompt_slot_0_has_its_own_logits(family, cache):
    """Nothing is before it, and nothing is prefilled."""
    model, mask, written = tiny(family), tiny(family).backbone.config.mask_id, Written()
    draft, empty = [mask, 3] + [mask] * 6, random_prompt(0, 0, family)
    config = GenerationConfig(window=8, steps=1, cache=cache)
    given = {"config": config, "truncation": None}
    (alone,) = generate(model, [empty], **given, drafts=[draft], on_step=written)
    backbone = model.backbone
    with torch.inference_mode():
        own = backbone.logits(backbone.run(backbone.embed(torch.tensor(draft)), Packing([8])))
    want = torch.cat((own[:1], own[:-1])).argmax(-1).tolist()
    assert alone.window_ids == [want[0], 3, *want[2:]] and alone.forwards == 1
    both = generate(model, [random_prompt(1, 4, family), empty], **given, drafts=[None, draft])
    assert not differences(both[1], alone)
