"""Checkpoint folders to break: copies of the tiny LLaDA and MMaDA, and what changes them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
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


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """A word for each byte, whose id is the byte, then the special tokens from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # spelled as themselves by byte-level tokenizers
    others = [byte for byte in range(256) if byte not in plain]
    words = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return tokenizer


# Special tokens where the fixture has them; picture codes follow its 300 words.
MMADA_TOKENS = {
    260: "<|startoftext|>", 261: "<|start_header_id|>", 262: "<|end_header_id|>", 270: "<|endoftext|>",
    281: "<|mdm_mask|>", 285: "<|mmu|>", 286: "<|soi|>", 287: "<|eoi|>", 289: "<|eot_id|>",
}  # fmt: skip
MMADA_WORDS = [MMADA_TOKENS.get(i, f"<|reserved_token_{i}|>") for i in range(256, 300)]


def tiny_mmada(folder: Path) -> Path:
    """The tiny MMaDA in two shards, its picture encoder, and a tokenizer."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "magvitv2.safetensors", "magvitv2_config.json"):
        shutil.copy(GOLDEN / "mmada" / name, folder)
    shard(folder)
    byte_tokenizer(MMADA_WORDS).save(str(folder / "tokenizer.json"))
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
