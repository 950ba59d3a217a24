"""Models of others (Hugging Face's, or any torch module) behind the interface of `Backbone`.

Their forward can't be entered or left in the middle. So a probe pass is a forward that a hook ends after the last probe
layer, and step 0 then starts anew on the short input (`step0="restart"`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seer_dllm.backbone import Packing, Probe

ForwardKwargs = Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]]


class _Stop(BaseException):
    """Ends a model's forward from within. Not an Exception: a model may catch those."""


_current: ContextVar[object] = ContextVar("_current", default=None)


def measured_inputs(
    forward: Callable[[], object], modules: Mapping[str, nn.Module], measure: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """`measure` of each module's input by name, from a forward that ends as soon as the last of them is known.

    The hooks are gone afterwards, whatever happens. They heed this forward alone: one that is nested in it by another
    call of this function, or runs in another thread, is left in peace.

    Raises:
        ValueError: the forward ended without calling one of the modules, which are named by their paths.
    """
    own, seen, handles = object(), {}, []

    def watch(name: str):
        def see(module: nn.Module, args: tuple) -> None:
            if _current.get() is own and name not in seen:
                seen[name] = measure(args[0])
                if len(seen) == len(modules):
                    raise _Stop

        return see

    outer = _current.set(own)
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(watch(name)))
        forward()
    except _Stop:
        pass
    finally:
        for handle in handles:
            handle.remove()
        _current.reset(outer)
    missed = [name for name in modules if name not in seen]
    if missed:
        raise ValueError(f"model must call {missed[0]} in its forward, uncompiled, for it to be measured; it did not")
    return seen


@dataclass(frozen=True)
class WrappedConfig:
    """What the denoising loop reads of `ModelConfig`, for a model whose sizes are its own affair."""

    vocab_size: int
    hidden_size: int
    n_layers: int
    mask_id: int
    eos_id: int
    max_length: int
    shift: bool

    def __post_init__(self) -> None:
        for name in ("mask_id", "eos_id"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self.vocab_size:
                raise ValueError(
                    f"{name} must be given, or a whole number in the model's config, in [0, {self.vocab_size}), "
                    f"got {value!r}"
                )


class WrappedBackbone:
    """What the denoising loop uses of `Backbone`, by a foreign model's own forward.

    A forward without a probe runs the whole model, whatever its first layer; its "hidden states" are the inputs of the
    head, or the logits where no head is known. One with a probe hands back its input, on which the loop makes the cut.
    A model that takes no embeddings gets ids, which travel as float32 `[T, 1]` (exact up to 2**24).
    """

    resumes = False
    masks = False
    device_packed = False

    def __init__(
        self,
        model: nn.Module,
        config: WrappedConfig,
        downs: Mapping[str, nn.Module],
        embedding: nn.Module,
        head: nn.Module | None,
        forward_kwargs: ForwardKwargs,
    ) -> None:
        self.model, self.config, self.downs, self.head = model, config, dict(downs), head
        self._embedding, self._kwargs = embedding, forward_kwargs
        self.embeds = takes(model, "inputs_embeds")
        self._no_cache = {"use_cache": False} if takes(model, "use_cache") else {}

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype if self.embeds else torch.float32

    def embed(self, ids: Tensor) -> Tensor:
        """`[N, H]` of ids `[N]` int64."""
        return (self._embedding(ids) if self.embeds else ids[:, None]).to(self.dtype)

    def run(
        self,
        hidden: Tensor,
        packing: Packing,
        start: int = 0,
        stop: int | None = None,
        *,
        past: None = None,
        keep: None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """One pass over `hidden [T, H]`, the output of `embed`; the other arguments have no say in it.

        Nothing is padded, as the model may ignore masks: rows of one length are a batch, others run by themselves.
        """
        rows: dict[int, list[int]] = {}
        for row, length in enumerate(packing.lengths):
            rows.setdefault(length, []).append(row)
        places, parts = [], []
        for length, members in rows.items():
            first = torch.tensor([packing.starts[row] for row in members], device=hidden.device)
            place = first[:, None] + torch.arange(length, device=hidden.device)
            x = hidden[place] if self.embeds else hidden[place, 0].long()
            part = self.outputs(x) if probe is None else torch.stack(list(self.shares(x, probe).values()), dim=-1)
            places.append(place.flatten())
            parts.append(part.flatten(0, 1))
        out = parts[0] if packing.equal else torch.cat(parts)[torch.cat(places).argsort()]
        if probe is None:
            return out
        probe.per_layer.update(zip(dict.fromkeys(probe.layers), out.unbind(-1), strict=True))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, V]` logits of rows `[N, H]` of what a whole pass returned."""
        return hidden if self.head is None else self.head(hidden)

    def forward(self, x: Tensor, **kwargs):
        """What the model's own forward returns for ids `[B, L]` or embeddings `[B, L, H]`."""
        fixed = self._kwargs(*x.shape[:2]) if callable(self._kwargs) else self._kwargs
        kwargs = self._no_cache | dict(fixed) | kwargs
        return self.model(inputs_embeds=x, **kwargs) if x.is_floating_point() else self.model(x, **kwargs)

    def shares(self, x: Tensor, probe: Probe, **kwargs) -> dict[int, Tensor]:
        """Probe layer -> what the probe measures `[B, L, ...]`, from a forward that ends in the last of them."""
        names = list(self.downs)
        watched = {names[i]: self.downs[names[i]] for i in probe.layers}
        found = measured_inputs(
            lambda: self.forward(x, **kwargs), watched, lambda act: probe.measure(act.flatten(0, -2))
        )
        for name, share in found.items():
            if len(share) != x.shape[0] * x.shape[1]:
                raise ValueError(f"{name} must see one row per token of {list(x.shape[:2])}, got {len(share)}")
        return {i: found[names[i]].unflatten(0, x.shape[:2]).to(self.device) for i in probe.layers}

    def outputs(self, x: Tensor) -> Tensor:
        """`[B, L, H]` inputs of the head, or `[B, L, V]` logits where there is none."""
        if self.head is None:
            return self.own_logits(x)
        found = measured_inputs(lambda: self.forward(x), {"head": self.head}, lambda hidden: hidden)
        return _per_token("model's head must see one hidden state", found["head"], x).to(self.device)

    def own_logits(self, x: Tensor) -> Tensor:
        """`[B, L, V]` as the model's forward returns them. ValueError if it returns anything else."""
        out = self.forward(x)
        return _per_token("model must return one row of logits", getattr(out, "logits", out), x).to(self.device)


def _per_token(rule: str, found, x: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.shape[:-1] != x.shape[:2]:
        got = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"{rule} per token of its input {list(x.shape[:2])}, got {got}")
    return found


def takes(model: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters
