"""How many slots a step writes: schedules and commit rules, against numbers worked out by hand."""

import math

import pytest
import torch

from seer_dllm import GenerationConfig
from seer_dllm.config import SCHEDULES
from seer_dllm.policies import CommitRule, block_quotas, dream_quotas, factor_quota, leave_most_probable, step_quotas
from seer_dllm.row import Row


@pytest.mark.parametrize(
    ("masks", "steps", "schedule", "shift", "quotas"),
    [
        (10, 4, "even", 3, [3, 3, 2, 2]),
        (12, 4, "even", 3, [3, 3, 3, 3]),
        (3, 8, "even", 3, [1, 1, 1]),
        (7, 1, "even", 3, [7]),
        # cumulative 0 2.5 5 7.5 10, truncated 0 2 5 7 10, so 2 3 2 3, reversed
        (10, 4, "linear", 3, [3, 2, 3, 2]),
        # 3t / (1 + 2t) at quarters: 0.5 0.75 0.9 1
        (20, 4, "shift", 3, [2, 3, 5, 10]),
        # of 5: 2.5 3.75 4.5 5, so 2 1 1 1
        (5, 4, "shift", 3, [1, 1, 1, 2]),
        # t / (3 - 2t)... with shift 1/3: 1/10 1/4 1/2 1
        (20, 4, "shift", 1 / 3, [10, 5, 3, 2]),
        (10, 4, "shift", 1, [3, 2, 3, 2]),  # shift 1 is linear
        # 9t / (1 + 8t) at fifths, of 6: 4.15 5.14 5.59 5.84 6, so 4 1 0 0 1; raised 4 1 1 1 1; 2 too many: 2 1 1 1 1
        (6, 5, "shift", 9, [1, 1, 1, 1, 2]),
        # 0.146 0.5 0.854 1 of 8: 1 4 6 8, so 1 3 2 2
        (8, 4, "cosine", 3, [2, 2, 3, 1]),
        # of 8 in sevenths: 0.40 1.51 3.11 4.89 6.49 7.60 8: 0 1 2 1 2 1 1; raised 1 1 2 1 2 1 1; the first 2 gives one
        (8, 7, "cosine", 3, [1, 1, 2, 1, 1, 1, 1]),
        # Phi(ln 1/3) = Phi(-1.0986) = 0.136: 1.36 5 8.64 10, so 1 4 3 2
        (10, 4, "logit_normal", 3, [2, 3, 4, 1]),
    ],
)
def test_quotas_by_hand(masks, steps, schedule, shift, quotas):
    assert step_quotas(masks, steps, schedule, shift) == quotas


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"dream"}))
def test_quotas_fill_the_block(schedule):
    """For any sizes: they sum to the masks, each step writes, and no step is planned without a slot."""
    for masks in (0, 1, 2, 3, 7, 8, 31, 64, 127, 128, 500):
        for steps in (1, 2, 3, 5, 8, 30, 64, 128, 600):
            for shift in (0.2, 1.0, 3.0, 20.0) if schedule == "shift" else (3.0,):
                quotas = step_quotas(masks, steps, schedule, shift)
                place = f"masks={masks} steps={steps} shift={shift}"
                assert len(quotas) == min(masks, steps), place
                assert sum(quotas) == masks, place
                assert all(isinstance(q, int) and q >= 1 for q in quotas), place


def test_shift_above_one_starts_slow():
    assert step_quotas(64, 8, "shift", 3.0) == sorted(step_quotas(64, 8, "shift", 3.0))
    assert step_quotas(64, 8, "shift", 0.3) == sorted(step_quotas(64, 8, "shift", 0.3), reverse=True)


def test_unknown_schedule():
    with pytest.raises(ValueError, match="schedule 'low_confidence' has no curve"):
        step_quotas(8, 4, "low_confidence")


@pytest.mark.parametrize(
    ("masks", "steps", "times", "eps", "first", "quotas"),
    [
        # times 1 0.75025 0.5005 0.25075 0.001, so the shares 0.24975 0.33289 0.49900:
        # of 16: 3.996, of the 13 left 4.33, of 9 4.49, and the rest
        (16, 4, 4, 1e-3, None, [3, 4, 4, 5]),
        (16, 4, 4, 1e-3, 1, [1, 4, 5, 6]),  # of 15: 4.99, of 11: 5.49
        (16, 2, 4, 1e-3, None, [3, 13]),  # the last step takes the rest, wherever the times are
        (16, 1, 1, 1e-3, None, [16]),
        (16, 1, 1, 1e-3, 1, [1, 15]),  # a step more, or slots would stay masked
        (16, 2, 2, 1e-3, 1, [1, 15]),
        (1, 1, 1, 1e-3, 1, [1]),
        (1, 3, 3, 1e-3, 1, [1, 0, 0]),
        # more steps than slots: 0.4995, 0.666, 0.998
        (2, 4, 4, 1e-3, None, [0, 0, 0, 2]),
        # times 1 0.8335 0.667 0.5005 0.334 0.1675 0.001; of 3: 0.4995 0.599 0.749 0.998 1.4955
        (3, 6, 6, 1e-3, None, [0, 0, 0, 0, 1, 2]),
        (10, 2, 2, 0.5, None, [2, 8]),  # 1 0.75 0.5: 2.5
        (10, 4, 4, 0.0, None, [2, 2, 3, 3]),  # quarters: 2.5, of 8 a third, of 6 half
        (10, 3, 3, 1.0, None, [0, 0, 10]),  # time stands still
    ],
)
def test_dream_quotas_by_hand(masks, steps, times, eps, first, quotas):
    assert dream_quotas(masks, steps, times, eps, first) == quotas


