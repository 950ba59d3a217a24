"""Checkpoints in their hub layout: a local folder with `config.json` and safetensors files. No code of theirs is run.

Beside the hub's files a folder may hold two of ours: `seer_profile.json` (see `profile.py`), and `seer.json`:
`{"system_prompt": ..., "end_tokens": [...], "image_resolution": ...}`.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from seer_dllm.backbone import Backbone
from seer_dllm.config import read_json
from seer_dllm.families import Family, find_family
from seer_dllm.text import TextTokenizer
from seer_dllm.vision import PictureCodes, VisionEncoder, load_vision_config, vision_weight_names
from seer_dllm.vision.magvit import CONFIG_FILE, MagvitConfig, MagvitEncoder, code_signs

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Safetensors' names of the dtypes that weights may be stored in.
FILE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HUGE = 1 << 23  # bytes from which a tensor gets huge pages, which have 2 MiB
BUFFER = 1 << 22  # elements that are converted at once: they should stay in the processor's cache
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Place(NamedTuple):
    """Where a tensor lies: `offset` bytes into a file, `dtype` as safetensors spells it."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * FILE_DTYPES[self.dtype].itemsize


def _header(file: Path) -> dict[str, Place]:
    """The tensors of one safetensors file, from its header alone. ValueError if the file is damaged or cut short."""
    try:
        with safe_open(file, framework="np"):  # checks the header and that its offsets fill the file exactly
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} must be a whole safetensors file: {error}") from None
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries = json.loads(stream.read(length))
    entries.pop("__metadata__", None)
    return {
        name: Place(file, 8 + length + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
        for name, entry in entries.items()
    }


def _read_exactly(stream: FileIO, target: Tensor) -> None:
    """Fill a contiguous CPU tensor `[n]` with the bytes that come next. EOFError if the file has fewer."""
    rest = memoryview(target.view(torch.uint8).numpy())
    while rest:  # one call reads at most 2 GiB
        count = stream.readinto(rest)
        if not count:
            raise EOFError
        rest = rest[count:]


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """`torch.empty`; on the CPU in huge pages where the system grants them.

    Weights are written once and in full. In small pages that costs as much in page faults as reading the file.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or nbytes < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file of an index. ValueError if it does not map tensors to files of its own folder."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{index} must map tensors to files in weight_map")
    outside = sorted(file for file in where.values() if Path(file).name != file)
    if outside:
        raise ValueError(f"{index} must name files of the folder, got {outside[0]!r}")
    return where


class Weights:
    """The tensors of a folder, in one or several safetensors files. Only headers are read until a tensor is asked for.

    Args:
        stem: how the names of the files begin.
    Raises:
        FileNotFoundError: no weights, or a shard that the index names is missing.
        ValueError: only pickle files (refused: loading them runs code), a damaged file, an index that is broken or
            does not fit its files, or, without an index, a tensor that two files hold.
    """

    def __init__(self, folder: Path, stem: str = "model") -> None:
        self.folder = folder
        index = folder / f"{stem}.safetensors.index.json"
        listed = _weight_map(index) if index.is_file() else {}
        files = sorted(set(listed.values())) or sorted(p.name for p in folder.glob(f"{stem}*.safetensors"))
        if not files:
            pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
            if pickles:
                raise ValueError(
                    f"{folder} must hold safetensors weights, got only pickle files ({', '.join(pickles[:3])}), "
                    f"which are refused because loading them can run code; convert them to {stem}.safetensors"
                )
            raise FileNotFoundError(f"checkpoint {folder} must hold {stem}.safetensors, which is missing")
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"checkpoint {folder} lacks {len(missing)} of {len(files)} weight files: " + ", ".join(missing[:5])
            )
        headers = {name: _header(folder / name) for name in files}
        self._places: dict[str, Place] = {}
        for name, file in listed.items():
            if name not in headers[file]:
                raise ValueError(f"{folder / file} must hold {name}, as {index.name} says, but lacks it")
            self._places[name] = headers[file][name]
        for header in headers.values() if not listed else ():
            for name, place in header.items():
                if name in self._places:
                    raise ValueError(f"{place.file} must not hold {name}, which {self._places[name].file} holds too")
                self._places[name] = place

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def place(self, name: str) -> Place:
        return self._places[name]

    def read(self, name: str, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """One tensor in the file's shape, in memory of its own.

        A real read, not a view of the mapped file. A view costs nothing at first, but then the first answers page the
        weights in, any later one may wait for the disk again once memory is short, and a file that is overwritten in
        place changes the model or kills the process. Reading goes straight into the tensor's memory, or, where dtype
        or device differ, there by way of one small buffer, so the weights exist once (the page cache, which the system
        drops at will, aside) and loading takes about as long as reading.

        Raises:
            ValueError: the file has become shorter since its header was read.
        """
        place = self._places[name]
        tensor = _empty(place.shape, dtype, device)
        flat = tensor.view(-1)
        stored = FILE_DTYPES[place.dtype]
        with place.file.open("rb", buffering=0) as stream:
            stream.seek(place.offset)
            try:
                if tensor.device.type == "cpu" and dtype == stored:
                    _read_exactly(stream, flat)
                    return tensor
                buffer = torch.empty(min(BUFFER, flat.numel()), dtype=stored)
                for part in flat.split(BUFFER):
                    _read_exactly(stream, buffer[: len(part)])
                    part.copy_(buffer[: len(part)])
            except EOFError:
                raise ValueError(f"{place.file} must hold all of {name}, but ends before it does") from None
        return tensor


class WithoutInit(TorchFunctionMode):
    """Modules made inside leave their parameters as they are allocated.

    Initial values are lost on the meta device, and torch imports its whole compiler (over a second) to discard them.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def fill(module: nn.Module, names: Mapping[str, str], weights: Weights, dtype: torch.dtype, device) -> None:
    """Give every parameter of `module` (made on the meta device) its tensor: `names` maps ours to the checkpoint's.

    Tensors that no parameter needs are not read, and nothing of their size is held beside the parameters.

    Raises:
        ValueError: keys are missing (listed, at most ten), have another shape or no float dtype; nothing is read then.
    """
    own = dict(module.named_parameters())  # a tied parameter appears once
    missing = [names[ours] for ours in own if names[ours] not in weights]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise ValueError(f"checkpoint {weights.folder} lacks {len(missing)} of {len(own)} tensors: {shown}")
    places = {ours: weights.place(names[ours]) for ours in own}
    for ours, place in places.items():
        if place.shape != own[ours].shape:
            raise ValueError(
                f"{place.file}: {names[ours]} must have shape {list(own[ours].shape)}, got {list(place.shape)}"
            )
        if place.dtype not in FILE_DTYPES:  # quantized weights mean nothing without their scales
            raise ValueError(f"{place.file}: {names[ours]} must be one of {', '.join(FILE_DTYPES)}, got {place.dtype}")
    total = sum(place.nbytes for place in places.values())
    filled = {}
    with tqdm(total=total, desc="weights", unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for ours in sorted(own, key=places.get):  # file by file and front to back, which disks do best
            filled[own[ours]] = nn.Parameter(weights.read(names[ours], dtype, device), requires_grad=False)
            bar.update(places[ours].nbytes)
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, filled[parameter])
    module.eval()


def load_parts(
    folder: Path, dtype: torch.dtype, device
) -> tuple[Family, dict[str, Any], Backbone, VisionEncoder | None]:
    """Family, raw config, backbone and (for families with images) the vision encoder of a checkpoint folder."""
    raw = read_json(folder / "config.json")
    family = find_family(raw)
    config = family.read_config(raw)
    weights = Weights(folder)
    with torch.device("meta"), WithoutInit():
        parts = nn.ModuleDict({"backbone": Backbone(config)})
        if family.vision:
            parts["vision"] = VisionEncoder.from_config(raw, load_vision_config(folder, raw))
    names = {f"backbone.{ours}": theirs for ours, theirs in family.backbone_names(config).items()}
    if family.vision:
        own = dict(parts["vision"].named_parameters())
        names |= {f"vision.{ours}": theirs for ours, theirs in vision_weight_names(own).items()}
    fill(parts, names, weights, dtype, device)
    return family, raw, parts["backbone"], parts["vision"] if family.vision else None


def load_magvit(folder: Path, device) -> MagvitEncoder:
    """MMaDA's picture encoder, from the folder's magvitv2.safetensors and, where there is one, magvitv2_config.json.

    Float32 whatever the language model's dtype: the bits of a code are signs, which rounding would flip.

    Raises:
        FileNotFoundError, ValueError: as `Weights`, `fill` and `MagvitConfig.from_json` do.
        ValueError: the file's code table is not the one that `quantize` follows.
    """
    path = folder / CONFIG_FILE
    config = MagvitConfig.from_json(read_json(path)) if path.is_file() else MagvitConfig()
    weights = Weights(folder, "magvitv2")
    with torch.device("meta"), WithoutInit():
        model = MagvitEncoder(config)
    fill(model, model.weight_names(), weights, torch.float32, device)
    if "quantize.embedding" in weights:
        table, bits = weights.read("quantize.embedding", torch.float32, "cpu"), config.z_channels
        if len(table) != 2**bits or not torch.equal(table, code_signs(torch.arange(len(table)), bits)):
            raise ValueError(
                f"checkpoint {folder}: quantize.embedding must hold the signs of 0..{2**bits - 1}, highest bit first"
            )
    return model


def load_codes(
    folder: Path, raw: Mapping[str, Any], backbone: Backbone, tokenizer: TextTokenizer, resolution: int | None = None
) -> PictureCodes | None:
    """The folder's picture encoder, its codes standing behind the tokenizer's words; None without magvitv2 weights.

    resolution: side of the pictures in pixels where it is not the one that num_vq_tokens means.
    Raises as `load_magvit` and `PictureCodes.from_config` do.
    """
    if not any(folder.glob("magvitv2*.safetensors*")):
        return None
    encoder = load_magvit(folder, backbone.device)
    return PictureCodes.from_config(raw, encoder, backbone.embed, len(tokenizer), tokenizer.token_to_id, resolution)


def save_checkpoint(
    folder: Path,
    raw: Mapping[str, Any],
    vision_config: Mapping[str, Any] | None,
    backbone: Backbone,
    vision: VisionEncoder | None,
    tokenizer,
    *,
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
    ours = {"system_prompt": system_prompt, "end_tokens": list(end_tokens)}
    (folder / "seer.json").write_text(json.dumps(ours, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
