"""The rivals of Seer's truncation: each does what its source describes, worked out by hand, whatever is beside it."""

import pytest
import torch
from scripted import (
    EOS,
    EOT,
    MASK,
    SCRIPT,
    SLOT,
    VOCAB,
    Script,
    Scripted,
    Written,
    differences,
    words,
)

from seer_dllm import GenerationConfig, Truncation
from seer_dllm.rivals import EosDensity, EosLogit, Grow

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
METHODS = ["eos_logit", "eos_density", "grow", "early_stop"]


def chances(scripted: Scripted, *rows: dict[int, float]) -> Scripted:
    """By row the probability of each slot's token. Other words, but no ends, share the rest."""
    backbone = scripted.backbone

    def logits(hidden):
        out = torch.full((len(hidden), VOCAB), 1e-30)
        for i, (script, slot) in enumerate(hidden[:, [SCRIPT, SLOT]].long().tolist()):
            token, chance = int(backbone.tokens[script, 0, slot]), rows[script].get(slot, rows[script][-1])
            others = [word for word in range(VOCAB) if word not in (token, EOS, EOT, MASK)]
            out[i, others] = (1 - chance) / len(others)
            out[i, token] = chance
        return out.log()

    backbone.logits = logits
    return scripted


def ends_at(scripted: Scripted, share: dict[int, float]) -> Scripted:
    """Every slot says word 0 with what is left by its chance of an end, half of which is that of an end-of-turn."""

    def logits(hidden):
        out = torch.full((len(hidden), VOCAB), 1e-30)
        for i, slot in enumerate(hidden[:, SLOT].long().tolist()):
            chance = share.get(slot, share[-1])
            out[i, [EOS, EOT]] = chance / 2
            out[i, 0] = max(1 - chance, 1e-30)
        return out.log()

    scripted.backbone.logits = logits
    return scripted


def using(method, **settings) -> Truncation:
    return Truncation(method=method, **settings)


@pytest.mark.parametrize(
    ("survival", "boundary", "window"),
    [
        # the chances that no end has come: 0.9, 0.72, 0.504, 0.3024, 0.1512, 0.0756
        (0.95, 0, 4),
        (0.8, 1, 4),
        (0.51, 2, 4),
        (0.5, 3, 4),  # 3 words and the end: a block of 4
        (0.3, 4, 8),  # the end is the 5th slot
        (0.15, 5, 8),
        (0.0, None, 32),  # never below
    ],
)
def test_eos_logit_crops_where_the_product_falls_below(survival, boundary, window):
    share = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5, -1: 0.5}
    scripted = ends_at(Scripted([Script(32)]), share)
    result = scripted.answer(GenerationConfig(window=32, block=4), using(EosLogit(survival)))
    assert result.window_tokens == window
    if boundary is None:
        assert (result.truncated, result.reason, result.boundary) == (False, "no end in the first pass", 32)
    else:
        assert (result.truncated, result.reason, result.boundary) == (True, None, boundary)


