"""What the ops mean to autograd and to tracing: fake kernels, the one gradient, and refusal of the others.

A fake only says which outputs come: it never branches on a size, so no SymInt is pinned. Arguments are
checked by the real op, which runs in every compiled graph as well. Importing this module registers
everything.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.library import register_autograd, register_fake

# ---- fakes -------------------------------------------------------------------------------------------------


def _tensors(op, args, kwargs) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call, by the names of the schema."""
    names = [argument.name for argument in op._schema.arguments]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if isinstance(value, Tensor):
            yield name, value


def _fake(name: str):
    """Registers a fake. One tensor on "meta" brings it in the place of the op, whatever device the others are on."""
    op = getattr(torch.ops.seer, name).default

    def register(fake):
        def checked(*args, **kwargs):
            (first, like), *others = _tensors(op, args, kwargs)
            for argument, value in others:
                if value.device != like.device:
                    text = f"{argument} must be on {like.device} like {first}, got {value.device}"
                    raise RuntimeError(f"seer::{name}: {text}")
            return fake(*args, **kwargs)

        register_fake(f"seer::{name}")(checked)

    return register


@_fake("mlp_sparsity")
def _(act: Tensor, threshold: float) -> Tensor:
    return act.new_empty(act.shape[:-1], dtype=torch.float32)


@_fake("silu_mul_sparsity")
def _(gate: Tensor, up: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape[:-1], dtype=torch.float32)


@_fake("snr_boundary")
def _(sparsity: Tensor, lengths: Tensor | None = None, **options) -> tuple[Tensor, Tensor]:
    batch = sparsity.shape[0]
    return sparsity.new_empty(batch, dtype=torch.int32), sparsity.new_empty(batch, dtype=torch.float32)


@_fake("varlen_repack")
def _(x: Tensor, starts: Tensor, cu_seqlens: Tensor, capacity: int) -> Tensor:
    return x.new_empty((capacity, *x.shape[1:]))


@_fake("varlen_unpack")
def _(packed: Tensor, columns: Tensor, cu_seqlens: Tensor, length: int, fill: float = 0) -> Tensor:
    return packed.new_empty((columns.shape[0], length, *packed.shape[1:]))


@_fake("mask_rewrite")
def _(mask: Tensor, columns: Tensor, lengths: Tensor) -> None:
    return None


@_fake("truncate_repack")
def _(
    hidden: Tensor,
    ids: Tensor,
    starts: Tensor,
    lengths: Tensor,
    capacity: int,
    *,
    offsets: Tensor | None = None,
):
    return (
        hidden.new_empty((capacity, hidden.shape[1])),
        ids.new_empty(capacity),
        ids.new_empty(capacity, dtype=torch.int32),
        ids.new_empty(capacity, dtype=torch.int32),
        lengths.new_empty(lengths.shape[0] + 1, dtype=torch.int32),
    )


@_fake("token_confidence")
def _(logits: Tensor, kind: str = "prob", suppress: Tensor | None = None, **options) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows, dtype=torch.float64)


@_fake("commit_tokens")
def _(ids, slots, token, confidence, cu_slots, quota, *, mask_id: int, threshold=None) -> tuple[Tensor, Tensor]:
    batch = cu_slots.shape[0] - 1
    return ids.new_empty(batch, dtype=torch.int32), ids.new_empty(batch, dtype=torch.int32)


# ---- the one gradient --------------------------------------------------------------------------------------


def _save_inputs(ctx, inputs, output) -> None:
    gate, up, _ = inputs
    ctx.save_for_backward(gate, up)
    ctx.mark_non_differentiable(output[1])


def _silu_mul_backward(ctx, grad_act: Tensor, _grad_sparsity: Tensor):
    """In float32 and rounded once, like the forward: act = g * s * u with s = sigmoid(g), s' = s * (1 -
    s)."""
    gate, up = ctx.saved_tensors
    grad, g, u = grad_act.float(), gate.float(), up.float()
    s = torch.sigmoid(g)
    grad_gate = (grad * u * s * (1 + g * (1 - s))).to(gate.dtype) if ctx.needs_input_grad[0] else None
    grad_up = (grad * g * s).to(up.dtype) if ctx.needs_input_grad[1] else None
    return grad_gate, grad_up, None


register_autograd("seer::silu_mul_sparsity", _silu_mul_backward, setup_context=_save_inputs)


# ---- refusal -----------------------------------------------------------------------------------------------

_library = torch.library.Library("seer", "IMPL")  # registrations live as long as this object


def _refuse_grad(name: str) -> None:
    """Registers an Autograd kernel that refuses inputs that need grad; without one, their gradient is
    silently 0.

    `register_autograd` can't do it: it takes no keyword-only tensors, and its hooks run after the op has.
    """
    op = getattr(torch.ops.seer, name).default

    def autograd(keyset, *args, **kwargs):
        if torch.is_grad_enabled():
            for argument, value in _tensors(op, args, kwargs):
                if value.requires_grad:
                    raise RuntimeError(f"seer::{name}: {argument} must not require grad, got requires_grad=True")
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    _library.impl(name, autograd, "Autograd", with_keyset=True)


def _track_version(name: str) -> None:
    """The op writes to its first argument: raising its version makes a backward that saved it complain."""
    op = getattr(torch.ops.seer, name).default

    def bump(keyset, changed: Tensor, *args, **kwargs):
        # Inference tensors have no version, nor has what isn't a tensor and will be refused.
        if isinstance(changed, Tensor) and not changed.is_inference():
            torch.autograd.graph.increment_version(changed)
        return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, changed, *args, **kwargs)

    _library.impl(name, bump, "ADInplaceOrView", with_keyset=True)


for _name in (
    "mlp_sparsity",
    "snr_boundary",
    "varlen_repack",
    "varlen_unpack",
    "mask_rewrite",
    "truncate_repack",
    "token_confidence",
    "commit_tokens",
):
    _refuse_grad(_name)
for _name in ("mask_rewrite", "commit_tokens"):
    _track_version(_name)
