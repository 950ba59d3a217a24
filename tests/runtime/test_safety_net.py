"""The safety net: a window that was cut too short grows until the answer ends in it, and the growth is counted."""

import pytest
from scripted import EOS, LAYERS, MASK, Script, Scripted, Written, differences, words

from seer_dllm import GenerationConfig, Truncation

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")


def nets(result):
    return result.net_early, result.net_late, result.extended


def cost(result):
    """What the net cost: passes, and tokens times the share of layers that they passed."""
    return result.net_forwards, result.net_token_forwards


@pytest.mark.parametrize("cache", ["none", "prompt"])
@pytest.mark.parametrize(
    ("step0", "lengths", "forwards"),
    [
        # the cut forward itself shows that slot 7 is no end; 16 and 32 slots fail too, 64 is written
        ("carry", [128, 8, 16, 32, 64], 3 + 64),
        # the probe is a forward of its own
        ("restart", [128, 8, 16, 32, 64], 1 + 3 + 64),
    ],
)
def test_early_net_doubles_before_anything_is_written(cache, step0, lengths, forwards):
    scripted, written = Scripted([Script(40, jump=8)]), Written()
    result = scripted.answer(GenerationConfig(window=128, cache=cache), Truncation(step0=step0), on_step=written)
    assert nets(result) == (3, 0, 3)
    assert (result.boundary, result.window_tokens, result.truncated) == (8, 64, True)
    assert result.ids == words(40) and result.finish_reason == "end"
    assert written.windows() == [64] * 64 and written.filled()[0] == 1
    assert result.steps == 64
    prefill = 1 if cache == "prompt" else 0
    prompt = 0 if cache == "prompt" else 5
    assert result.forwards == forwards + prefill
    seen = [call.lengths[0] - prompt for call in scripted.backbone.calls[prefill:]]
    assert seen[:5] == lengths and set(seen[5:]) == {64}
    assert cost(result) == (3, (16 + prompt) + (32 + prompt) + (64 + prompt))
    assert result.token_forwards * LAYERS == scripted.backbone.token_layers


@pytest.mark.parametrize(
    ("window", "block", "jump", "content", "fired", "kept"),
    [
        (128, 128, 8, 40, 3, 64),
        (128, 128, 8, 63, 3, 64),  # slot 63 is the end
        (128, 128, 8, 64, 4, 128),  # slot 63 is the last word
        (96, 96, 8, 80, 4, 96),  # 8, 16, 32, 64, then what there is
        (40, 40, 8, 36, 3, 40),
        (24, 24, 8, 7, 0, 8),
        (100, 100, 8, 90, 4, 100),  # 8, 16, 32, 64, 100
        (2048, 2048, 8, 70, 4, 128),
        (96, 24, 10, 60, 2, 96),  # one block of 16, then whole blocks: 48, 96
        (96, 24, 10, 20, 1, 48),
        (120, 24, 30, 100, 2, 120),  # 48, 96, 120: the last step is less than a doubling
        (64, 16, 20, 50, 1, 64),  # 32, 64
        (64, 4, 3, 30, 3, 32),  # one block of 4, then 8, 16 and 32 in blocks of 4
        (80, 40, 12, 79, 2, 80),  # 16, 32, 80: 64 is rounded up to whole blocks
    ],
)
@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("policy", ["rescale", "keep"])
def test_a_lie_about_the_end_does_no_harm(window, block, jump, content, fired, kept, step0, policy):
    """The sparsity jumps far too early; the answer is stock's all the same."""
    config = GenerationConfig(window=window, block=block, steps=min(window, 256))
    stock = Scripted([Script(content, jump=jump)]).answer(config, None)
    result = Scripted([Script(content, jump=jump)]).answer(config, Truncation(step0=step0, steps_policy=policy))
    assert result.truncated and result.boundary == jump
    assert nets(result) == (fired, 0, fired) and result.net_forwards == fired
    assert result.window_tokens == kept <= window
    assert result.ids == stock.ids == words(content)
    assert MASK not in result.window_ids


