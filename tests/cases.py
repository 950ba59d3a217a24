"""Named cases of every op, and the inputs they stand for: one list for tests and benchmarks.

CORRECTNESS holds ordinary sizes, odd ones on purpose, and "threads", large enough to be shared among them;
CORNER what breaks kernels, PERF the sizes of real models. Inputs are drawn from a generator seeded by the
case, so a test and a benchmark of one name see the same numbers.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """name: its id. dims: sizes by the letters of the docs. dtype: of the float inputs."""

    name: str
    dims: dict[str, int]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        sizes = "x".join(f"{key}{value}" for key, value in self.dims.items())
        return f"{self.name}-{sizes}-{str(self.dtype).removeprefix('torch.')}"


def _cases(name: str, *, dtypes=(torch.float32,), **dims: int) -> tuple[Case, ...]:
    return tuple(Case(name, dims, dtype) for dtype in dtypes)


_ACT = {
    "correctness": _cases("plain", dtypes=FLOATS, L=33, I=256)
    + _cases("odd", dtypes=FLOATS, L=7, I=131)
    + _cases("one_vector", L=5, I=16)
    + _cases("threads", L=5000, I=65),
    "corner": _cases("no_rows", dtypes=FLOATS, L=0, I=64)
    + _cases("no_columns", dtypes=FLOATS, L=3, I=0)
    + _cases("one", dtypes=FLOATS, L=1, I=1)
    + _cases("below_vector", L=2, I=15),
    "perf": _cases("llada_mlp", dtypes=(torch.bfloat16, torch.float32), L=1024, I=12288),
}

_LISTS: dict[str, dict[str, tuple[Case, ...]]] = {
    "mlp_sparsity": _ACT,
    "silu_mul_sparsity": _ACT,
    "snr_boundary": {
        "correctness": _cases("plain", B=5, G=64)
        + _cases("odd", B=3, G=37)
        + _cases("long", B=2, G=256)
        + _cases("threads", B=90, G=96),
        "corner": _cases("no_rows", B=0, G=16)
        + _cases("no_slots", B=2, G=0)
        + _cases("one_slot", B=2, G=1)
        + _cases("below_window", B=3, G=5),
        "perf": _cases("batch", B=256, G=1024),
    },
    "varlen_repack": {
        "correctness": _cases("plain", dtypes=FLOATS, B=4, L=16, H=64)
        + _cases("odd", dtypes=FLOATS, B=3, L=7, H=33)
        + _cases("threads", B=3, L=30_000, H=9),
        "corner": _cases("no_rows", B=0, L=4, H=8)
        + _cases("no_tokens", B=3, L=0, H=8)
        + _cases("no_features", B=2, L=3, H=0)
        + _cases("one", B=1, L=1, H=1),
        "perf": _cases("hidden", dtypes=(torch.bfloat16,), B=16, L=512, H=4096),
    },
    "varlen_unpack": {
        "correctness": _cases("plain", dtypes=FLOATS, B=4, L=16, H=64)
        + _cases("odd", dtypes=FLOATS, B=3, L=7, H=33)
        + _cases("threads", B=3, L=30_000, H=9),
        "corner": _cases("no_rows", B=0, L=4, H=8)
        + _cases("no_columns", B=3, L=0, H=8)
        + _cases("no_features", B=2, L=3, H=0)
        + _cases("one", B=1, L=1, H=1),
        "perf": _cases("hidden", dtypes=(torch.bfloat16,), B=16, L=512, H=4096),
    },
    "mask_rewrite": {
        "correctness": _cases("plain", dtypes=(*FLOATS, torch.bool), B=4, Q=8, L=64)
        + _cases("odd", dtypes=(torch.bool, *FLOATS), B=3, Q=5, L=37)
        + _cases("flat", dtypes=(torch.bool,), B=5, Q=0, L=33)
        + _cases("threads", B=3, Q=90, L=1000),
        "corner": _cases("no_rows", dtypes=(torch.bool, torch.float32), B=0, Q=4, L=8)
        + _cases("no_queries", B=2, Q=0, L=8)
        + _cases("no_columns", B=2, Q=3, L=0)
        + _cases("one", dtypes=(torch.bool, torch.float32), B=1, Q=1, L=1),
        "perf": _cases("square", dtypes=(torch.bool, torch.bfloat16), B=16, Q=1024, L=1024),
    },
    "truncate_repack": {
        "correctness": _cases("plain", dtypes=FLOATS, B=4, L=16, H=64)
        + _cases("odd", dtypes=FLOATS, B=3, L=7, H=33)
        + _cases("threads", B=3, L=30_000, H=9),
        "corner": _cases("no_rows", B=0, L=4, H=8)
        + _cases("no_tokens", B=3, L=0, H=8)
        + _cases("no_features", B=2, L=3, H=0)
        + _cases("one", B=1, L=1, H=1),
        "perf": _cases("hidden", dtypes=(torch.bfloat16,), B=16, L=512, H=4096),
    },
    "token_confidence": {
        "correctness": _cases("plain", dtypes=FLOATS, N=9, V=512)
        + _cases("odd", dtypes=FLOATS, N=3, V=1237)
        + _cases("threads", N=700, V=200),
        "corner": _cases("no_rows", N=0, V=16)
        + _cases("no_ids", N=3, V=0)
        + _cases("one_id", N=3, V=1)
        + _cases("below_vector", N=2, V=7),
        "perf": _cases("llada_vocab", dtypes=(torch.bfloat16, torch.float32), N=128, V=126464),
    },
    "commit_tokens": {
        "correctness": _cases("plain", B=4, S=32, Q=5)
        + _cases("odd", B=3, S=13, Q=4)
        + _cases("long", B=2, S=300, Q=70)
        + _cases("threads", B=150, S=80, Q=20),
        "corner": _cases("no_rows", B=0, S=4, Q=1)
        + _cases("no_slots", B=3, S=0, Q=1)
        + _cases("one", B=1, S=1, Q=1)
        + _cases("quota_above", B=2, S=3, Q=9),
        "perf": _cases("window", B=256, S=256, Q=32),
    },
}

CORRECTNESS = {op: lists["correctness"] for op, lists in _LISTS.items()}
CORNER = {op: lists["corner"] for op, lists in _LISTS.items()}
PERF = {op: lists["perf"] for op, lists in _LISTS.items()}
OPS = tuple(_LISTS)

THRESHOLD = 0.25
MASK_ID = 7


def inputs(op: str, case: Case, device: str = "cpu") -> tuple[tuple, dict]:
    """Arguments and keyword arguments of one call."""
    gen = torch.Generator().manual_seed(zlib.crc32(f"{op} {case}".encode()))
    args, kwargs = _MAKERS[op](gen, case.dtype, **case.dims)
    move = lambda v: v.to(device) if isinstance(v, Tensor) else v  # noqa: E731
    return tuple(move(v) for v in args), {name: move(v) for name, v in kwargs.items()}


def _mlp_sparsity(gen, dtype, L, I):  # noqa: E741
    return (torch.randn(L, I, generator=gen).to(dtype), THRESHOLD), {}


def _silu_mul_sparsity(gen, dtype, L, I):  # noqa: E741
    gate, up = torch.randn(2, L, I, generator=gen).mul_(3).to(dtype)
    return (gate, up, THRESHOLD), {}


def _snr_boundary(gen, dtype, B, G):
    """Content around 0.4, then a plateau around 0.8 from a random slot on; lengths between half and all of
    G."""
    noise = torch.rand(B, G, generator=gen) * 0.1
    end = torch.randint(0, G + 1, (B, 1), generator=gen)
    lengths = torch.randint(G // 2, G + 1, (B,), generator=gen, dtype=torch.int32)
    return (torch.where(torch.arange(G) < end, 0.4, 0.8) + noise, lengths), {}


def _ranges(gen, B, L):
    """B rows that each hold a random part of L tokens of their own: starts into `[B*L]`, lengths."""
    lengths = torch.randint(0, L + 1, (B,), generator=gen)
    slack = (torch.rand(B, generator=gen) * (L - lengths + 1)).long()
    return torch.arange(B) * L + slack, lengths


def _varlen_repack(gen, dtype, B, L, H):
    starts, lengths = _ranges(gen, B, L)
    cu = torch.zeros(B + 1, dtype=torch.int32)
    cu[1:] = lengths.cumsum(0)
    return (torch.randn(B * L, H, generator=gen).to(dtype), starts, cu, int(cu[-1]) + 3), {}


def _varlen_unpack(gen, dtype, B, L, H):
    lengths = torch.randint(0, L + 1, (B,), generator=gen)
    columns = (torch.rand(B, generator=gen) * (L - lengths + 1)).long()
    cu = torch.zeros(B + 1, dtype=torch.int32)
    cu[1:] = lengths.cumsum(0)
    return (torch.randn(int(cu[-1]) + 3, H, generator=gen).to(dtype), columns, cu, L, -1.5), {}


def _mask_rewrite(gen, dtype, B, Q, L):
    """A third hidden already, as -inf in an additive mask; Q=0 with bool is the mask [B, L]."""
    flat = dtype == torch.bool and Q == 0
    visible = torch.rand(*((B, L) if flat else (B, 1, Q, L)), generator=gen) < 0.67
    biases = torch.randn(visible.shape, generator=gen).masked_fill(~visible, -math.inf)
    lengths = torch.randint(0, L + 1, (B,), generator=gen)
    columns = (torch.rand(B, generator=gen) * (L - lengths + 1)).long()
    return (visible if dtype == torch.bool else biases.to(dtype), columns, lengths), {}


def _truncate_repack(gen, dtype, B, L, H):
    starts, lengths = _ranges(gen, B, L)
    hidden = torch.randn(B * L, H, generator=gen).to(dtype)
    ids = torch.randint(0, 1000, (B * L,), generator=gen)
    offsets = torch.randint(0, 50, (B,), generator=gen)
    return (hidden, ids, starts, lengths, int(lengths.sum()) + 3), {"offsets": offsets}


def _token_confidence(gen, dtype, N, V):
    logits = (torch.randn(N, V, generator=gen) * 4).to(dtype)
    suppress = torch.randperm(V, generator=gen)[: min(2, V - 1) if V else 0]
    return (logits, "prob", suppress), {}


def _commit_tokens(gen, dtype, B, S, Q):
    """Every row owns S slots of ids, listed out of order; a third of them hold a token already."""
    ids = torch.where(torch.rand(B * S, generator=gen) < 0.33, 3, MASK_ID)
    order = [torch.randperm(S, generator=gen) + b * S for b in range(B)]
    slots = torch.cat(order) if order else torch.empty(0, dtype=torch.int64)
    token = torch.randint(100, 200, (B * S,), generator=gen)
    confidence = torch.randint(0, 12, (B * S,), generator=gen).double() / 12  # few values, hence many ties
    cu_slots = torch.arange(B + 1, dtype=torch.int32) * S
    quota = torch.randint(0, Q + 1, (B,), generator=gen)
    return (ids, slots, token, confidence, cu_slots, quota), {"mask_id": MASK_ID}


_MAKERS = {
    "mlp_sparsity": _mlp_sparsity,
    "silu_mul_sparsity": _silu_mul_sparsity,
    "snr_boundary": _snr_boundary,
    "varlen_repack": _varlen_repack,
    "varlen_unpack": _varlen_unpack,
    "mask_rewrite": _mask_rewrite,
    "truncate_repack": _truncate_repack,
    "token_confidence": _token_confidence,
    "commit_tokens": _commit_tokens,
}
