"""Loading a checkpoint and generating answers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from seer_dllm.backbone import Backbone
from seer_dllm.chat import prompt_ids
from seer_dllm.checkpoint import DTYPES, load_codes, load_parts
from seer_dllm.config import GenerationConfig, Profile, Truncation, read_json
from seer_dllm.denoise import OnStep, denoise
from seer_dllm.detection import check_profile, last_fixed, why_not
from seer_dllm.families import Family
from seer_dllm.profile import PROFILE_FILE, find_profile
from seer_dllm.rivals import rival_of
from seer_dllm.row import Row
from seer_dllm.text import TextTokenizer, load_tokenizer
from seer_dllm.vision import IMAGE_PLACEHOLDER, PictureCodes, VisionEncoder, open_image, splice_image
from seer_ext import info


@dataclass(frozen=True)
class Result:
    """One answer and what it cost.

    Attributes:
        text: the answer up to its end (or stop string), special tokens left out.
        ids: token ids before the end (or stop string).
        window_ids: all ids of the final window.
        boundary: slots before the jump found at step 0; None if the row was not probed. Of other methods the slots that
            they settled on (`eos_logit`, `early_stop`: before the end).
        snr: signal-to-noise ratio of that jump; 0 if none was found.
        sparsity: quiet share of each slot of the full window at step 0, which gave the boundary; None as above.
        finish_reason: "end" (an end token), "stop" (a stop string), "length" (the window is full).
        truncated: whether the window was cut; `reason` says why not.
        extended: how often the window grew: by the safety net (`net_early` + `net_late`), or by another method.
        steps: denoising steps; forwards: passes through the model (a prompt's prefill is one).
        token_forwards: tokens times the share of layers that they passed, cfg twins included.
        net_forwards, net_token_forwards: the part of both that the safety net caused: step 0 anew after each early
            growth, and every pass after the first late one. Without late growth, `forwards - net_forwards` is what a
            cut to the final window at once would have taken.
        useful_tokens, window_tokens, prompt_tokens: tokens in `ids`; slots of the final window; prompt length.
        seconds: wall time from the start of the batch to the end of this row.
    """

    text: str
    ids: list[int] = field(repr=False)
    window_ids: list[int] = field(repr=False)
    boundary: int | None
    snr: float | None
    sparsity: list[float] | None = field(repr=False)
    finish_reason: str
    truncated: bool
    reason: str | None
    extended: int
    net_early: int
    net_late: int
    steps: int
    forwards: int
    token_forwards: float
    net_forwards: int
    net_token_forwards: float
    useful_tokens: int
    window_tokens: int
    prompt_tokens: int
    seconds: float


@dataclass
class Model:
    """A loaded checkpoint: the parts that `generate` needs. Made by `load`."""

    family: Family | None  # None: a wrapped model, which takes no text
    backbone: Backbone
    vision: VisionEncoder | PictureCodes | None
    tokenizer: TextTokenizer | None
    end_ids: tuple[int, ...]
    profile: Profile
    system_prompt: str | None = "default"

    @property
    def modules(self) -> list[nn.Module]:
        """Those whose weights an answer depends on."""
        backbone = self.backbone if isinstance(self.backbone, nn.Module) else self.backbone.model
        vision = self.vision.encoder if isinstance(self.vision, PictureCodes) else self.vision
        return [backbone] if vision is None else [backbone, vision]

    def encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise ValueError("checkpoint must hold tokenizer.json to turn text into tokens, it has none")
        return self.tokenizer.encode(text)

    @torch.inference_mode()
    def embed_prompt(self, text: str, images: Sequence = ()) -> Tensor:
        """`[P, H]` embeddings of a user turn and its pictures (paths, bytes, PIL images) in the family's template.

        ValueError, FileNotFoundError: the model reads no pictures, or not as many, or its picture encoder is missing.
        """
        if images and self.vision is None and not self.family.codes:
            raise ValueError(
                f"images must be empty for a {self.family.name} model, which has no image tower, got {len(images)}"
            )
        pictures = [open_image(image) for image in images]
        ids = prompt_ids(self.encode, self.family.chat, text, len(pictures), self.system_prompt)
        if pictures and self.vision is None:
            raise FileNotFoundError(
                f"checkpoint must hold magvitv2.safetensors for {self.family.name} to read pictures, which is missing; "
                "it has the weights published as showlab/magvitv2"
            )
        return self.embed_ids(torch.tensor(ids), self.vision.encode_images(pictures) if pictures else [])

    @torch.inference_mode()
    def embed_ids(self, ids: Tensor, features: Sequence[Tensor] = ()) -> Tensor:
        """`[P, H]` embeddings of prompt ids `[L]` int64, with image features in place of the placeholders.

        ValueError: an id is outside the vocabulary or is the mask id (the model would have to fill it).
        """
        config = self.backbone.config
        plain = ids[ids != IMAGE_PLACEHOLDER]
        if len(plain) and not 0 <= int(plain.min()) <= int(plain.max()) < config.vocab_size:
            raise ValueError(
                f"prompt ids must be in [0, {config.vocab_size}), got {int(plain.min())}..{int(plain.max())}"
            )
        if bool((plain == config.mask_id).any()):
            raise ValueError(f"prompt must not hold the mask id {config.mask_id}; pass text around masks as draft")
        return splice_image(ids.to(self.backbone.device), list(features), self.backbone.embed)


def load(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    profile: Profile | str | Path | None = None,
) -> Model:
    """Load a checkpoint folder in its hub layout (safetensors only; nothing is downloaded and no code of it is run).

    Args:
        dtype: "float32", "bfloat16" or "float16" (or the torch dtype).
        profile: where and how the model shows the end, or a file of `seer calibrate`; None takes the folder's
            `seer_profile.json`, and where there is none the conservative default.
    Raises:
        FileNotFoundError: the folder, config.json, weight files or the profile's file are missing.
        ValueError: unknown family, missing or misshapen tensors, pickle weights, a tokenizer that is broken or needs
            code of the folder, a profile that is broken or names layers that the model lacks, unknown dtype or device.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"model must be a folder with a checkpoint, got {str(path)!r}")
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        dtype = DTYPES[dtype]
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    device = _checked_device(device)
    ours = read_json(folder / "seer.json") if (folder / "seer.json").is_file() else {}
    if "profile" in ours:
        raise ValueError(f"{folder / 'seer.json'} must not hold a profile, which belongs into {PROFILE_FILE} beside it")
    profile = find_profile(folder, profile)
    family, raw, backbone, vision = load_parts(folder, dtype, device)
    if profile is not None:
        check_profile(profile, backbone.config)
    tokenizer = load_tokenizer(folder)
    if tokenizer is not None:
        tokenizer.add_missing(family.added_tokens)
        if family.codes:
            vision = load_codes(folder, raw, backbone, tokenizer, ours.get("image_resolution"))
    end_ids = [backbone.config.eos_id]
    if tokenizer is not None:
        end_ids += [tokenizer.token_to_id(token) for token in ours.get("end_tokens", family.end_tokens)]
    return Model(
        family,
        backbone,
        vision,
        tokenizer,
        tuple(dict.fromkeys(i for i in end_ids if i is not None)),
        profile or Profile(),
        ours.get("system_prompt", "default"),
    )


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be a torch device such as cpu or cuda, got {device!r}") from None
    if found.type not in info.devices():
        known = ", ".join(info.devices())
        raise ValueError(f"device must be one this build has kernels for ({known}), got {str(device)!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be there, but torch finds no CUDA device, got {str(device)!r}")
    return found


