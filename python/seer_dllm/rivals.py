"""Other published ways to fit the window to the answer, behind the interface of Seer's own and in the same loop.

Written from the papers' descriptions, to be compared with Seer on the same questions (`bench/bench_rivals.py`). None of
them is the authors' implementation: slots are written by the row's own schedule and commit rule, every end token of the
model counts as EOS, and no safety net watches over them. Each says what else is simplified, and which numbers are ours.

A rival acts at two places of the loop: on what a forward predicts, before anything of it is written (`look`), and after
the row's step (`follow`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seer_dllm.canvas import Canvas
from seer_dllm.config import (
    BLOCK_CACHES,
    GenerationConfig,
    Rival,
    Truncation,
    check_number,
    check_positive,
)
from seer_dllm.detection import NOTHING_TO_CUT, kept_window, last_fixed
from seer_dllm.host import HostRead
from seer_dllm.row import Row
from seer_ext import ops

NO_END = "no end in the first pass"


@dataclass(frozen=True)
class Seen:
    """What a forward says of each slot of a row's window `[G]`, on the host. Written slots speak for themselves.

    Attributes:
        masked: not written yet. ends: the most probable token is an end. end_chance: probability float64 of all ends.
        confidence: probability float64 of the most probable token.
    """

    masked: Tensor
    ends: Tensor
    end_chance: Tensor
    confidence: Tensor


def look(canvas: Canvas, hidden: Tensor) -> tuple[dict[Row, Seen], set[Row]]:
    """What a forward says of the rows whose method asks for it, and the rows that don't write by it.

    The asked slots pass the LM head once more than for the commit.
    """
    asking = [row for row in canvas.rows if row.rival is not None and row.rival.asks(row)]
    if not asking:
        return {}, set()
    seen = predictions(canvas, hidden, asking)
    return seen, {row for row, own in seen.items() if row.rival.waits(row, own)}


def follow(rows: Sequence[Row], seen: dict[Row, Seen]) -> None:
    """After a step of these rows: change the windows that are too long or too short, end what has ended."""
    for row in rows:
        if row.rival is not None:
            row.rival.follow(row, seen.get(row))


def predictions(canvas: Canvas, hidden: Tensor, rows: Sequence[Row]) -> dict[Row, Seen]:
    """What a forward `hidden [T, H]` says of these rows' windows, by one pass of the LM head and one host read."""
    masked = [row.ids == row.mask_id for row in rows]
    slots = [own.nonzero().flatten() + canvas.starts[row] for own, row in zip(masked, rows, strict=True)]
    logits = canvas.logits(hidden, torch.cat(slots).to(canvas.ids.device))
    token, confidence = ops.token_confidence(logits)
    chance = torch.zeros_like(confidence)
    for end in rows[0].end_ids:
        chance += ops.token_confidence(logits, chosen=torch.full_like(token, end))[1]
    read = HostRead(token, confidence, chance.clamp(max=1)).wait()
    sizes, ends = [len(own) for own in slots], torch.tensor(rows[0].end_ids)
    found = {}
    for row, own, token, confidence, chance in zip(rows, masked, *(t.split(sizes) for t in read), strict=True):
        is_end = torch.isin(row.ids, ends)
        chances, confidences = is_end.double(), torch.ones(row.window, dtype=torch.float64)
        is_end[own], chances[own], confidences[own] = torch.isin(token, ends), chance, confidence
        found[row] = Seen(own, is_end, chances, confidences)
    return found


