"""The backbone against the references: logits, MLP activations, norm and RoPE."""

import torch
from harness import Case, golden_kind
from models import LLADA, model_of, prompt_of

from seer_dllm.backbone import KeyValues, Packing, RMSNorm, apply_rope, rope_table

LOGITS = ACTIVATIONS = 1e-3


class Activations:
    """Observes the MLPs as a probe does and keeps what they produce."""

    threshold = 0.0

    def __init__(self) -> None:
        self.act = {}

    def observe(self, layer: int, act: torch.Tensor, share) -> None:
        self.act[layer] = act


@torch.inference_mode()
def activations(model, hidden, packing, past=None):
    """Hidden states after all layers, and per layer the MLP's normed input, its silu(gate), and silu(gate) * up."""
    seen = {"ff_in": {}, "act": {}, "act_mul_up": {}}
    hooks = []
    for i, layer in enumerate(model.backbone.layers):
        hooks.append(layer.mlp_norm.register_forward_hook(lambda m, a, out, i=i: seen["ff_in"].__setitem__(i, out)))
        hooks.append(
            layer.gate_proj.register_forward_hook(
                lambda m, a, out, i=i: seen["act"].__setitem__(i, torch.nn.functional.silu(out))
            )
        )
    watch = Activations()
    try:
        hidden = model.backbone.run(hidden, packing, past=past, probe=watch)
    finally:
        for hook in hooks:
            hook.remove()
    seen["act_mul_up"] = watch.act
    return hidden, seen


@golden_kind("logits", family=LLADA | {"dream"})
@torch.inference_mode()
def logits(case: Case) -> None:
    model, ids = model_of(case).backbone, case.inputs["input_ids"]
    mask = case.inputs.get("attention_mask")
    # The older model file drops the mask, so there every token counts, pads too.
    real = torch.ones_like(ids).bool() if mask is None or case.name.endswith("oldmodel") else mask.bool()
    packing = Packing(real.sum(1).tolist())
    got = model.logits(model.run(model.embed(ids[real]), packing))
    last = case.settings.get("last", ids.shape[1])  # positions that the fixture holds
    placed = got.new_zeros(*ids.shape, got.shape[-1])
    placed[real] = got
    real, want = real[:, -last:], case.expected["logits"]
    assert real.any() and want.shape == placed[:, -last:].shape
    assert (placed[:, -last:][real] - want[real]).abs().max() < LOGITS


@golden_kind("mlp_activations", family=LLADA | {"dream"})
def mlp_activations(case: Case) -> None:
    """Either the input holds its masks and all positions count, or the masks follow and only they do."""
    model, masks = model_of(case), case.settings.get("gen_length", 0)
    window = torch.full((masks,), model.backbone.config.mask_id)
    ids, where = torch.cat((case.inputs["input_ids"][0], window)), slice(-masks, None)
    hidden, seen = activations(model, model.backbone.embed(ids), Packing([len(ids)]))
    check_activations(case, seen, where)
    with torch.inference_mode():
        case.close("logits", model.backbone.logits(hidden[where])[None], LOGITS)


def check_activations(case: Case, seen, where) -> None:
    for layer in case.settings["layers"]:
        for role, values in seen.items():
            case.close(f"{role}.{layer}", values[layer][where][None], ACTIVATIONS)


@golden_kind("step0", family={"lavida_llada", "lavida_dream"})
@torch.inference_mode()
def step0(case: Case) -> None:
    model, length = model_of(case), case.settings["gen_length"]
    prompt = prompt_of(case)
    shift = int(model.backbone.config.shift)
    ids = torch.full((length,), model.backbone.config.mask_id)
    if case.settings["prefix_lm"]:
        past = KeyValues(Packing([len(prompt)]))
        last = model.backbone.run(prompt, past.packing, keep=past)[-1:]
        ids[:shift] = model.backbone.logits(last).argmax(-1)[:shift]  # LaViDa-Dream writes slot 0 now
        hidden, seen = activations(model, model.backbone.embed(ids), Packing([length], [len(prompt)]), past)
    else:
        window = model.backbone.embed(ids)
        hidden, seen = activations(model, torch.cat((prompt, window)), Packing([len(prompt) + length]))
    check_activations(case, seen, slice(-length, None))
    at = torch.arange(len(hidden) - length, len(hidden)) - shift
    case.close("logits", model.backbone.logits(hidden[at.clamp(min=0)])[None], LOGITS)


@golden_kind("ops_bf16", family=LLADA | {"dream"})
def ops_bf16(case: Case) -> None:
    config = model_of(case).backbone.config
    norm = RMSNorm(case.inputs["x"].shape[-1], config.norm_eps)
    norm.weight.data = case.expected["norm_weight"]
    case.same("norm_out", norm(case.inputs["x"]))
    keys = case.inputs["k"].shape[2]
    positions = case.inputs["position_ids"][0] if "position_ids" in case.inputs else torch.arange(keys)
    for role in ("q", "k"):
        x = case.inputs[role]
        n = x.shape[2]
        precise = torch.float32 if config.rope_full_precision else x.dtype
        table = rope_table(positions[keys - n :], case.settings["head_dim"], config.rope_theta, precise)
        case.same(f"{role}_rot", apply_rope(x[0].transpose(0, 1), table).transpose(0, 1)[None])