def generate(
    model: Model, prompts, *, images=None, config=None, truncation="default", drafts=None, on_step: OnStep | None = None
) -> list[Result]:
    """Answer a batch of prompts. Rows may differ in everything; each row's answer does not depend on the others.

    Args:
        prompts: a list with, per row, a question (str, put into the family's chat template) or embeddings `[P, H]`.
        images: per row a picture (path, bytes or PIL image), a list of them, or None.
        config: a `GenerationConfig`, or one per row.
        truncation: a `Truncation`, or one per row; None runs the stock algorithm. The default is `Truncation()`.
        drafts: per row None, or int64 ids `[<= window]` that the window starts with; mask ids are to be filled.
        on_step: called with the row's state (`seer_dllm.row.Row`) after each of its steps.
    Returns:
        One `Result` per prompt, in order.
    Raises:
        ValueError, TypeError, OSError: an argument is invalid or a picture unreadable; no row has been run then.
    """
    rows, profile = prepare(model, prompts, images, config, truncation, drafts)
    denoise(model.backbone, rows, profile, on_step)
    return [result_of(model, row) for row in rows]


def prepare(
    model: Model, prompts, images=None, config=None, truncation="default", drafts=None
) -> tuple[list[Row], Profile]:
    """The rows that `generate` runs for these arguments, and the profile they are probed with. Raises as it does."""
    started = time.perf_counter()
    if not isinstance(prompts, list | tuple):
        raise ValueError(f"prompts must be a list with one entry per row, got a {type(prompts).__name__}")
    n = len(prompts)
    configs = _per_row("config", GenerationConfig() if config is None else config, n, GenerationConfig)
    truncations = _per_row("truncation", Truncation() if truncation == "default" else truncation, n, Truncation | None)
    pictures = [_pictures(i, p) for i, p in enumerate(_per_row("images", images, n, object))]
    drafts = _per_row("drafts", drafts, n, object)
    profiles = {t.profile or model.profile for t in truncations if t is not None}
    if len(profiles) > 1:
        raise ValueError(f"truncation must name one profile for the whole batch, got {len(profiles)} different ones")
    profile = profiles.pop() if profiles else model.profile
    if any(c.cache == "prompt" for c in configs) and not model.family.prefix_trained:
        warnings.warn(
            f"the prompt cache is an approximation for {model.family.name} models, which were not trained with prompts "
            "that do not see the window",
            stacklevel=3,
        )
    rivals = [rival_of(t, c, d is not None) for t, c, d in zip(truncations, configs, drafts, strict=True)]
    if any(t is not None for t in truncations):
        check_profile(profile, model.backbone.config)

    windows = [_window(model, i, c, d) for i, (c, d) in enumerate(zip(configs, drafts, strict=True))]
    embedded = [_embedded(model, i, p, images) for i, (p, images) in enumerate(zip(prompts, pictures, strict=True))]
    rows = []
    settings = zip(embedded, windows, configs, truncations, rivals, strict=True)
    for i, (prompt, ids, config, truncation, rival) in enumerate(settings):
        longest = model.backbone.config.max_length
        if len(prompt) + config.window > longest:
            raise ValueError(
                f"prompts[{i}] and window must fit the model's {longest} positions, got {len(prompt)} + {config.window}"
            )
        mask_id = model.backbone.config.mask_id
        reason = why_not(config, truncation, profile, last_fixed(ids, mask_id))
        if reason is not None:
            truncation = rival = None
        has_stop = partial(_holds_stop, model, stop=config.stop) if config.stop else None
        shift = model.backbone.config.shift
        row = Row(i, prompt, ids, config, truncation, mask_id, model.end_ids, shift, has_stop, rival)
        row.reason, row.started = reason, started
        rows.append(row)
    return rows, profile


