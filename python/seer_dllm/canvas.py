"""The packed input of a forward: the active rows' prompts and windows side by side, and their cfg twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seer_dllm.backbone import Backbone, KeyValues, Packing, Probe
from seer_dllm.row import Row
from seer_ext import ops


@dataclass(frozen=True)
class Lane:
    """One packed sequence: a row, or its unconditional twin whose prompt is masked (classifier-free guidance)."""

    row: Row
    twin: bool = False

    @property
    def cached(self) -> bool:
        """Whether the prompt is prefilled; one without tokens has nothing to be."""
        return self.row.config.cache == "prompt" and len(self.row.prompt) > 0

    @property
    def fed_prompt(self) -> int:
        """Prompt tokens that every forward feeds."""
        return 0 if self.cached else len(self.row.prompt)


def lanes_of(rows: Sequence[Row]) -> list[Lane]:
    """The rows in order, then the twins of those that ask for guidance."""
    return [Lane(r) for r in rows] + [Lane(r, twin=True) for r in rows if r.config.cfg_scale > 0]


class Canvas:
    """Packs rows for the backbone. Made anew when a row leaves, is cut, or grows; `ids` is written in place.

    `ids` `[W]` holds all windows one after the other; `row.ids` are views into it. `starts[b]` is row b's first slot.
    A slot's hidden state is at `slot_at[slot]` of the packed `[T, H]`; the twins' ones follow behind the rows'.
    """

    def __init__(
        self, backbone: Backbone, rows: Sequence[Row], past: KeyValues | None = None, past_lanes: Sequence[Lane] = ()
    ) -> None:
        self.backbone = backbone
        self.rows = list(rows)
        self.lanes = lanes_of(rows)
        device = backbone.device
        self.past = past
        if past is not None:
            place = {lane: i for i, lane in enumerate(past_lanes)}
            self.past = past.select([place[lane] for lane in self.lanes])

        self.packing = Packing(
            [lane.fed_prompt + lane.row.window for lane in self.lanes],
            [len(lane.row.prompt) if lane.cached else 0 for lane in self.lanes],
            device,
        )
        self.ids = torch.cat([row.ids for row in self.rows]) if self.rows else torch.empty(0, dtype=torch.int64)
        self.starts, total = {}, 0
        self.widths = {row: row.window for row in self.rows}
        for row in self.rows:
            self.starts[row] = total
            row.ids = self.ids[total : total + row.window]
            total += row.window

        def window_of(i: int, lane: Lane) -> Tensor:
            first = self.packing.starts[i] + lane.fed_prompt
            return torch.arange(first, first + lane.row.window, device=device)

        windows = [window_of(i, lane) for i, lane in enumerate(self.lanes)]
        self.window_at = torch.cat(windows) if windows else torch.empty(0, dtype=torch.int64, device=device)
        self.slot_at = self.window_at[:total]
        own = [torch.arange(self.starts[lane.row], self.starts[lane.row] + lane.row.window) for lane in self.lanes]
        self._source = torch.cat(own).to(device) if own else self.window_at
        self._twin_at = torch.full((total,), -1, dtype=torch.int64, device=device)
        self._scale = torch.zeros(total, dtype=torch.float32, device=device)
        for lane, at in zip(self.lanes, windows, strict=True):
            if lane.twin:
                self._twin_at[self.starts[lane.row] :][: lane.row.window] = at
                self._scale[self.starts[lane.row] :][: lane.row.window] = lane.row.config.cfg_scale
        self.guided = bool(len(self.lanes) > len(self.rows))
        self._prompts = self._lay_prompts()

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether these are the rows on the canvas, with the windows it was made for."""
        return self.rows == list(rows) and all(self.widths[row] == row.window for row in rows)

    def _lay_prompts(self) -> Tensor:
        """`[T, H]`: the fed prompts in their places; window slots are filled by `embeddings`."""
        hidden = torch.empty(
            self.packing.total, self.backbone.config.hidden_size, dtype=self.backbone.dtype, device=self.backbone.device
        )
        for start, lane in zip(self.packing.starts, self.lanes, strict=False):
            if lane.fed_prompt:
                hidden[start : start + lane.fed_prompt] = lane_prompt(self.backbone, lane)
        return hidden

    def embeddings(self) -> Tensor:
        """`[T, H]` input of the first layer, from the ids as they stand."""
        hidden = self._prompts.clone()
        hidden[self.window_at] = self.backbone.embed(self.ids[self._source])
        return hidden

    def forward(self, hidden: Tensor, start: int = 0, stop: int | None = None, probe: Probe | None = None) -> Tensor:
        """Layers `start..stop` on `hidden [T, H]`; the work is booked on the rows."""
        stop = self.backbone.config.n_layers if stop is None else stop
        for lane in self.lanes:
            lane.row.counters.token_layers += (lane.fed_prompt + lane.row.window) * (stop - start)
            if start == 0 and not lane.twin:
                lane.row.counters.forwards += 1
        return self.backbone.run(hidden, self.packing, start, stop, past=self.past, probe=probe)

    def logits(self, hidden: Tensor, slots: Tensor) -> Tensor:
        """`[N, V]` logits of the window slots `[N]`, with guidance mixed in where a row asks for it.

        Guidance is `un + (scale + 1) * (cond - un)`, LLaDA's generate.
        """
        logits = self.backbone.logits(hidden[self.slot_at[slots]])
        if self.guided:
            which = (self._twin_at[slots] >= 0).nonzero().flatten()
            un = self.backbone.logits(hidden[self._twin_at[slots[which]]])
            logits[which] = un + (self._scale[slots[which], None].to(un) + 1) * (logits[which] - un)
        return logits

    def window_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """`values [T]` of the rows' (not the twins') window slots as `[B, G]`, and the window lengths int32 `[B]`.

        Columns past a row's length hold values of other slots; nothing may read them.
        """
        lengths = torch.tensor([r.window for r in self.rows], dtype=torch.int32, device=values.device)
        first = torch.tensor([self.starts[r] for r in self.rows], device=values.device)
        columns = torch.arange(max((r.window for r in self.rows), default=0), device=values.device)
        slots = (first[:, None] + columns).clamp(max=max(len(self.slot_at) - 1, 0))
        return values[self.slot_at[slots]], lengths

    def cut(self, hidden: Tensor, keep: dict[Row, tuple[int, int]], go_on: Sequence[Row]) -> tuple[Canvas, Tensor]:
        """Drop all window slots behind each row's kept ones, in the middle of a forward.

        Args:
            hidden: `[T, H]` after the last probe layer.
            keep: row -> (window, block) to keep, for the rows that are cut.
            go_on: the rows that the rest of the forward computes.
        Returns:
            The canvas of `go_on` and its hidden states `[T', H]`.
        """
        staying = [(i, lane) for i, lane in enumerate(self.lanes) if lane.row in set(go_on)]
        kept = [lane.fed_prompt + keep.get(lane.row, (lane.row.window, 0))[0] for _, lane in staying]
        packed_ids = torch.zeros(self.packing.total, dtype=torch.int64, device=hidden.device)
        packed_ids[self.window_at] = self.ids[self._source]
        offsets = [len(lane.row.prompt) - lane.fed_prompt for _, lane in staying]
        hidden, _, positions, _, cu_seqlens = ops.truncate_repack(
            hidden,
            packed_ids,
            torch.tensor([self.packing.starts[i] for i, _ in staying], dtype=torch.int64, device=hidden.device),
            torch.tensor(kept, dtype=torch.int64, device=hidden.device),
            sum(kept),
            offsets=torch.tensor(offsets, dtype=torch.int64, device=hidden.device),
        )
        for row, (window, block) in keep.items():
            row.cut(window, block)
        canvas = Canvas(self.backbone, go_on, self.past, self.lanes)
        canvas.packing.positions, canvas.packing.cu_seqlens = positions, cu_seqlens
        return canvas, hidden


