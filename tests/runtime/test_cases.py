"""Cases people have tripped over in public with the models and their samplers; each docstring names its row.

P1, P2 and P12, which need a real model, are in test_families.py.
"""

import pytest
from scripted import EOS, LAYERS, Call, Script, Scripted, Written, words

from seer_dllm import GenerationConfig, Profile, Truncation
from seer_dllm.config import STEP0

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
BOTH = pytest.mark.parametrize("step0", STEP0)


@pytest.mark.parametrize("truncation", [None, *(Truncation(step0=step0) for step0 in STEP0)], ids=["stock", *STEP0])
def test_p3_the_real_length_is_reported(truncation):
    """case P3: EOS from index 10 of 64."""
    result = Scripted([Script(10)], margin=4).answer(GenerationConfig(window=64), truncation)
    assert result.useful_tokens == 10 and result.ids == words(10)
    assert result.finish_reason == "end"
    assert result.text == "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9"
    assert set(result.window_ids[10:]) == {EOS}
    if truncation is None:
        assert (result.boundary, result.truncated, result.reason) == (None, False, "truncation is off")
    else:  # 10 + 4 rounded up to 8
        assert (result.boundary, result.truncated, result.window_tokens) == (10, True, 16)


@BOTH
@pytest.mark.parametrize("block", [None, 16])
def test_p4_the_answer_does_not_depend_on_the_window(block, step0):
    """case P4: windows of 32, 64, 128 and 256 slots give one answer, at one cost per step."""
    results = [
        Scripted([Script(9)], margin=4).answer(GenerationConfig(window=window, block=block), Truncation(step0=step0))
        for window in (32, 64, 128, 256)
    ]
    assert [r.ids for r in results] == [words(9)] * 4
    assert [r.window_tokens for r in results] == [16] * 4
    assert [r.steps for r in results] == [16] * 4


def test_p5_steps_shrink_with_the_window():
    """case P5: the work of a 12-token answer in a window of 512, counted by the model itself, falls fivefold."""
    config = GenerationConfig(window=512, steps=256, block=128)
    stock, cut = Scripted([Script(12)], margin=16), Scripted([Script(12)], margin=16)
    full, short = stock.answer(config, None), cut.answer(config)
    assert full.ids == short.ids == words(12)
    assert stock.backbone.token_layers == 256 * (5 + 512) * LAYERS
    # 12 + 16 rounded up to 32 slots; 64 steps per block of 128 leave 16. Seven layers of step 0 saw the full window.
    assert (short.window_tokens, short.steps) == (32, 16)
    assert cut.backbone.token_layers == 7 * (5 + 512) + (5 + 32) + 15 * LAYERS * (5 + 32)
    assert stock.backbone.token_layers >= 5 * cut.backbone.token_layers


@BOTH
def test_p6_never_below_the_last_content(step0):
    """case P6: an early bump in the sparsity is not the end."""
    curve = (0.30,) * 6 + (0.80,) * 3 + (0.30,) * 31 + (0.82,) * 24
    scripted = Scripted([Script(40, curve=curve)], margin=0)
    result = scripted.answer(GenerationConfig(window=64), Truncation(step0=step0, safety_net=False))
    assert result.boundary >= 40
    assert result.window_ids[:40] == words(40)
    assert result.sparsity == pytest.approx(curve)


@BOTH
def test_p7_blocks_keep_their_size(step0):
    """case P7: window 1024 in blocks of 64, boundary 70: two whole blocks at their stock steps."""
    seen = []
    scripted = Scripted([Script(70)])
    config = GenerationConfig(window=1024, steps=512, block=64)

    def blocks(row):
        seen.append([(b.start, b.end) for b in row.blocks])

    result = scripted.answer(config, Truncation(step0=step0), on_step=blocks)
    assert (result.boundary, result.window_tokens) == (70, 128)
    assert seen[0] == seen[-1] == [(0, 64), (64, 128)]
    assert result.steps == 2 * 32
    assert result.ids == words(70)


@pytest.mark.parametrize("cache", ["none", "prompt", "prefix", "dual"])
def test_p8_cache_and_batch(cache):
    """case P8: two rows, prompt of 5, window 16, with the prompt cached and without."""
    scripted = Scripted([Script(4), Script(12)])
    a, b = scripted.answers(GenerationConfig(window=16, cache=cache), None)
    assert (a.ids, b.ids) == (words(4), words(12))


@BOTH
def test_p9_no_work_on_removed_slots(step0):
    """case P9: after the cut every forward of the model sees prompt + kept slots and no more."""
    scripted = Scripted([Script(12), Script(30)])
    results = scripted.answers(GenerationConfig(window=64), Truncation(step0=step0), prompt_lengths=[5, 3])
    assert [r.window_tokens for r in results] == [16, 32]
    probe, rest, *later = scripted.backbone.calls
    assert probe == Call(0, 7, (5 + 64, 3 + 64))
    assert rest == Call(7 if step0 == "carry" else 0, 8, (5 + 16, 3 + 32))
    both, one = Call(0, 8, (5 + 16, 3 + 32)), Call(0, 8, (3 + 32,))  # the first row leaves after its 16 steps
    assert later == [both] * 15 + [one] * 16
    assert sum(r.token_forwards for r in results) * LAYERS == scripted.backbone.token_layers


@BOTH
def test_p10_tokens_are_reported_apart(step0):
    """case P10: useful, window and prompt tokens are three numbers."""
    scripted = Scripted([Script(12)], margin=16)
    for truncation, window in ((None, 128), (Truncation(step0=step0), 32)):
        result = scripted.answer(GenerationConfig(window=128), truncation, prompt_lengths=[100])
        assert (result.useful_tokens, result.window_tokens, result.prompt_tokens) == (12, window, 100)


def test_p13_wrong_options_are_refused():
    """case P13: a commit rule's name given as the schedule is refused, and the schedules are listed."""
    with pytest.raises(
        ValueError,
        match="schedule must be one of even, linear, shift, cosine, logit_normal, dream, got 'low_confidence'",
    ):
        GenerationConfig(schedule="low_confidence")
    with pytest.raises(ValueError, match="commit must be one of low_confidence, margin, entropy, random, got 'even'"):
        GenerationConfig(commit="even")
    with pytest.raises(TypeError, match="remasking"):
        GenerationConfig(remasking="low_confidence")


def test_one_row_of_each_kind_at_once():
    """Cases P2, P3 and P9 together: no row's answer or cost moves because of its mates."""
    scripts = [Script(10), Script(40), Script(3), Script(64)]
    config = GenerationConfig(window=64, steps=32, block=32)
    written = Written()
    together = Scripted(scripts).answers(config, Truncation(Profile(margin=0)), on_step=written)
    for i, script in enumerate(scripts):
        alone = Scripted([script]).answer(config, Truncation(Profile(margin=0)))
        same = ("ids", "window_ids", "boundary", "snr", "steps", "forwards", "token_forwards", "reason", "text")
        for name in same:
            assert getattr(together[i], name) == getattr(alone, name), name
    assert [r.useful_tokens for r in together] == [10, 40, 3, 64]
