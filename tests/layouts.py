"""Tensors that lie somewhere: in the midst of garbage, at the end of their memory, or with gaps between rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def placed(t: Tensor, before: int, after: int) -> Tensor:
    """A copy of t, strides and all, in the midst of memory that holds garbage. Exact in size where `after` is
    0; `before` elements shift it, which spoils the alignment for vector accesses."""
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    memory = torch.empty(before + span + after, dtype=t.dtype)
    memory.view(torch.uint8).fill_(0x7F)  # NaN as bfloat16 and float64; far out of range as an index
    if t.is_floating_point():
        memory.fill_(float("nan"))
    return memory.as_strided(t.shape, t.stride(), before).copy_(t)


def bits(t: Tensor) -> Tensor:
    """The bytes of t's elements: NaN equals NaN of the same payload, and 0 differs from -0."""
    return torch.empty(t.shape, dtype=t.dtype).copy_(t).view(-1).view(torch.uint8)


def memory_of(values) -> Iterator[Tensor]:
    """The bytes that the tensors among `values` lie in, what surrounds the tensors included."""
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and value.device.type != "meta":
            yield torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())


def with_memory(t: Tensor) -> Tensor:
    """A copy of t together with all the memory that it lies in."""
    (memory,) = memory_of(t)
    return memory.clone().view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())
