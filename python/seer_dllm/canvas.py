"""The input of a forward: rows' prompts and windows side by side, packed or padded, and their cfg twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seer_dllm.backbone import Backbone, KeyValues, Packing, Probe, Room
from seer_dllm.host import HostRead
from seer_dllm.row import Row
from seer_ext import ops


@dataclass(frozen=True)
class Lane:
    """One packed sequence: a row, or its unconditional twin whose prompt is masked (classifier-free guidance)."""

    row: Row
    twin: bool = False

    @property
    def fed_prompt(self) -> int:
        """Prompt tokens that the next forward feeds: all or none."""
        return 0 if self.row.reuses else len(self.row.prompt)

    @property
    def fed_slots(self) -> range:
        """Window slots that the next forward feeds."""
        start, stop = (max(at - len(self.row.prompt), 0) for at in self.row.span)
        return range(start, stop)


def lanes_of(rows: Sequence[Row]) -> list[Lane]:
    """The rows in order, then the twins of those that ask for guidance."""
    return [Lane(r) for r in rows] + [Lane(r, twin=True) for r in rows if r.config.cfg_scale > 0]


@dataclass(frozen=True)
class Dense:
    """What a dense batch is padded to: lanes, tokens that each feeds, cached tokens that each sees."""

    rows: int
    fed: int
    past: int


@dataclass
class Cache:
    """What lanes attend to without computing it again.

    `pieces`: lane -> tokens `[start, stop)` of some keys and values, side by side what the lane attends to beside what
    it feeds.
    """

    pieces: dict[Lane, list[tuple[KeyValues, int, int]]] = field(default_factory=dict)

    def hold(self, lane: Lane, held: KeyValues, first: int) -> None:
        """Take what lies outside the lane's span from the whole sequence, which begins at token `first` of `held`."""
        start, stop = lane.row.span
        parts = [(0, start), (stop, len(lane.row.prompt) + lane.row.window)]
        self.pieces[lane] = [(held, first + a, first + b) for a, b in parts if a < b]

    def lay(self, lanes: Sequence[Lane], device, dense: Dense | None = None) -> KeyValues | None:
        """The lanes' keys and values in one buffer, which the cache refers to from now on; None if there are none.

        Behind each lane's is room for its own. That, and the gaps that a dense batch leaves before it, are zeros.
        """
        pieces = [self.pieces[lane] if lane.row.reuses else [] for lane in lanes]
        flat = [piece for own in pieces for piece in own]
        if not flat:
            return None
        held = [sum(stop - start for _, start, stop in own) for own in pieces]
        if dense is None:
            room = Room(held, [lane.fed_prompt + len(lane.fed_slots) for lane in lanes], device)
        else:
            room = Room([dense.past] * dense.rows, [dense.fed] * dense.rows, device)
        source = flat[0][0]
        laid = [(start, start + n) for start, n in zip(room.starts, held, strict=False)]
        as_laid = [(source, start, stop) for start, stop in laid if start < stop]
        there = source.packing
        if flat == as_laid and isinstance(there, Room) and (there.cached, there.lengths) == (room.cached, room.lengths):
            return KeyValues(room, source.layers)  # lies so already
        ends = (*room.starts[1 : len(lanes)], room.total)
        gaps = [end - stop for (_, stop), end in zip(laid, ends, strict=True)]

        def joined(layer: int, part: int) -> Tensor:
            parts, like = [], source.layers[layer][part]
            for own, gap in zip(pieces, gaps, strict=True):
                parts += [kv.layers[layer][part][start:stop] for kv, start, stop in own]
                parts += [like.new_zeros(gap, *like.shape[1:])] if gap else []
            return torch.cat(parts)

        values = KeyValues(room, [(joined(i, 0), joined(i, 1)) for i in range(len(source.layers))])
        for lane, (start, stop) in zip(lanes, laid, strict=True):
            if start < stop:
                self.pieces[lane] = [(values, start, stop)]
        return values


