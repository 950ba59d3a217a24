"""Forwards recorded once per shape and replayed: CUDA graphs, behind an interface that needs no GPU to be tested."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seer_dllm.backbone import Backbone, DevicePacking, KeyValues, Packing, Room
from seer_dllm.canvas import Dense

log = logging.getLogger(__name__)
Recording = tuple[Callable[[], object], Tensor]  # replays into the tensor


@dataclass(frozen=True)
class Packed:
    """What a recording of packed rows has room for: lanes, tokens that all feed together, cached ones that all see."""

    rows: int
    fed: int
    past: int


class Capturer(ABC):
    """Whole forwards of dense and packed batches, one recording per shape, each with input buffers of its own.

    A shape is recorded when it is first seen, or ahead by `warm_up`. Lanes of a bucket that no row fills see nothing of
    the others: in a dense one they hold zeros, in a packed one they are empty, and the tokens behind the last lane are
    no lane's. Results are copies: the next replay does not change them.
    CPUs run uncaptured: with the demo model on one thread, kept buffers save nothing that stands out from noise,
    and `torch.compile` takes 6 to 30 s a shape to make a batch of 8 some 9 % faster than packed rows.

    Attributes:
        hits, captures: replays of a recording that was there, and recordings made.
        bytes: held by the buffers.
    """

    def __init__(self) -> None:
        self.hits = self.captures = self.bytes = 0
        self._shapes: dict[tuple[Backbone, Dense | Packed, bool], _Shape] = {}

    @abstractmethod
    def record(self, body: Callable[[], Tensor]) -> Recording:
        """Record what `body` does on the tensors that it closes over."""

    def bound(self, backbone: Backbone, shape: Dense | Packed) -> Callable[..., Tensor]:
        """What `Canvas.forward` calls in place of `backbone.run`: for whole forwards without `keep` and `probe`.

        shape: what a dense canvas is padded to, or has room for a packed one, if `backbone.device_packed`.
        """
        return partial(self._run, backbone, shape)

    def warm_up(self, backbone: Backbone, shapes: Iterable[Dense | Packed]) -> None:
        """Record these shapes, dense ones with padding, from the largest to the smallest, which reuse its memory."""
        for shape in sorted(shapes, key=_tokens, reverse=True):
            if (backbone, shape, isinstance(shape, Dense)) not in self._shapes:
                self._capture(backbone, shape, isinstance(shape, Dense))

    def _run(self, backbone, shape, hidden, packing, start, stop, *, past=None, keep=None, probe=None, mask=None):
        assert (start, stop, keep, probe) == (0, backbone.config.n_layers, None, None)
        assert (past is None) == (shape.past == 0)
        recorded = self._shapes.get((backbone, shape, mask is not None))
        if recorded is None:
            recorded = self._capture(backbone, shape, mask is not None)
        else:
            self.hits += 1
        return recorded.replay(hidden, packing, past, mask)

    def _capture(self, backbone: Backbone, shape: Dense | Packed, masked: bool) -> _Shape:
        kind = _DenseShape if isinstance(shape, Dense) else _PackedShape
        recorded = self._shapes[backbone, shape, masked] = kind(backbone, shape, masked, self.record)
        self.captures += 1
        self.bytes += recorded.bytes
        log.info("captured %s%s: %d bytes of buffers", shape, " with padding" if masked else "", recorded.bytes)
        return recorded


def _tokens(shape: Dense | Packed) -> int:
    """Fed and cached ones of all lanes."""
    return (shape.fed + shape.past) * (shape.rows if isinstance(shape, Dense) else 1)


class _Shape(ABC):
    """The buffers and the recording of one shape."""

    def __init__(self, backbone: Backbone, packing, past: KeyValues | None, more: list[Tensor], record, **mask) -> None:
        size = packing.total, backbone.config.hidden_size
        self.packing, self.past = packing, past
        self.hidden = torch.zeros(size, dtype=backbone.dtype, device=backbone.device)
        self._laid: Packing | None = None  # whose places, cached keys and mask are in the buffers
        self._replay, self.out = record(lambda: backbone.run(self.hidden, packing, past=past, **mask))
        held = [t for pair in past.layers for t in pair] if past is not None else []
        self.bytes = sum(t.nbytes for t in (self.hidden, self.out, *more, *held))

    @abstractmethod
    def lay(self, packing: Packing, past: KeyValues | None, mask: Tensor | None) -> None:
        """Take all that the steps of one canvas share."""

    def replay(self, hidden: Tensor, packing: Packing, past: KeyValues | None, mask: Tensor | None) -> Tensor:
        if self._laid is not packing:
            self.lay(packing, past, mask)
            self._laid = packing
        self.hidden[: len(hidden)].copy_(hidden)
        self._replay()
        return self.out[: len(hidden)].clone()


class _DenseShape(_Shape):
    def __init__(self, backbone: Backbone, shape: Dense, masked: bool, record) -> None:
        device, past = backbone.device, None
        packing = Packing([shape.fed] * shape.rows, device=device)
        index = [packing.positions]
        if shape.past:
            room = Room([shape.past] * shape.rows, [shape.fed] * shape.rows, device)
            past = KeyValues(room, _layers(backbone, room.total))
            index.append(room.keys_at)
        size = shape.rows, 1, 1, shape.past + shape.fed
        self.mask = torch.ones(size, dtype=torch.bool, device=device) if masked else None
        mask = {"mask": self.mask} if masked else {}
        super().__init__(backbone, packing, past, [*index, *mask.values()], record, **mask)

    def lay(self, packing: Packing, past: KeyValues | None, mask: Tensor | None) -> None:
        self.packing.positions.copy_(packing.positions)
        if mask is not None:
            self.mask.copy_(mask)
        for ours, theirs in zip(self.past.layers, past.layers, strict=True) if past is not None else ():
            for buffer, values in zip(ours, theirs, strict=True):
                buffer.copy_(values)


class _PackedShape(_Shape):
    def __init__(self, backbone: Backbone, shape: Packed, masked: bool, record) -> None:
        assert not masked
        packing = DevicePacking(shape.rows, shape.fed, shape.past, backbone.device)
        room, index = packing.room, [packing.cu_seqlens, packing.positions]
        past = None
        if room is not None:
            past = KeyValues(room, _layers(backbone, room.total))
            index += [room.cu_seqlens, room.keys_at]
        super().__init__(backbone, packing, past, index, record)

    def lay(self, packing: Packing, past: KeyValues | None, mask: Tensor | None) -> None:
        self.packing.take(packing, past.packing if past is not None else None)
        for ours, theirs in zip(self.past.layers, past.layers, strict=True) if past is not None else ():
            for buffer, values in zip(ours, theirs, strict=True):
                buffer[: len(values)].copy_(values)


def _layers(backbone: Backbone, tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Zeros for keys and values of so many tokens in every layer."""
    config = backbone.config
    like = {"dtype": backbone.dtype, "device": backbone.device}
    size = tokens, config.n_kv_heads, config.head_dim
    return [(torch.zeros(size, **like), torch.zeros(size, **like)) for _ in range(config.n_layers)]


class CudaGraphs(Capturer):
    """CUDA graphs that share one memory pool, as results are copied out of it before the next replay."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, body: Callable[[], Tensor]) -> Recording:
        side = torch.cuda.Stream()  # libraries set themselves up in a first run, which must not be captured
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = body()
        return graph.replay, out
