"""The safety net with every schedule, rule and cache, in batches, and with everything else that a row may ask for."""

import pytest
import torch
from scripted import EOS, LAYERS, MASK, SLOTS, Script, Scripted, Written, differences, words

from seer_dllm import GenerationConfig, Truncation
from seer_dllm.config import CACHES, STEP0

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")

LATE = Script(6, jump=8, later=20)  # an end in slot 6, until a word is written
NEVER = Script(6, jump=8, later=SLOTS)

# Slots per step by hand: 8 slots in 4 steps, 16 in 8. A curve times the slots, truncated, its differences at least 1
# (what that adds is taken from the first ones above 1 again), reversed.
QUOTAS = {
    "even": ([2] * 4, [2] * 8),
    "linear": ([2] * 4, [2] * 8),
    # 3t / (1 + 2t): 0 4 6 7.2 8; 0 4.8 8 10.3 12 13.3 14.4 15.3 16
    "shift": ([1, 1, 2, 4], [1, 1, 1, 1, 2, 2, 4, 4]),
    # (1 - cos(pi t)) / 2: 0 1.2 4 6.8 8; 0 0.6 2.3 4.9 8 11.1 13.7 15.4 16
    "cosine": ([2, 2, 3, 1], [1, 2, 2, 3, 4, 2, 1, 1]),
    # Phi(logit t): 0 1.1 4 6.9 8; 0 0.4 2.2 4.9 8 11.1 13.8 15.6 16
    "logit_normal": ([2, 2, 3, 1], [1, 2, 2, 3, 4, 2, 1, 1]),
    # 1 - s/t of what is masked, times 1 .75025 .5005 .25075 .001: 1.998 of 8, 2.33 of 7, 2.49 of 5, the rest
    "dream": ([1, 2, 2, 3], [1, 2, 2, 2, 2, 2, 2, 3]),
}


def passes(cache: str, step0: str) -> int:
    """Passes beside those of the steps: a prefill, and the probe where it is thrown away."""
    return (cache == "prompt") + (step0 == "restart")


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize("schedule", QUOTAS)
def test_every_schedule_grows_with_quotas_of_its_own(schedule, step0, cache):
    """16 steps for 32 slots: 2 slots a step, in 8 slots 4 steps; the schedule begins anew in what is added."""
    eight, sixteen = QUOTAS[schedule]
    config = GenerationConfig(window=32, steps=16, schedule=schedule, cache=cache)
    scripted, written = Scripted([LATE]), Written()
    late = scripted.answer(config, Truncation(step0=step0), on_step=written)
    assert written.per_step() == eight + eight + sixteen
    assert written.windows() == [8] * 4 + [16] * 4 + [32] * 8
    assert (late.net_early, late.net_late, late.ids) == (0, 2, words(20))
    assert (late.steps, late.forwards, late.net_forwards) == (16, 16 + passes(cache, step0), 12)
    scripted, written = Scripted([Script(12, jump=8)]), Written()
    early = scripted.answer(config, Truncation(step0=step0), on_step=written)
    assert written.per_step() == sixteen
    assert (early.net_early, early.net_late, early.ids) == (1, 0, words(12))
    assert (early.steps, early.forwards, early.net_forwards) == (8, 8 + 1 + passes(cache, step0), 1)
    assert early.token_forwards * LAYERS == scripted.backbone.token_layers


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(
    ("rule", "per_step"),
    [
        # nothing is as sure as that, so that every step writes the best slot alone
        ({"threshold": 1.0}, [1] * 32),
        ({"threshold": 1.0, "hold_back": True}, [1] * 32),
        # rank n must have 1 - 0 / (n + 1), which none has; the last two go together
        ({"factor": 0.0}, ([1] * 6 + [2]) * 2 + [1] * 14 + [2]),
        ({"commit": "margin", "steps": 16}, [2] * 16),
        ({"commit": "entropy", "steps": 16}, [2] * 16),
    ],
    ids=str,
)
def test_every_rule_grows(rule, per_step, step0, cache):
    scripted, written = Scripted([LATE]), Written()
    result = scripted.answer(GenerationConfig(window=32, cache=cache, **rule), Truncation(step0=step0), on_step=written)
    assert written.per_step() == per_step
    assert (result.net_early, result.net_late, result.ids) == (0, 2, words(20))
    steps = len(per_step)
    assert result.forwards == steps + passes(cache, step0)
    assert result.net_forwards == sum(window > 8 for window in written.windows())


