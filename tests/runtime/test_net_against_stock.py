"""What the safety net writes, on a real (tiny) model: exactly what the stock algorithm does in the window it grew to.

Random weights see no end, so the tests say when a kept slot counts as one, and how much is kept at first.
"""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
from scripted import EAGER, Written, differences, random_prompt, tiny

from seer_dllm import GenerationConfig, Truncation, generate
from seer_dllm.canvas import Canvas
from seer_dllm.config import CACHES, STEP0

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
FAMILIES = ["llada", "dream"]


@pytest.fixture(autouse=True)
def masks_are_never_written():
    """Random weights may predict the mask id, which is then left to whoever comes next."""
    plain = Canvas.logits

    def logits(canvas, hidden, slots):
        out = plain(canvas, hidden, slots)
        out[:, canvas.backbone.config.mask_id] = -1e4
        return out

    with mock.patch.object(Canvas, "logits", logits):
        yield


@contextmanager
def first_cut(boundary: int, *ended: bool):
    """The window is cut at `boundary`; the answers to whether it shows an end, for each time it is asked."""
    with (
        mock.patch("seer_dllm.denoise.find_boundary", return_value=([boundary], [5.0])),
        mock.patch("seer_dllm.denoise.ends_with", side_effect=[[e] for e in ended]),
    ):
        yield


def endless(family: str):
    """The tiny model, whose answers have no end."""
    return replace(tiny(family), end_ids=(-1,))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(
    ("window", "block", "steps", "grown", "kept", "kept_block", "kept_steps"),
    [
        (96, 96, 48, 2, 32, 32, 16),  # 8, 16, 32 of a block of 96, at half a step a slot
        (40, 40, 20, 3, 40, 40, 20),  # 8, 16, 32, 40
        (96, 24, 48, 2, 48, 24, 24),  # 8, 16, then two whole blocks
        (64, 4, 32, 2, 32, 4, 16),  # two blocks of 4, then four and eight
    ],
)
def test_early_growth_is_stock_on_the_grown_window(
    window, block, steps, grown, kept, kept_block, kept_steps, step0, cache, family
):
    """Nothing of the short windows is left: ids after every step, and the work but for the net's and the probe's."""
    model, prompt = endless(family), random_prompt(4, 6, family)
    got, want = Written(), Written()
    config = GenerationConfig(window=window, block=block, steps=steps, cache=cache)
    ended = [False] * grown + [True] * (kept < window)
    with first_cut(8, *ended):
        (result,) = generate(
            model, [prompt], config=config, truncation=Truncation(EAGER, step0), on_step=_until(got, kept_steps)
        )
    short = GenerationConfig(window=kept, block=kept_block, steps=kept_steps, cache=cache)
    (stock,) = generate(model, [prompt], config=short, truncation=None, on_step=want)
    assert got.ids[0] == want.ids[0] and len(want.ids[0]) == kept_steps
    assert (result.net_early, result.truncated) == (grown, True)
    if kept == window:
        assert (result.window_ids, result.net_late, result.net_forwards) == (stock.window_ids, 0, grown)
        assert result.forwards - result.net_forwards == stock.forwards + (step0 == "restart")


def _until(written: Written, steps: int):
    """Record no more than these steps: behind them the late net has its turn."""

    def on_step(row) -> None:
        if row.counters.steps <= steps:
            written(row)

    return on_step


EXTRAS = [
    {"cfg_scale": 1.0},
    {"temperature": 0.8, "seed": 3},
    {"commit": "random", "seed": 3},
    {"commit": "entropy", "schedule": "dream"},
    {"schedule": "shift"},
    {"schedule": "cosine"},
    {"threshold": 0.3},
    {"threshold": 0.3, "hold_back": True},
    {"factor": 1.0},
]


