"""Plug-and-play: bidirectional models of others (Hugging Face's, or any torch module) find where their answers end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seer_dllm import api
from seer_dllm.backbone import Packing, Probe
from seer_dllm.config import GenerationConfig, Profile, Truncation, check_bool
from seer_dllm.denoise import OnStep
from seer_dllm.detection import check_profile, find_boundary, last_fixed
from seer_dllm.foreign import ForwardKwargs, WrappedBackbone, WrappedConfig, takes
from seer_dllm.structure import find_down_projections, find_embedding, module_at


@dataclass(frozen=True)
class Boundary:
    """Where each row's answer ends.

    Attributes:
        boundary: per row the slots before the jump; the window's length where no jump was found.
        snr: signal-to-noise ratio of that jump; 0 if none was found.
        sparsity: per row the mean quiet share of each slot of its window.
    """

    boundary: list[int]
    snr: list[float]
    sparsity: list[list[float]]


class Wrapped:
    """A foreign model that answers (`generate`), or finds the end for a loop of the caller's (`find_boundary`).

    Made by `wrap`. `profile` says where the model shows the end, and may be replaced.
    """

    def __init__(self, backbone: WrappedBackbone, end_ids: tuple[int, ...], profile: Profile) -> None:
        self.backbone = backbone
        self.end_ids = end_ids
        self.profile = profile

    @torch.no_grad()
    def find_boundary(
        self,
        input_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        window_start: int | Sequence[int] | Tensor,
        window: int | Sequence[int] | Tensor,
        profile: Profile | None = None,
        **kwargs,
    ) -> Boundary:
        """Probe the first step's input, as the model's forward takes it, and say where each row's answer ends.

        Runs the model up to the last probe layer. Add `profile.margin` to the boundary, and keep whole blocks:
        `seer_ext.plan_keep(boundary, window, block, margin)`.

        Args:
            input_ids: int64 `[B, L]`, padded on either side. Slots that do not hold the mask id are fixed: no boundary
                lies before them.
            inputs_embeds: `[B, L, H]` instead; all slots count as masked.
            window_start: position of the first slot, of all rows or of each.
            window: slots, of all rows or of each.
            profile: None takes the model's.
            kwargs: for the model's forward (attention_mask, position_ids, ...), beside `forward_kwargs`.
        Raises:
            ValueError: an argument is invalid; the model has not been run then.
        """
        x = self._checked_input(input_ids, inputs_embeds)
        profile = self.profile if profile is None else profile
        check_profile(profile, self.backbone.config)
        starts, lengths = _per_row("window_start", window_start, x), _per_row("window", window, x)
        for b, (start, n) in enumerate(zip(starts, lengths, strict=True)):
            if start < 0 or n < 1 or start + n > x.shape[1]:
                raise ValueError(
                    f"window_start and window must lie in the {x.shape[1]} positions, got {start} and {n} in row {b}"
                )
        probe = Probe(profile.probe_layers, profile.threshold)
        probe.per_layer.update(self.backbone.shares(x, probe, **kwargs))
        columns = torch.tensor(starts)[:, None] + torch.arange(max(lengths)) - profile.slot_offset
        share = probe.mean().gather(1, columns.clamp(0, x.shape[1] - 1).to(self.backbone.device))
        unread = [max(profile.slot_offset - start, 0) for start in starts]  # no position before a window at the front
        fixed = [0] * len(x)
        if input_ids is not None:
            windows = [x[b, start : start + n] for b, (start, n) in enumerate(zip(starts, lengths, strict=True))]
            fixed = [last_fixed(ids, self.backbone.config.mask_id) for ids in windows]
        boundary, snr = find_boundary(share, torch.tensor(lengths, device=share.device), profile, fixed, unread)
        return Boundary(boundary, snr, [curve[:n] for curve, n in zip(share.tolist(), lengths, strict=True)])

    def generate(
        self, prompts, *, config=None, truncation="default", drafts=None, on_step: OnStep | None = None
    ) -> list[api.Result]:
        """Answer a batch of prompts as `seer_dllm.generate` does; results have no text, as there is no tokenizer.

        Args:
            prompts: a list with, per row, ids int64 `[P]`, or embeddings `[P, H]` where the forward has inputs_embeds.
            config: as in `seer_dllm.generate`, with cache "none" and no stop strings.
            truncation: the same; step 0 is always restarted. None runs the stock algorithm.
            drafts, on_step: the same.
        Raises:
            ValueError, TypeError: an argument is invalid; no row has been run then.
        """
        truncation = Truncation() if truncation == "default" else truncation
        rows = isinstance(truncation, list | tuple)
        truncation = [_restarting(one) for one in truncation] if rows else _restarting(truncation)
        model, prompts = self.prepared(prompts, config)
        return api.generate(model, prompts, config=config, truncation=truncation, drafts=drafts, on_step=on_step)

    def prepared(self, prompts, config) -> tuple[api.Model, object]:
        """This model, and prompts of its kinds, as `seer_dllm.generate` takes them. ValueError: as `generate`."""
        for one in config if isinstance(config, list | tuple) else [config]:
            if isinstance(one, GenerationConfig) and one.cache != "none":
                raise ValueError(f"cache must be 'none' for a wrapped model, got {one.cache!r}")
            if isinstance(one, GenerationConfig) and one.stop:
                raise ValueError(f"stop must be empty for a wrapped model, which has no tokenizer, got {one.stop!r}")
        if isinstance(prompts, list | tuple):
            prompts = self.embed_prompts(prompts)
        return self.as_model(), prompts

    @torch.no_grad()
    def check_bidirectional(self) -> None:
        """ValueError if the first of four tokens does not see the last one: its output is the same for any.

        Two forwards of one shape, so that a causal model's outputs are equal to the bit. It can't tell a model that is
        bidirectional within blocks only; one that needs a mask for it must get that by `forward_kwargs`.
        """
        backbone = self.backbone
        one, other = (backbone.run(backbone.embed(ids), Packing([4]))[0] for ids in self._tiny_inputs())
        if torch.equal(one, other):
            raise ValueError(
                "model must be bidirectional, but its first token does not see the last one; a model that needs a mask "
                "for that gets it by forward_kwargs, check=False leaves this check out"
            )

    @torch.no_grad()
    def check_head(self) -> None:
        """ValueError if the model does more to its logits than the head does (scales them, caps them)."""
        backbone = self.backbone
        if backbone.head is None:
            return
        ids = self._tiny_inputs()[0][None]
        x = backbone.embed(ids[0])[None] if backbone.embeds else ids
        own, ours = backbone.own_logits(x), backbone.logits(backbone.outputs(x))
        if own.shape != ours.shape or (own - ours).abs().max() > 0.02 * own.abs().max():
            raise ValueError("head must give the logits that the model returns, but they differ; leave head out")

    def _tiny_inputs(self) -> tuple[Tensor, Tensor]:
        """Ids `[4]` of ordinary tokens, twice, which differ in the last one."""
        special = {self.backbone.config.mask_id, *self.end_ids}
        plain = [i for i in range(self.backbone.config.vocab_size) if i not in special][:2]
        ids = torch.tensor([[plain[0]] * 4, [plain[0]] * 3 + [plain[-1]]], device=self.backbone.device)
        return ids[0], ids[1]

    def as_model(self) -> api.Model:
        """What `seer_dllm.generate` takes: without text, for prompts of `embed_prompts`."""
        return api.Model(None, self.backbone, None, None, self.end_ids, self.profile)

    def embed_prompts(self, prompts: Sequence) -> list[Tensor]:
        """Per prompt `[P, H]`: embeddings as they are given, ids through `embed`."""
        return [self._embedded(i, prompt) for i, prompt in enumerate(prompts)]

    def _embedded(self, index: int, prompt) -> Tensor:
        kinds = "token ids [P] or embeddings [P, H]" if self.backbone.embeds else "token ids [P]"
        if isinstance(prompt, Tensor) and prompt.is_floating_point() and self.backbone.embeds:
            return prompt
        if isinstance(prompt, list | tuple) and all(isinstance(i, int) for i in prompt):
            prompt = torch.tensor(prompt, dtype=torch.int64)
        if not isinstance(prompt, Tensor) or prompt.dim() != 1 or not _is_whole(prompt):
            got = f"{prompt.dtype} {list(prompt.shape)}" if isinstance(prompt, Tensor) else f"a {type(prompt).__name__}"
            raise ValueError(f"prompts[{index}] must be {kinds} for this wrapped model, got {got}")
        return self.as_model().embed_ids(prompt.long())

    def _checked_input(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Whichever was given, on the model's device."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids or inputs_embeds must be given, and not both")
        if input_ids is not None:
            name, x, good, shape = "input_ids", input_ids, _is_whole, "[B, L] of whole numbers"
        else:
            name, x, good, shape = "inputs_embeds", inputs_embeds, Tensor.is_floating_point, "[B, L, H] of floats"
            if not self.backbone.embeds:
                raise ValueError("inputs_embeds must be left out: the model's forward does not take it")
        if not isinstance(x, Tensor) or x.dim() != shape.count(",") + 1 or not x.numel() or not good(x):
            got = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"{name} must be a filled tensor {shape}, got {got}")
        return x.to(self.backbone.device)


def _restarting(truncation):
    """What was given, with `step0` filled in. ValueError if it asks for the other way."""
    if not isinstance(truncation, Truncation):
        return truncation
    if truncation.step0 == "carry":
        raise ValueError(
            "step0 must be 'restart' for a wrapped model, whose forward can't be resumed after the probe, "
            f"got {truncation.step0!r}"
        )
    return replace(truncation, step0="restart")


def _is_whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _per_row(name: str, value: int | Sequence[int] | Tensor, x: Tensor) -> list[int]:
    """One whole number per row of `x`."""
    values = value.tolist() if isinstance(value, Tensor) else value
    values = list(values) if isinstance(values, list | tuple) else [values] * len(x)
    if len(values) != len(x) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError(f"{name} must be a whole number or one per row ({len(x)}), got {value!r}")
    return values


def wrap(
    model: nn.Module,
    *,
    layers: str | None = None,
    mlp_down: str | None = None,
    embed: str | None = None,
    head: str | None = None,
    mask_id: int | None = None,
    eos_id: int | None = None,
    end_ids: Sequence[int] = (),
    shift: bool = False,
    profile: Profile | None = None,
    forward_kwargs: ForwardKwargs | None = None,
    check: bool = True,
) -> Wrapped:
    """Make a bidirectional masked-diffusion model of another library find where its answers end.

    The model stays as it is: it is hooked only while a probe runs. Paths are dotted, as in `named_modules()`.

    Args:
        model: in eval mode; its forward takes ids `[B, L]` first, or `inputs_embeds`, and returns logits `[B, L, V]`
            as a tensor or as `.logits`.
        layers: path of the list of layers, such as "model.layers".
        mlp_down: path of the down projection within a layer, such as "mlp.down_proj"; its input, silu(gate) * up, is
            what is measured. Without these two paths the one list of layers with one gated MLP each is looked for.
        embed: path of the token embedding; None takes the model's own `get_input_embeddings()`, or its only Embedding.
        head: path of the module whose output is the logits; it then runs on the slots alone that may be written. None
            lets the forward make the logits of all positions.
        mask_id, eos_id: None takes `mask_token_id` and `eos_token_id` of the model's config.
        end_ids: other ids that end an answer (end of turn).
        shift: whether slot j is decided by the logits at position j - 1.
        profile: None takes the conservative default.
        forward_kwargs: arguments of every forward, or a function of (batch, length) that makes them.
        check: run the model on four tokens to see that it is bidirectional, and that `head` gives its logits.
    Raises:
        ValueError: a path leads nowhere, nothing or several things were found, an id is missing, the model is in
            training mode, or it failed the check.
    """
    if not isinstance(model, nn.Module) or model.training:
        got = "one in training mode" if isinstance(model, nn.Module) else f"a {type(model).__name__}"
        raise ValueError(f"model must be a torch module in eval mode (model.eval()), got {got}")
    check_bool("shift", shift)
    downs = find_down_projections(model, layers, mlp_down)
    embedding = find_embedding(model, embed)
    head_module = None if head is None else module_at(model, head, "head")
    own = getattr(model, "config", None)
    lengths = [getattr(own, name, None) for name in ("max_position_embeddings", "max_sequence_length")]
    config = WrappedConfig(
        vocab_size=embedding.weight.shape[0],
        hidden_size=embedding.weight.shape[1] if takes(model, "inputs_embeds") else 1,
        n_layers=len(downs),
        mask_id=getattr(own, "mask_token_id", None) if mask_id is None else mask_id,
        eos_id=getattr(own, "eos_token_id", None) if eos_id is None else eos_id,
        max_length=next((n for n in lengths if n), sys.maxsize),
        shift=shift,
    )
    if profile is not None:
        check_profile(profile, config)
    backbone = WrappedBackbone(model, config, downs, embedding, head_module, forward_kwargs or {})
    ends = tuple(dict.fromkeys((config.eos_id, *end_ids)))
    wrapped = Wrapped(backbone, ends, Profile() if profile is None else profile)
    if check:
        wrapped.check_bidirectional()
        wrapped.check_head()
    return wrapped
