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


def dream_quotas(masks: int, steps: int, times: int, eps: float, first: int | None = None) -> list[int]:
    """Dream's slots per step: they sum to `masks`, and may be 0.

    Times run from 1 to `eps` in `times` equal steps, float32 as in the reference; a step from t to s takes
    `1 - s / t` of what is masked, the last one the rest. first: what step 0 takes instead (Fast-dLLM's block cache).
    """
    t = torch.linspace(1, eps, times + 1, dtype=torch.float32)
    quotas = []
    for i in range(steps):
        left = masks - sum(quotas)
        share = float(torch.tensor(float(left)) * (1 - t[i + 1] / t[i]))
        quotas.append(first if i == 0 and first is not None else int(share) if i < steps - 1 else left)
    return quotas if sum(quotas) == masks else [*quotas, masks - sum(quotas)]


def block_quotas(config: GenerationConfig, masks: int, steps: int, first: int | None = None) -> list[int]:
    """Slots to commit in each of a block's steps, by the row's schedule; `first` as in `dream_quotas`."""
    if config.schedule != "dream":
        return step_quotas(masks, steps, config.schedule, config.shift)
    times = steps if config.times is None else max(steps, round(steps * config.times / config.steps))
    return dream_quotas(masks, steps, times, config.eps, first) if masks else []


def leave_most_probable(logits: Tensor, config: GenerationConfig) -> Tensor:
    """`logits [N, V]` over the temperature (if it is above 0), all but the most probable tokens at the dtype's lowest.

    Dream's filters: the fewest tokens whose probability exceeds `top_p`, of these the `top_k` largest and their ties.
    """
    if config.temperature > 0:
        logits = logits / config.temperature
    lowest = torch.finfo(logits.dtype).min
    if config.top_p is not None and config.top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        beyond = ranked.softmax(-1).cumsum(-1) > config.top_p
        beyond = torch.cat((torch.zeros_like(beyond[:, :1]), beyond[:, :-1]), dim=1)  # the first beyond still counts
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), lowest)
    if config.top_k is not None:
        least = logits.topk(min(config.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, lowest)
    return logits


@dataclass(frozen=True)
class CommitRule:
    """Ranks the masked slots of a block and says how many of them are written now.

    Args:
        kind: confidence of `token_confidence` that ranks the slots: "prob", "margin", "entropy".
        random: ranks are random numbers of the row's own generator instead.
        threshold: write every slot at or above it, the best at least; NaN: go by quota.
        factor: take the longest run of ranks n whose confidence is at least `1 - factor / (n + 1)`.
        hold_back: the threshold bounds the quota instead of replacing it; the best slot is written all the same.
    """

    kind: str
    random: bool
    threshold: float
    factor: float | None
    hold_back: bool

    @classmethod
    def of(cls, config: GenerationConfig) -> CommitRule:
        kind = {"low_confidence": "prob", "random": "prob"}.get(config.commit, config.commit)
        threshold = NO_THRESHOLD if config.threshold is None else config.threshold
        return cls(kind, config.commit == "random", threshold, config.factor, config.hold_back)

    @property
    def counts_steps(self) -> bool:
        """Whether a step's quota is what bounds it (then the number of steps is known ahead)."""
        return math.isnan(self.threshold) and self.factor is None

    def quota(self, planned: int, confidence: Callable[[], Tensor]) -> int:
        """Slots to write now, given the planned quota.

        `confidence` gives the confidences `[n]` of the row's masked slots. It is called, and the device waited for,
        only where the rule needs them.
        """
        if self.hold_back:
            ranked = confidence().sort(descending=True).values[: max(1, planned)]
            return max(1, int((ranked >= self.threshold).sum()))
        return planned if self.factor is None else factor_quota(confidence(), self.factor)


def factor_quota(confidence: Tensor, factor: float) -> int:
    """Fast-dLLM's factor rule: rank n (from 1) may be written while its confidence is at least `1 - factor / (n + 1)`.

    The first rank always is. Where the first one that falls short is the last of all, the reference writes it too.
    """
    ranked = confidence.double().sort(descending=True).values
    n = torch.arange(1, len(ranked) + 1, dtype=torch.float64, device=ranked.device)
    short = (ranked < 1 - factor / (n + 1))[1:].nonzero().flatten().tolist()
    return len(ranked) if not short or short[0] + 2 == len(ranked) else short[0] + 1
