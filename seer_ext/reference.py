"""Plain PyTorch definitions of the ops: the specification in code, for tests and benchmarks.

Nothing falls back to these. They favour being read over being fast, take float64 where the ops stop at
float32, and check no arguments. `rows` below means a batch of ranges: row b holds tokens `cu[b] .. cu[b+1]-1`
of a packed tensor. Source of the boundary rule and of every default: our own design; no published threshold
exists.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# ---- activation sparsity -----------------------------------------------------------------------------------


def mlp_sparsity(act: Tensor, threshold: float) -> Tensor:
    """act `[..., I]` float -> `[...]` float32 (float64 for float64): share of quiet activations in the last
    dim.

    Quiet means `abs(act) < float32(threshold)`, so NaN is active. An empty last dim has share 0.
    """
    limit = torch.tensor(threshold, dtype=torch.float32).item()
    wide = act if act.dtype == torch.float64 else act.float()
    quiet = (wide.abs() < limit).sum(-1)
    # Divided in float64 and rounded once: the correctly rounded quotient on every device.
    share = quiet.double() / max(act.shape[-1], 1)
    return share if act.dtype == torch.float64 else share.float()


def silu_mul_sparsity(gate: Tensor, up: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """gate, up `[..., I]` float -> act `[..., I]` in their dtype, sparsity `[...]` as `mlp_sparsity(act)`.

    `act = gate * sigmoid(gate) * up` in at least float32, rounded to the dtype once (eager SwiGLU rounds
    twice). The sparsity is that of the rounded act, which is what the next layer sees.
    """
    wide = torch.float64 if gate.dtype == torch.float64 else torch.float32
    g, u = gate.to(wide), up.to(wide)
    act = (g * torch.sigmoid(g) * u).to(gate.dtype)
    return act, mlp_sparsity(act, threshold)


# ---- where the answer ends ---------------------------------------------------------------------------------


def _sum(values: list[float]) -> float:
    """Left to right in float64. The builtin compensates from Python 3.12 on, so it isn't this sum."""
    total = 0.0
    for value in values:
        total += value
    return total


def _mean_and_squares(values: list[float]) -> tuple[float, float]:
    """Mean, and the sum of squared deviations from it (two passes, ascending index)."""
    mean = _sum(values) / len(values)
    return mean, _sum([(v - mean) * (v - mean) for v in values])


class Candidate(NamedTuple):
    """A cut that keeps `keep` slots, by the numbers that `snr_boundary` judges it by."""

    keep: int
    signal: float
    noise: float
    snr: float
    plateau: float

    def passes(self, min_snr: float, plateau: float, min_jump: float) -> bool:
        return self.signal > min_jump and self.snr >= min_snr and self.plateau >= plateau


def snr_candidates(s: list[float], window: int = 8, min_keep: int = 1) -> list[Candidate]:
    """All cuts of one row `s`, in order: j in `[min_keep, len(s) - 1]`, as `snr_boundary` defines them."""
    candidates, n = [], len(s)
    for j in range(min_keep, n):
        left, right = s[max(0, j - window) : j], s[j : min(n, j + window)]
        mean_left, squares_left = _mean_and_squares(left)
        mean_right, squares_right = _mean_and_squares(right)
        signal = mean_right - mean_left
        noise = math.sqrt((squares_left + squares_right) / (len(left) + len(right)))
        noise = max(noise, 1e-3)  # NaN stays NaN and fails every comparison
        level = mean_left + signal / 2
        share = sum(v > level for v in s[j:]) / (n - j)
        candidates.append(Candidate(j, signal, noise, signal / noise, share))
    return candidates


def snr_boundary(
    sparsity: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int = 8,
    min_snr: float = 1.0,
    plateau: float = 0.9,
    min_jump: float = 0.0,
    min_keep: int = 1,
) -> tuple[Tensor, Tensor]:
    """sparsity `[B, G]`, lengths `[B]` (default G) -> boundary `[B]` int32 (slots to keep), snr `[B]`
    float32.

    With `s = sparsity[b, :n]`, a cut that keeps j slots compares the `window` slots before j with those from
    j on: signal is the rise of the mean; noise the root of the pooled population variance, at least 1e-3. A
    candidate j in `[min_keep, n-1]` needs signal > min_jump, snr = signal/noise >= min_snr, and a share >=
    plateau of all of `s[j:]` above the middle of the rise. The highest snr wins; a later one must exceed it
    by more than 1e-9 relative.
    Without a candidate: n and 0, which truncates nothing.
    """
    boundaries, snrs = [], []
    for b, row in enumerate(sparsity.double().tolist()):
        n = len(row) if lengths is None else int(lengths[b])
        s, best, best_snr = row[:n], n, 0.0
        for candidate in snr_candidates(s, window, min_keep):
            if not candidate.passes(min_snr, plateau, min_jump):
                continue
            if best == n or candidate.snr - best_snr > 1e-9 * abs(best_snr):
                best, best_snr = candidate.keep, candidate.snr
        boundaries.append(best)
        snrs.append(best_snr)
    device = sparsity.device
    return (
        torch.tensor(boundaries, dtype=torch.int32, device=device),
        torch.tensor(snrs, dtype=torch.float32, device=device),
    )