@dataclass(frozen=True)
class EosLogit(Rival):
    """Crop the window at the end that the first whole pass predicts (SmartCrop-like).

    Source: "Diffusion Language Models Are Natively Length-Aware" (arXiv 2603.06123): with `p_i` the probability of EOS
    in slot i at the first step, the window ends where the product of `1 - p_i` falls below a threshold. Ours: the
    threshold, the rounding up of the window (as Seer's, without a margin), and that step 0 goes on with the pass
    (`Truncation(step0="carry")`); "restart" throws it away, as the paper does.

    Args:
        survival: the answer's last slot is the first at which the product is below it.
    """

    name: ClassVar[str] = "eos_logit"
    reads_ends: ClassVar[bool] = True
    survival: float = 0.1

    def __post_init__(self) -> None:
        check_number("survival", self.survival, 0.0, 1.0)

    def asks(self, row: Row) -> bool:
        return row.boundary is None and row.counters.steps == 0

    def waits(self, row: Row, seen: Seen) -> bool:
        below = (torch.cumprod(1 - seen.end_chance, 0) < self.survival).nonzero().flatten()
        row.boundary = int(below[0]) if len(below) else row.window
        room = min(row.boundary + 1, row.window)  # the end's own slot is part of the window
        window, block = kept_window(room, row.config, 0, last_fixed(row.ids, row.mask_id))
        if window >= row.window:
            row.reason = NOTHING_TO_CUT if len(below) else NO_END
            return False
        row.cut(window, block)
        if row.step0 == "restart":
            return True
        row.begin_block()
        return False


@dataclass(frozen=True)
class EosDensity(Rival):
    """Keep the share of ends among what the masks predict in a corridor, by slots less or more (rho-EOS-like).

    Source: "rho-EOS: Training-free Bidirectional Variable-Length Control for Masked Diffusion LLMs" (arXiv 2601.22527)
    and the authors' published defaults. The density is the share of masked slots whose most probable token is an end,
    before the step's writing. Above `high` slots are dropped from the window's back, below `low` masks are inserted
    before the first written end, or at the back: `unit` times 1, 2, 4, ... by how many `interval` the density is away,
    at most `most` times. Ours: it begins with the whole window, which is also the longest (theirs: 64 of 2048); a
    written word is never dropped, nor the slot behind the last one; a filled window with an end is final; the steps
    that are left are planned anew at the tokens per step of the full window (theirs: a threshold of 0.9).

    Args:
        steps: only as many steps adjust the window.
    """

    name: ClassVar[str] = "eos_density"
    reads_ends: ClassVar[bool] = True
    moves_slots: ClassVar[bool] = True
    low: float = 0.4
    high: float = 0.6
    unit: int = 8
    interval: float = 0.1
    most: int = 8
    steps: int = 64

    def __post_init__(self) -> None:
        check_number("high", self.high, 0.0, 1.0)
        check_number("low", self.low, 0.0, self.high)
        check_number("interval", self.interval, 1e-6)
        for name in ("unit", "most", "steps"):
            check_positive(name, getattr(self, name))

    def begin(self, row: Row) -> None:
        row.reason = NOTHING_TO_CUT

    def asks(self, row: Row) -> bool:
        return row.counters.steps < self.steps

    def follow(self, row: Row, seen: Seen | None) -> None:
        filled = not bool((row.ids == row.mask_id).any())
        if seen is None or (filled and row.end() is not None):
            return
        density = int((seen.masked & seen.ends).sum()) / int(seen.masked.sum())
        if density > self.high:
            ends = torch.isin(row.ids, torch.tensor(row.end_ids))
            words = ((row.ids != row.mask_id) & ~ends).nonzero().flatten().tolist()
            window = max(row.window - self.slots(density - self.high), words[-1] + 2 if words else 1)
            if window < row.window:
                row.reshape(row.ids[:window])
        elif density < self.low:
            end = row.end()
            row.insert(row.window if end is None else end, self.slots(self.low - density))
        row.boundary = row.window

    def slots(self, away: float) -> int:
        """How many slots a density makes that is so far outside of the corridor."""
        segment = math.ceil(round(away / self.interval, 6))
        return self.unit * min(self.most, 2 ** (max(segment, 1) - 1))