@pytest.mark.parametrize("first", [None, 1])
@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_dream_quotas_fill_the_block(eps, first):
    """For any sizes they sum to the masks, and before the last each is the whole part of its share in float64."""
    for masks in (1, 2, 3, 8, 31, 64, 127, 500):
        for steps in (1, 2, 5, 8, 33, 128, 300):
            for times in {steps, steps + 3, 2 * steps}:
                quotas = dream_quotas(masks, steps, times, eps, first)
                assert sum(quotas) == masks and min(quotas) >= 0
                assert len(quotas) == steps + (steps == 1 and first is not None and masks > 1)
                for i in range(1 if first else 0, steps - 1):
                    t, s = (1 + (eps - 1) * j / times for j in (i, i + 1))
                    share = (masks - sum(quotas[:i])) * (1 - s / t)
                    assert share - 1 - 1e-3 < quotas[i] < share + 1e-3, (masks, steps, times, i)


def test_times_are_laid_out_per_block():
    """16 times over 8 steps are 8 over the 4 steps of a block of two."""
    config = GenerationConfig(window=32, block=16, steps=8, times=16, schedule="dream")
    # shares of eighths: 0.124875 of 16: 1.998; 0.14269 of 15: 2.14; 0.16644 of 13: 2.16
    assert block_quotas(config, 16, 4) == [1, 2, 2, 11]
    assert block_quotas(config, 0, 4, first=1) == []
    assert block_quotas(GenerationConfig(window=16, steps=4), 16, 4, first=1) == [4, 4, 4, 4]  # not a quota's affair


LOW = torch.finfo(torch.float32).min


def kept(logits, **settings) -> list[list[int]]:
    """Tokens of each row that are left."""
    out = leave_most_probable(torch.tensor(logits, dtype=torch.float32), GenerationConfig(**settings))
    return [(row > LOW).nonzero().flatten().tolist() for row in out]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        # four tokens of 0.25 each: as many as exceed top_p, ties to the lowest id
        ({"top_p": 0.0}, [0]),
        ({"top_p": 0.24}, [0]),
        ({"top_p": 0.25}, [0, 1]),
        ({"top_p": 0.5}, [0, 1, 2]),
        ({"top_p": 0.75}, [0, 1, 2, 3]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"top_k": 1}, [0, 1, 2, 3]),  # ties stay
        ({"top_p": 0.3, "top_k": 4}, [0, 1]),
    ],
)
def test_equally_probable_tokens(settings, left):
    assert kept([[1.0, 1.0, 1.0, 1.0]], **settings) == [left]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [0, 2, 3]),  # 0 and 3 tie
        ({"top_k": 3}, [0, 2, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        # of logits 2 1 1 0: 0.5345 0.1966 0.1966 0.0723
        ({"top_p": 0.53}, [2]),
        ({"top_p": 0.54}, [0, 2]),
        ({"top_p": 0.74}, [0, 2, 3]),
        ({"top_p": 0.74, "top_k": 1}, [2]),
        # over 2: 0.3875 0.2350 0.2350 0.1425; over a half: 0.7758 0.1050 0.1050 0.0142
        ({"top_p": 0.53, "temperature": 2.0}, [0, 2]),
        ({"top_p": 0.74, "temperature": 0.5}, [2]),
    ],
)
def test_filters_by_hand(settings, left):
    assert kept([[1.0, 0.0, 2.0, 1.0]], **settings) == [left]


def test_what_is_left_is_over_the_temperature():
    logits = torch.tensor([[3.0, -1.0, 0.5]])
    assert leave_most_probable(logits, GenerationConfig(top_k=2, temperature=0.5)).tolist() == [[6.0, LOW, 1.0]]
    assert leave_most_probable(logits, GenerationConfig(top_k=2)).tolist() == [[3.0, LOW, 0.5]]
    assert logits.tolist() == [[3.0, -1.0, 0.5]]


def test_filters_against_a_loop_in_float64():
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(40, 30, generator=generator)
    for top_p, top_k, temperature in ((0.9, None, 0), (0.95, 50, 0.2), (0.5, 3, 1.7), (0.99, 5, 0), (None, 7, 0.3)):
        settings = {"top_p": top_p, "top_k": top_k, "temperature": temperature}
        for row, left in zip(logits.tolist(), kept(logits.tolist(), **settings), strict=True):
            scaled = [x / (temperature or 1) for x in row]
            total, mass, want = sum(math.exp(x) for x in scaled), 0.0, []
            for token in sorted(range(30), key=lambda i: -scaled[i]):
                if (top_p is not None and mass > top_p) or (top_k is not None and len(want) == top_k):
                    break
                want.append(token)
                mass += math.exp(scaled[token]) / total
            assert left == sorted(want), settings


