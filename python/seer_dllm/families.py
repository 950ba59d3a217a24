"""What a family's checkpoints look like: the names of their weights and the keys of their config.

A family is data. Adding one means adding an entry to `FAMILIES`, not a model file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seer_dllm.config import ModelConfig

# Ours -> theirs; `{i}` is the layer. The references' two `ff_out` are the head (top) and the down projection (block).
LLADA_NAMES = {
    "embed.weight": "model.transformer.wte.weight",
    "norm.weight": "model.transformer.ln_f.weight",
    "head.weight": "model.transformer.ff_out.weight",
    "layers.{i}.attn_norm.weight": "model.transformer.blocks.{i}.attn_norm.weight",
    "layers.{i}.q_proj.weight": "model.transformer.blocks.{i}.q_proj.weight",
    "layers.{i}.k_proj.weight": "model.transformer.blocks.{i}.k_proj.weight",
    "layers.{i}.v_proj.weight": "model.transformer.blocks.{i}.v_proj.weight",
    "layers.{i}.o_proj.weight": "model.transformer.blocks.{i}.attn_out.weight",
    "layers.{i}.mlp_norm.weight": "model.transformer.blocks.{i}.ff_norm.weight",
    "layers.{i}.gate_proj.weight": "model.transformer.blocks.{i}.ff_proj.weight",
    "layers.{i}.up_proj.weight": "model.transformer.blocks.{i}.up_proj.weight",
    "layers.{i}.down_proj.weight": "model.transformer.blocks.{i}.ff_out.weight",
}

# Settings of the reference's model file that the native backbone implements one way only.
LLADA_FIXED = {
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "block_type": "llama",
    "include_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "rope": True,
    "scale_logits": False,
}


def llada_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a LLaDA `config.json`. Missing keys and settings the backbone does not implement raise ValueError."""
    for key, value in LLADA_FIXED.items():
        if raw.get(key, value) != value:
            raise ValueError(f"config.json: {key} must be {value!r} for a LLaDA model, got {raw[key]!r}")
    needed = ("d_model", "n_heads", "n_layers", "mlp_hidden_size", "rope_theta", "rms_norm_eps", "vocab_size")
    missing = [k for k in (*needed, "mask_token_id", "eos_token_id") if raw.get(k) is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    if raw["d_model"] % raw["n_heads"]:
        raise ValueError(f"config.json: d_model must be a multiple of n_heads={raw['n_heads']}, got {raw['d_model']}")
    return ModelConfig(
        # The embedding may have more rows than the tokenizer has words.
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=raw["mlp_hidden_size"],
        n_layers=raw["n_layers"],
        n_heads=raw["n_heads"],
        n_kv_heads=raw.get("n_kv_heads") or raw["n_heads"],
        head_dim=raw["d_model"] // raw["n_heads"],
        rope_theta=raw["rope_theta"],
        norm_eps=raw["rms_norm_eps"],
        mask_id=raw["mask_token_id"],
        eos_id=raw["eos_token_id"],
        qkv_bias=bool(raw.get("include_qkv_bias")),
        tie_embeddings=bool(raw.get("weight_tying")),
        max_length=raw.get("max_sequence_length") or 4096,
    )


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    Args:
        name: how we call it.
        model_types: values of `model_type` in config.json that mean this family.
        weight_names: our parameter name -> the checkpoint's, `{i}` standing for the layer.
        read_config: config.json -> `ModelConfig`.
        vision: whether checkpoints carry an image tower and projector (LaViDa).
        chat: name of the chat template in `chat.py`.
    """

    name: str
    model_types: tuple[str, ...]
    weight_names: Mapping[str, str]
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    vision: bool
    chat: str

    def backbone_names(self, config: ModelConfig) -> dict[str, str]:
        """Our parameter name -> the checkpoint's name, for every backbone parameter of this config."""
        names = {}
        for ours, theirs in self.weight_names.items():
            if ours == "head.weight" and config.tie_embeddings:
                continue
            for i in range(config.n_layers if "{i}" in ours else 1):
                names[ours.format(i=i)] = theirs.format(i=i)
        if config.qkv_bias:
            for i in range(config.n_layers):
                for p in "qkv":
                    weight = self.weight_names["layers.{i}." + p + "_proj.weight"].format(i=i)
                    names[f"layers.{i}.{p}_proj.bias"] = weight.removesuffix("weight") + "bias"
        return names


FAMILIES = (
    Family("llada", ("llada",), LLADA_NAMES, llada_config, vision=False, chat="llada"),
    Family("lavida_llada", ("llava_llada",), LLADA_NAMES, llada_config, vision=True, chat="lavida_llada"),
)


def find_family(raw: Mapping[str, Any]) -> Family:
    """The family a config.json belongs to, by its `model_type`. ValueError lists the types that are known."""
    model_type = raw.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(t for f in FAMILIES for t in f.model_types)
    raise ValueError(f"config.json: model_type must be one of {known}, got {model_type!r}")