def _per_row(name: str, value, n: int, kind) -> list:
    """`value`, or its entries where it is a list, once per row."""
    values = list(value) if isinstance(value, list | tuple) else [value] * n
    if len(values) != n:
        raise ValueError(f"{name} must be one value or one per prompt ({n}), got {len(values)}")
    for v in values:
        if not isinstance(v, kind):
            expected = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{name} must be a {expected} or one per prompt, got {v!r}")
    return values


def _pictures(index: int, value) -> list:
    """A row's pictures; a single one needs no list."""
    if value is None:
        return []
    if isinstance(value, str | Path | bytes | Image.Image):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError(f"images[{index}] must be a picture or a list of pictures, got a {type(value).__name__}")
    return list(value)


def _embedded(model: Model, index: int, prompt, images: list) -> Tensor:
    """`[P, H]` of a row's prompt, in the model's dtype."""
    hidden = model.backbone.config.hidden_size
    if isinstance(prompt, str):
        return model.embed_prompt(prompt, images)
    if not isinstance(prompt, Tensor) or not prompt.is_floating_point():
        kind = f"{prompt.dtype} tensor" if isinstance(prompt, Tensor) else type(prompt).__name__
        raise ValueError(f"prompts[{index}] must be a text or float embeddings [P, {hidden}], got a {kind}")
    if prompt.dim() != 2 or prompt.shape[1] != hidden:
        raise ValueError(f"prompts[{index}] must have shape [P, {hidden}], got {list(prompt.shape)}")
    if images:
        raise ValueError(f"images[{index}] must be empty beside embeddings, which hold them already, got {len(images)}")
    return prompt.to(model.backbone.device, model.backbone.dtype)