class Canvas:
    """Lays rows out for the backbone. Made anew when rows join, leave, are cut, grow, or feed another part.

    `ids` `[W]` holds all windows one after the other and is written in place; `row.ids` are views into its copy on the
    host (on the CPU the same tensor), which `read_back` renews. `starts[row]` is the row's first slot. The hidden state
    of a slot that is fed is at `slot_at[slot]` of the packed `[T, H]`; the twins' ones follow behind the rows'.
    `lengths` are the tokens that each lane feeds. With `dense`, lane b begins at `b * dense.fed`, and `mask` hides the
    padding.
    """

    def __init__(self, backbone: Backbone, rows: Sequence[Row], cache: Cache, dense: Dense | None = None) -> None:
        self.backbone = backbone
        self.rows = list(rows)
        self.lanes = lanes_of(rows)
        self.cache = cache
        self.dense = dense
        device = backbone.device
        self.past = cache.lay(self.lanes, device, dense)
        # Keys and values of this forward, where a row will go on with them.
        self.kept: KeyValues | None = None
        self._fed = {row: (row.span, row.reuses) for row in self.rows}

        self.lengths = [lane.fed_prompt + len(lane.fed_slots) for lane in self.lanes]
        self.packing = Packing(self.lengths, [lane.row.span[0] for lane in self.lanes], device)
        self.mask = self._pad(dense) if dense is not None else None
        self.host_ids = torch.cat([row.ids for row in self.rows]) if self.rows else torch.empty(0, dtype=torch.int64)
        self.ids = self.host_ids.to(device)
        self.starts, total = {}, 0
        for row in self.rows:
            self.starts[row] = total
            row.ids = self.host_ids[total : total + row.window]
            total += row.window

        self.slot_at = torch.full((total,), -1, dtype=torch.int64)
        self._logits_at = torch.full((total,), -1, dtype=torch.int64)
        twin_at = torch.full((total,), -1, dtype=torch.int64)
        scale = torch.zeros(total, dtype=torch.float32)
        window_at, source = [], []
        back = int(backbone.config.shift)
        for first, lane in zip(self.packing.starts, self.lanes, strict=False):
            fed, begin = lane.fed_slots, self.starts[lane.row]
            slots = torch.arange(begin + fed.start, begin + fed.stop)
            at = torch.arange(first + lane.fed_prompt, first + lane.fed_prompt + len(fed))
            window_at.append(at)
            source.append(slots)
            if lane.row.prefilling:  # a prefill: shifted logits begin at the prompt's last token
                slots, at = slots.new_full((back,), begin), at.new_full((back,), first + lane.fed_prompt)
            # A shifted position with nothing before it keeps its own logits, as in the references.
            logits_at = (at - back).clamp(min=first)
            if lane.twin:
                twin_at[slots] = logits_at
                scale[slots] = lane.row.config.cfg_scale
            else:
                self.slot_at[slots] = at
                self._logits_at[slots] = logits_at

        def joined(parts: list[Tensor]) -> Tensor:
            return (torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)).to(device)

        self.window_at, self._source = joined(window_at), joined(source)
        self.slot_at, self._logits_at = self.slot_at.to(device), self._logits_at.to(device)
        self._twin_at, self._scale = twin_at.to(device), scale.to(device)
        self.guided = len(self.lanes) > len(self.rows)
        self._prompts = self._lay_prompts()

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether these are the rows on the canvas, in whatever order, and they feed what it was made for."""
        there = len(rows) == len(self.rows) and set(rows) == set(self.rows)
        return there and all(self._fed[row] == (row.span, row.reuses) for row in rows)

    def remade(self, rows: Sequence[Row], *others: Canvas, dense: Dense | None = None) -> Canvas:
        """The canvas of `rows` as they stand now, which come from this one and others."""
        cache, members = Cache(), set(rows)
        for canvas in (self, *others):
            cache.pieces |= canvas._held(members)
        return Canvas(self.backbone, rows, cache, dense)

    def _held(self, rows: set[Row]) -> dict[Lane, list[tuple[KeyValues, int, int]]]:
        """What their next forward reuses; rows that feed less than before go on with this forward's keys."""
        held = Cache({lane: own for lane, own in self.cache.pieces.items() if lane.row in rows and lane.row.reuses})
        for first, lane in zip(self.packing.starts, self.lanes, strict=False):
            _, reused = self._fed[lane.row]
            if lane.row in rows and lane.row.reuses and not reused:
                held.hold(lane, self.kept, first)
        return held.pieces

    def _pad(self, dense: Dense) -> Tensor | None:
        """Move the lanes `dense.fed` apart. `[B, 1, 1, past + fed]`: which keys are real; None if all are.

        A lane that does not exist sees its own first token, so that no softmax is over nothing.
        """
        tight, device = self.packing, self.packing.positions.device
        self.packing = Packing([dense.fed] * dense.rows, device=device)
        places = [torch.arange(n) + start for start, n in zip(self.packing.starts, self.lengths, strict=False)]
        self.packing.positions = torch.zeros_like(self.packing.positions)
        self.packing.positions[torch.cat(places).to(device)] = tight.positions
        past = [0] * len(self.lanes)
        if self.past is not None:
            past = [sum(stop - start for _, start, stop in self.cache.pieces.get(lane, ())) for lane in self.lanes]
        if len(self.lanes) == dense.rows and set(self.lengths) == {dense.fed} and set(past) == {dense.past}:
            return None
        absent = dense.rows - len(self.lanes)
        sizes = torch.tensor([past + [0] * absent, self.lengths + [1] * absent])[:, :, None]
        mask = torch.cat([torch.arange(n) < own for n, own in zip((dense.past, dense.fed), sizes, strict=True)], dim=1)
        return mask[:, None, None].to(device)

    def read_back(self, *others: Tensor) -> tuple[Tensor, ...]:
        """Bring what was written into `ids`, and other tensors, to the host."""
        ids, *others = HostRead(self.ids, *others).wait()
        if ids is not self.host_ids:
            self.host_ids.copy_(ids)
        return tuple(others)

    def _lay_prompts(self) -> Tensor:
        """`[T, H]`: the fed prompts in their places; window slots are filled by `embeddings`, padding is zeros."""
        hidden = torch.zeros(
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

    def forward(
        self, hidden: Tensor, start: int = 0, stop: int | None = None, probe: Probe | None = None, run=None
    ) -> Tensor:
        """Layers `start..stop` on `hidden [T, H]`; the work is booked on the rows, padding on nobody.

        run: what to call in place of `Backbone.run`.
        """
        stop = self.backbone.config.n_layers if stop is None else stop
        for i, lane in enumerate(self.lanes):
            counters, begun = lane.row.counters, int(start == 0 and not lane.twin)
            work = self.lengths[i] * (stop - start)
            counters.forwards += begun
            counters.token_layers += work
            if lane.row.for_net:
                counters.net_forwards += begun
                counters.net_token_layers += work
        if start == 0:
            self.kept = KeyValues(self.packing) if any(row.keeps for row in self.rows) else None
        run = self.backbone.run if run is None else run
        mask = {} if self.mask is None else {"mask": self.mask}
        return run(hidden, self.packing, start, stop, past=self.past, keep=self.kept, probe=probe, **mask)

    def logits(self, hidden: Tensor, slots: Tensor) -> Tensor:
        """`[N, V]` logits of the window slots `[N]`, with guidance mixed in where a row asks for it.

        Guidance is `un + (scale + 1) * (cond - un)`, LLaDA's generate.
        """
        logits = self.backbone.logits(hidden[self._logits_at[slots]])
        if self.guided:
            which = (self._twin_at[slots] >= 0).nonzero().flatten()
            un = self.backbone.logits(hidden[self._twin_at[slots[which]]])
            logits[which] = un + (self._scale[slots[which], None].to(un) + 1) * (logits[which] - un)
        return logits

    def window_values(self, values: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        """`values [T, ...]` of the rows' (not the twins') slots as `[B, G, ...]`, and the window lengths int32 `[B]`.

        offset: how many positions before its own a slot's value is read (`Profile.slot_offset`). A slot that has none
        fed there takes the row's first value; see `unread`. Columns past a row's length hold values of other slots;
        nothing may read them.
        """
        lengths = torch.tensor([r.window for r in self.rows], dtype=torch.int32, device=values.device)
        first = torch.tensor([self.starts[r] for r in self.rows], device=values.device)
        columns = torch.arange(max((r.window for r in self.rows), default=0), device=values.device)
        slots = (first[:, None] + columns).clamp(max=max(len(self.slot_at) - 1, 0))
        begin = torch.tensor(self.packing.starts[: len(self.rows)], device=values.device)
        return values[(self.slot_at[slots] - offset).clamp(min=begin[:, None])], lengths

    def unread(self, offset: int) -> list[int]:
        """Per row the first slots whose values say nothing about the end.

        What a prefill has written is no mask; with an offset, a slot needs a position before it that is fed.
        """
        rows = zip(self.rows, self.lanes, strict=False)  # the rows' own lanes come first
        return [max(int(row.shift and row.prefilled), offset - lane.fed_prompt) for row, lane in rows]

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
        starts = [self.packing.starts[i] for i, _ in staying]
        packed_ids = torch.zeros(self.packing.total, dtype=torch.int64, device=hidden.device)
        packed_ids[self.window_at] = self.ids[self._source]
        hidden, _, positions, _, cu_seqlens = ops.truncate_repack(
            hidden,
            packed_ids,
            torch.tensor(starts, dtype=torch.int64, device=hidden.device),
            torch.tensor(kept, dtype=torch.int64, device=hidden.device),
            sum(kept),
            offsets=torch.tensor([lane.row.span[0] for _, lane in staying], dtype=torch.int64, device=hidden.device),
        )
        for row, (window, block) in keep.items():
            row.cut(window, block)
        canvas = Canvas(self.backbone, go_on, self.cache)
        canvas.packing.positions, canvas.packing.cu_seqlens = positions, cu_seqlens
        if self.kept is not None:  # the layers so far saw the full window; what was cut is not attended to later
            repack = (torch.tensor(starts, dtype=torch.int64, device=hidden.device), cu_seqlens, sum(kept))
            layers = [tuple(ops.varlen_repack(t, *repack) for t in pair) for pair in self.kept.layers]
            canvas.kept = KeyValues(canvas.packing, layers)
        return canvas, hidden


def lane_prompt(backbone: Backbone, lane: Lane) -> Tensor:
    """`[P, H]`: the prompt's embeddings; for a twin, as many masks (LLaDA masks the whole prompt)."""
    if not lane.twin:
        return lane.row.prompt
    mask = torch.full((len(lane.row.prompt),), lane.row.mask_id, device=backbone.device)
    return backbone.embed(mask)


def prefill(backbone: Backbone, rows: Sequence[Row]) -> Cache:
    """Compute the prompts of all rows with a prompt cache, which see only themselves (LaViDa's prefix mode).

    Where logits are shifted, the last token of a prompt is all that ever predicts the window's first slot, so that slot
    is written here, as in LaViDa-Dream.
    """
    cache = Cache()
    waiting = [row for row in rows if row.prefilling]
    if not waiting:
        return cache
    canvas = Canvas(backbone, waiting, cache)
    hidden = canvas.forward(canvas.embeddings())
    if backbone.config.shift:
        open_rows, tokens = [row for row in waiting if row.ids[0] == row.mask_id], []
        for row in open_rows:
            first = torch.tensor([canvas.starts[row]], device=backbone.device)
            eos = torch.tensor([backbone.config.eos_id], device=backbone.device)
            suppressed = eos if row.config.suppress_eos else None
            tokens.append(ops.token_confidence(canvas.logits(hidden, first), suppress=suppressed)[0])
        for row, token in zip(open_rows, HostRead(*tokens).wait() if tokens else (), strict=True):
            row.write_first(token)
    for row in waiting:
        row.prefilled = True
    for first, lane in zip(canvas.packing.starts, canvas.lanes, strict=False):
        cache.hold(lane, canvas.kept, first)
    return cache
