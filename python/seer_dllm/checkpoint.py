"""Checkpoints in their hub layout: a local folder with `config.json` and safetensors files. No code of theirs is run.

Beside the hub's files a folder may hold `seer.json`, ours:
`{"profile": {...}, "system_prompt": ..., "end_tokens": [...]}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from seer_dllm.backbone import Backbone
from seer_dllm.families import Family, find_family
from seer_dllm.vision import VisionEncoder, load_vision_config, vision_weight_names

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. FileNotFoundError or ValueError name the file."""
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path.parent} must hold {path.name}, which is missing")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a JSON file: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(value).__name__}")
    return value


def _shards(index: Path) -> list[str]:
    """The files that an index names. ValueError if it does not map tensors to files of its own folder."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{index} must map tensors to files in weight_map")
    files = sorted(set(where.values()))
    outside = [file for file in files if Path(file).name != file]
    if outside:
        raise ValueError(f"{index} must name files of the folder, got {outside[0]!r}")
    return files


class Weights:
    """The tensors of a folder, read one at a time from one or several safetensors files.

    Raises:
        FileNotFoundError: no weights, or a shard that the index names is missing.
        ValueError: only pickle files (refused: loading them runs code), a file that is not safetensors, or a bad index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = _shards(index)
        else:
            files = sorted(p.name for p in folder.glob("model*.safetensors"))
        if not files:
            pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
            if pickles:
                raise ValueError(
                    f"{folder} must hold safetensors weights, got only pickle files ({', '.join(pickles[:3])}), "
                    "which are refused because loading them can run code"
                )
            raise FileNotFoundError(f"checkpoint {folder} must hold model.safetensors, which is missing")
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"checkpoint {folder} lacks {len(missing)} of {len(files)} weight files: " + ", ".join(missing[:5])
            )
        self._handles = {}
        for name in files:
            try:
                handle = safe_open(folder / name, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{folder / name} must be a whole safetensors file: {error}") from None
            self._handles.update(dict.fromkeys(handle.keys(), handle))

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def get(self, name: str) -> Tensor:
        return self._handles[name].get_tensor(name)


def fill(module: nn.Module, names: Mapping[str, str], weights: Weights, dtype: torch.dtype, device) -> None:
    """Give every parameter of `module` (made on the meta device) its tensor: `names` maps ours to the checkpoint's.

    Raises:
        ValueError: keys are missing (listed, at most ten) or have another shape.
    """
    own = dict(module.named_parameters())
    missing = [theirs for theirs in names.values() if theirs not in weights]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise ValueError(f"checkpoint {weights.folder} lacks {len(missing)} of {len(names)} tensors: {shown}")
    state = {}
    for ours, theirs in tqdm(names.items(), desc="weights", leave=False, disable=None):  # silent unless a terminal
        tensor = weights.get(theirs)
        if ours in own and tensor.shape != own[ours].shape:
            raise ValueError(
                f"checkpoint {weights.folder}: {theirs} must have shape {list(own[ours].shape)}, "
                f"got {list(tensor.shape)}"
            )
        state[ours] = tensor.to(device=device, dtype=dtype)
    module.load_state_dict(state, assign=True, strict=False)
    left = [name for name, p in module.named_parameters() if p.is_meta]
    if left:
        raise ValueError(f"checkpoint {weights.folder} gives no tensor for {', '.join(left[:10])}")
    module.requires_grad_(False).eval()


def load_parts(
    folder: Path, dtype: torch.dtype, device
) -> tuple[Family, dict[str, Any], Backbone, VisionEncoder | None]:
    """Family, raw config, backbone and (for families with images) the vision encoder of a checkpoint folder."""
    raw = read_json(folder / "config.json")
    family = find_family(raw)
    config = family.read_config(raw)
    weights = Weights(folder)
    with torch.device("meta"):
        backbone = Backbone(config)
    fill(backbone, family.backbone_names(config), weights, dtype, device)
    if config.tie_embeddings:
        backbone.head.weight = backbone.embed.weight
    vision = None
    if family.vision:
        vision_config = load_vision_config(folder, raw)
        vision = VisionEncoder.from_config(raw, vision_config)
        fill(vision, vision_weight_names(dict(vision.named_parameters())), weights, dtype, device)
        vision.to(device=device, dtype=dtype)
    return family, raw, backbone, vision


def save_checkpoint(
    folder: Path,
    raw: Mapping[str, Any],
    vision_config: Mapping[str, Any] | None,
    backbone: Backbone,
    vision: VisionEncoder | None,
    tokenizer,
    *,
    profile: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    end_tokens: Iterable[str] = ("<|eot_id|>",),
) -> None:
    """Write a folder that `load_parts` reads, in the family's hub layout. Weights appear whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    family = find_family(raw)
    own = dict(backbone.named_parameters())
    tensors = {theirs: own[ours] for ours, theirs in family.backbone_names(backbone.config).items()}
    if vision is not None:
        own = dict(vision.named_parameters())
        tensors |= {theirs: own[ours] for ours, theirs in vision_weight_names(dict(vision.named_parameters())).items()}
    partial = folder / "model.safetensors.partial"
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n")
    if vision_config is not None:
        (folder / "vision_config.json").write_text(json.dumps(dict(vision_config), indent=1) + "\n")
    ours = {"profile": dict(profile or {}), "system_prompt": system_prompt, "end_tokens": list(end_tokens)}
    (folder / "seer.json").write_text(json.dumps(ours, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
