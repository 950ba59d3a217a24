"""Attention of packed rows, by the best library there is for the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from seer_dllm.backbone import DevicePacking, DeviceRoom, Packing

# (q, k, v, cu_q, cu_k, longest_q, longest_k) -> [T, heads, D]; keys and values may have fewer heads.
Varlen = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int], Tensor]
RUNS = "scaled_dot_product_attention by runs of equal rows"


@cache
def library(device: str, dtype: torch.dtype) -> tuple[str, Varlen | None]:
    """Name and function of what packed rows run through on this kind of device; None: SDPA, a call per run of rows.

    flash-attn and torch's own varlen attention have kernels for CUDA in half precision alone.
    """
    if device != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return RUNS, None
    try:
        from flash_attn import flash_attn_varlen_func

        return "flash_attn_varlen_func", flash_attn_varlen_func
    except ImportError:
        pass
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return RUNS, None
    return "torch.nn.attention.varlen", lambda q, k, v, *sizes: varlen_attn(
        q, k, v, *sizes, enable_gqa=q.shape[1] != k.shape[1]
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing | DevicePacking,
    past: tuple[Tensor, Tensor] | None = None,
    past_packing: Packing | DeviceRoom | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Bidirectional attention of every row over itself and, where given, over its own cached keys.

    Args:
        q: `[T, heads, D]`; k, v: `[T, kv_heads, D]`, laid out by `packing`. Rows may be empty.
        past: cached keys and values `[T', kv_heads, D]`, laid out by `past_packing` (as many rows). Where that is a
            `Room`, k and v are written into them; otherwise they are copied, by runs of equal rows.
        mask: bool, broadcast to `[B, heads, queries, keys]` with the cached keys first, True where a query sees a key;
            only for rows of one length (training, padded batches).
    Returns:
        `[T, heads * D]`; undefined for tokens that no row owns.
    """
    keys = packing
    if past is not None and past_packing.keys_at is not None:
        for buffer, own in zip(past, (k, v), strict=True):
            buffer.index_copy_(0, past_packing.keys_at, own)
        (k, v), keys, past = past, past_packing, None
    runs = packing.runs(keys if past is None else past_packing)
    if past is None and (runs is None or len(runs) > 1):
        _, varlen = library(q.device.type, q.dtype)
        if runs is None or varlen is not None:
            sizes = packing.cu_seqlens, keys.cu_seqlens, packing.longest, keys.longest
            return (varlen or varlen_on_host)(q, k, v, *sizes).flatten(1)
    parts = []
    for run in runs:
        query = _dense(q, packing, *run)
        key, value = _dense(k, keys, *run), _dense(v, keys, *run)
        if past is not None:
            cached = (_dense(t, past_packing, *run) for t in past)
            key, value = (torch.cat(pair, dim=1) for pair in zip(cached, (key, value), strict=True))
        parts.append(attend_dense(query, key, value, mask).flatten(0, 1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts) if parts else q).flatten(1)


def _dense(t: Tensor, packing: Packing, first: int, stop: int) -> Tensor:
    """Rows `[first, stop)`, all of one length, as `[B, L, ...]`."""
    return t[packing.starts[first] : packing.starts[stop]].view(stop - first, packing.lengths[first], *t.shape[1:])


def attend_dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`[B, L, heads, D]`, of tensors of that layout."""
    gqa = q.shape[2] != k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if q.requires_grad and q.device.type == "cpu":
        return attend_with_matmuls(q, k, v, mask).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa).transpose(1, 2)


def varlen_on_host(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int):
    """A `Varlen` for the CPU, by a call per row: where a recording's rows change between its replays."""
    out = torch.empty_like(q)
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        if a < b:
            out[a:b] = attend_dense(q[None, a:b], k[None, c:d], v[None, c:d], None)[0]
    return out


def attend_with_matmuls(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention on `[B, heads, L, D]` for training on CPUs, where the backward of torch's own kernel is the bottleneck.

    Measured on two cores (32 rows of 149 tokens, 4 heads of 32, 8 layers, bfloat16): a training step takes 0.27 s this
    way and 0.45 s with `scaled_dot_product_attention`.
    """
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1).to(v.dtype) @ v