@pytest.mark.parametrize("cache", ["none", "prompt", "prefix", "dual"])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(
    ("content", "window", "block"), [(0, 8, 8), (1, 8, 8), (7, 8, 8), (8, 16, 16), (20, 32, 16), (40, 48, 16)]
)
def test_eos_logit_restarted_is_stock_on_the_short_window(content, window, block, shift, cache):
    scripted = Scripted([Script(content)], shift=shift)
    config = GenerationConfig(window=64, block=16, steps=32, cache=cache)
    result = scripted.answer(config, using("eos_logit", step0="restart"))
    short = GenerationConfig(window=window, block=block, steps=window // 2, cache=cache)
    stock = scripted.answer(short, None)
    assert (result.boundary, result.window_ids, result.steps) == (content, stock.window_ids, stock.steps)
    assert result.ids == words(content) and result.finish_reason == "end"
    prompt = 0 if cache == "prompt" else 5
    assert result.forwards == stock.forwards + 1
    assert result.token_forwards == stock.token_forwards + prompt + 64


def test_eos_logit_goes_on_with_its_one_full_pass():
    """Carried, the full pass is step 0: 64 slots once, then 16, at two slots a step."""
    scripted, written = Scripted([Script(10)]), Written()
    config = GenerationConfig(window=64, steps=32)
    result = scripted.answer(config, using("eos_logit"), on_step=written)
    assert [call.lengths for call in scripted.backbone.calls] == [(69,)] + [(21,)] * 7
    assert written.per_step() == [2] * 8 and written.windows() == [16] * 8
    assert (result.steps, result.forwards, result.token_forwards) == (8, 8, 69 + 7 * 21)
    assert (result.ids, result.extended) == (words(10), 0)


@pytest.mark.parametrize(
    ("content", "window", "reason"),
    [(64, 64, "no end in the first pass"), (60, 64, "the answer needs the whole window"), (0, 8, None)],
)
def test_eos_logit_at_the_edges(content, window, reason):
    result = Scripted([Script(content)]).answer(GenerationConfig(window=64), using("eos_logit"))
    assert (result.window_tokens, result.reason, result.ids) == (window, reason, words(content))
    assert result.truncated == (reason is None)


def test_eos_logit_keeps_what_the_caller_wrote():
    """An end is predicted in slot 4, but slot 19 is fixed: one slot behind it is kept, in a block of 8s."""
    scripted = Scripted([Script(4)])
    draft = torch.full((20,), MASK)
    draft[19] = 7
    result = scripted.answer(GenerationConfig(window=64), using("eos_logit"), drafts=[draft])
    assert (result.window_tokens, result.window_ids[19], result.ids) == (24, 7, words(4))


def test_an_end_that_eos_logit_misses_is_missed():
    """No net: the model sees its end in slot 6, and once it has written a word it wants 40."""
    result = Scripted([Script(6, later=40)]).answer(GenerationConfig(window=64), using("eos_logit"))
    assert (result.window_tokens, result.finish_reason, result.extended) == (8, "length", 0)


@pytest.mark.parametrize(
    ("away", "slots"),
    # by tenths outside of [0.4, 0.6]: the first tenth 8, the second 16, the third 32, the fourth 64, then no more
    [(0.001, 8), (0.1, 8), (0.101, 16), (0.2, 16), (0.25, 32), (0.3, 32), (0.301, 64), (0.4, 64), (0.6, 64)],
)
def test_eos_density_changes_more_the_further_it_is_away(away, slots):
    assert EosDensity().slots(away) == slots


def test_eos_density_follows_the_share_of_ends():
    """20 words and 44 ends, written left to right, one a step.

    Ends by masks before a step: 44/64, 36/55, 28/46 are above 0.6 by less than 0.1: 8 slots less each, 40 are left.
    20/37, 20/36, 20/35, 20/34 are fine, 20/33 is not: 32. 12/24 to 12/20 are fine, 12/19 is not: 24. 4/10 to 4/7 are
    fine, 4/6 is not, but 19 words are written and the end needs a slot: 20. 0/1 is below by 0.4: 64 more, of which 44
    find room. 44/44 is above by 0.4: 64 less, but 20 words and the end, just written, stay.
    """
    written = Written()
    result = Scripted([Script(20)]).answer(GenerationConfig(window=64), using("eos_density"), on_step=written)
    assert written.windows() == [64, 56, 48] + [40] * 5 + [32] * 6 + [24] * 5 + [20, 64]
    assert (result.window_tokens, result.boundary, result.ids) == (21, 21, words(20))
    assert (result.steps, result.forwards, result.extended, result.finish_reason) == (21, 21, 1, "end")


def test_eos_density_inserts_before_the_first_written_end():
    """The ends are surer than the 20 words, hence written first, from slot 20 on.

    44/64 and 35/55 drop 8 slots each: 48. 26/46 is fine until, ends being used up, 13/33 is below 0.4 in step 15: 8
    masks go before slot 20. (36 - k)/(56 - k) falls below 0.4 in step 23, 8 more; then there is no room.
    """
    scripted = chances(Scripted([Script(20)]), {**dict.fromkeys(range(20), 0.5), -1: 0.99})
    written = Written()
    result = scripted.answer(GenerationConfig(window=64), using("eos_density"), on_step=written)
    assert written.windows() == [64, 56] + [48] * 14 + [56] * 8 + [64] * 40
    after = written.ids[0][16]  # 16 ends were written, then 8 masks inserted, then one end more
    assert after[:20] == [MASK] * 20 and after[20] == EOS and after[21:28] == [MASK] * 7
    assert after[28:44] == [EOS] * 16 and after[44:] == [MASK] * 12
    assert (result.ids, result.extended, result.steps) == (words(20), 2, 64)


@pytest.mark.parametrize("block", [8, 16, 64])
@pytest.mark.parametrize(
    "rule", [{"steps": 16}, {"threshold": 0.9}, {"factor": 1.0}, {"steps": 8, "schedule": "shift"}]
)
@pytest.mark.parametrize("content", [0, 1, 20, 63, 64])
@pytest.mark.parametrize("method", ["eos_density", "grow"])
def test_moving_windows_end_filled(method, content, rule, block):
    config = GenerationConfig(window=64, block=block, **rule)
    result = Scripted([Script(content)]).answer(config, using(method))
    assert result.ids == words(content) and MASK not in result.window_ids and result.window_tokens <= 64


def test_eos_density_leaves_a_filled_window_with_an_end():
    """All 63 ends are written at once, 8 of them dropped; the word is then the last mask, and 0/1 asks for nothing."""
    scripted, written = chances(Scripted([Script(1)]), {0: 0.5, -1: 0.99}), Written()
    config = GenerationConfig(window=64, threshold=0.9)
    result = scripted.answer(config, using(EosDensity(most=1)), on_step=written)
    assert written.windows() == [64, 56]
    assert (result.ids, result.window_tokens, result.extended) == ([0], 56, 0)


def test_eos_density_adjusts_in_its_first_steps_alone():
    written = Written()
    config = GenerationConfig(window=64)
    Scripted([Script(20)]).answer(config, using(EosDensity(steps=2)), on_step=written)
    assert written.windows() == [64, 56] + [48] * 46


@pytest.mark.parametrize(
    ("check", "chance", "lengths"),
    [
        # of 20 words and ends, windows of 8 and 16 show no end; 24 slots show 4
        (4, 1.0, [8, 16, 24, 26]),  # 4/4; two written ends are added
        (8, 1.0, [8, 16, 24, 28]),  # 4/8 is enough
        (8, 0.9, [8, 16, 24, 32, 36]),  # 3.6/8 is not, 7.2/8 is
        (16, 0.9, [8, 16, 24, 32, 40]),  # 3.6/16 is not, 10.8/16 is
        (32, 0.9, [8, 16, 24, 32, 40, 56]),  # 10.8/32 is not, 18/32 is
        (64, 0.9, [8, 16, 24, 32, 40, 48, 56, 64]),  # 25.2/64 is not, 32.4/64 is; 8 of 32 ends find room
    ],
)
def test_grow_lengthens_until_enough_ends(check, chance, lengths):
    scripted = chances(Scripted([Script(20)]), {**dict.fromkeys(range(20), 0.99), -1: chance})
    result = scripted.answer(GenerationConfig(window=64), using(Grow(start=8, check=check)))
    seen = [call.lengths[0] - 5 for call in scripted.backbone.calls]
    assert list(dict.fromkeys(seen)) == lengths
    assert (result.window_tokens, result.ids) == (lengths[-1], words(20))


def test_grow_counts_the_last_ends_wherever_they_are():
    """Words among the ends at the back are passed over: of 24 slots four say an end, 20 to 22 and 18."""
    scripted = Scripted([Script(18)])
    scripted.backbone.tokens[0, :, [19, 23]] = 5
    result = scripted.answer(GenerationConfig(window=64), using(Grow(start=24, check=4, enough=0.8)))
    assert (result.boundary, result.window_tokens) == (24, 26)  # 3/4 in the last four slots, but 4/4 in the last ends
    result = scripted.answer(GenerationConfig(window=64), using(Grow(start=24, check=9)))
    assert (result.boundary, result.window_tokens) == (32, 36)  # 4/9 is not enough, 9/9 is


def test_grow_makes_room_where_the_model_is_unsure():
    """10 words, of which slot 5 has 0.08, and ends of 0.7.

    16 slots show six ends, 4 * 0.7/4 is enough; two are written behind. (0.7 + 0.7 + 1 + 1)/4 is not safe: after the
    first step 7 masks more stand at slot 5, after the second another 7, and the window is full.
    """
    sure = {**dict.fromkeys(range(10), 0.99), 5: 0.08, -1: 0.7}
    scripted, written = chances(Scripted([Script(10)]), sure), Written()
    result = scripted.answer(GenerationConfig(window=32), using(Grow(start=16, check=4)), on_step=written)
    assert written.windows() == [18, 25] + [32] * 28
    assert written.ids[0][0] == [0] + [MASK] * 15 + [EOS] * 2
    assert written.ids[0][1] == [0, 1] + [MASK] * 21 + [EOS] * 2
    assert (result.ids, result.extended, result.window_tokens) == (words(10), 2, 32)


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"unsure": 0.08}, [18] * 16),  # 0.08 is not below it
        ({"safe": 0.85}, [18] * 16),
        ({"unit": 3}, [18, 20, 22, 24, 26]),  # two masks more a step, as long as the slot stays masked
    ],
)
def test_grow_is_asked_for_more_than_it_needs(settings, windows):
    """As above, with other numbers. 0.08 and 0.85 are put a hair off, so that rounding decides nothing."""
    settings = {k: v + {"unsure": -1e-6, "safe": -1e-6}.get(k, 0) for k, v in settings.items()}
    sure = {**dict.fromkeys(range(10), 0.99), 5: 0.08, -1: 0.7}
    scripted, written = chances(Scripted([Script(10)]), sure), Written()
    scripted.answer(GenerationConfig(window=32), using(Grow(start=16, check=4, **settings)), on_step=written)
    assert written.windows()[: len(windows)] == windows