@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(
    ("steps", "per_step"),
    [
        (16, [1] * 32),  # 8 slots take 8 of the steps
        (6, [2, 2, 1, 1, 1, 1] * 2 + [2] * 4 + [1] * 8),  # 6, 6 and 12 steps
    ],
)
def test_kept_steps_go_on_at_the_pace_of_the_cut(steps, per_step, step0):
    """The 8 slots of the cut take as many of the steps as they can; their tokens per step hold for 8 and 16 more."""
    written = Written()
    config = GenerationConfig(window=32, steps=steps)
    result = Scripted([LATE]).answer(config, Truncation(step0=step0, steps_policy="keep"), on_step=written)
    assert written.per_step() == per_step
    assert (result.net_late, result.ids, result.window_tokens) == (2, words(20), 32)


# By hand: the windows of a row that never sees an end, from 8 slots up to all there are.
BOUNDS = [
    (9, [8, 9]),
    (16, [8, 16]),
    (24, [8, 16, 24]),
    (36, [8, 16, 32, 36]),
    (56, [8, 16, 32, 56]),
    (100, [8, 16, 32, 64, 100]),
    (1000, [8, 16, 32, 64, 128, 256, 512, 1000]),
]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(("window", "windows"), BOUNDS)
def test_growth_is_bounded_by_the_window(window, windows, step0, cache):
    """Never more slots than G. An early growth costs a pass, a late one none but those of its slots: steps <= G."""
    block_cache = cache in ("prefix", "dual")
    rule = {"threshold": 0.5} if window > 100 else {}  # all at once, for there are enough steps in the others
    config = GenerationConfig(window=window, cache=cache, **rule)
    steps = 1 if rule else window
    scripted = Scripted([Script(SLOTS, jump=8)])
    early = scripted.answer(config, Truncation(step0=step0))
    grown = len(windows) - 1
    assert (early.net_early, early.net_late, early.window_tokens) == (grown, 0, window)
    assert (early.steps, early.forwards) == (steps, steps + grown + passes(cache, step0))
    assert (early.ids, early.finish_reason) == (words(window), "length")
    prompt = 0 if cache == "prompt" else 5
    whole = [call.lengths[0] - prompt for call in scripted.backbone.calls if call.lengths[0] != 5 or not prompt]
    whole = whole[1:] if cache == "prompt" else whole  # the prefill
    assert whole[: len(windows) + 1] == [window, *windows]
    assert max(whole) == window

    scripted, written = Scripted([NEVER]), Written()
    late = scripted.answer(config, Truncation(step0=step0), on_step=written)
    if rule:  # everything that step 0 sees is sure, and it sees the end
        assert (late.ids, late.net_late, late.steps) == (words(6), 0, 1)
        return
    assert list(dict.fromkeys(written.windows())) == windows
    assert (late.net_early, late.net_late, late.window_tokens) == (0, grown, window)
    assert (late.steps, late.forwards) == (steps, steps + passes(cache, step0))
    assert late.net_forwards == window - 8
    if not block_cache:  # a slot a step
        spent = sum((b - a) * (b + prompt) for a, b in zip(windows, windows[1:], strict=False))
        assert late.net_token_forwards == spent


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(
    ("content", "grown", "kept"),
    [
        (7, 0, 8),  # the end is the last slot that is kept
        (8, 1, 16),  # it is the first one that is not
        (15, 1, 16),
        (16, 2, 32),
        (31, 2, 32),
        (39, 3, 40),  # the last slot of all
        (40, 3, 40),  # there is none
    ],
)
def test_an_end_on_the_edge(content, grown, kept, step0, cache):
    scripted = Scripted([Script(content, jump=8)])
    result = scripted.answer(GenerationConfig(window=40, cache=cache), Truncation(step0=step0))
    assert (result.net_early, result.net_late, result.window_tokens) == (grown, 0, kept)
    assert result.ids == words(content)
    assert result.finish_reason == ("end" if content < 40 else "length")


