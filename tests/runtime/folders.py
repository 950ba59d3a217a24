"""Checkpoint folders in their hub layout: the tiny model of every family with a tokenizer, and what breaks them."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scripted import GOLDEN
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import seer_dllm

HEAD = "model.transformer.ff_out.weight"
DOWN = "model.transformer.blocks.7.ff_out.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def tiny_llada(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "llada" / name, folder)
    return folder


LLAMA = {
    "wte": "model.embed_tokens",
    "ln_f": "model.norm",
    "ff_out": "lm_head",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
}


def llama_name(name: str) -> str:
    *_, kind, _ = name.split(".")
    if ".blocks." not in name:
        return f"{LLAMA[kind]}.weight"
    layer = name.split(".")[3]
    return f"model.layers.{layer}.{'mlp.down_proj' if kind == 'ff_out' else LLAMA[kind]}.weight"


def tiny_llada_v(folder: Path, source: str = "llada") -> Path:
    """A tiny LLaDA as LLaDA-V names its weights, with an image tower's tensor that nobody reads."""
    folder.mkdir(exist_ok=True)
    raw = json.loads((GOLDEN / source / "config.json").read_text())
    config = {
        "model_type": "llava_llada", "architectures": ["LlavaLLaDAModelLM"], "hidden_size": raw["d_model"],
        "intermediate_size": raw["mlp_hidden_size"], "num_hidden_layers": raw["n_layers"],
        "num_attention_heads": raw["n_heads"], "num_key_value_heads": raw["n_kv_heads"],
        "vocab_size": raw["embedding_size"] or raw["vocab_size"], "mask_token_id": raw["mask_token_id"],
        "eos_token_id": raw["eos_token_id"], "rope_theta": raw["rope_theta"], "rms_norm_eps": raw["rms_norm_eps"],
        "hidden_act": "silu", "attention_bias": False, "rope_scaling": None, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {llama_name(name): tensor for name, tensor in load_file(GOLDEN / source / "model.safetensors").items()}
    save_file(tensors | {"model.vision_tower.x": torch.zeros(3)}, folder / "model.safetensors")
    return folder


def byte_words() -> dict[str, int]:
    """A word for each byte, as byte-level tokenizers spell it; its id is the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # spelled as themselves
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def special_words(names: Mapping[int, str], stop: int, start: int = 256) -> list[str]:
    """Special tokens with the ids `[start, stop)`: those with a name, and others between them."""
    return [names.get(i, f"<|reserved_token_{i}|>") for i in range(start, stop)]


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """The bytes, then the special tokens from 256 on."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_words(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return tokenizer


# Special tokens where the fixture has them; picture codes follow its 300 words.
MMADA_TOKENS = {
    260: "<|startoftext|>", 261: "<|start_header_id|>", 262: "<|end_header_id|>", 270: "<|endoftext|>",
    281: "<|mdm_mask|>", 285: "<|mmu|>", 286: "<|soi|>", 287: "<|eoi|>", 289: "<|eot_id|>",
}  # fmt: skip
MMADA_WORDS = special_words(MMADA_TOKENS, 300)


def tiny_mmada(folder: Path) -> Path:
    """The tiny MMaDA in two shards, its picture encoder, and a tokenizer."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "magvitv2.safetensors", "magvitv2_config.json"):
        shutil.copy(GOLDEN / "mmada" / name, folder)
    shard(folder)
    byte_tokenizer(MMADA_WORDS).save(str(folder / "tokenizer.json"))
    return folder


CHAT = ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
# Ids of CHAT, of EOS and the mask (the config's), and the number of words.
LLADA_IDS = {
    "llada": ((482, 483, 484, 490), 481, 500, 512),
    "llada_v": ((482, 483, 484, 490), 481, 500, 512),
    "lavida_llada": ((361, 362, 363, 364), 360, 371, 384),
}
# Of <|im_start|> and <|im_end|>, of EOS and the mask, and the number of words.
DREAM_IDS = {"dream": ((431, 432), 430, 441, 448), "lavida_dream": ((361, 362), 360, 371, 384)}
CODE = "from pathlib import Path\nPath({marker!r}).touch()\nclass DreamTokenizer: pass\n"


def dream_tokenizer(folder: Path, names: Mapping[int, str], words: int) -> None:
    """Dream's tokenizer files, code that leaves the file `ran` among them. "Ho" is one word, 256, made by a merge."""
    (folder / "vocab.json").write_text(json.dumps(byte_words() | {"Ho": 256}))
    (folder / "merges.txt").write_text("#version: 0.2\nH o\n")
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    added = enumerate(special_words(names, words, 257), 257)
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {str(i): plain | {"content": word, "special": True} for i, word in added},
        "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": "<|mask|>", "bos_token": None,
        "model_max_length": 131072, "errors": "replace", "add_prefix_space": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("tokenization_dream.py", "configuration_dream.py", "modeling_dream.py"):
        (folder / name).write_text(CODE.format(marker=str(folder / "ran")))


def hub_folder(folder: Path, family: str) -> Path:
    """A whole checkpoint of the family: config, weights, tokenizer, and what its pictures need."""
    if family == "mmada":
        return tiny_mmada(folder)
    if family == "llada_v":
        tiny_llada_v(folder)
    else:
        shutil.copytree(GOLDEN / family, folder, ignore=shutil.ignore_patterns("cases*"), dirs_exist_ok=True)
    if family in DREAM_IDS:
        (head, end), eos, mask, words = DREAM_IDS[family]
        names = {head: "<|im_start|>", end: "<|im_end|>", eos: "<|endoftext|>", mask: "<|mask|>"}
        dream_tokenizer(folder, names, words)
    else:
        chat, eos, mask, words = LLADA_IDS[family]
        names = dict(zip(chat, CHAT, strict=True)) | {eos: "<|endoftext|>", mask: "<|mdm_mask|>"}
        byte_tokenizer(special_words(names, words)).save(str(folder / "tokenizer.json"))
    return folder


def configure(folder: Path, **changes) -> None:
    """Sets keys of config.json; None removes one."""
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path, error, *parts: str) -> None:
    with pytest.raises(error) as caught:
        seer_dllm.load(folder)
    for part in parts:
        assert part in str(caught.value)


def shard(folder: Path) -> dict[str, str]:
    """Splits the weights in two files and an index; the index's map."""
    tensors = load_file(folder / "model.safetensors")
    where = {name: SHARDS[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in SHARDS:
        save_file({k: v for k, v in tensors.items() if where[k] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return where
