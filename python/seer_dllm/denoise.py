"""The one denoising loop: step 0 with its probe and cut, the steps of every block, and the safety net.

Every row has its own settings, block and step; rows of all kinds share each forward. Nothing a row computes depends on
which other rows are in the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from seer_dllm import rivals
from seer_dllm.backbone import Backbone, Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.config import Profile
from seer_dllm.detection import NO_JUMP, NOTHING_TO_CUT, ends_with, find_boundary, kept_window, last_fixed
from seer_dllm.groups import Counts, Group, Routing, parts_of, whole
from seer_dllm.host import HostRead
from seer_dllm.policies import leave_most_probable
from seer_dllm.row import Row
from seer_ext import ops

OnStep = Callable[[Row], None]


def denoise(backbone: Backbone, rows: Sequence[Row], profile: Profile, on_step: OnStep | None = None) -> None:
    """Fill the windows of all rows in place, in one packed group for each kind of cache.

    Args:
        rows: those that are `probed` are cut at step 0; a `rival` changes windows at any step.
        profile: where and how this model shows the end.
        on_step: called with a row after each of its steps.
    """
    loop = Loop(backbone, on_step=on_step)
    loop.add(rows, profile)
    while loop.rows:
        loop.step()


class Loop:
    """The denoising loop, a step at a time. Rows may join and leave between any two steps.

    New rows share their prefill and step 0 with each other alone, and then join the groups. Groups are formed anew when
    rows joined, left, were cut, grew, or feed another part of their sequence.

    Args:
        routing: how rows are grouped; None: in one packed group for each kind of cache, in order of arrival.
        on_step: called with a row after each of its steps.

    Attributes:
        rows: those that are not finished, in order of arrival.
        counts: work done so far.
    """

    def __init__(self, backbone: Backbone, routing: Routing | None = None, on_step: OnStep | None = None) -> None:
        if routing is not None:
            routing.check(backbone)
        self.rows: list[Row] = []
        self.counts = Counts()
        self._backbone, self._routing, self._on_step = backbone, routing, on_step
        self._capturer = routing.capturer if routing is not None else None
        self._new: dict[Profile, list[Row]] = {}
        self._groups: list[Group] = []

    def add(self, rows: Sequence[Row], profile: Profile) -> None:
        """Rows that begin with the next step."""
        self.rows += rows
        self._new.setdefault(profile, []).extend(rows)

    def remove(self, row: Row) -> None:
        """Give a row up, at any time; its memory is free before the next forward."""
        self.rows.remove(row)
        for new in self._new.values():
            if row in new:
                new.remove(row)

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """One step of every row, the first one of those that are new. Returns the rows that it finished."""
        new, self._new = self._new, {}
        fresh = {row for rows in new.values() for row in rows}
        self._regroup([row for row in self.rows if row not in fresh])
        before = list(self.rows)
        for group in self._groups:
            group.forward(self._capturer, self.counts)
        begun = [
            group
            for profile, rows in new.items()
            for part in whole(rows, self._routing)
            if (group := self._begin(part, profile)) is not None
        ]
        self._groups += begun
        for group in self._groups:
            seen, waiting = rivals.look(group.canvas, group.hidden)
            waiting |= _grow_early(group.canvas, group.hidden)
            rows = [row for row in group.canvas.rows if row not in waiting]
            _commit(group.canvas, group.hidden, rows, self._on_step)
            rivals.follow(rows, seen)
            group.hidden = None
        self.rows = [row for row in self.rows if _still_open(row)]
        self._regroup(self.rows, bool(begun))
        return [row for row in before if row.finished is not None]

    def _begin(self, rows: list[Row], profile: Profile) -> Group | None:
        """The prefill and step 0 of new rows; None if there was nothing to be written."""
        rows = [row for row in rows if _still_open(row)]
        if not rows:
            return None
        for row in rows:
            if row.rival is not None:
                row.rival.begin(row)
                row.begin_block()
        cache = prefill(self._backbone, rows)
        rows = [row for row in rows if _still_open(row)]  # a prefill may have written a window's only slot
        if not rows:
            return None
        group = Group(Canvas(self._backbone, rows, cache))
        hidden = group.canvas.embeddings()
        if any(row.probed for row in rows):
            group.count(self.counts, group.canvas.packing.total)
            group.canvas, group.hidden = _step_zero(group.canvas, hidden, profile)
        else:
            group.forward(None, self.counts)
        return group

    def _regroup(self, rows: list[Row], joined: bool = False) -> None:
        """Put the rows into groups anew if any of them joined, left, or feeds something else than before."""
        there, members = [row for group in self._groups for row in group.canvas.rows], set(rows)
        stale = joined and (self._routing is not None or len(self._groups) > 1)
        if not stale and set(there) == members and all(group.canvas.fits(group.canvas.rows) for group in self._groups):
            return
        self.counts.plans += 1
        canvases = [group.canvas for group in self._groups]
        groups = []
        for part in parts_of(rows, self._routing):
            canvas = next((c for c in canvases if c.dense == part.dense and c.fits(part.rows)), None)
            if canvas is None:
                first, *others = canvases
                canvas = first.remade(part.rows, *others, dense=part.dense)
            packed = part.packed if self._backbone.device_packed else None
            groups.append(Group(canvas, part.path, packed, part.miss))
        self._groups = [group for group in groups if group.canvas.rows]


def _still_open(row: Row) -> bool:
    """Begin the row's next block. A filled row without an end grows (the late net) or is finished."""
    if row.begin_block():
        return True
    cut = row.truncated and row.window < row.config.window
    if cut and row.probed and row.truncation.safety_net and not row.ended():
        row.counters.net_late += 1
        row.extend()
        return row.begin_block()
    row.finished = time.perf_counter()
    return False


