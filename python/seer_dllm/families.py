"""What a family's checkpoints look like: the names of their weights and the keys of their config.

A family is data. Adding one means adding an entry to `FAMILIES`, not a model file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seer_dllm.config import ModelConfig, check_positive

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

# The same model under Llama's names (LLaDA-V).
LLAMA_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q_proj.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k_proj.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v_proj.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o_proj.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate_proj.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up_proj.weight": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down_proj.weight": "model.layers.{i}.mlp.down_proj.weight",
}

# Settings of the references' model files that the native backbone implements one way only.
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
LLAMA_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None}
DREAM_FIXED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}

# `ModelConfig` field -> key of config.json; those that a config must give, then those with a default.
LLADA_KEYS = {
    "hidden_size": "d_model",
    "n_heads": "n_heads",
    "n_layers": "n_layers",
    "intermediate_size": "mlp_hidden_size",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "mask_id": "mask_token_id",
    "eos_id": "eos_token_id",
}
LLADA_OPTIONAL = {
    # The embedding may have more rows than the tokenizer has words.
    "vocab_size": "embedding_size",
    "n_kv_heads": "n_kv_heads",
    "qkv_bias": "include_qkv_bias",
    "tie_embeddings": "weight_tying",
    "max_length": "max_sequence_length",
}
LLAMA_KEYS = LLADA_KEYS | {
    "hidden_size": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
}
LLAMA_OPTIONAL = {
    "n_kv_heads": "num_key_value_heads",
    "tie_embeddings": "tie_word_embeddings",
    "max_length": "max_position_embeddings",
}
LLADA_MASK_ID = 126336  # <|mdm_mask|>


def _model_config(
    raw: Mapping[str, Any],
    model: str,
    keys: Mapping[str, str],
    optional: Mapping[str, str],
    fixed: Mapping[str, Any],
    **constants,
) -> ModelConfig:
    """Missing keys and settings the backbone does not implement raise ValueError, which names `model`.

    constants: fields of `ModelConfig` that all models of the family share and no config.json names.
    """
    for key, value in fixed.items():
        if raw.get(key, value) != value:
            raise ValueError(f"config.json: {key} must be {value!r} for a {model} model, got {raw[key]!r}")
    missing = [key for key in keys.values() if raw.get(key) is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    values = {field: raw[key] for field, key in keys.items()}
    values |= {field: raw[key] for field, key in optional.items() if raw.get(key)}
    (size_key, heads_key), (hidden, heads) = ((of["hidden_size"], of["n_heads"]) for of in (keys, values))
    check_positive(f"config.json: {size_key}", hidden)
    check_positive(f"config.json: {heads_key}", heads)
    if hidden % heads:
        raise ValueError(f"config.json: {size_key} must be a multiple of {heads_key}={heads}, got {hidden}")
    return ModelConfig(**{"n_kv_heads": heads, "head_dim": hidden // heads} | values | constants)


def llada_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a LLaDA `config.json`. ValueError: keys are missing, or a setting is not implemented."""
    return _model_config(raw, "LLaDA", LLADA_KEYS, LLADA_OPTIONAL, LLADA_FIXED)


def mmada_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read an MMaDA `config.json`: LLaDA's keys. ValueError as for LLaDA's, or the sizes of the embedding disagree."""
    config = _model_config(raw, "MMaDA", LLADA_KEYS, LLADA_OPTIONAL, LLADA_FIXED)
    rows = raw.get("new_vocab_size")
    if rows not in (None, config.vocab_size):
        raise ValueError(
            f"config.json: new_vocab_size must equal the embedding's {config.vocab_size} rows, got {rows!r}"
        )
    return config


def llada_v_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a LLaDA-V `config.json`, which has Llama's keys. ValueError as for LLaDA's."""
    # The mask id is a constant of LLaDA-V's sampler, so a config need not give it.
    raw = dict(raw) | {"mask_token_id": raw.get("mask_token_id") or LLADA_MASK_ID}
    return _model_config(raw, "LLaDA-V", LLAMA_KEYS, LLAMA_OPTIONAL, LLAMA_FIXED)


def dream_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a Dream `config.json`, which has Qwen2's keys. ValueError as for LLaDA's."""
    return _model_config(
        raw, "Dream", LLAMA_KEYS, LLAMA_OPTIONAL, DREAM_FIXED, qkv_bias=True, rope_full_precision=False, shift=True
    )


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    Args:
        name: how we call it.
        model_types: values of `model_type` in config.json that mean this family.
        architectures: where families share a `model_type`, the model classes in config.json that mean this one.
        weight_names: our parameter name -> the checkpoint's, `{i}` standing for the layer.
        read_config: config.json -> `ModelConfig`.
        vision: whether checkpoints carry an image tower and projector (LaViDa).
        chat: name of the chat template in `chat.py`.
        codes: whether pictures are read as codes of MAGVIT-v2, whose weights lie beside the model's (MMaDA).
        added_tokens: special tokens that the reference appends to a tokenizer without them.
        end_tokens: tokens that end a turn, beside EOS.
        prefix_trained: trained with prompts that do not see the window, so that the prompt cache is exact (LaViDa).
    """

    name: str
    model_types: tuple[str, ...]
    weight_names: Mapping[str, str]
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    vision: bool
    chat: str
    architectures: tuple[str, ...] = ()
    codes: bool = False
    added_tokens: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ("<|eot_id|>",)
    prefix_trained: bool = False

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
    # Before LaViDa, which has the same model_type. Pictures would need LLaDA-V's own tiling.
    Family(
        "llada_v",
        ("llava_llada",),
        LLAMA_NAMES,
        llada_v_config,
        vision=False,
        chat="lavida_llada",
        architectures=("LlavaLLaDAModelLM",),
    ),
    Family(
        "lavida_llada",
        ("llava_llada",),
        LLADA_NAMES,
        llada_config,
        vision=True,
        chat="lavida_llada",
        prefix_trained=True,
    ),
    Family(
        "dream",
        ("Dream",),
        LLAMA_NAMES,
        dream_config,
        vision=False,
        chat="dream",
        end_tokens=("<|im_end|>",),
    ),
    Family(
        "lavida_dream",
        ("llava_dream",),
        LLAMA_NAMES,
        dream_config,
        vision=True,
        chat="lavida_dream",
        end_tokens=("<|im_end|>",),
        prefix_trained=True,
    ),
    Family(
        "mmada",
        ("mmada",),
        LLADA_NAMES,
        mmada_config,
        vision=False,
        chat="mmada",
        codes=True,
        added_tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
)


def find_family(raw: Mapping[str, Any]) -> Family:
    """The family a config.json belongs to, by its `model_type` and, where that is shared, its `architectures`.

    ValueError lists the types that are known.
    """
    model_type, architectures = raw.get("model_type"), raw.get("architectures") or ()
    for family in FAMILIES:
        if model_type in family.model_types and (
            not family.architectures or any(name in family.architectures for name in architectures)
        ):
            return family
    known = ", ".join(dict.fromkeys(t for f in FAMILIES for t in f.model_types))
    raise ValueError(f"config.json: model_type must be one of {known}, got {model_type!r}")
