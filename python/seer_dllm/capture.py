"""Forwards recorded once per shape and replayed: CUDA graphs, behind an interface that needs no GPU to be tested."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from seer_dllm.backbone import Backbone, KeyValues, Packing
from seer_dllm.canvas import Dense

log = logging.getLogger(__name__)
Recording = tuple[Callable[[], object], Tensor]  # replays into the tensor


class Capturer(ABC):
    """Whole forwards of dense batches, one recording per shape, each with input buffers of its own.

    A shape is recorded when it is first seen, or ahead by `warm_up`. Lanes of a bucket that no row fills hold zeros and
    see nothing of the others. Results are copies: the next replay does not change them.

    Attributes:
        hits, captures: replays of a recording that was there, and recordings made.
        bytes: held by the buffers.
    """

    def __init__(self) -> None:
        self.hits = self.captures = self.bytes = 0
        self._shapes: dict[tuple[Dense, bool], _Shape] = {}

    @abstractmethod
    def record(self, body: Callable[[], Tensor]) -> Recording:
        """Record what `body` does on the tensors that it closes over."""

    def bound(self, backbone: Backbone) -> Callable[..., Tensor]:
        """What `Canvas.forward` calls in place of `backbone.run`: for whole forwards without `keep` and `probe`."""
        return partial(self._run, backbone)

    def warm_up(self, backbone: Backbone, shapes: Iterable[Dense]) -> None:
        """Record these shapes, with padding, from the largest to the smallest, which then reuse its memory."""
        for dense in sorted(shapes, key=lambda d: d.rows * (d.fed + d.past), reverse=True):
            if (dense, True) not in self._shapes:
                self._capture(backbone, dense, True)

    def _run(self, backbone, hidden, packing, start, stop, *, past=None, keep=None, probe=None, mask=None) -> Tensor:
        assert (start, stop, keep, probe) == (0, backbone.config.n_layers, None, None)
        dense = Dense(len(packing), packing.lengths[0], past.packing.lengths[0] if past is not None else 0)
        shape = self._shapes.get((dense, mask is not None))
        if shape is None:
            shape = self._capture(backbone, dense, mask is not None)
        else:
            self.hits += 1
        return shape.replay(hidden, packing, past, mask)

    def _capture(self, backbone: Backbone, dense: Dense, masked: bool) -> _Shape:
        shape = self._shapes[dense, masked] = _Shape(backbone, dense, masked, self.record)
        self.captures += 1
        self.bytes += shape.bytes
        log.info("captured %s%s: %d bytes of buffers", dense, " with padding" if masked else "", shape.bytes)
        return shape


class _Shape:
    """The buffers and the recording of one shape."""

    def __init__(self, backbone: Backbone, dense: Dense, masked: bool, record) -> None:
        config, like = backbone.config, {"dtype": backbone.dtype, "device": backbone.device}
        self.packing = Packing([dense.fed] * dense.rows, device=backbone.device)
        self.hidden = torch.zeros(self.packing.total, config.hidden_size, **like)
        self.past = self.mask = None
        if dense.past:
            held = Packing([dense.past] * dense.rows, device=backbone.device)
            size = held.total, config.n_kv_heads, config.head_dim
            pairs = [(torch.zeros(size, **like), torch.zeros(size, **like)) for _ in range(config.n_layers)]
            self.past = KeyValues(held, pairs)
        if masked:
            keys = dense.past + dense.fed
            self.mask = torch.ones(dense.rows, 1, 1, keys, dtype=torch.bool, device=backbone.device)
        self._laid: Packing | None = None  # whose positions, cached keys and mask are in the buffers
        more = {} if self.mask is None else {"mask": self.mask}
        self._replay, self.out = record(lambda: backbone.run(self.hidden, self.packing, past=self.past, **more))

    @property
    def bytes(self) -> int:
        layers = self.past.layers if self.past is not None else []
        held = [self.hidden, self.packing.positions, *(t for pair in layers for t in pair)]
        return sum(t.nbytes for t in (*held, self.mask, self.out) if t is not None)

    def replay(self, hidden: Tensor, packing: Packing, past: KeyValues | None, mask: Tensor | None) -> Tensor:
        if self._laid is not packing:  # a canvas keeps these for all of its steps
            self.packing.positions.copy_(packing.positions)
            if mask is not None:
                self.mask.copy_(mask)
            for ours, theirs in zip(self.past.layers, past.layers, strict=True) if past is not None else ():
                for buffer, values in zip(ours, theirs, strict=True):
                    buffer.copy_(values)
            self._laid = packing
        self.hidden.copy_(hidden)
        self._replay()
        return self.out.clone()


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
