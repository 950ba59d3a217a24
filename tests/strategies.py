"""Random calls of the ops for hypothesis, as arguments by name: `valid`, and by `invalid` such with one thing wrong.

Hypothesis draws sizes, dtypes, layouts and options. The elements come from a generator whose seed it draws: they are
many, and which of them fails is easily seen.
"""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from cases import FLOATS, MASK_ID, OPS
from layouts import placed

COPIED = (torch.uint8, torch.bool, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.int64)
COPIED += (torch.complex64, torch.uint32, torch.float8_e4m3fn)
INF, NAN = math.inf, math.nan
THRESHOLDS = (0.25, 0.0, -0.0, -1.0, 1.0, 0.1, 1e-45, 1e-60, 1e300, INF, -INF)
WIDTHS = (0, 1, 2, 7, 15, 16, 17, 33, 64, 65, 130)
VOCABS = (0, 1, 2, 7, 16, 33, 300, 1024, 1025, 2100)


class Source:
    """What a call is drawn from."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))

    def pick(self, *options):
        return self.draw(st.sampled_from(options))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def size(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def randint(self, low: int, high: int, *shape: int) -> Tensor:
        """In [low, high), which may be empty where there are no elements."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def index(self, values: Tensor) -> Tensor:
        return self.scatter(values.to(self.pick(torch.int32, torch.int64)), shared=False)

    def floats(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Ordinary values, few of them and hence many ties, huge and tiny ones, or what isn't a number."""
        kind = self.pick("normal", "ties", "special", "huge", "tiny")
        if kind == "ties":
            return (self.randint(-2, 3, *shape) / 2).to(dtype)
        if kind == "special":
            info = torch.finfo(dtype)
            pool = [NAN, INF, -INF, 0.0, -0.0, 1.0, 0.25, info.max, info.min, info.tiny, info.smallest_normal / 2]
            return torch.tensor(pool, dtype=torch.float64)[self.randint(0, len(pool), *shape)].to(dtype)
        scale = {"normal": 4.0, "huge": 1e30, "tiny": 1e-40}[kind]
        return (torch.randn(shape, generator=self.generator) * scale).to(dtype)

    def bits(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Random bits, so floats hold NaN payloads and subnormals."""
        if dtype == torch.bool:
            return self.randint(0, 2, *shape).bool()
        size = torch.empty(0, dtype=dtype).element_size()
        return self.randint(0, 256, *shape, size).to(torch.uint8).view(dtype).squeeze(-1)

    def scatter(self, t: Tensor, dense: bool = False, shared: bool = True) -> Tensor:
        """t in memory with garbage around it and between its rows, their order changed.

        dense: the last dim stays contiguous. shared: an outer dim may be expanded, which makes its elements equal.
        """
        if not self.flip():
            return placed(t, 0, 0)
        strides, stride = [0] * t.ndim, 1
        order = list(range(t.ndim))
        if t.ndim and dense:
            strides[order.pop()] = 1
            stride = max(t.shape[-1], 1)
        for dim in self.draw(st.permutations(order)):
            stride += self.size(2)
            strides[dim] = stride
            stride *= max(t.shape[dim], 1)
        laid = torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)
        laid = placed(laid, self.size(3), self.pick(0, 5))
        for dim in order if shared and self.flip() and self.flip() else ():
            if t.shape[dim] > 1 and self.flip():
                laid = laid.narrow(dim, 0, 1).expand_as(t)
        return laid


# ---- valid calls -------------------------------------------------------------------------------------------


def _mlp_sparsity(s: Source) -> dict:
    shape = *(s.size(4) for _ in range(s.size(3))), s.pick(*WIDTHS)
    act = s.scatter(s.floats(*shape, dtype=s.pick(*FLOATS)), dense=True)
    return {"act": act, "threshold": s.pick(*THRESHOLDS)}


def _silu_mul_sparsity(s: Source) -> dict:
    shape = *(s.size(4) for _ in range(s.size(3))), s.pick(*WIDTHS)
    dtype = s.pick(*FLOATS)
    gate, up = (s.scatter(s.floats(*shape, dtype=dtype), dense=True) for _ in range(2))
    return {"gate": gate, "up": up, "threshold": s.pick(*THRESHOLDS)}


def _snr_boundary(s: Source) -> dict:
    B, G = s.size(4), s.pick(0, 1, 2, 5, 9, 24, 40)
    sparsity = s.floats(B, G, dtype=torch.float32)
    if s.flip():  # content, then a plateau
        noise = torch.rand(B, G, generator=s.generator) * s.pick(0.0, 0.05, 0.5)
        sparsity = torch.where(torch.arange(G) < s.randint(0, G + 1, B, 1), 0.3, 0.8) + noise
    return {
        "sparsity": s.scatter(sparsity, dense=True),
        "lengths": s.index(s.randint(0, G + 1, B)) if s.flip() else None,
        "window": s.pick(8, 1, 2, 100, 2**62, 2**63 - 1),
        "min_snr": s.pick(1.0, 0.0, -1.0, 20.0, INF, -INF),
        "plateau": s.pick(0.9, 0.0, 0.5, 1.0),
        "min_jump": s.pick(0.0, 0.1, -1.0, INF, -INF),
        "min_keep": s.pick(1, 2, 7, 41, 2**63 - 1),
    }


def _tokens(s: Source, N: int) -> Tensor:
    shape = N, *(s.pick(0, 1, 2, 3) for _ in range(s.size(2))), *([s.pick(1, 5, 8, 33)] if s.flip() else [])
    return s.scatter(s.bits(*shape, dtype=s.pick(*COPIED)), dense=len(shape) > 1)


def _ranges(s: Source, B: int, N: int) -> tuple[Tensor, Tensor]:
    """First tokens and lengths of B ranges within N."""
    lengths = s.randint(0, N + 1, B) if s.flip() else s.randint(0, min(N, 2) + 1, B)
    slack = torch.rand(B, generator=s.generator, dtype=torch.float64) * (N - lengths + 1)
    return slack.long(), lengths


def _offsets(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _varlen_repack(s: Source) -> dict:
    B, N = s.size(4), s.size(9)
    starts, lengths = _ranges(s, B, N)
    capacity = s.size(int(lengths.sum()) + 3)
    return {
        "x": _tokens(s, N),
        "starts": s.index(starts),
        "cu_seqlens": s.index(_offsets(lengths)),
        "capacity": capacity,
    }


def _fill(s: Source, dtype: torch.dtype) -> float:
    if dtype == torch.float8_e4m3fn:
        return 0
    if dtype == torch.bool:
        return s.pick(0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return s.pick(0, 1, -1.5, 0.1, INF, -INF, NAN, 6e4, 1e-45)
    info = torch.iinfo(dtype)
    return s.pick(0, 1, 97, info.min, info.max if info.bits < 64 else 2**62)


def _varlen_unpack(s: Source) -> dict:
    B, length = s.size(4), s.size(9)
    columns, lengths = _ranges(s, B, length)
    packed = _tokens(s, int(lengths.sum()) + s.size(3))
    return {
        "packed": packed,
        "columns": s.index(columns),
        "cu_seqlens": s.index(_offsets(lengths)),
        "length": length,
        "fill": _fill(s, packed.dtype),
    }


def _mask_rewrite(s: Source) -> dict:
    B, L = s.size(4), s.pick(0, 1, 2, 9, 33)
    shape = (B, L) if s.flip() else (B, 1, s.size(4), L)
    visible = torch.rand(shape, generator=s.generator) < s.pick(0.0, 0.3, 0.9)
    dtype = torch.bool if len(shape) == 2 else s.pick(torch.bool, *FLOATS)
    mask = visible if dtype == torch.bool else s.floats(*shape, dtype=dtype).masked_fill(~visible, -INF)
    columns, lengths = _ranges(s, B, L)
    return {
        "mask": s.scatter(mask, dense=True, shared=False),
        "columns": s.index(columns),
        "lengths": s.index(lengths),
    }


def _truncate_repack(s: Source) -> dict:
    B, N = s.size(4), s.size(9)
    starts, lengths = _ranges(s, B, N)
    capacity = s.size(int(lengths.sum()) + 3)
    room = 2**31 - 1 - lengths.clamp(max=capacity)
    return {
        "hidden": s.scatter(s.bits(N, s.pick(0, 1, 3, 8, 33), dtype=s.pick(*COPIED)), dense=True),
        "ids": s.scatter(s.randint(-5, 1000, N)),
        "starts": s.index(starts),
        "lengths": s.index(lengths),
        "capacity": capacity,
        "offsets": s.pick(None, s.index(s.randint(0, 50, B)), s.index(room)),
    }


def _token_confidence(s: Source) -> dict:
    N, V = s.size(4), s.pick(*VOCABS)
    ids = s.randint(0, V, s.size(5) if V else 0)
    call = {
        "logits": s.scatter(s.floats(N, V, dtype=s.pick(*FLOATS)), dense=True),
        "kind": s.pick("prob", "margin", "entropy"),
        "suppress": s.pick(None, s.scatter(ids), torch.randperm(V, generator=s.generator)),
    }
    key = s.scatter(s.randint(-(2**63), 2**63 - 1, N))
    temperature = torch.tensor([0.0, 1.0, 0.3, 50.0, -1.0, NAN])[s.randint(0, 6, N)]
    options = {"none": {}, "key": {"key": key}, "noise": {"temperature": s.scatter(temperature), "key": key}}
    if V or not N:
        options["chosen"] = {"chosen": s.scatter(s.randint(0, V, N))}
    return call | options[s.pick(*options)]


def _commit_tokens(s: Source) -> dict:
    """Slots of random rows, out of order; some are skipped, some listed twice, and some still hold no mask."""
    B, T = s.size(4), s.size(24)
    owner = s.randint(-1, B, T)
    entries = [(owner == b).nonzero()[:, 0] for b in range(B)]
    entries = [e[s.randint(0, len(e), len(e))] if len(e) and s.flip() else e for e in entries]
    entries = [torch.cat([e, torch.tensor([-1, -(2**62)])[: s.size(2)]]) for e in entries]
    entries = [e[torch.randperm(len(e), generator=s.generator)] for e in entries]
    rest = torch.tensor([2**62, -7, 0])[: s.size(3)]  # past cu_slots[B]: not read
    slots = torch.cat([*entries, rest])
    N = len(slots)
    thresholds = s.floats(B, dtype=s.pick(torch.float64, *FLOATS))
    return {
        "ids": s.scatter(torch.where(s.randint(0, 3, T) > 0, MASK_ID, 3), shared=False),
        "slots": s.scatter(slots, shared=False),
        "token": s.scatter(s.randint(5, 9, N)),  # among them the mask itself
        "confidence": s.scatter(s.floats(N, dtype=s.pick(torch.float64, *FLOATS))),
        "cu_slots": s.scatter(_offsets(torch.tensor([len(e) for e in entries], dtype=torch.int64)), shared=False),
        "quota": s.index(s.pick(s.randint(-2, 9, B), torch.full((B,), 2**31 - 1), torch.full((B,), -(2**31)))),
        "mask_id": s.pick(MASK_ID, 3, -1, 2**63 - 1),
        "threshold": s.pick(None, s.scatter(thresholds)),
    }


_VALID = {op: globals()[f"_{op}"] for op in OPS}


@st.composite
def valid(draw, op: str) -> dict:
    """Arguments by name that the op must accept. Offsets and slots are never expanded: that would change what they
    say."""
    return _VALID[op](Source(draw))
