"""The search for a profile: over arrays, without a model.

What a profile costs is the work of whole runs; what it risks is a kept window with fewer slots than stock's answer
needs. The search takes the cheapest profile whose margin leaves no such window among the samples it looks at. All rules
and grids are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from seer_dllm.config import BLOCK_CACHES, GenerationConfig, Profile
from seer_dllm.detection import find_boundary, kept_window

FULL = 65535  # a share of 1 in `Measured.shares`
MAX_LAYERS = 6
SCREENED = 64  # samples that the first, widest pass looks at
STARTS = 8  # layer ranges that are searched on from
TAIL = 0.1  # share of the samples whose deficits shape the tail
LEAST_SLACK = 1
ROUNDS = 6
GAIN = 1e-3  # relative; what gains less is left as it is
CHOICES = {
    "window": (4, 8, 16),
    "min_snr": (0.5, 1.0, 2.0, 3.0),
    "min_jump": (0.0, 0.01, 0.02, 0.03, 0.05, 0.1),
    "plateau": (0.5, 0.7, 0.8, 0.9, 0.95),
}


@dataclass(frozen=True)
class Measured:
    """What N samples showed under one configuration.

    Attributes:
        shares: uint16 `[N, layers, K, G+1]`: quiet share times `FULL` at each threshold, for the position before the
            window and its slots.
        thresholds: K, ascending.
        needs: `[N]` slots of stock's answer, its end included; G where it has none.
        ended: bool `[N]`: whether it has.
        prompts, steps: `[N]` tokens of the prompt, steps of the stock run.
        unread: `[N, 2]` first slots that can't be read with slot offset 0 and with 1.
    """

    shares: np.ndarray
    thresholds: tuple[float, ...]
    needs: Tensor
    ended: Tensor
    prompts: Tensor
    steps: Tensor
    unread: Tensor

    def __len__(self) -> int:
        return len(self.needs)

    @property
    def n_layers(self) -> int:
        return self.shares.shape[1]

    def rows(self, index: Tensor) -> Measured:
        parts = (getattr(self, name)[index] for name in ("needs", "ended", "prompts", "steps", "unread"))
        return Measured(self.shares[index.numpy()], self.thresholds, *parts)

    def curves(self, profile: Profile) -> Tensor:
        """float32 `[N, G]`, as the probe of this profile would show them."""
        first = 1 - profile.slot_offset
        at = self.thresholds.index(profile.threshold)
        kept = self.shares[:, list(profile.probe_layers), at, first : first + self.shares.shape[-1] - 1]
        return torch.from_numpy(kept.astype(np.float32)).div_(FULL).mean(dim=1)


@dataclass(frozen=True)
class Costs:
    """Token-layers of a run, as planned at its beginning (prefills aside, which are the same for all).

    Args:
        restarts: step 0 runs anew on what is kept (wrapped models, block caches) instead of going on with it.
    """

    config: GenerationConfig
    n_layers: int
    restarts: bool = False

    @classmethod
    def of(cls, config: GenerationConfig, n_layers: int, wrapped: bool) -> Costs:
        return cls(config, n_layers, wrapped or config.cache in BLOCK_CACHES)

    def stock(self, measured: Measured) -> Tensor:
        return measured.steps * (self._fed(measured) + self.config.window) * self.n_layers

    def cut(self, measured: Measured, kept: Tensor, probed: int) -> Tensor:
        """kept: `[N]` slots; probed: layers up to the last probe layer. Steps shrink with the window ("rescale")."""
        window = self.config.window
        fed = self._fed(measured)
        steps = (measured.steps * kept / window).round().clamp(min=1)
        probe = (fed + window) * probed
        saved = 0 if self.restarts else probed  # layers of step 0 that the probe has done already
        went_on = probe + (fed + kept) * (steps * self.n_layers - saved)
        uncut = self.stock(measured) + (probe if self.restarts else 0)
        return torch.where(kept < window, went_on, uncut)

    def _fed(self, measured: Measured) -> Tensor:
        """Prompt tokens of a step; a block cache computes them once a block, which is left out."""
        return measured.prompts if self.config.cache == "none" else torch.zeros_like(measured.prompts)


@dataclass(frozen=True)
class Outcome:
    """A profile on some samples.

    Attributes:
        kept: `[N]` slots; needed: `[N]` slots that a perfect cut would keep.
        too_short: windows with fewer slots than stock's answer needs.
        cost: token-layers relative to stock's.
    """

    profile: Profile
    kept: Tensor
    needed: Tensor
    too_short: int
    cost: float


class Search:
    """Evaluates profiles on samples of one configuration.

    Args:
        max_cut: the share of windows cut too short that is asked for; confidence: of the margin that is to hold it.
    """

    def __init__(self, costs: Costs, max_cut: float, confidence: float) -> None:
        self.costs, self.max_cut, self.confidence = costs, max_cut, confidence
        window = costs.config.window
        self._kept = torch.tensor([kept_window(keep, costs.config, 0)[0] for keep in range(1, window + 1)])

    def outcome(self, measured: Measured, profile: Profile, boundary: Tensor | None = None) -> Outcome:
        boundary = self._boundaries(measured, profile) if boundary is None else boundary
        window = self.costs.config.window
        if window <= profile.margin + 8:  # such windows are not probed
            boundary = torch.full_like(boundary, window)
        kept = self._keep(boundary + profile.margin)
        cost = self.costs.cut(measured, kept, max(profile.probe_layers) + 1)
        needs = measured.needs
        relative = float(cost.double().sum() / self.costs.stock(measured).double().sum())
        return Outcome(profile, kept, self._keep(needs), int((kept < needs).sum()), relative)

    def fitted(self, measured: Measured, profile: Profile, known: dict[Profile, Tensor] | None = None) -> Outcome:
        """The profile with the margin that these samples ask for.

        The smallest that reaches the end of every answer here, without the rounding up that follows, which may help by
        luck; plus what is to be expected beyond the N samples. That comes from the tail of the deficits (slots needed
        minus the boundary), taken as geometric: behind the quantile `1 - TAIL` they exceed it by m on average, so that
        every slot more lets through the share `1 - 1 / m` of what the one before did. Beyond the largest of N lies a
        share of E / N, E of the standard exponential distribution; at this confidence, a slack of
        `ln(-ln(1 - confidence) / (N * max_cut)) / -ln(1 - 1 / m)` slots leaves at most max_cut. So many samples as
        prove the rate by themselves (`samples_needed`) add nothing; else it is at least `LEAST_SLACK`, as the best of
        thousands of profiles was lucky. The margin is the largest that the profile or one with a layer more or less
        asks for: what is safe by luck alone is not so in its neighbours.

        Args:
            known: boundaries of profiles on these samples, kept from one call to the next.
        """
        known = {} if known is None else known
        near = [replace(near, margin=0) for near in (profile, *_neighbours(profile, "layers", measured))]
        for one in near:
            if one not in known:
                known[one] = self._boundaries(measured, one)
        margin = max(self._margin(measured, known[one]) for one in near)
        return self.outcome(measured, replace(profile, margin=margin), known[near[0]])

    def constant(self, measured: Measured) -> int:
        """The control that does not look: slots that would be kept of every window by the rule of `fitted`."""
        nowhere = torch.zeros_like(measured.needs)
        return int(self._keep(torch.tensor(self._margin(measured, nowhere))))

    def cost_at(self, measured: Measured, kept: Tensor) -> float:
        """Token-layers of stock runs on windows of `kept [N]` slots, relative to those on full ones."""
        cost = self.costs.cut(measured, kept, probed=0)
        return float(cost.double().sum() / self.costs.stock(measured).double().sum())

    def _margin(self, measured: Measured, boundary: Tensor) -> int:
        window = self.costs.config.window
        cut = boundary < window
        if not cut.any():
            return 0
        deficits = (measured.needs - boundary)[cut].double()
        margin = max(0, int(deficits.max()))
        beyond = -math.log1p(-self.confidence) / (len(measured) * self.max_cut)
        if beyond <= 1:
            return min(margin, window)
        level = deficits.quantile(1 - TAIL).floor()
        excess = float((deficits[deficits > level] - level).mean()) if bool((deficits > level).any()) else 1.0
        decay = -math.log1p(-1 / excess) if excess > 1 else math.inf
        slack = max(LEAST_SLACK, math.ceil(math.log(beyond) / decay))
        return min(margin + slack, window)

    def best(self, measured: Measured) -> list[Outcome]:
        """Fitted profiles, cheapest first, each the best that was found from another range of layers."""
        some = measured.rows(torch.linspace(0, len(measured) - 1, min(SCREENED, len(measured))).long())
        ranges = [
            tuple(range(first, first + n))
            for n in range(1, min(MAX_LAYERS, measured.n_layers) + 1)
            for first in range(measured.n_layers - n + 1)
        ]
        screened, known = [], {}
        for layers in tqdm(ranges, desc="layer ranges", mininterval=1, leave=False):
            seen = (
                self.fitted(some, Profile(layers, threshold, slot_offset=offset), known)
                for threshold in measured.thresholds
                for offset in (0, 1)
            )
            screened.append(min(seen, key=lambda outcome: outcome.cost))
        screened.sort(key=lambda outcome: outcome.cost)
        found, known = {}, {}
        for start in tqdm(screened[:STARTS], desc="profiles", mininterval=1, leave=False):
            outcome = self._descend(measured, start.profile, known)
            found.setdefault(outcome.profile, outcome)
        return sorted(found.values(), key=lambda outcome: outcome.cost)

    def _descend(self, measured: Measured, profile: Profile, known: dict[Profile, Tensor]) -> Outcome:
        """Coordinate descent: one setting at a time, until none gains anything."""

        def fitted(profile: Profile) -> Outcome:
            return self.fitted(measured, profile, known)

        best = fitted(profile)
        for _ in range(ROUNDS):
            before = best
            for axis in ("layers", "threshold", "slot_offset", *CHOICES):
                cheapest = min(
                    map(fitted, _neighbours(best.profile, axis, measured)), key=lambda o: o.cost, default=best
                )
                if cheapest.cost < best.cost * (1 - GAIN):
                    best = cheapest
            if best is before:
                break
        return best

    def _boundaries(self, measured: Measured, profile: Profile) -> Tensor:
        n, window = len(measured), self.costs.config.window
        lengths = torch.full((n,), window, dtype=torch.int32)
        unread = measured.unread[:, profile.slot_offset].tolist()
        return torch.tensor(find_boundary(measured.curves(profile), lengths, profile, [0] * n, unread)[0])

    def _keep(self, slots: Tensor) -> Tensor:
        """Kept window of a boundary with its margin."""
        return self._kept[slots.clamp(1, self.costs.config.window) - 1]


def _neighbours(profile: Profile, axis: str, measured: Measured) -> Iterator[Profile]:
    if axis == "layers":
        first, last = profile.probe_layers[0], profile.probe_layers[-1]
        for a, b in ((first - 1, last), (first + 1, last), (first, last - 1), (first, last + 1)):
            if 0 <= a <= b < min(measured.n_layers, a + MAX_LAYERS):
                yield replace(profile, probe_layers=tuple(range(a, b + 1)))
    elif axis == "threshold":
        at = measured.thresholds.index(profile.threshold)
        yield from (replace(profile, threshold=t) for t in measured.thresholds[max(at - 1, 0) : at + 2])
    elif axis == "slot_offset":
        yield replace(profile, slot_offset=1 - profile.slot_offset)
    else:
        yield from (replace(profile, **{axis: value}) for value in CHOICES[axis])


def clopper_pearson(failures: int, n: int, confidence: float) -> float:
    """One-sided upper bound of a rate of which `failures` were seen in n (Clopper and Pearson 1934).

    The rate at which so few failures or fewer have probability `1 - confidence`.
    """
    if n == 0 or failures == n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):  # bisection, to the last bits of a float64
        rate = (low + high) / 2
        logs = [
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            + k * math.log(rate) + (n - k) * math.log1p(-rate)
            for k in range(failures + 1)
        ]  # fmt: skip
        if math.fsum(map(math.exp, logs)) > 1 - confidence:
            low = rate
        else:
            high = rate
    return high


def samples_needed(rate: float, confidence: float) -> int:
    """Samples that have to be without a failure to bound a rate: the least n with `(1 - rate)^n <= 1 - confidence`."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))
