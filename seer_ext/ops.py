"""The public functions: what `torch.ops.seer` offers, documented, with Python's own error classes.

Tensors are on one device, CPU or CUDA, and any outer strides do as long as the last dim is contiguous;
nothing is copied. Float inputs are float32, bfloat16 or float16. `lengths`, `starts`, `columns`, `offsets`,
`cu_*` and `quota` may be int32 or int64. Outputs are contiguous, no call synchronises, equal inputs give equal results,
and empty inputs are fine.

Errors name the op, the argument, the rule and the value, before anything is written: TypeError for a dtype,
ValueError otherwise. Values in device memory (a length out of range) raise on the CPU; on CUDA they are made
harmless, and raise only with SEER_DEBUG=1. Apart from `silu_mul_sparsity`, float inputs that require grad are
refused.
"""

from __future__ import annotations

import re
import reprlib

import torch
from torch import Tensor

_OURS = re.compile(r"seer::\w+: [^\n]*")  # C++ puts function, file and line before this and a trace after it
_TYPE = re.compile(r"\bdtypes?\b|be a Tensor")


def _call(op, *args, **kwargs):
    """Calls op; its RuntimeError becomes TypeError (about a type or dtype) or ValueError, with the op's own text."""
    if torch.compiler.is_compiling():
        return op(*args, **kwargs)  # a try block would break the graph
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        ours = _OURS.search(str(error))
        if ours is None:
            if not isinstance(error, torch.OutOfMemoryError):
                _check_types(op, args, kwargs)
            raise
        kind = TypeError if _TYPE.search(ours[0]) else ValueError
        raise kind(ours[0]) from None


def _check_types(op, args, kwargs) -> None:
    """Names the argument whose Python type torch refused; its own text may blame no argument, or the compiler."""
    arguments = op._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    for argument in arguments:
        kind, value = str(argument.type), given.get(argument.name, argument.default_value)
        fits, rule = _PYTHON_TYPES[kind]
        text = f"{op.namespace}::{op._opname}: {argument.name} must"
        if not fits(value):
            raise TypeError(f"{text} be {rule}, got {reprlib.repr(value)}")
        if kind == "int" and not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"{text} fit in 64 bits, got {reprlib.repr(value)}")


_PYTHON_TYPES = {
    "Tensor": (lambda value: isinstance(value, Tensor), "a Tensor"),
    "Optional[Tensor]": (lambda value: value is None or isinstance(value, Tensor), "a Tensor or None"),
    "float": (lambda value: hasattr(value, "__float__"), "a number"),
    "int": (lambda value: hasattr(value, "__index__"), "an integer"),
    "str": (lambda value: isinstance(value, str), "a string"),
}


def mlp_sparsity(act: Tensor, threshold: float) -> Tensor:
    """Share of quiet activations in the last dim.

    act: `[..., I]` float. threshold: in act's unit, compared as float32.
    Returns float32 `[...]` in [0, 1]: the share with `abs(act) < threshold`. NaN counts as active, `I = 0`
    gives 0.
    """
    return _call(torch.ops.seer.mlp_sparsity.default, act, threshold)