def _step_zero(canvas: Canvas, hidden: Tensor, profile: Profile) -> tuple[Canvas, Tensor]:
    """Run the probe layers on the full windows, cut, and finish the forward for all rows that go on from there.

    Rows that restart are cut as well but leave this forward: their step 0 is the next one, on the short input.

    The host waits for the boundaries right here. Running the next layer on the full windows meanwhile would hide the
    wait, but not pay: of an 8B model and one row of 2,000 tokens that layer alone is 0.9 TFLOP, 1.5 ms at 600 TFLOP/s
    (reckoned, not measured), and it grows with the batch, which a round trip of some ten microseconds does not.
    """
    probe = Probe(profile.probe_layers, profile.threshold)
    middle = max(profile.probe_layers) + 1
    hidden = canvas.forward(hidden, 0, middle, probe)
    share, lengths = canvas.window_values(probe.mean(), profile.slot_offset)
    curves = HostRead(share)  # has arrived when the boundaries have
    fixed = [last_fixed(row.ids, row.mask_id) if row.probed else 0 for row in canvas.rows]
    boundaries, snrs = find_boundary(share, lengths, profile, fixed, canvas.unread(profile.slot_offset))

    keep, go_on = {}, []
    probed = zip(canvas.rows, boundaries, snrs, curves.arrived()[0].tolist(), fixed, strict=True)
    for row, boundary, snr, curve, first_free in probed:
        if not row.probed:
            go_on.append(row)
            continue
        row.boundary, row.snr, row.sparsity = boundary, snr, curve[: row.window]
        window, block = kept_window(boundary, row.config, profile.margin, first_free)
        if window < row.window:
            keep[row] = (window, block)
            row.check_end = row.truncation.safety_net
        else:
            row.reason = NO_JUMP if snr == 0 else NOTHING_TO_CUT
        if row not in keep or row.step0 == "carry":
            go_on.append(row)
    if keep:
        canvas, hidden = canvas.cut(hidden, keep, go_on)
        for row in canvas.rows:
            row.begin_block()
    # A model that can't resume gave its input back, and runs from the start.
    return canvas, canvas.forward(hidden, middle if canvas.backbone.resumes else 0) if go_on else hidden


def _grow_early(canvas: Canvas, hidden: Tensor) -> set[Row]:
    """The early net: rows whose last kept slot is not predicted as an end are doubled before anything is written."""
    checked = [row for row in canvas.rows if row.check_end]
    if not checked:
        return set()
    last = torch.tensor([canvas.starts[row] + row.window - 1 for row in checked], device=canvas.ids.device)
    token, _ = ops.token_confidence(canvas.logits(hidden, last))
    grown = set()
    for row, ended in zip(checked, ends_with(token, checked[0].end_ids), strict=True):
        if ended:
            row.check_end = False
            continue
        row.counters.net_early += 1
        row.regrow()
        row.check_end = row.window < row.config.window
        grown.add(row)
    return grown