def _window(model: Model, index: int, config: GenerationConfig, draft) -> Tensor:
    """int64 `[G]`: the draft's ids, then masks."""
    backbone = model.backbone
    ids = torch.full((config.window,), backbone.config.mask_id, dtype=torch.int64)
    if draft is None:
        return ids
    draft = torch.as_tensor(draft)
    if draft.dim() != 1 or len(draft) > config.window:
        raise ValueError(f"drafts[{index}] must hold at most window={config.window} ids, got {list(draft.shape)}")
    if draft.is_floating_point() or draft.is_complex() or draft.dtype == torch.bool:
        raise ValueError(f"drafts[{index}] must hold whole numbers, got {draft.dtype}")
    if len(draft) and not 0 <= int(draft.min()) <= int(draft.max()) < backbone.config.vocab_size:
        low, high = int(draft.min()), int(draft.max())
        raise ValueError(f"drafts[{index}] ids must be in [0, {backbone.config.vocab_size}), got {low}..{high}")
    ids[: len(draft)] = draft.to(ids)
    return ids


def _text(model: Model, ids: list[int]) -> str:
    return model.tokenizer.decode(ids) if model.tokenizer is not None else ""


def _holds_stop(model: Model, ids: list[int], stop: Sequence[str]) -> bool:
    text = _text(model, ids)
    return any(s in text for s in stop)


def _before_stop(model: Model, ids: list[int], stop: Sequence[str]) -> tuple[str, list[int], bool]:
    """Text and ids before the first stop string, and whether there was one.

    The ids are the longest prefix whose text holds no stop string, so that what was cut is not counted as useful.
    """
    text = _text(model, ids)
    found = [at for at in (text.find(s) for s in stop) if at >= 0]
    if not found:
        return text, ids, False
    low, high = 0, len(ids)  # decode(ids[:high]) holds a stop string, decode(ids[:low]) none
    while high - low > 1:
        middle = (low + high) // 2
        if _holds_stop(model, ids[:middle], stop):
            high = middle
        else:
            low = middle
    return text[: min(found)], ids[:low], True


def result_of(model: Model, row: Row) -> Result:
    """The answer of a row that `denoise` has finished."""
    ids = row.ids.tolist()
    end = row.end()
    text, useful, stopped = _before_stop(model, ids if end is None else ids[:end], row.config.stop)
    finish = "stop" if stopped else "length" if end is None else "end"
    c = row.counters
    return Result(
        text=text, ids=useful, window_ids=ids, boundary=row.boundary, snr=row.snr, sparsity=row.sparsity,
        finish_reason=finish,
        truncated=row.truncated, reason=row.reason, extended=c.net_early + c.net_late + c.grown,
        net_early=c.net_early,
        net_late=c.net_late, steps=c.steps, forwards=c.forwards,
        token_forwards=c.token_layers / model.backbone.config.n_layers, net_forwards=c.net_forwards,
        net_token_forwards=c.net_token_layers / model.backbone.config.n_layers, useful_tokens=len(useful),
        window_tokens=row.window, prompt_tokens=len(row.prompt), seconds=row.finished - row.started,
    )  # fmt: skip