def silu_mul_sparsity(gate: Tensor, up: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """SwiGLU's `silu(gate) * up` and the share of quiet activations in it, in one pass over memory.

    gate, up: `[..., I]` float of one shape and dtype. threshold: as in `mlp_sparsity`.
    Returns act `[..., I]` in their dtype, computed in float32 and rounded once (eager PyTorch rounds twice),
    and sparsity float32 `[...]` of the rounded act. act is differentiable in gate and up; sparsity is not.
    """
    return _call(torch.ops.seer.silu_mul_sparsity.default, gate, up, threshold)


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
    """Where each row's sparsity jumps to a plateau that lasts to its end: the slots to keep.

    sparsity: `[B, G]` float32. lengths: `[B]`, slots of each row that count (default G, the rest is not
    read).
    window: slots compared on either side of a cut. min_snr: least rise of the mean over the noise (no unit).
    plateau: least share of the slots from the cut on above the middle of the rise, in [0, 1].
    min_jump: the rise must exceed it, in units of sparsity. min_keep: least boundary, in slots.
    Returns boundary int32 `[B]` and snr float32 `[B]`; a row without a jump gives its length and 0.
    """
    return _call(
        torch.ops.seer.snr_boundary.default,
        sparsity,
        lengths,
        window=window,
        min_snr=min_snr,
        plateau=plateau,
        min_jump=min_jump,
        min_keep=min_keep,
    )


def varlen_repack(x: Tensor, starts: Tensor, cu_seqlens: Tensor, capacity: int, *, padded: bool = False) -> Tensor:
    """Packs one range of tokens per row.

    x: `[N, ...]`, any 1, 2, 4 or 8-byte dtype. starts: `[B]`, index in x of each row's first token.
    cu_seqlens: `[B+1]`, where the rows begin and end in the output. capacity: tokens of the output.
    Returns `[capacity, ...]`: `out[cu_seqlens[b] + t] = x[starts[b] + t]`; what passes capacity is dropped,
    and the tail is zero.

    With `padded=True` x is `[B, L, ...]` and starts count from each row's own first column, which is the
    layout of left-padded prompts: starts[b] is the row's padding. It is the call above on `x.flatten(0, 1)`,
    a view where strides permit and a copy elsewhere, with `starts + b * L`.
    """
    if padded:
        x, starts = _rows_to_tokens(x, starts, cu_seqlens)
    return _call(torch.ops.seer.varlen_repack.default, x, starts, cu_seqlens, capacity)


def _rows_to_tokens(x: Tensor, starts: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """`[B, L, ...]` with starts per row -> `[B*L, ...]` with starts into it."""
    op = "seer::varlen_repack"
    if x.ndim < 2:
        raise ValueError(f"{op}: x must have shape [B, L, ...] when padded, got {list(x.shape)}")
    batch, length = x.shape[:2]
    for name, tensor, want in (("starts", starts, batch), ("cu_seqlens", cu_seqlens, batch + 1)):
        if tensor.ndim != 1 or tensor.shape[0] != want:
            rule = "[B]" if name == "starts" else "[B+1]"
            raise ValueError(f"{op}: {name} must have shape {rule}=[{want}], got {list(tensor.shape)}")
        if tensor.dtype not in (torch.int32, torch.int64):  # the sum below would be int64 for a narrower dtype, too
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise TypeError(f"{op}: {name} must have dtype int32 or int64, got {dtype}")
    # Past its own end a row's neighbour begins, which the op can't tell from a valid source.
    outside = (starts < 0) | (starts > length - cu_seqlens.diff())
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and bool(outside.any()):
        b = int(outside.nonzero()[0])
        end = int(starts[b] + cu_seqlens.diff()[b])
        raise ValueError(f"{op}: starts must keep row {b} in [0, L]=[0, {length}], got [{int(starts[b])}, {end}]")
    first = torch.arange(batch, device=starts.device) * length
    return x.flatten(0, 1), torch.where(outside, batch * length, starts + first)  # from past the end, zeros are read


def varlen_unpack(packed: Tensor, columns: Tensor, cu_seqlens: Tensor, length: int, fill: float = 0) -> Tensor:
    """The inverse of `varlen_repack`: packed rows to columns of their own in a padded tensor.

    packed: `[T, ...]`, any 1, 2, 4 or 8-byte dtype. columns: `[B]`, where in its row each range begins.
    cu_seqlens: `[B+1]`, where the rows begin and end in packed. length: columns of the output.
    fill: value of all that no token fills, rounded to the dtype; whole numbers alone for integers, 0 or 1 for
    bool.
    Returns `[B, length, ...]`: `out[b, columns[b] + t] = packed[cu_seqlens[b] + t]`, the rest `fill`. With
    columns 0 rows are padded on the right, with `length - cu_seqlens.diff()` on the left.
    """
    return _call(torch.ops.seer.varlen_unpack.default, packed, columns, cu_seqlens, length, fill)


def mask_rewrite(mask: Tensor, columns: Tensor, lengths: Tensor) -> None:
    """Cuts an attention mask to one range of columns per row, in place.

    mask: bool `[B, L]`, or `[B, 1, Q, L]` bool (True: attend) or float (added to the scores). Every element
    needs a place of its own: an expanded mask is refused.
    columns: `[B]`, the first column of each row that stays. lengths: `[B]`, how many stay.
    What was visible in the range stays as it is, biases too; the rest becomes False, or `finfo.min` of the
    dtype, never -inf. NaN, -inf and `finfo.min` count as hidden. A query left with no key gets column
    `min(columns[b], L-1)` (True, or bias 0), so that no softmax over a row is NaN.
    """
    return _call(torch.ops.seer.mask_rewrite.default, mask, columns, lengths)


def truncate_repack(
    hidden: Tensor,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    capacity: int,
    *,
    offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cuts every row to its kept length and packs hidden states, ids and bookkeeping in one launch.

    hidden: `[N, H]`, any 1, 2, 4 or 8-byte dtype. ids: `[N]` int64. starts: `[B]`, index of each row's first
    token.
    lengths: `[B]`, tokens kept. offsets: `[B]`, position of each row's first token (default 0).
    capacity: tokens of the outputs; rows are cut where they pass it.
    Returns hidden `[capacity, H]`, ids `[capacity]`, positions and rows int32 `[capacity]`, cu_seqlens int32
    `[B+1]`. The tail is 0, and -1 in rows.
    """
    return _call(torch.ops.seer.truncate_repack.default, hidden, ids, starts, lengths, capacity, offsets=offsets)


def token_confidence(
    logits: Tensor,
    kind: str = "prob",
    suppress: Tensor | None = None,
    *,
    chosen: Tensor | None = None,
    temperature: Tensor | None = None,
    key: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The token each position would commit, and how sure the model is of it.

    logits: `[N, V]` float. kind: "prob", "margin" (of the two best) or "entropy" (negative, 0 when certain).
    suppress: `[K]` int64 vocab ids of probability 0, never picked; so are those with logit -inf or NaN.
    chosen: `[N]` int64, the tokens to rate instead of the argmax (then without temperature).
    temperature: `[N]` float32, in units of logits; above 0 the token is drawn from `softmax(logits /
    temperature)`.
    key: `[N]` int64, the draw's seed: equal key and logits give an equal token, whatever the batch.
    Returns token int64 `[N]` (lowest id on ties) and confidence float64 `[N]`, taken without temperature.
    Float64 keeps apart the near-certain positions that round to 1 in float32. With every id suppressed both
    are 0.
    """
    return _call(
        torch.ops.seer.token_confidence.default,
        logits,
        kind,
        suppress,
        chosen=chosen,
        temperature=temperature,
        key=key,
    )


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
    """Writes each row's most confident tokens into ids, in place.

    ids: `[T]` int64. slots: `[N]` int64, index into ids (negative: skipped); rows share no slot, and a slot
    listed twice counts once, at its best entry. token: `[N]` int64. confidence: `[N]`, also float64.
    cu_slots: `[B+1]`, entries of each row in those, never falling (where they fall, CUDA rows overlap, and which of
    them writes a slot is undefined). quota: `[B]`, tokens to write (none at 0 or below).
    mask_id: only slots that still hold it take part. threshold: `[B]` or None; where it isn't NaN, every
    token at or above it is written, at least the best, and quota is ignored.
    Ties go to the lowest slot, NaN confidence comes last.
    Returns int32 `[B]` each: tokens written now, masks left among the row's slots.
    """
    return _call(
        torch.ops.seer.commit_tokens.default,
        ids,
        slots,
        token,
        confidence,
        cu_slots,
        quota,
        mask_id=mask_id,
        threshold=threshold,
    )