def _commit(canvas: Canvas, hidden: Tensor, rows: Sequence[Row], on_step: OnStep | None) -> None:
    """One step of these rows: decide a token for every masked slot of their current blocks and write the best ones."""
    if not rows:
        return
    device = canvas.ids.device
    spans = [torch.arange(row.block.start, row.block.end) + canvas.starts[row] for row in rows]
    owner = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(s) for s in spans]))
    slots = torch.cat(spans)  # on the host, which knows the ids
    masked = canvas.host_ids[slots] == rows[0].mask_id
    slots, owner = slots[masked].to(device), owner[masked]
    cu_slots = torch.searchsorted(owner, torch.arange(len(rows) + 1))
    owned = [slice(*ends) for ends in pairwise(cu_slots.tolist())]

    token, confidence = _decide(canvas, hidden, rows, slots, owned)
    sure = [canvas.starts[row] + row.sure for row in rows if row.sure is not None]
    if sure:
        confidence[torch.isin(slots, torch.tensor(sure, device=device))] = float("inf")
    thresholds = [row.threshold for row in rows]
    quotas = [
        row.quota(lambda own=own: HostRead(confidence[own]).wait()[0]) for own, row in zip(owned, rows, strict=True)
    ]
    _, remaining = ops.commit_tokens(
        canvas.ids,
        slots,
        token,
        confidence,
        cu_slots.to(device),
        torch.tensor(quotas, device=device),
        mask_id=rows[0].mask_id,
        threshold=torch.tensor(thresholds, dtype=torch.float64, device=device),
    )
    (remaining,) = canvas.read_back(remaining)
    for row, left in zip(rows, remaining.tolist(), strict=True):
        row.advance(left)
        if on_step is not None:
            on_step(row)


def _decide(
    canvas: Canvas, hidden: Tensor, rows: Sequence[Row], slots: Tensor, owned: Sequence[slice]
) -> tuple[Tensor, Tensor]:
    """Token int64 and confidence float64 of each slot `[N]`; `owned` are each row's places among the slots."""
    logits = canvas.logits(hidden, slots)
    counts = torch.tensor([own.stop - own.start for own in owned])

    def spread(values: list, dtype: torch.dtype) -> Tensor:
        return torch.repeat_interleave(torch.tensor(values, dtype=dtype), counts).to(slots.device)

    temperature = key = None
    if any(row.config.temperature > 0 for row in rows):
        temperature = spread([row.config.temperature for row in rows], torch.float32)
    for own, row in zip(owned, rows, strict=True):
        if row.config.top_p is not None or row.config.top_k is not None:
            if row.config.suppress_eos:  # before the filters, which might leave nothing else
                logits[own, canvas.backbone.config.eos_id] = float("-inf")
            logits[own] = leave_most_probable(logits[own], row.config)
            if temperature is not None:  # it is in the logits now
                temperature[own] = (temperature[own] > 0).float()
    if temperature is not None:
        first = [canvas.starts[row] for row in rows]
        key = spread([_noise_key(row) for row in rows], torch.int64) + slots - spread(first, torch.int64)

    # The op ranks by one kind and suppresses one list a call: rows are grouped by what they ask for.
    groups: dict[tuple[str, bool, bool], list[int]] = {}
    for b, row in enumerate(rows):
        groups.setdefault((row.rule.kind, row.config.suppress_eos, row.config.defer_end), []).append(b)
    eos = torch.tensor([canvas.backbone.config.eos_id], device=slots.device)
    ends = torch.tensor(rows[0].end_ids, device=slots.device)
    token = torch.empty_like(slots)
    confidence = torch.empty(len(slots), dtype=torch.float64, device=slots.device)
    for (kind, suppress_eos, defer_end), members in groups.items():
        at = slice(None)
        if len(groups) > 1:
            at = torch.cat([torch.arange(owned[b].start, owned[b].stop) for b in members]).to(slots.device)
        noise = {} if temperature is None else {"temperature": temperature[at], "key": key[at]}
        token[at], confidence[at] = ops.token_confidence(logits[at], kind, eos if suppress_eos else None, **noise)
        if defer_end:  # ranked by a softmax without the ends, in which a chosen end has confidence 0 (LLaDA)
            _, confidence[at] = ops.token_confidence(logits[at], kind, ends, chosen=token[at])
    for own, row in zip(owned, rows, strict=True):
        if row.rule.random:
            ranks = torch.rand(own.stop - own.start, dtype=torch.float64, generator=row.generator)
            confidence[own] = ranks.to(slots.device)
    return token, confidence


def _noise_key(row: Row) -> int:
    """Key of the row's random numbers in this step, as a signed 64-bit number; the slot is added to it."""
    key = (row.config.seed * 0x9E3779B97F4A7C15 + (row.counters.steps << 24)) % (1 << 64)
    return key - (1 << 64) if key >= 1 << 63 else key