@pytest.mark.parametrize("mate", CACHES)
@pytest.mark.parametrize("cache", CACHES)
def test_only_the_row_that_grows_pays(cache, mate):
    """Growth while a mate is in the middle of its blocks; the mate computes, writes and costs what it does alone.

    The first row grows early (three times, as it restarts in the mate's second step) or late (after 8 slots at 2 a
    step, in the mate's fourth step of sixteen).
    """
    for script, growing in ((Script(40, jump=8), (3, 0)), (NEVER, (0, 3))):
        configs = [
            GenerationConfig(window=64, steps=32, cache=cache),
            GenerationConfig(window=64, block=16, cache=mate),
        ]
        truncations = [Truncation(step0="restart"), Truncation(step0="carry")]
        scripted, written = Scripted([script, Script(40)]), Written()
        together = scripted.answers(configs, truncations, on_step=written)
        assert (together[0].net_early, together[0].net_late) == growing
        if growing[0]:  # steps of the mate before the first one of the row that grows: its own step 0 and three more
            assert written.order[:6] == [1, 1, 1, 1, 0, 1]
        assert together[1].net_forwards == together[1].extended == 0
        assert (together[1].window_tokens, together[1].steps, together[1].ids) == (48, 48, words(40))
        for i, result in enumerate(together):
            alone = Scripted([script, Script(40)])
            (single,) = alone.answers(configs[i], truncations[i], rows=[i])
            assert not differences(result, single)
        assert sum(r.token_forwards for r in together) * LAYERS == scripted.backbone.token_layers


@pytest.mark.parametrize("step0", STEP0)
def test_the_twin_grows_alike(step0):
    """With guidance every forward feeds both, early and late; passes are counted once, tokens twice."""
    scripted = Scripted([Script(12, jump=8, later=20)])
    result = scripted.answer(GenerationConfig(window=64, steps=16, cfg_scale=1.0), Truncation(step0=step0))
    assert (result.net_early, result.net_late, result.ids) == (1, 1, words(20))
    # 64 in 16 steps: 16 slots in 4, 16 more in 4
    seen = [(call.start, call.lengths) for call in scripted.backbone.calls]
    first = (7 if step0 == "carry" else 0, (13, 13))
    assert seen == [(0, (69, 69)), first] + [(0, (21, 21))] * 4 + [(0, (37, 37))] * 4
    assert (result.net_forwards, result.net_token_forwards) == (1 + 4, 2 * (21 + 4 * 37))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize(("content", "grown", "kept"), [(7, 0, 8), (20, 2, 32), (64, 3, 64)])
def test_text_among_the_masks_stays_when_the_window_grows(content, grown, kept, step0, cache):
    """Slots 0, 1 and 4 are given; they are 3 of the 8 that are kept, and no growth touches them."""
    draft = [7, 7, MASK, MASK, 7]
    scripted, written = Scripted([Script(content, jump=8)]), Written()
    config = GenerationConfig(window=64, cache=cache)
    result = scripted.answer(config, Truncation(step0=step0), drafts=[draft], on_step=written)
    assert (result.net_early, result.net_late, result.window_tokens) == (grown, 0, kept)
    assert result.ids == [7, 7, 2, 3, 7, *words(content)[5:]]
    assert all(ids[:2] == [7, 7] and ids[4] == 7 for ids in written.ids[0])
    assert result.steps == kept - 3


