"""One bidirectional transformer for every family: RMSNorm, RoPE, SwiGLU, grouped-query attention, on packed rows.

Rows of different lengths lie side by side in one `[T, H]` tensor (`Packing`), so no padding exists that would have to
be masked. What differs between families (names, biases, norms' eps) is data: see `families.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seer_dllm.attention import attend, library
from seer_dllm.config import ModelConfig


class Packing:
    """Where the rows of a packed `[T, ...]` tensor begin, end and stand.

    `keys_at` is None: rows that attend to these lie elsewhere (see `Room`).

    Args:
        lengths: tokens of each row, on the host (the schedule of a denoising run knows them).
        offsets: position of each row's first token (default 0); after a cached prompt, the prompt's length.
        device: where `cu_seqlens` (int32 `[B+1]`) and `positions` (int32 `[T]`) live.
    """

    keys_at: Tensor | None = None

    def __init__(self, lengths: Sequence[int], offsets: Sequence[int] | None = None, device="cpu") -> None:
        self.lengths = tuple(int(n) for n in lengths)
        offsets = [0] * len(self.lengths) if offsets is None else list(offsets)
        starts = [0]
        for n in self.lengths:
            starts.append(starts[-1] + n)
        self.starts = tuple(starts)
        self.total = starts[-1]
        self.cu_seqlens = torch.tensor(starts, dtype=torch.int32, device=device)
        # One expression for all rows: packed index minus the row's start plus its offset.
        shift = torch.tensor([o - s for o, s in zip(offsets, starts, strict=False)], dtype=torch.int32)
        index = torch.arange(self.total, dtype=torch.int32)
        spread = (
            torch.repeat_interleave(shift, torch.tensor(self.lengths, dtype=torch.int64)) if self.lengths else index
        )
        self.positions = (index + spread).to(device)
        self._runs: tuple[tuple[int, ...], list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths, default=0)

    @property
    def equal(self) -> bool:
        """All rows have one length, so `[T, ...]` may be read as `[B, L, ...]` without a copy."""
        return len(set(self.lengths)) <= 1

    def runs(self, keys: Packing) -> list[tuple[int, int]]:
        """Rows `[first, stop)` that may be read as `[B, L, ...]`: neighbours of one length, in `keys` too.

        The latest ones are remembered, as layers share them: by the lengths, as a packing that refers to itself would
        be freed late.
        """
        if self._runs is None or self._runs[0] != keys.lengths:
            self._runs = keys.lengths, self._find_runs(keys.lengths)
        return self._runs[1]

    def _find_runs(self, keys: tuple[int, ...]) -> list[tuple[int, int]]:
        sizes = list(zip(self.lengths, keys, strict=True))
        begins = [b for b in range(len(self)) if b == 0 or sizes[b] != sizes[b - 1]]
        ends = [*begins[1:], len(self)]
        return [(b, e) for b, e in zip(begins, ends, strict=False) if self.lengths[b]]


class Room(Packing):
    """Cached keys with room for each row's own behind them: attention writes these there, and copies no cached ones.

    Args:
        cached, own: keys of each row; `lengths` counts both.

    Attributes:
        keys_at: int64 `[sum(own)]`, where the own ones go.
    """

    def __init__(self, cached: Sequence[int], own: Sequence[int], device="cpu") -> None:
        super().__init__([a + b for a, b in zip(cached, own, strict=True)], device=device)
        self.cached = tuple(cached)
        own = Packing(own)
        shift = torch.tensor([start + n for start, n in zip(self.starts, self.cached, strict=False)], dtype=torch.int64)
        spread = torch.repeat_interleave(shift, torch.tensor(own.lengths, dtype=torch.int64))
        self.keys_at = (own.positions + spread).to(device)


class DevicePacking:
    """A packing whose rows the device alone knows: one recorded forward serves all rows that have room in it.

    The rows lie tight in the first of `total` tokens. The tokens behind them belong to no row: they may hold anything,
    NaN too, and hold anything after attention. Rows that do not exist are empty.

    Args:
        rows, total, past: rows, tokens and cached tokens that there is room for.
        device: where everything lives.

    Attributes:
        cu_seqlens: int32 `[rows+1]`. positions: int32 `[total]`.
        room: where the rows have cached keys, a `DeviceRoom` for these and `total` own ones.
    """

    def __init__(self, rows: int, total: int, past: int, device="cpu") -> None:
        self.total = total
        self.cu_seqlens = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.positions = torch.zeros(total, dtype=torch.int32, device=device)
        self.room = DeviceRoom(rows, total, past, device) if past else None

    @property
    def longest(self) -> int:
        """No row is longer."""
        return self.total

    def runs(self, keys: DevicePacking | DeviceRoom) -> None:
        """None: which rows have one length is not known here."""

    def take(self, packing: Packing, room: Room | None) -> None:
        """Become these rows, with this room for cached keys and theirs."""
        _set_offsets(self.cu_seqlens, packing)
        self.positions[: packing.total].copy_(packing.positions)
        if room is not None:
            self.room.take(room, packing.total)


class DeviceRoom:
    """A `Room` whose rows the device alone knows, tight in the first of `past + own` keys; the rest is no row's."""

    def __init__(self, rows: int, own: int, past: int, device="cpu") -> None:
        self.total = past + own
        self.cu_seqlens = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.keys_at = torch.arange(past, self.total, device=device)

    @property
    def longest(self) -> int:
        return self.total

    def take(self, room: Room, own: int) -> None:
        """Become this one, of rows with so many own keys."""
        _set_offsets(self.cu_seqlens, room)
        self.keys_at[:own].copy_(room.keys_at)
        # What no row owns goes behind all rows, each to a place of its own: there are as many as tokens without a row.
        free = len(self.keys_at) - own
        self.keys_at[own:].copy_(torch.arange(self.total - free, self.total, device=self.keys_at.device))


