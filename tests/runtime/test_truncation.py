"""What is cut, when, and why not; the steps that are left; and rows of every kind in one batch."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from scripted import EAGER, EOS, LAYERS, MASK, Script, Scripted, Written, differences, llada, random_prompt, tiny, words

from seer_dllm import GenerationConfig, Profile, Truncation, generate
from seer_dllm.denoise import _noise_key

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")


@pytest.mark.parametrize(
    ("script", "config", "more", "reason"),
    [
        (Script(4), {"window": 24}, {}, "window too small"),
        (Script(4), {"window": 64, "suppress_eos": True}, {}, "EOS is suppressed"),
        (Script(4), {"window": 64, "defer_end": True}, {}, "EOS is suppressed"),
        (Script(4), {"window": 64}, {"truncation": None}, "truncation is off"),
        (Script(4), {"window": 64}, {"drafts": [torch.tensor([MASK] * 63 + [7])]}, "fixed text ends the window"),
        (Script(64), {"window": 64}, {}, "no jump found"),
        (Script(40), {"window": 64, "block": 32}, {}, "the answer needs the whole window"),
    ],
)
def test_why_a_window_is_not_cut(script, config, more, reason):
    """Nothing is cut, the reason is given, and the run is stock's, work included (except for the probe's record)."""
    scripted, stock = Scripted([script], margin=16), Scripted([script], margin=16)
    result = scripted.answer(GenerationConfig(**config), **more)
    assert (result.truncated, result.reason, result.extended) == (False, reason, 0)
    assert result.window_tokens == config["window"]
    plain = stock.answer(GenerationConfig(**config), None, drafts=more.get("drafts"))
    assert (result.window_ids, result.steps, result.forwards) == (plain.window_ids, plain.steps, plain.forwards)
    assert scripted.backbone.token_layers == stock.backbone.token_layers
    probed = reason in ("no jump found", "the answer needs the whole window")
    assert (result.boundary is not None) == (result.sparsity is not None) == probed


def test_a_window_one_slot_above_too_small_is_probed():
    result = Scripted([Script(4)], margin=16).answer(GenerationConfig(window=25))
    assert (result.boundary, result.window_tokens) == (4, 24)  # 4 + 16, rounded up to 8


@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize(
    ("fixed", "content", "kept"),
    [
        (20, 26, 32),
        (16, 16, 24),  # the draft fills what would be kept: one more slot at least
        (17, 20, 24),
        (20, 23, 24),
    ],
)
def test_drafts_are_never_cut(step0, fixed, content, kept):
    """The draft's words stay, and at least one slot behind them is left for the answer to end in.

    Slot 4 has the steepest jump of all, but inside the draft no end is looked for.
    """
    curve = tuple(0.1 if i < 4 else 0.78 if i < content else 0.8 for i in range(64))
    draft = torch.tensor([9] * fixed)
    scripted, written = Scripted([Script(content, curve=curve)] * 2), Written()
    # beside a row without a draft, which does end at slot 4 by its curve
    result, free = scripted.answers(
        GenerationConfig(window=64), Truncation(step0=step0, safety_net=False), drafts=[draft, None], on_step=written
    )
    assert (result.boundary, result.truncated, result.window_tokens) == (content, True, kept)
    assert result.window_ids == [9] * fixed + words(content)[fixed:] + [EOS] * (kept - content)
    assert all(ids[:fixed] == [9] * fixed for ids in written.ids[0])
    assert (free.boundary, free.window_tokens) == (4, 8)


def test_infilling_keeps_the_text_behind_masks():
    """The words around the text are filled in; the cut lies behind the text."""
    draft = torch.tensor([MASK] * 10 + [7, 7, 7])
    result = Scripted([Script(14)]).answer(GenerationConfig(window=64), drafts=[draft])
    assert (result.boundary, result.window_tokens) == (14, 16)
    assert result.window_ids == words(10) + [7, 7, 7] + [3] + [EOS] * 2
    early = Scripted([Script(4)]).answer(GenerationConfig(window=64), drafts=[draft])
    assert (early.truncated, early.reason) == (False, "no jump found")
    assert early.window_ids == words(4) + [EOS] * 6 + [7, 7, 7] + [EOS] * 51


def test_a_window_without_masks_is_left_alone():
    scripted = Scripted([Script(4)])
    draft = torch.tensor(words(10) + [EOS] * 54)
    result = scripted.answer(GenerationConfig(window=64), drafts=[draft])
    assert (result.steps, result.forwards, result.ids) == (0, 0, words(10))
    assert scripted.backbone.calls == []


# Hand-worked: s = steps / blocks. One block of w' slots: max(1, round(s * w' / block)); whole blocks keep s each.
PLANS = [
    # window, steps, block, boundary, policy, window', slots per step
    (128, 128, 128, 12, "rescale", 16, [1] * 16),
    (128, 32, 128, 12, "rescale", 16, [4] * 4),
    (512, 256, 128, 12, "rescale", 16, [2] * 8),
    (128, 4, 128, 12, "rescale", 16, [16]),
    (128, 20, 128, 20, "rescale", 24, [6] * 4),  # 20 * 24 / 128 = 3.75
    (64, 16, 32, 20, "rescale", 24, [4] * 6),
    (256, 64, 64, 70, "rescale", 128, [4] * 32),
    (192, 9, 64, 70, "rescale", 128, [22, 21, 21] * 2),
    (128, 32, 128, 12, "keep", 16, [1] * 16),
    (128, 8, 128, 12, "keep", 16, [2] * 8),
    (256, 64, 64, 70, "keep", 128, [2] * 64),
    (192, 9, 64, 70, "keep", 128, [13, 13, 13, 13, 12] + [16] * 4),
    (192, 3, 64, 70, "keep", 128, [32, 32, 64]),
]


@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize(("window", "steps", "block", "boundary", "policy", "kept", "per_step"), PLANS)
def test_steps_left_after_a_cut(window, steps, block, boundary, policy, kept, per_step, step0):
    scripted, written = Scripted([Script(boundary)]), Written()
    config = GenerationConfig(window=window, steps=steps, block=block)
    result = scripted.answer(config, Truncation(step0=step0, steps_policy=policy), on_step=written)
    assert (result.boundary, result.window_tokens, result.extended) == (boundary, kept, 0)
    assert written.per_step() == per_step
    assert result.steps == len(per_step)
    assert result.forwards == len(per_step) + (step0 == "restart")
    assert result.ids == words(boundary)


RESTARTS = [
    # window, steps, block, boundary -> window', steps', block' by hand, as above
    (64, 64, 64, 20, 24, 24, 24),
    (64, 16, 64, 33, 40, 10, 40),
    (64, 32, 16, 20, 32, 16, 16),
    (96, 24, 24, 10, 16, 4, 16),
]


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"cache": "prompt"},
        {"cache": "prefix"},
        {"cache": "dual"},
        {"cfg_scale": 1.5},
        {"temperature": 0.8, "seed": 3},
        {"schedule": "dream"},
        {"top_p": 0.9, "top_k": 20, "commit": "entropy"},
    ],
)
@pytest.mark.parametrize(("window", "steps", "block", "boundary", "kept", "kept_steps", "kept_block"), RESTARTS)
def test_restart_is_stock_on_the_short_window(window, steps, block, boundary, kept, kept_steps, kept_block, extra):
    config = GenerationConfig(window=window, steps=steps, block=block, **extra)
    truncation = Truncation(Profile(margin=0), step0="restart", safety_net=False)
    prompt = random_prompt(7, 9)
    with mock.patch("seer_dllm.denoise.find_boundary", return_value=([boundary], [5.0])):
        (cut,) = generate(llada(), [prompt], config=config, truncation=truncation)
    short = GenerationConfig(window=kept, steps=kept_steps, block=kept_block, **extra)
    (stock,) = generate(llada(), [prompt], config=short, truncation=None)
    assert cut.window_ids == stock.window_ids
    assert (cut.steps, cut.window_tokens) == (stock.steps, stock.window_tokens) == (kept_steps, kept)
    assert cut.forwards == stock.forwards + 1


def random_settings(generator) -> tuple[GenerationConfig, Truncation | None]:
    """A row's settings, drawn from everything that can be set."""

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    block, blocks = pick(8, 12, 16, 20), pick(1, 2, 3, 4)
    rule = pick({}, {}, {"threshold": 0.4}, {"threshold": 0.4, "hold_back": True}, {"factor": 1.0})
    config = GenerationConfig(
        window=block * blocks,
        block=block,
        steps=blocks * pick(3, block // 2, block),
        schedule=pick("even", "linear", "shift", "cosine", "logit_normal", "dream"),
        commit="low_confidence" if rule else pick("low_confidence", "margin", "entropy", "random"),
        temperature=pick(0, 0, 0.7),
        top_p=pick(None, None, 0.9),
        top_k=pick(None, None, 20),
        seed=pick(0, 1, 2),
        cfg_scale=pick(0.0, 0.0, 1.0),
        cache=pick("none", "prompt", "prefix", "dual"),
        suppress_eos=pick(False, False, False, True),
        **rule,
    )
    truncation = Truncation(
        EAGER, pick("carry", "restart"), steps_policy=pick("rescale", "keep"), safety_net=pick(True, False)
    )
    return config, pick(truncation, truncation, truncation, None)


OTHERS = ("llada_gqa", "dream", "lavida_llada", "lavida_dream", "mmada")


@pytest.mark.parametrize(
    # Random weights may predict the mask id, and then it stays; with these seeds they don't.
    ("family", "seed"),
    [("llada", seed) for seed in range(6)] + [(family, seed) for family in OTHERS for seed in (7, 10)],
)
def test_rows_of_every_kind_in_one_batch(family, seed):
    """Each row of a mixed batch is the row alone, sampled and random ones too; the work is booked to the token."""
    model, generator = tiny(family), torch.Generator().manual_seed(seed)
    settings = [random_settings(generator) for _ in range(8)]
    prompts = [random_prompt(100 * seed + i, 1 + (5 * i) % 13, family) for i in range(8)]
    configs, truncations = map(list, zip(*settings, strict=True))
    written, rows_through = Written(), []
    hooks = [
        layer.down_proj.register_forward_hook(lambda module, args, out: rows_through.append(len(args[0])))
        for layer in model.backbone.layers
    ]
    try:
        together = generate(model, prompts, config=configs, truncation=truncations, on_step=written)
    finally:
        for hook in hooks:
            hook.remove()
    assert sum(r.token_forwards for r in together) * LAYERS == sum(rows_through)
    assert any(r.truncated for r in together) and not all(r.truncated for r in together)
    assert len({r.steps for r in together}) > 2  # rows leave at different times
    for i, result in enumerate(together):
        alone_written, given = Written(), {"config": configs[i], "truncation": truncations[i]}
        (alone,) = generate(model, [prompts[i]], **given, on_step=alone_written)
        assert not differences(result, alone), f"row {i}: {given}"
        assert written.ids[i] == alone_written.ids[0]
        assert model.backbone.config.mask_id not in result.window_ids
        assert result.window_tokens <= configs[i].window


@pytest.mark.parametrize("commit", ["low_confidence", "random"])
def test_seeds_matter(commit):
    """Sampling and random ranks follow the row's seed: equal seeds agree, others do not."""
    prompt = random_prompt(1, 5)
    configs = [GenerationConfig(window=32, temperature=1, commit=commit, seed=s) for s in (5, 6, 5)]
    a, b, c = generate(llada(), [prompt] * 3, config=configs, truncation=None)
    assert a.window_ids == c.window_ids != b.window_ids
    cold = [GenerationConfig(window=32, commit=commit, seed=s) for s in (5, 6)]
    a, b = generate(llada(), [prompt] * 2, config=cold, truncation=None)
    assert (a.window_ids == b.window_ids) == (commit == "low_confidence")


def test_noise_keys_never_meet():
    """Every seed and step has keys of its own, far enough apart for the slot to be added, in 64 signed bits."""
    rows = [
        SimpleNamespace(config=GenerationConfig(seed=seed), counters=SimpleNamespace(steps=step))
        for seed in (-(1 << 63), -1, 0, 1, 2, 12345, (1 << 63) - 1)
        for step in range(100)
    ]
    keys = sorted(_noise_key(row) for row in rows)
    assert -(1 << 63) <= keys[0] and keys[-1] < 1 << 63
    assert min(b - a for a, b in zip(keys, keys[1:], strict=False)) > 1 << 16


@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("cache", ["none", "prompt"])
def test_the_unconditional_twin_is_cut_alike(cache, step0):
    """With guidance the row's own curve decides, its twin keeps the same slots: every forward has 2 x (P + w')."""
    prompt, lengths = random_prompt(3, 6), []
    config = GenerationConfig(window=48, steps=6, cfg_scale=1.0, cache=cache)
    plain = GenerationConfig(window=48, steps=6, cache=cache)
    truncation = Truncation(EAGER, step0, safety_net=False)
    (unguided,) = generate(llada(), [prompt], config=plain, truncation=truncation)
    hook = llada().backbone.layers[7].down_proj.register_forward_hook(lambda m, a, o: lengths.append(len(a[0])))
    try:
        (guided,) = generate(llada(), [prompt], config=config, truncation=truncation)
    finally:
        hook.remove()
    assert guided.truncated and guided.boundary == unguided.boundary
    assert guided.sparsity == pytest.approx(unguided.sparsity, abs=1.001 / 160)
    fed = (0 if cache == "prompt" else 6) + guided.window_tokens
    assert lengths == [2 * 6] * (cache == "prompt") + [2 * fed] * guided.steps
    assert guided.forwards == unguided.forwards
    assert guided.token_forwards == 2 * unguided.token_forwards


def test_on_step_is_called_row_by_row():
    """Once per row and step, in batch order, with the ids as they stand and the row's own counters."""
    seen = []
    scripted = Scripted([Script(3), Script(3), Script(64)])
    configs = [GenerationConfig(window=64, steps=n, block=b) for n, b in ((2, 64), (4, 64), (4, 32))]
    scripted.answers(
        configs,
        None,
        on_step=lambda row: seen.append((row.index, row.counters.steps, int((row.ids != MASK).sum()), row.at)),
    )
    assert seen == [
        (0, 1, 32, 0), (1, 1, 16, 0), (2, 1, 16, 0),
        (0, 2, 64, 1), (1, 2, 32, 0), (2, 2, 32, 1),
        (1, 3, 48, 0), (2, 3, 48, 1),
        (1, 4, 64, 1), (2, 4, 64, 2),
    ]  # fmt: skip


def test_errors_in_on_step_reach_the_caller():
    def fail(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Scripted([Script(3)]).answer(GenerationConfig(window=16), on_step=fail)


@pytest.mark.parametrize("cache", ["none", "prompt"])
@pytest.mark.parametrize("truncation", [None, "default"])
def test_an_empty_prompt_is_a_prompt(cache, truncation):
    """Nothing to attend but the window; alone and beside a row with a prompt."""
    empty = llada().embed_ids(torch.empty(0, dtype=torch.int64))
    config = GenerationConfig(window=32, steps=8, cache=cache)
    (alone,) = generate(llada(), [empty], config=config, truncation=truncation)
    both = generate(llada(), [random_prompt(2, 5), empty], config=config, truncation=truncation)
    assert both[1].window_ids == alone.window_ids
    assert alone.prompt_tokens == 0 and alone.forwards == 8
    assert generate(llada(), [], config=config) == []


@pytest.mark.parametrize("rule", [{"threshold": 0.9}, {"factor": 0.5}, {}])
def test_a_model_that_writes_mask_ids_ends(rule):
    """A slot whose most probable token is the mask can't be filled; the run ends, with no more steps than slots."""
    result = Scripted([Script(30, mask_at=5)]).answer(GenerationConfig(window=16, **rule), None)
    # by quota, every later step spends its one slot on the mask, as in the references
    assert result.window_ids == [*words(5), MASK, *(words(16)[6:] if rule else [MASK] * 10)]
    assert result.steps <= 16


@pytest.mark.parametrize("rule", [{"threshold": 0.9}, {"factor": 0.5}])
@pytest.mark.parametrize("truncation", [None, "default"])
def test_steps_are_ignored_where_they_do_not_count(rule, truncation):
    """Fewer steps than blocks is fine with a threshold: every block is still filled."""
    config = GenerationConfig(window=64, block=16, steps=2, **rule)
    result = Scripted([Script(40)]).answer(config, truncation)
    assert result.ids == words(40) and MASK not in result.window_ids