@pytest.mark.parametrize("step0", ["carry", "restart"])
def test_an_answer_that_fills_the_window(step0):
    """It grows up to the window and no further; the last slot is not asked for an end then."""
    scripted = Scripted([Script(500, jump=8)])
    config = GenerationConfig(window=128, block=32, steps=64)
    result = scripted.answer(config, Truncation(step0=step0))
    assert nets(result) == (4, 0, 4)  # 8, 16, 32, 64, 128
    assert (result.window_tokens, result.useful_tokens, result.finish_reason) == (128, 128, "length")
    stock = scripted.answer(config, None)
    assert result.window_ids == stock.window_ids and result.steps == stock.steps == 64
    assert max(max(call.lengths) for call in scripted.backbone.calls) == 5 + 128


def test_no_jump_and_exactly_full():
    result = Scripted([Script(128)]).answer(GenerationConfig(window=128, steps=16))
    assert (result.boundary, result.snr, result.truncated, result.reason) == (128, 0, False, "no jump found")
    assert (result.finish_reason, result.useful_tokens, nets(result)) == ("length", 128, (0, 0, 0))


def test_an_end_in_the_last_kept_slot_is_enough():
    """7 words and one EOS fill 8 slots; with 8 words the end lies outside, and the net must fire."""
    config, truncation = GenerationConfig(window=64), Truncation()
    tight = Scripted([Script(7, jump=8)]).answer(config, truncation)
    assert (tight.window_tokens, nets(tight), tight.ids) == (8, (0, 0, 0), words(7))
    over = Scripted([Script(8)]).answer(config, truncation)
    assert (over.window_tokens, nets(over), over.ids) == (16, (1, 0, 1), words(8))


@pytest.mark.parametrize("cache", ["none", "prompt"])
@pytest.mark.parametrize("step0", ["carry", "restart"])
def test_late_net_extends_a_filled_window(cache, step0):
    """At step 0 the model sees its end in slot 6; once it has written a word, it wants 40 words."""
    scripted, written = Scripted([Script(6, jump=8, later=40)]), Written()
    config = GenerationConfig(window=128, steps=32, cache=cache)
    result = scripted.answer(config, Truncation(step0=step0), on_step=written)
    assert nets(result) == (0, 3, 3)
    assert result.ids == words(40) and result.finish_reason == "end"
    assert result.ids == scripted.answer(config, None).ids
    # 32 steps for 128 slots: four slots a step, before and after growing
    assert written.per_step() == [4] * 16
    assert written.windows() == [8] * 2 + [16] * 2 + [32] * 4 + [64] * 8
    for before, after in zip(written.ids[0], written.ids[0][1:], strict=False):  # what is written stays
        assert all(b in (a, MASK) for b, a in zip(before, after, strict=False))
    assert result.steps == 16
    prompt = 0 if cache == "prompt" else 5
    assert cost(result) == (2 + 4 + 8, 2 * (16 + prompt) + 4 * (32 + prompt) + 8 * (64 + prompt))


@pytest.mark.parametrize(
    ("window", "block", "steps", "later", "windows", "per_step"),
    [
        # 16 slots (of a block of 24, at 12 steps: 2 a step) -> 48: the block is completed, then a block of its own
        (96, 24, 48, 40, [16, 48], [2] * 24),
        # never ends: up to the window
        (96, 24, 48, 900, [16, 48, 96], [2] * 48),
        (40, 40, 10, 900, [16, 32, 40], [4] * 10),
        (100, 100, 25, 900, [16, 32, 64, 100], [4] * 25),
        # one word a step
        (64, 16, 64, 20, [16, 32], [1] * 32),
    ],
)
def test_late_net_by_blocks(window, block, steps, later, windows, per_step):
    scripted, written = Scripted([Script(9, jump=12, later=later)]), Written()
    config = GenerationConfig(window=window, block=block, steps=steps)
    result = scripted.answer(config, Truncation(), on_step=written)
    assert nets(result) == (0, len(windows) - 1, len(windows) - 1)
    assert list(dict.fromkeys(written.windows())) == windows
    assert written.per_step() == per_step
    length = min(later, window)
    assert result.ids == words(length) == scripted.answer(config, None).ids
    assert result.finish_reason == ("end" if later < window else "length")