@dataclass(frozen=True)
class Grow(Rival):
    """Lengthen a short window until it ends in ends, then wherever the model is very unsure (DAEDAL-like).

    Source: "Beyond Fixed: Training-Free Variable-Length Denoising for Diffusion Large Language Models" (arXiv
    2508.00819); the defaults are those of the authors' published code. Before anything is written: while the summed
    probability of the last `check` slots that predict an end, over `check`, is below `enough`, `unit` masks are added
    at the back; then `check / 2` written ends. After each step: if that mean is below `safe`, the least sure masked
    slot of the block, if it is below `unsure`, becomes `unit` masks. The configured window is the longest. Ours: a
    written end counts with probability 1, and the steps that are left are planned anew at the tokens per step of the
    full window (theirs: a threshold of 0.9).

    Args:
        start: slots of the window to begin with.
    """

    name: ClassVar[str] = "grow"
    reads_ends: ClassVar[bool] = True
    moves_slots: ClassVar[bool] = True
    start: int = 64
    check: int = 32
    enough: float = 0.5
    unit: int = 8
    safe: float = 0.9
    unsure: float = 0.1

    def __post_init__(self) -> None:
        for name in ("start", "check", "unit"):
            check_positive(name, getattr(self, name))
        for name in ("enough", "safe", "unsure"):
            check_number(name, getattr(self, name), 0.0, 1.0)

    def begin(self, row: Row) -> None:
        row.reason = NOTHING_TO_CUT
        if self.start < row.window:
            row.reshape(row.ids[: self.start])

    def asks(self, row: Row) -> bool:
        return row.boundary is None or row.window < row.config.window

    def waits(self, row: Row, seen: Seen) -> bool:
        if row.boundary is not None:
            return False
        if self.end_confidence(seen) < self.enough and row.insert(row.window, self.unit):
            return True
        row.boundary = row.window
        tail = min(self.check // 2, row.config.window - row.window)
        if tail:
            row.reshape(torch.cat((row.ids, row.ids.new_full((tail,), row.end_ids[0]))))
        return tail > 0

    def follow(self, row: Row, seen: Seen | None) -> None:
        block = row.block
        if seen is None or block is None or block.quotas is None:  # the block that it looked at is filled
            return
        if self.end_confidence(seen) >= self.safe:
            return
        confidence = seen.confidence.masked_fill(row.ids != row.mask_id, 1.0)[block.start : block.end]
        least = int(confidence.argmin())
        if confidence[least] < self.unsure:
            row.insert(block.start + least, self.unit - 1)

    def end_confidence(self, seen: Seen) -> float:
        return float(seen.end_chance[seen.ends][-self.check :].sum()) / self.check


@dataclass(frozen=True)
class EarlyStop(Rival):
    """The stock algorithm, which stops once an end or a stop string lies in the blocks that are filled.

    A common practice of block-wise samplers; the answer is stock's exactly. With one block it never stops early.
    """

    name: ClassVar[str] = "early_stop"

    def begin(self, row: Row) -> None:
        row.reason = NOTHING_TO_CUT

    def follow(self, row: Row, seen: Seen | None) -> None:
        block = row.block
        if block is None or block.quotas is not None:  # nothing more to fill, or in the middle of a block
            return
        filled = row.ids[: block.start]
        ends = torch.isin(filled, torch.tensor(row.end_ids)).nonzero()
        if len(ends) or (row.has_stop is not None and row.has_stop(filled.tolist())):
            row.boundary = int(ends[0]) if len(ends) else block.start
            row.reshape(filled)
            row.at = len(row.blocks)  # whatever the model wrote, mask ids too, stays


RIVALS = {rival.name: rival for rival in (EosLogit, EosDensity, Grow, EarlyStop)}


def rival_of(truncation: Truncation | None, config: GenerationConfig, has_draft: bool = False) -> Rival | None:
    """The method of a row; None where it is Seer's own, or stock.

    ValueError: these settings and the method don't work together.
    """
    method = "none" if truncation is None else truncation.method
    rival = RIVALS[method]() if isinstance(method, str) and method in RIVALS else method
    if not isinstance(rival, Rival):
        return None
    if rival.reads_ends:
        for name in ("suppress_eos", "defer_end"):
            if getattr(config, name):
                raise ValueError(f"{name} must be False with method {rival.name!r}, which goes by the ends, got True")
    if rival.moves_slots:
        if config.cache in BLOCK_CACHES:
            raise ValueError(
                f"cache must be none or prompt with method {rival.name!r}, which moves slots, got {config.cache!r}"
            )
        if truncation.steps_policy != "rescale":
            raise ValueError(
                f"steps_policy must be 'rescale' with method {rival.name!r}, whose window changes at every step, "
                f"got {truncation.steps_policy!r}"
            )
        if has_draft:
            raise ValueError(f"drafts must be None with method {rival.name!r}, which moves slots, got one")
    return rival