# ---- packing -----------------------------------------------------------------------------------------------


def varlen_repack(x: Tensor, starts: Tensor, cu_seqlens: Tensor, capacity: int) -> Tensor:
    """x `[N, ...]`, starts `[B]` (index into N), cu_seqlens `[B+1]` -> `[capacity, ...]`.

    Tokens `starts[b] ..` of x move to `cu_seqlens[b] ..`. What passes capacity is dropped, the tail is zero.
    """
    out = x.new_zeros((capacity, *x.shape[1:]))
    cu = cu_seqlens.tolist()
    for b, start in enumerate(starts.tolist()):
        lo, hi = min(cu[b], capacity), min(cu[b + 1], capacity)
        out[lo:hi] = x[start : start + hi - lo]
    return out


def varlen_unpack(packed: Tensor, columns: Tensor, cu_seqlens: Tensor, length: int, fill: float = 0) -> Tensor:
    """packed `[T, ...]`, columns `[B]` (index into length), cu_seqlens `[B+1]` -> `[B, length, ...]`.

    Tokens `cu_seqlens[b] ..` of packed move to row b, columns `columns[b] ..`. The rest holds fill.
    """
    out = packed.new_full((columns.shape[0], length, *packed.shape[1:]), fill)
    cu = cu_seqlens.tolist()
    for b, first in enumerate(columns.tolist()):
        out[b, first : first + cu[b + 1] - cu[b]] = packed[cu[b] : cu[b + 1]]
    return out


def mask_rewrite(mask: Tensor, columns: Tensor, lengths: Tensor) -> None:
    """mask bool `[B, L]`, bool or float `[B, 1, Q, L]` (changed in place), columns, lengths `[B]`.

    Columns outside `[columns[b], columns[b] + lengths[b])` become False, or `finfo.min` where the mask is
    added to scores; so do -inf and NaN within. A query left with no key gets `min(columns[b], L-1)`: True,
    or 0. All hidden, softmax would give NaN with -inf and attend to everything with `finfo.min`.
    """
    at = torch.arange(mask.shape[-1], device=mask.device)
    shape = (-1, *[1] * (mask.ndim - 1))
    first, last = columns.view(shape), (columns + lengths).view(shape)
    hidden, shown = (False, True) if mask.dtype == torch.bool else (torch.finfo(mask.dtype).min, 0.0)
    visible = (mask > hidden) & (at >= first) & (at < last)
    fallback = ~visible.any(-1, keepdim=True) & (at == first.clamp(max=mask.shape[-1] - 1))
    mask.masked_fill_(~visible, hidden).masked_fill_(fallback, shown)


def truncate_repack(
    hidden: Tensor,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    capacity: int,
    *,
    offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """hidden `[N, H]`, ids `[N]`, starts, lengths `[B]`, offsets `[B]` (first position of a row, default 0).

    Returns hidden `[capacity, H]`, ids `[capacity]`, positions and rows int32 `[capacity]`, cu_seqlens int32
    `[B+1]`: the first `lengths[b]` tokens of each row, packed. cu_seqlens is cut at capacity. Tail: 0, and -1
    in rows.
    """
    device = hidden.device
    cu = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=device)
    cu[1:] = lengths.cumsum(0)
    cu = cu.clamp(max=capacity)
    positions = torch.zeros(capacity, dtype=torch.int32, device=device)
    rows = torch.full((capacity,), -1, dtype=torch.int32, device=device)
    bounds = cu.tolist()
    for b in range(lengths.shape[0]):
        lo, hi = bounds[b], bounds[b + 1]
        first = 0 if offsets is None else int(offsets[b])
        positions[lo:hi] = torch.arange(first, first + hi - lo, dtype=torch.int32, device=device)
        rows[lo:hi] = b
    packed = varlen_repack(hidden, starts, cu, capacity)
    return packed, varlen_repack(ids, starts, cu, capacity), positions, rows, cu.int()


# ---- sampling and committing -------------------------------------------------------------------------------