@pytest.mark.parametrize("script", [Script(20, jump=8), LATE])
@pytest.mark.parametrize(
    ("stop", "ids", "finish"),
    [
        (("w7 w8",), 8, "stop"),  # the second word lies behind the first 8 slots
        (("w9 w9",), 20, "end"),
    ],
)
def test_stop_strings_are_found_in_the_grown_answer(script, stop, ids, finish):
    config = GenerationConfig(window=64, stop=stop)
    result = Scripted([script]).answer(config)
    stock = Scripted([script]).answer(config, None)
    assert (result.finish_reason, result.ids, result.text) == (stock.finish_reason, stock.ids, stock.text)
    assert (result.finish_reason, result.ids) == (finish, words(ids))
    # "w7 w8" is there once 16 slots are filled, and late growth has no reason to go on then
    assert (result.net_early, result.net_late) == ((2, 0) if script is not LATE else (0, 1 if finish == "stop" else 2))


def test_a_stop_string_is_an_end_for_the_late_net():
    """The 8 filled slots hold it; without it the window grows until there is an end."""
    for stop, windows in ((("w3 w4",), 8), ((), 32), (("w9 w8", "w4"), 8)):
        result = Scripted([LATE]).answer(GenerationConfig(window=64, stop=stop))
        stock = Scripted([LATE]).answer(GenerationConfig(window=64, stop=stop), None)
        assert (result.text, result.ids, result.finish_reason) == (stock.text, stock.ids, stock.finish_reason)
        assert (result.window_tokens, result.net_early) == (windows, 0)


@pytest.mark.parametrize("ends", [{"suppress_eos": True}, {"defer_end": True}])
@pytest.mark.parametrize("cache", CACHES)
def test_suppressed_and_deferred_ends_leave_the_net_nothing_to_do(ends, cache):
    """Such rows are not cut, so they can't grow; nor do they keep a mate from growing."""
    configs = [GenerationConfig(window=64, cache=cache, **ends), GenerationConfig(window=64, cache=cache)]
    scripted = Scripted([Script(20, jump=8), Script(20, jump=8)])
    whole, grown = scripted.answers(configs)
    assert (whole.truncated, whole.reason, whole.extended) == (False, "EOS is suppressed", 0)
    assert (whole.net_forwards, whole.window_tokens) == (0, 64)
    assert (EOS in whole.window_ids) == ("defer_end" in ends)
    assert (grown.net_early, grown.ids) == (2, words(20))


@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("shift", [False, True])
def test_tiny_windows(cache, step0, shift):
    """Up to 8 slots there is nothing to cut; 9 are cut to 8 and grow by one."""
    for window in range(1, 9):
        for content in {0, 1, window - 1, window}:
            result = Scripted([Script(content)], shift=shift).answer(
                GenerationConfig(window=window, cache=cache), Truncation(step0=step0)
            )
            assert (result.ids, result.reason, result.extended) == (words(content), "window too small", 0)
    for content, nets in ((7, (0, 0)), (8, (1, 0)), (9, (1, 0))):
        result = Scripted([Script(content, jump=7)], shift=shift).answer(
            GenerationConfig(window=9, cache=cache), Truncation(step0=step0)
        )
        assert (result.ids, (result.net_early, result.net_late)) == (words(content), nets)
        assert result.window_tokens == 8 + nets[0]


def test_an_end_in_the_given_text_is_an_end():
    """What stock would cut the answer at is no reason to grow: the late net looks at all of the window."""
    draft = torch.tensor([1, EOS])
    scripted = Scripted([Script(6, jump=8, later=40)])
    result = scripted.answer(GenerationConfig(window=64), Truncation(safety_net=True), drafts=[draft])
    assert (result.ids, result.net_late, result.finish_reason) == ([1], 0, "end")
