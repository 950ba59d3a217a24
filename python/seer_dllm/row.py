"""One answer in the making: its window, the plan of its blocks and steps, and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seer_dllm.config import BLOCK_CACHES, GenerationConfig, Rival, Truncation
from seer_dllm.policies import NO_THRESHOLD, CommitRule, block_quotas
from seer_ext import plan_keep


@dataclass
class BlockPlan:
    """Slots `[start, end)` of the window and the steps meant for them."""

    start: int
    end: int
    steps: int
    quotas: list[int] | None = None  # made when the block begins, from the masks it then holds


@dataclass
class Counters:
    """Work done for one row. Token-layers: tokens times the layers they passed, cfg twins included.

    `net_forwards`, `net_token_layers`: the part of it that the safety net caused (`Row.for_net`). `grown`: how often a
    method other than Seer's lengthened the window.
    """

    forwards: int = 0
    token_layers: int = 0
    net_forwards: int = 0
    net_token_layers: int = 0
    steps: int = 0
    net_early: int = 0
    net_late: int = 0
    grown: int = 0


@dataclass(eq=False)
class Row:
    """State of one row of a batch. `ids` is the window `[window]` on the host, while active a view into the canvas.

    Args:
        index: place in the caller's batch.
        prompt: `[P, H]` embeddings of the prompt.
        ids: int64 `[G]`: the full window, mask ids where the model has to answer.
        shift: the model's logits of a position are those of the token behind it (Dream).
        has_stop: whether these ids hold a stop string of the caller's; None if there are none.
        rival: the method that decides about the window instead of Seer's; None: Seer's, if any.
    """

    index: int
    prompt: Tensor
    ids: Tensor
    config: GenerationConfig
    truncation: Truncation | None
    mask_id: int
    end_ids: tuple[int, ...]
    shift: bool = False
    has_stop: Callable[[list[int]], bool] | None = None
    rival: Rival | None = None
    rule: CommitRule = field(init=False)
    window: int = field(init=False)
    blocks: list[BlockPlan] = field(init=False)
    at: int = 0  # the current block
    step: int = 0  # steps made in the current block
    held: int = 0  # slots that a threshold held back from the steps so far
    prefilled: bool = False  # the prompt's keys and values are cached
    check_end: bool = False  # the next forward must see an end in the last slot before anything is written
    truncated: bool = False
    reason: str | None = None  # why the window was not cut
    boundary: int | None = None
    snr: float | None = None
    sparsity: list[float] | None = None  # the quiet share of each slot of the full window
    counters: Counters = field(default_factory=Counters)
    started: float = field(default_factory=time.perf_counter)
    finished: float | None = None
    # Lives on the CPU: random ranks then do not depend on the device or the batch.
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rule = CommitRule.of(self.config)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.window = len(self.ids)
        self.blocks = self._plan(self.window, self.config.block, self._stock_steps)

    @property
    def _stock_steps(self) -> int:
        """Steps per block of the full window. Rules that don't count steps allow fewer steps than blocks."""
        return max(1, self.config.steps // self.config.blocks)

    @property
    def block(self) -> BlockPlan | None:
        """The current block; None when all are filled."""
        return self.blocks[self.at] if self.at < len(self.blocks) else None

    def begin_block(self) -> bool:
        """Make the current block's quotas, passing over blocks without masks. False when the window is filled."""
        while (block := self.block) is not None:
            if block.quotas is None:
                masks = int((self.ids[block.start : block.end] == self.mask_id).sum())
                block.quotas = block_quotas(self.config, masks, block.steps, 1 if self._first_is_known_now else None)
                self.step = self.held = 0
            if block.quotas:
                return True
            self.at += 1
        return False

    @property
    def probed(self) -> bool:
        """Seer looks for the end of this row."""
        return self.truncation is not None and self.rival is None

    @property
    def prefilling(self) -> bool:
        """The next forward computes the prompt alone; one without tokens has nothing to be cached."""
        return self.config.cache == "prompt" and len(self.prompt) > 0 and not self.prefilled

    @property
    def reuses(self) -> bool:
        """The next forward takes what lies outside its span from the cache."""
        return self.prefilled or (self.config.cache in BLOCK_CACHES and self.step > 0)

    @property
    def keeps(self) -> bool:
        """Keys and values of the next forward are to serve later ones."""
        return self.prefilling or (self.config.cache in BLOCK_CACHES and self.step == 0)

    @property
    def span(self) -> tuple[int, int]:
        """Positions `[start, stop)` of the sequence, prompt then window, that the next forward computes."""
        prompt = len(self.prompt)
        if self.prefilling:
            return 0, prompt
        if not self.reuses:
            return 0, prompt + self.window
        start = 0 if self.prefilled else self.block.start
        return prompt + start, prompt + (self.block.end if self.config.cache == "dual" else self.window)

    @property
    def for_net(self) -> bool:
        """The next forward is the safety net's: step 0 once more, or a step in slots that a filled window got."""
        return self.counters.net_late > 0 or (self.counters.net_early > 0 and self.counters.steps == 0)

    @property
    def step0(self) -> str:
        """How this row is cut."""
        return self.truncation.step0_with(self.config.cache)

    @property
    def _first_is_known_now(self) -> bool:
        """The block's first slot must be written in its first step: later forwards lack the token that predicts it."""
        return self.shift and self.config.cache in BLOCK_CACHES

    @property
    def sure(self) -> int | None:
        """A slot that this step has to write whatever its confidence."""
        return self.block.start if self._first_is_known_now and self.step == 0 else None

    @property
    def threshold(self) -> float:
        """At or above it every slot is written in this step; NaN where the quota says how many."""
        return NO_THRESHOLD if self.rule.hold_back or self.sure is not None else self.rule.threshold

    def quota(self, confidence: Callable[[], Tensor]) -> int:
        """Slots to write in this step; `confidence` as in `CommitRule.quota`."""
        quotas = self.block.quotas
        # Rules that do not count steps may take more of them than were planned.
        planned = quotas[self.step] if self.step < len(quotas) else int(not self.rule.hold_back)
        only_sure = self.sure is not None and not self.rule.counts_steps
        quota = 1 if only_sure else self.rule.quota(planned + self.held, confidence)
        self.held += planned - quota if self.rule.hold_back else 0
        return quota

    def advance(self, remaining: int) -> None:
        """A step was made, after which `remaining` slots of the block are still masked."""
        self.counters.steps += 1
        self.step += 1
        # A block whose steps are used up is over even if the model wrote mask ids into it, as in the references. Other
        # rules write a slot a step at least, so that only mask ids can be left after as many steps as there were masks.
        quotas = self.block.quotas
        if remaining == 0 or self.step == (len(quotas) if self.rule.counts_steps else sum(quotas)):
            self.at += 1

    def write_first(self, token: Tensor) -> None:
        """The window's first slot is known before step 0: the first block's quotas are made for what is left."""
        self.ids[0] = token
        self.blocks[0].quotas = None

    def end(self) -> int | None:
        """Index of the first end in the window."""
        hits = torch.isin(self.ids, torch.tensor(self.end_ids, device=self.ids.device)).nonzero()
        return int(hits[0]) if len(hits) else None

    def ended(self) -> bool:
        """Whether the answer ends in the window, by an end or by a stop string."""
        return self.end() is not None or (self.has_stop is not None and self.has_stop(self.ids.tolist()))

    def cut(self, window: int, block: int) -> None:
        """Keep the first `window` slots, before anything is written."""
        self.ids = self.ids[:window]
        self._replan(window, block)
        self.truncated = True

    def regrow(self) -> None:
        """Double the window before anything was written: the run is planned anew."""
        window, block = self._doubled()
        self._lengthen(window)
        self._replan(window, block)

    def extend(self) -> None:
        """Double the filled window: new slots in blocks of their own, at the tokens per step of the first plan."""
        new, _ = self._doubled()
        planned = sum(plan.steps for plan in self.blocks)
        pace = self.window / max(1, min(planned, self.window))
        start = self.window
        while start < new:
            end = min(new, (start // self.config.block + 1) * self.config.block)
            self.blocks.append(BlockPlan(start, end, max(1, round((end - start) / pace))))
            start = end
        self._lengthen(new)

    def insert(self, at: int, count: int) -> bool:
        """Put up to `count` masks before slot `at`, as far as the full window has room. False if it has none."""
        count = min(count, self.config.window - self.window)
        if count > 0:
            self.reshape(torch.cat((self.ids[:at], self.ids.new_full((count,), self.mask_id), self.ids[at:])))
            self.counters.grown += 1
        return count > 0

    def reshape(self, ids: Tensor) -> None:
        """Go on with another window, between two steps: its masks in blocks of the full one, at its tokens per step."""
        self.ids, self.window = ids, len(ids)
        self.at, self.truncated, self.reason = 0, True, None  # filled blocks are passed over
        pace = self.config.block / min(self._stock_steps, self.config.block)
        self.blocks = self._plan(self.window, self.config.block, 0)
        for plan in self.blocks:
            masks = int((ids[plan.start : plan.end] == self.mask_id).sum())
            plan.steps = max(1, round(masks / pace))

    def _doubled(self) -> tuple[int, int]:
        return plan_keep(min(2 * self.window, self.config.window), self.config.window, self.config.block, 0)

    def _lengthen(self, window: int) -> None:
        self.ids = torch.cat((self.ids, self.ids.new_full((window - self.window,), self.mask_id)))
        self.window = window

    def _replan(self, window: int, block: int) -> None:
        self.window, self.at, self.step = window, 0, 0
        stock = self._stock_steps
        if self.truncation.steps_policy == "keep":
            count = -(-window // block)
            total = min(self.config.steps, window)
            self.blocks = self._plan(window, block, 0)
            for i, plan in enumerate(self.blocks):
                plan.steps = max(1, total // count + (i < total % count))
        else:
            # Blocks of the stock size keep their steps; one shrunk block gets its share of them.
            steps = stock if block == self.config.block else max(1, round(stock * window / self.config.block))
            self.blocks = self._plan(window, block, steps)

    @staticmethod
    def _plan(window: int, block: int, steps: int) -> list[BlockPlan]:
        return [BlockPlan(s, min(s + block, window), steps) for s in range(0, window, block)]