def _mix64(x: Tensor) -> Tensor:
    """The finalizer of splitmix64 on int64 tensors, whose arithmetic wraps like uint64's."""

    def shifted(v: Tensor, bits: int) -> Tensor:
        return (v >> bits) & ((1 << (64 - bits)) - 1)  # >> keeps the sign; the mask makes it a logical shift

    x = (x ^ shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ shifted(x, 31)


def gumbel_noise(key: Tensor, vocab: int) -> Tensor:
    """key `[N]` int64 -> `[N, vocab]` float64: noise that depends on (key[n], vocab id) and on nothing else.

    The top 23 bits k of a hash give `u = (k + 0.5) * 2**-23`, exact in float32 and never 0 or 1.
    """
    golden = 0x9E3779B97F4A7C15 - 2**64
    counter = (torch.arange(vocab, device=key.device) + 1) * golden
    hashed = _mix64(_mix64(key)[:, None] + counter[None, :])
    u = (((hashed >> 41) & (2**23 - 1)).double() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(u))


def token_confidence(
    logits: Tensor,
    kind: str = "prob",
    suppress: Tensor | None = None,
    *,
    chosen: Tensor | None = None,
    temperature: Tensor | None = None,
    key: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """logits `[N, V]`, suppress `[K]` vocab ids, chosen, temperature, key `[N]` -> token int64, confidence
    float64.

    Both are `[N]`. Ids in suppress, and logits that are -inf or NaN, have probability 0 and are never picked.
    token: `chosen[n]`, else the argmax of what is left (lowest id on ties) of `logits + temperature *
    gumbel`, with noise only where temperature > 0. confidence is taken under the softmax without noise:
    "prob" of the token as `1 / (1 + sum of exp(other - own))`, "margin" the difference of the two largest
    probabilities, "entropy" `sum p log p` (0 when certain, else negative). With nothing left: token 0 (or
    chosen), confidence 0.
    """
    n, vocab = logits.shape
    device = logits.device
    x = logits.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    if suppress is not None:
        x[:, suppress] = -math.inf
    x = torch.nn.functional.pad(x, (0, 2), value=-math.inf)  # two absent ids, so V may be 0 and margin has two
    best = x.amax(-1, keepdim=True)
    nothing = best[:, 0] == -math.inf

    if chosen is not None:
        token = chosen.clone()
    else:
        scores = x
        if temperature is not None:
            hot = temperature.double()[:, None]
            scores = torch.where(hot > 0, x + hot * gumbel_noise(key, vocab + 2), x)
        is_best = scores == scores.amax(-1, keepdim=True)
        token = torch.where(is_best, torch.arange(vocab + 2, device=device), vocab).amin(-1)
        token = token.masked_fill(nothing, 0)

    def relative_to(origin: Tensor) -> Tensor:
        return torch.where(x == origin, 0.0, x - origin)  # inf - inf is 0: infinite logits share everything

    if kind == "prob":
        own = x.gather(1, token[:, None])
        is_own = torch.arange(vocab + 2, device=device) == token[:, None]
        others = torch.exp(relative_to(own)).masked_fill(is_own, 0).sum(-1)
        return token, torch.where(own[:, 0] == -math.inf, 0.0, 1 / (1 + others))
    p = torch.softmax(relative_to(best), -1)
    if kind == "margin":
        top = torch.topk(p, 2).values
        confidence = top[:, 0] - top[:, 1]
    else:
        confidence = torch.special.xlogy(p, p).sum(-1)
    return token, confidence.masked_fill(nothing, 0.0)


def commit_tokens(
    ids: Tensor,
    slots: Tensor,
    token: Tensor,
    confidence: Tensor,
    cu_slots: Tensor,
    quota: Tensor,
    *,
    mask_id: int,
    threshold: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """ids `[T]` (changed in place), slots, token, confidence `[N]`, cu_slots `[B+1]`, quota, threshold `[B]`.

    Row b's open slots are those of its entries `cu_slots[b] ..` with slot >= 0 whose id is still `mask_id`.
    They are ranked by confidence: highest first, lowest slot on ties, NaN last. The first `quota[b]` are
    written; where threshold[b] isn't NaN, instead all at or above it, and at least the first. Returns int32
    `[B]`: written, and masks left among the row's slots. A slot listed twice counts once, at its best entry.
    """
    written, remaining = [], []
    cu, slot, conf = cu_slots.tolist(), slots.tolist(), confidence.double().tolist()

    def rank(i: int) -> tuple[bool, float, int]:
        nan = math.isnan(conf[i])
        return nan, 0.0 if nan else -conf[i], slot[i]

    for b in range(len(cu) - 1):
        entries = [i for i in range(cu[b], cu[b + 1]) if slot[i] >= 0 and ids[slot[i]] == mask_id]
        entries.sort(key=rank)
        best_entry = {slot[i]: i for i in reversed(entries)}
        entries = [i for i in entries if best_entry[slot[i]] == i]
        limit = math.nan if threshold is None else float(threshold[b])
        if math.isnan(limit):
            count = min(max(int(quota[b]), 0), len(entries))
        else:
            count = max(sum(conf[i] >= limit for i in entries), min(1, len(entries)))
        for i in entries[:count]:
            ids[slot[i]] = token[i]
        written.append(count)
        left = [i for i in entries if ids[slot[i]] == mask_id]  # a written token may be mask_id itself
        remaining.append(len(left))
    device = ids.device
    return (
        torch.tensor(written, dtype=torch.int32, device=device),
        torch.tensor(remaining, dtype=torch.int32, device=device),
    )