def lane_prompt(backbone: Backbone, lane: Lane) -> Tensor:
    """`[P, H]`: the prompt's embeddings; for a twin, as many masks (LLaDA masks the whole prompt)."""
    if not lane.twin:
        return lane.row.prompt
    mask = torch.full((len(lane.row.prompt),), lane.row.mask_id, device=backbone.device)
    return backbone.embed(mask)


def prefill(backbone: Backbone, rows: Sequence[Row]) -> tuple[KeyValues | None, list[Lane]]:
    """Keys and values of the prompts of all rows with a prompt cache, which see only themselves (LaViDa's prefix mode).

    Returns the cache and the lanes it is laid out for; lanes without a cache have length 0 in it.
    """
    lanes = lanes_of(rows)
    if not any(lane.cached for lane in lanes):
        return None, lanes
    packing = Packing([len(lane.row.prompt) if lane.cached else 0 for lane in lanes], device=backbone.device)
    hidden = torch.cat([lane_prompt(backbone, lane) for lane in lanes if lane.cached])
    cache = KeyValues(packing)
    backbone.run(hidden, packing, keep=cache)
    for lane in lanes:
        if lane.cached:
            lane.row.counters.token_layers += len(lane.row.prompt) * backbone.config.n_layers
            lane.row.counters.forwards += not lane.twin
    return cache, lanes