def test_grow_looks_for_unsure_slots_in_the_block_alone():
    """Slot 13 is unsure; while block 0 of 8 slots is filled nothing grows, in block 1 it does."""
    scripted = chances(Scripted([Script(14)]), {**dict.fromkeys(range(14), 0.99), 13: 0.08, -1: 0.7})
    written = Written()
    config = GenerationConfig(window=64, block=8)
    result = scripted.answer(config, using(Grow(start=24, check=4)), on_step=written)
    assert written.windows()[:11] == [26] * 9 + [33, 40]
    assert result.ids == words(14)


@pytest.mark.parametrize(("window", "start"), [(1, 64), (1, 1), (2, 1), (64, 64), (64, 63)])
@pytest.mark.parametrize("content", [0, 1, 2, 64])
def test_grow_from_windows_of_every_kind(window, start, content):
    result = Scripted([Script(content)]).answer(GenerationConfig(window=window), using(Grow(start=start, check=8)))
    assert result.ids == words(min(content, window)) and result.window_tokens <= window


@pytest.mark.parametrize(
    ("content", "window", "steps"),
    [(0, 16, 8), (15, 16, 8), (16, 32, 16), (20, 32, 16), (47, 48, 24), (48, 64, 32), (63, 64, 32), (64, 64, 32)],
)
def test_early_stop_ends_with_the_block_of_the_end(content, window, steps):
    scripted = Scripted([Script(content)])
    config = GenerationConfig(window=64, block=16, steps=32)
    result, stock = scripted.answer(config, using("early_stop")), scripted.answer(config, None)
    assert (result.window_tokens, result.steps, result.forwards) == (window, steps, steps)
    assert result.ids == stock.ids and result.finish_reason == stock.finish_reason
    assert result.window_ids == stock.window_ids[:window]
    assert (result.truncated, result.reason) == (
        (True, None) if window < 64 else (False, "the answer needs the whole window")
    )