def test_late_net_writes_block_after_block():
    """The new slots keep to the blocks of the full window: 16-24 first, then 24-48."""
    scripted, ends = Scripted([Script(9, jump=12, later=40)]), []
    scripted.answer(
        GenerationConfig(window=96, block=24),
        Truncation(),
        on_step=lambda row: ends.append([b.end for b in row.blocks]),
    )
    assert ends[0] == [16] and ends[-1] == [16, 24, 48]


def test_both_nets_in_one_run():
    result = Scripted([Script(10, jump=8, later=40)]).answer(GenerationConfig(window=128))
    assert nets(result) == (1, 2, 3)  # 8 -> 16 early, 16 -> 32 -> 64 late
    assert (result.window_tokens, result.ids) == (64, words(40))
    assert cost(result) == (1 + 16 + 32, 1 * 21 + 16 * 37 + 32 * 69)  # a slot a step, behind a prompt of 5


@pytest.mark.parametrize("script", [Script(40, jump=8), Script(6, jump=8, later=40)])
@pytest.mark.parametrize("step0", ["carry", "restart"])
def test_without_the_net_nothing_grows(script, step0):
    scripted, written = Scripted([script]), Written()
    truncation = Truncation(step0=step0, safety_net=False)
    result = scripted.answer(GenerationConfig(window=128), truncation, on_step=written)
    assert nets(result) == (0, 0, 0) and cost(result) == (0, 0)
    assert (result.window_tokens, result.finish_reason, result.ids) == (8, "length", words(8))
    assert set(written.windows()) == {8}


def test_growing_rows_disturb_nobody():
    """A row that grows early, one that grows late, one that leaves early and one that is not cut."""
    scripts = [Script(40, jump=8), Script(6, jump=8, later=40), Script(5), Script(128)]
    config = GenerationConfig(window=128, steps=64, block=64)
    scripted = Scripted(scripts)
    together = scripted.answers(config)
    assert [nets(r) for r in together] == [(3, 0, 3), (0, 3, 3), (0, 0, 0), (0, 0, 0)]
    assert [r.useful_tokens for r in together] == [40, 40, 5, 128]
    for script, result in zip(scripts, together, strict=True):
        alone = Scripted([script]).answer(config)
        assert not differences(result, alone)
    assert sum(r.token_forwards for r in together) * LAYERS == scripted.backbone.token_layers


@pytest.mark.parametrize("rule", [{"threshold": 0.99}, {"factor": 0.1}])
def test_nets_without_counted_steps(rule):
    """Every slot is certain (12 against 15 zeros: above 0.999), so a window is written in one step."""
    scripted, written = Scripted([Script(6, jump=8, later=40)]), Written()
    result = scripted.answer(GenerationConfig(window=128, **rule), Truncation(), on_step=written)
    # everything that step 0 shows is written at once: 6 words and the end
    assert (result.ids, nets(result), result.steps) == (words(6), (0, 0, 0), 1)
    lying = Scripted([Script(40, jump=8)])
    result = lying.answer(GenerationConfig(window=128, **rule), Truncation())
    assert (result.ids, nets(result), result.steps, result.window_tokens) == (words(40), (3, 0, 3), 1, 64)
    assert result.net_forwards == 3


def test_ends_of_turn_are_ends():
    """The net asks for any end, and a kept slot that says end-of-turn ends the answer."""
    scripted = Scripted([Script(10, jump=8)])
    scripted.backbone.tokens[scripted.backbone.tokens == EOS] = 11
    result = scripted.answer(GenerationConfig(window=64))
    assert (result.ids, result.finish_reason, nets(result)) == (words(10), "end", (1, 0, 1))
