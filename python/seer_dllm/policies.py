"""How many slots a step commits (schedules) and which ones (commit rules). Small objects that the one loop is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seer_dllm.config import GenerationConfig

NO_THRESHOLD = float("nan")


def step_quotas(masks: int, steps: int, schedule: str = "even", shift: float = 3.0) -> list[int]:
    """Slots to commit in each step of a block: they sum to `masks`, each is at least 1; never more steps than masks.

    "even" is LLaDA's rule (the remainder goes to the first steps). The others follow LaViDa: a cumulative curve in
    float32, truncated to whole slots, raised to at least one a step, the surplus taken back round-robin from the
    start, then reversed. "shift" is `shift * t / (1 + (shift - 1) * t)`, "cosine" `(1 - cos(pi t)) / 2`, "logit_normal"
    the standard normal distribution function of logit(t).
    """
    steps = min(steps, masks)
    if steps == 0:
        return []
    if schedule == "even":
        return [masks // steps + (i < masks % steps) for i in range(steps)]
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float32)
    if schedule == "linear":
        curve = t
    elif schedule == "shift":
        curve = shift * t / (1 + (shift - 1) * t)
    elif schedule == "cosine":
        curve = (1 - torch.cos(math.pi * t)) / 2
    elif schedule == "logit_normal":
        curve = torch.special.ndtr(torch.logit(t))
    else:
        raise ValueError(f"schedule {schedule!r} has no curve")
    cumulative = (curve * masks).to(torch.int64)
    quotas = cumulative.diff().clamp(min=1).tolist()
    surplus = sum(quotas) - masks
    while surplus > 0:
        for i, quota in enumerate(quotas):
            if surplus > 0 and quota > 1:
                quotas[i] -= 1
                surplus -= 1
    return quotas[::-1]


@dataclass(frozen=True)
class CommitRule:
    """Ranks the masked slots of a block and says how many of them are written now.

    Args:
        kind: confidence of `token_confidence` that ranks the slots: "prob", "margin", "entropy".
        random: ranks are random numbers of the row's own generator instead.
        threshold: write every slot at or above it, the best at least; NaN: go by quota.
        factor: take the longest run of ranks n whose confidence is at least `1 - factor / (n + 1)`.
    """

    kind: str
    random: bool
    threshold: float
    factor: float | None

    @classmethod
    def of(cls, config: GenerationConfig) -> CommitRule:
        kind = {"low_confidence": "prob", "random": "prob"}.get(config.commit, config.commit)
        threshold = NO_THRESHOLD if config.threshold is None else config.threshold
        return cls(kind, config.commit == "random", threshold, config.factor)

    @property
    def counts_steps(self) -> bool:
        """Whether a step's quota is what bounds it (then the number of steps is known ahead)."""
        return math.isnan(self.threshold) and self.factor is None

    def quota(self, planned: int, confidence: Callable[[], Tensor]) -> int:
        """Slots to write now, given the planned quota.

        `confidence` gives the confidences `[n]` of the row's masked slots. It is called, and the device waited for,
        only where the rule needs them.
        """
        return planned if self.factor is None else factor_quota(confidence(), self.factor)


def factor_quota(confidence: Tensor, factor: float) -> int:
    """Fast-dLLM's factor rule: rank n (from 1) may be written while its confidence is at least `1 - factor / (n + 1)`.

    At least one is written. Where the first rank that falls short is the last one of all, the reference writes it too.
    """
    ranked = confidence.double().sort(descending=True).values
    n = torch.arange(1, len(ranked) + 1, dtype=torch.float64, device=ranked.device)
    short = (ranked < 1 - factor / (n + 1)).nonzero().flatten().tolist()
    if not short or short[0] == len(ranked) - 1:
        return len(ranked)
    return max(short[0], 1)