@pytest.mark.parametrize(
    ("method", "windows", "filled"),
    [
        # ends by masks: 44/64, 36/52, 28/40 (above by a tenth at most: 8), 20/28 (by more: 16), 4/8 (fine)
        ("eos_density", [64, 56, 48, 40, 24, 24], [4, 8, 12, 16, 20, 24]),
        (Grow(start=8, check=4), [26] * 6, [6, 10, 14, 18, 22, 26]),  # two ends are written before
    ],
)
def test_changed_windows_keep_the_pace(method, windows, filled):
    """16 steps for 64 slots are four slots a step, and stay so."""
    scripted, written = Scripted([Script(20)]), Written()
    result = scripted.answer(GenerationConfig(window=64, steps=16), using(method), on_step=written)
    assert (written.windows(), written.filled()) == (windows, filled)
    assert (result.ids, result.steps) == (words(20), 6)


def test_early_stop_at_a_stop_string():
    scripted = Scripted([Script(64)])
    config = GenerationConfig(window=64, block=16, stop=("w7 w8",))
    result, stock = scripted.answer(config, using("early_stop")), scripted.answer(config, None)
    assert (result.text, result.ids, result.finish_reason) == (stock.text, stock.ids, "stop")
    assert (result.window_tokens, stock.window_tokens) == (16, 64)


def test_early_stop_leaves_masks_that_the_model_wrote():
    scripted = Scripted([Script(20, mask_at=3)])
    config = GenerationConfig(window=64, block=16)
    result, stock = scripted.answer(config, using("early_stop")), scripted.answer(config, None)
    assert result.window_ids == stock.window_ids[:32] and result.window_ids[3] == MASK
    assert result.steps == 32


def test_early_stop_takes_ends_as_they_come():
    """Deferred ends are written when nothing else is left: a block of 16 holds its end when it is filled."""
    scripted = Scripted([Script(20)])
    config = GenerationConfig(window=64, block=16, defer_end=True)
    result, stock = scripted.answer(config, using("early_stop")), scripted.answer(config, None)
    assert (result.ids, result.window_tokens) == (stock.ids, 32)


def test_none_is_stock():
    scripted = Scripted([Script(20)])
    config = GenerationConfig(window=64, block=16)
    result, stock = scripted.answer(config, using("none")), scripted.answer(config, None)
    assert not differences(result, stock) and result.reason == "truncation is off"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("content", [0, 1])
def test_a_window_of_one_slot(method, content):
    result = Scripted([Script(content)]).answer(GenerationConfig(window=1), using(method))
    assert (result.ids, result.window_tokens, result.truncated) == (words(content), 1, False)