@pytest.mark.parametrize(
    ("confidence", "factor", "quota"),
    [
        # needed at factor 0.5: 0.75 0.8333 0.875; at 1: 0.5 0.6667 0.75
        ([0.9, 0.8, 0.3], 0.5, 1),
        ([0.9, 0.8, 0.3, 0.2], 1.0, 2),
        ([0.3, 0.8, 0.2, 0.9], 1.0, 2),  # ranked first
        ([0.9, 0.8, 0.3], 1.0, 3),  # only the last falls short: written too, as in Fast-dLLM
        ([0.1, 0.1, 0.1], 0.5, 1),
        ([0.1, 0.1], 0.5, 2),  # the first is written whatever it is, the second is the last
        ([0.9, 0.1], 0.5, 2),
        ([0.1], 0.5, 1),
        ([0.9, 0.9, 0.9], 0.5, 3),
        ([0.75, 0.1, 0.1], 0.5, 1),  # exactly at the first bound
        ([1.0, 1.0, 1.0, 0.99], 0.0, 4),
        ([1.0, 0.9, 0.9, 0.9], 0.0, 1),
        ([0.0] * 5, 10.0, 5),  # 1 - 10 / 6 < 0
    ],
)
def test_factor_rule_by_hand(confidence, factor, quota):
    assert factor_quota(torch.tensor(confidence, dtype=torch.float64), factor) == quota


@pytest.mark.parametrize(
    ("settings", "kind", "random", "counts"),
    [
        ({}, "prob", False, True),
        ({"commit": "margin"}, "margin", False, True),
        ({"commit": "entropy"}, "entropy", False, True),
        ({"commit": "random"}, "prob", True, True),
        ({"threshold": 0.9}, "prob", False, False),
        ({"factor": 1.0}, "prob", False, False),
    ],
)
def test_rule_of_settings(settings, kind, random, counts):
    rule = CommitRule.of(GenerationConfig(**settings))
    assert (rule.kind, rule.random, rule.counts_steps) == (kind, random, counts)
    assert rule.threshold == settings["threshold"] if "threshold" in settings else math.isnan(rule.threshold)
    confidence = torch.tensor([0.9, 0.8, 0.3, 0.2], dtype=torch.float64)
    assert rule.quota(3, lambda: confidence) == (2 if "factor" in settings else 3)


def holding_row(window: int, shift: bool = False, **settings) -> Row:
    config = GenerationConfig(window=window, threshold=0.5, hold_back=True, **settings)
    row = Row(0, torch.zeros(3, 4), torch.full((window,), 9), config, None, 9, (8,), shift)
    assert row.begin_block()
    return row


def take(row: Row, *confidence: float) -> int:
    """The quota of a step whose masked slots have these confidences; that many slots are written."""
    quota = row.quota(lambda: torch.tensor(confidence, dtype=torch.float64))
    row.advance(len(confidence) - quota)
    return quota


def test_what_a_threshold_holds_back_is_added_to_the_next_quota():
    """16 slots in 4 steps of 4; the quotas are 4, 4 + 2, 4 + 1, 4 + 4, and then what is left."""
    row = holding_row(16, steps=4)
    assert row.block.quotas == [4, 4, 4, 4] and math.isnan(row.threshold)
    assert take(row, 0.1, 0.9, *[0.2] * 10, 0.5, *[0.3] * 3) == 2  # at the threshold is above it
    assert take(row, *[0.8] * 5, *[0.1] * 9) == 5
    assert take(row, *[0.2] * 9) == 1  # the best at least
    assert take(row, *[0.6] * 3, *[0.2] * 5) == 3
    assert row.block is not None and row.held == 5  # the four steps are over, five slots are left
    assert take(row, *[0.1] * 5) == 1
    assert take(row, *[0.9] * 4) == 4
    assert row.block is None and row.step == 6


def test_the_quota_bounds_what_is_above_the_threshold():
    row = holding_row(16, steps=4)
    assert [take(row, *[0.9] * n) for n in (16, 12, 8, 4)] == [4, 4, 4, 4]
    assert row.block is None


def test_steps_without_a_quota_write_one_slot_and_no_more():
    """Of 6 slots in 12 steps Dream's first quotas are 0, but a threshold writes its best in every step."""
    row = holding_row(6, steps=12, schedule="dream")
    assert row.block.quotas[:6] == [0] * 6
    assert [take(row, *[0.9] * n) for n in (6, 5, 4, 3, 2, 1)] == [1] * 6
    assert row.block is None


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_what_a_full_forward_leaves_is_held_back_too(cache):
    """With shifted logits and a block cache the first step writes the first slot alone: 3 of its 4 come later."""
    row = holding_row(16, shift=True, steps=4, cache=cache)
    assert take(row, *[0.9] * 16) == 1
    assert [take(row, *[0.9] * n) for n in (15, 8, 4)] == [7, 4, 4]
    assert row.block is None