def _set_offsets(cu_seqlens: Tensor, packing: Packing) -> None:
    rows = len(packing) + 1
    cu_seqlens[:rows].copy_(packing.cu_seqlens)
    cu_seqlens[rows:] = packing.total


@dataclass(eq=False)
class KeyValues:
    """Keys (RoPE applied) and values of rows: per layer two `[T, Hkv, D]` tensors, laid out by `packing`."""

    packing: Packing | DeviceRoom
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@dataclass
class Probe:
    """Collects the share of quiet MLP activations, averaged over `layers`, while the forward passes through them.

    The share comes out of the fused SwiGLU (`silu_mul_sparsity`), so measuring costs nothing beside it.
    """

    layers: tuple[int, ...]
    threshold: float
    per_layer: dict[int, Tensor] = field(default_factory=dict)

    def observe(self, layer: int, act: Tensor, share: Tensor | None) -> None:
        """Called by the backbone once per layer, with the activations `[T, I]` and their quiet share `[T]`."""
        if layer in self.layers:
            self.per_layer[layer] = share

    def measure(self, act: Tensor) -> Tensor:
        """float32 `[..., I] -> [...]`: the share, where no fused SwiGLU gives it."""
        from seer_ext import ops

        return ops.mlp_sparsity(act, self.threshold)

    def mean(self) -> Tensor:
        """float32 `[T]`: mean share over the probe layers."""
        return torch.stack([self.per_layer[i] for i in self.layers]).mean(dim=0)


class RMSNorm(nn.Module):
    """Root mean square norm: float32 inside, rounded to the input's dtype, then times the weight (as in LLaDA)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps)
        return normed.to(x.dtype) * self.weight


def rope_table(
    positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[T, 1, D/2]` each, for positions `[T]` (half-split RoPE); float32, rounded to `dtype`."""
    inverse = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim)
    angles = positions.float()[:, None] * inverse
    return angles.cos()[:, None].to(dtype), angles.sin()[:, None].to(dtype)


