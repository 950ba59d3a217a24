"""How many slots a step writes: schedules and commit rules, against numbers worked out by hand."""

import math

import pytest
import torch

from seer_dllm import GenerationConfig
from seer_dllm.config import SCHEDULES
from seer_dllm.policies import CommitRule, factor_quota, step_quotas


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
    ("confidence", "factor", "quota"),
    [
        # needed at factor 0.5: 0.75 0.8333 0.875; at 1: 0.5 0.6667 0.75
        ([0.9, 0.8, 0.3], 0.5, 1),
        ([0.9, 0.8, 0.3, 0.2], 1.0, 2),
        ([0.3, 0.8, 0.2, 0.9], 1.0, 2),  # ranked first
        ([0.9, 0.8, 0.3], 1.0, 3),  # only the last falls short: written too, as in Fast-dLLM
        ([0.1, 0.1, 0.1], 0.5, 1),
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