@pytest.mark.parametrize("draft", [None, [5, 6, "mask", "mask", 7]])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize(("cache", "family"), [("none", "llada"), ("dual", "dream"), ("prefix", "llada")])
def test_early_growth_with_everything_else(cache, family, extra, draft):
    """Guidance, sampling, other rules and schedules, and text among the masks, in windows that grow from 8 to 48."""
    model, prompt, written = endless(family), random_prompt(5, 7, family), [Written(), Written()]
    mask = model.backbone.config.mask_id
    given = {"drafts": [draft and [mask if i == "mask" else i for i in draft]]}
    config = GenerationConfig(window=48, block=24, steps=24, cache=cache, **extra)
    with first_cut(8, False, False):  # 8, 16, all of it
        (result,) = generate(
            model, [prompt], config=config, truncation=Truncation(EAGER, "restart"), on_step=written[0], **given
        )
    (stock,) = generate(model, [prompt], config=config, truncation=None, on_step=written[1], **given)
    assert written[0].ids == written[1].ids
    assert (result.window_ids, result.steps, result.net_early) == (stock.window_ids, stock.steps, 2)
    assert result.forwards == stock.forwards + 1 + 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(
    "extra", [{}, {"cfg_scale": 1.0}, {"schedule": "shift"}, {"schedule": "dream", "commit": "entropy"}], ids=str
)
def test_late_growth_is_stock_with_what_is_written_as_draft(extra, step0, cache, family):
    """16 slots without an end, then 32, then 64: every growth is a stock run that is given all that stands there.

    Its keys and values are computed anew, those of the cached prompt excepted.
    """
    model, prompt, written = endless(family), random_prompt(6, 5, family), Written()
    config = GenerationConfig(window=64, block=16, steps=32, cache=cache, **extra)
    with first_cut(16, True):
        (result,) = generate(model, [prompt], config=config, truncation=Truncation(EAGER, step0), on_step=written)
    assert (result.net_early, result.net_late, result.steps) == (0, 2, 32)
    stages = {16: written.ids[0][7], 32: written.ids[0][15], 64: written.ids[0][31]}
    assert [len(ids) for ids in stages.values()] == list(stages)
    if step0 == "restart":
        short = GenerationConfig(window=16, block=16, steps=8, cache=cache, **extra)
        (first,) = generate(model, [prompt], config=short, truncation=None)
        assert first.window_ids == stages[16]
    for before, after in ((16, 32), (32, 64)):
        wide = GenerationConfig(window=after, block=16, steps=after // 2, cache=cache, **extra)
        (stock,) = generate(model, [prompt], config=wide, truncation=None, drafts=[stages[before]])
        assert stock.window_ids == stages[after]
    assert result.net_forwards == 24


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_grow_at_all_times_in_one_batch(family, seed):
    """Windows grow while others are in the middle of their blocks, under every cache: each row is the row alone."""
    model = endless(family)
    prompts = [random_prompt(10 * seed + i, 1 + 3 * i, family) for i in range(8)]
    configs = [
        GenerationConfig(window=24 * (1 + i % 2), block=(8, 12, 24)[(i + seed) % 3], steps=24, cache=CACHES[i % 4], **e)
        for i, e in enumerate([{}, {"cfg_scale": 0.5}, {}, {}, {"threshold": 0.3}, {}, {"cfg_scale": 1.0}, {}])
    ]
    truncations = [Truncation(EAGER, STEP0[(i + i // 4) % 2]) for i in range(8)]

    def ended(token, ends):  # by what is predicted, so that a row fares alike in every batch
        return (token % 2 == 0).tolist()

    with mock.patch("seer_dllm.denoise.ends_with", ended):
        together = generate(model, prompts, config=configs, truncation=truncations)
        for i, result in enumerate(together):
            (alone,) = generate(model, [prompts[i]], config=configs[i], truncation=truncations[i])
            assert not differences(result, alone), f"row {i}"
    cut = [r for r in together if r.truncated]
    assert all(r.window_tokens == config.window for r, config in zip(together, configs, strict=True))  # no end anywhere
    assert any(r.net_late for r in cut) and any(r.net_early for r in cut)
    assert all(model.backbone.config.mask_id not in r.window_ids for r in together)
