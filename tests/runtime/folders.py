"""Checkpoint folders to break: copies of the tiny LLaDA, and what changes them."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from scripted import GOLDEN

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