def apply_rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate `x [T, heads, D]` in the table's dtype: in float32 there is one rounding at the end."""
    cos, sin = table
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor, threshold: float) -> tuple[Tensor, Tensor | None]:
    """`silu(gate) * up` and the share of it below `threshold` per token.

    Inference takes the fused op. Training takes the two plain operations, which autograd and `torch.compile` handle
    best; nobody asks for the share there.
    """
    if gate.requires_grad:
        return F.silu(gate) * up, None
    from seer_ext import ops  # here, because training a model needs no compiled extension

    return ops.silu_mul_sparsity(gate, up, threshold)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, head, bias = config.hidden_size, config.head_dim, config.qkv_bias
        self.head_dim = head
        self.attn_norm = RMSNorm(hidden, config.norm_eps)
        self.q_proj = nn.Linear(hidden, config.n_heads * head, bias=bias)
        self.k_proj = nn.Linear(hidden, config.n_kv_heads * head, bias=bias)
        self.v_proj = nn.Linear(hidden, config.n_kv_heads * head, bias=bias)
        self.o_proj = nn.Linear(config.n_heads * head, hidden, bias=False)
        self.mlp_norm = RMSNorm(hidden, config.norm_eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)

    def attention(
        self, x: Tensor, packing: Packing | DevicePacking, rope, past, past_packing, mask
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = self.attn_norm(x)
        q, k, v = (proj(h).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rope(q, rope), apply_rope(k, rope)
        return x + self.o_proj(attend(q, k, v, packing, past, past_packing, mask)), (k, v)

    def mlp(self, x: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor | None]:
        h = self.mlp_norm(x)
        act, share = swiglu(self.gate_proj(h), self.up_proj(h), threshold)
        return x + self.down_proj(act), act, share


class Backbone(nn.Module):
    """The language model: embedding, blocks, final norm, head. Holds no state between calls."""

    resumes = True  # `run` can start at any block, which the forward of a wrapped model can't
    masks = True  # `run` takes a mask, so that rows can be padded

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def device_packed(self) -> bool:
        """Whether `run` takes a `DevicePacking`: on CUDA a library must go by `cu_seqlens`, as the host can't."""
        return self.device.type != "cuda" or library("cuda", self.dtype)[1] is not None

    def run(
        self,
        hidden: Tensor,
        packing: Packing | DevicePacking,
        start: int = 0,
        stop: int | None = None,
        *,
        past: KeyValues | None = None,
        keep: KeyValues | None = None,
        probe: Probe | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Blocks `start` up to (not including) `stop` on packed hidden states.

        Args:
            hidden: `[T, H]` in the model's dtype, laid out by `packing`.
            past: what rows attend to beside themselves (layers are indexed as in the model). With a `Room`, their own
                keys and values are written into it.
            keep: takes the keys and values of the layers that run, in order.
            probe: observes every layer's MLP (`Probe`, or anything with its `threshold` and `observe`).
            mask: see `attend`.
        Returns:
            `[T, H]`; before the final norm.
        """
        precise = torch.float32 if self.config.rope_full_precision else hidden.dtype
        rope = rope_table(packing.positions, self.config.head_dim, self.config.rope_theta, precise)
        past_packing = past.packing if past is not None else None
        threshold = probe.threshold if probe is not None else 0.0
        for i in range(start, self.config.n_layers if stop is None else stop):
            layer = self.layers[i]
            cached = past.layers[i] if past is not None else None
            hidden, kv = layer.attention(hidden, packing, rope, cached, past_packing, mask)
            if keep is not None:
                keep.layers.append(kv)
            hidden, act, share = layer.mlp(hidden, threshold)
            if probe is not None:
                probe.observe(i, act, share)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, V]` logits of hidden states `[N, H]` that have passed the last block."""
        return self.head(self.norm(hidden))
