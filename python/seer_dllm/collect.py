"""What calibration measures: where stock answers end, and how quiet every layer is at step 0, at several thresholds."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from seer_dllm import api
from seer_dllm.backbone import Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.config import GenerationConfig
from seer_dllm.journal import append_journal, read_journal, weights_signature
from seer_dllm.row import Row
from seer_dllm.search import FULL, Measured
from seer_dllm.vision import open_image
from seer_ext import ops

THRESHOLDS = 16  # candidates
LOOKED_AT = 8  # samples whose activations give the thresholds' range
RECORD = {"needs", "ended", "prompt", "steps", "unread", "shares"}
LEVELS = (0.2, 0.35, 0.5, 0.65, 0.8)  # quantiles of a token's activations among which thresholds are taken (ours)


@dataclass(frozen=True)
class Sample:
    """A question and its pictures, as `generate` takes them; ids or embeddings for a wrapped model.

    Attributes:
        answers: what counts as right, for an evaluation.
        id: the question's name; the line's number where the file gives none.
    """

    prompt: str | Tensor | Sequence[int]
    images: tuple = ()
    answers: tuple[str, ...] = ()
    id: str | int | None = None


KEYS = {"prompt", "image", "images", "answer", "answers", "id"}


def read_samples(file: Path, scored: bool = False) -> list[Sample]:
    """Samples of a JSONL file: `{"prompt": str, "images": [path, ...], "answers": [str, ...], "id": str}` per line.

    Paths are relative to the file; `image` and `answer` stand for a list of one; all but the prompt may be left out,
    the answers only if not `scored`. Every line is checked and every picture opened. FileNotFoundError, ValueError name
    the file and the line.
    """
    if not file.is_file():
        raise FileNotFoundError(f"data must be a JSONL file, got {str(file)!r}")
    samples: dict[str | int, Sample] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            sample = _sample(json.loads(line.decode()), file.parent, number)
            if scored and not sample.answers:
                raise ValueError("answers must hold at least one text")
            if sample.id in samples:
                raise ValueError(f"id must be another than that of a line before, got {sample.id!r}")
        except (ValueError, OSError) as error:  # broken JSON and UTF-8 are ValueErrors
            raise ValueError(f"{file}, line {number}: {error}") from None
        samples[sample.id] = sample
    return list(samples.values())


def _sample(entry: Any, folder: Path, number: int) -> Sample:
    if not isinstance(entry, dict) or set(entry) - KEYS:
        got = ", ".join(map(repr, entry)) if isinstance(entry, dict) else f"a {type(entry).__name__}"
        raise ValueError(f"must be an object with prompt and, if any, images, answers and id, got {got}")
    prompt, name = entry.get("prompt"), entry.get("id", number)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt must hold some text, got {prompt!r}")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f"id must be a text or a whole number, got {name!r}")
    paths = tuple(folder / image for image in _texts(entry, "image", "images", "path"))
    for path in paths:
        open_image(path)
    return Sample(prompt, paths, _texts(entry, "answer", "answers", "text"), name)


def _texts(entry: dict[str, Any], one: str, many: str, kind: str) -> tuple[str, ...]:
    """The list under the key `many`, or what stands alone under `one`."""
    if one in entry and many in entry:
        raise ValueError(f"{one} must not be there beside {many}, got {entry[one]!r}")
    values = [entry[one]] if one in entry else entry.get(many, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and value.strip() for value in values):
        rule = f"{one} must be a {kind}" if one in entry else f"{many} must be a list of {kind}s"
        raise ValueError(f"{rule}, got {entry[one if one in entry else many]!r}")
    return tuple(values)


@dataclass
class Sweep(Probe):
    """Measures each of its layers at several thresholds: per layer `[T, K]`."""

    thresholds: tuple[float, ...] = ()

    def observe(self, layer: int, act: Tensor, share: Tensor | None) -> None:
        self.per_layer[layer] = self.measure(act)

    def measure(self, act: Tensor) -> Tensor:
        return torch.stack([ops.mlp_sparsity(act, t) for t in self.thresholds], dim=-1)


class Quantiles(Sweep):
    """Takes quantiles of each token's activations instead; `thresholds` are their levels."""

    def measure(self, act: Tensor) -> Tensor:
        levels = torch.tensor(self.thresholds, device=act.device)
        return act.abs().float().quantile(levels, dim=-1).movedim(0, -1)


@dataclass
class Collector:
    """Runs samples with one model, which may be a wrapped one (`Wrapped.as_model`), and one configuration."""

    model: api.Model
    config: GenerationConfig
    batch: int

    def __post_init__(self) -> None:
        self.backbone = self.model.backbone
        self.layers = tuple(range(self.backbone.config.n_layers))

    def prompts(self, samples: Sequence[Sample], first: int = 0) -> list[Tensor]:
        """`[P, H]` each. Errors name the sample."""
        found = []
        for number, sample in enumerate(samples, first):
            try:
                text = isinstance(sample.prompt, str)
                found.append(self.model.embed_prompt(sample.prompt, sample.images) if text else sample.prompt)
            except (ValueError, OSError) as error:
                raise type(error)(f"samples[{number}]: {error}") from None
        return found

    @torch.inference_mode()
    def step_zero(self, prompts: Sequence[Tensor], probe: Sweep) -> tuple[Tensor, list[list[int]]]:
        """The first forward of a stock run under a probe.

        Returns:
            `[B, layers, K, G+1]` of the window's slots, the position before them first; and, per row, how many first
            slots can't be read with slot offset 0 and with 1.
        """
        config = self.backbone.config
        window = torch.full((self.config.window,), config.mask_id, device=self.backbone.device)
        rows = [
            Row(i, prompt, window.clone(), self.config, None, config.mask_id, self.model.end_ids, config.shift)
            for i, prompt in enumerate(prompts)
        ]
        canvas = Canvas(self.backbone, rows, prefill(self.backbone, rows))
        canvas.forward(canvas.embeddings(), probe=probe)
        values = torch.stack([probe.per_layer[i] for i in self.layers], dim=1)
        own, before = (canvas.window_values(values, offset)[0] for offset in (0, 1))
        unread = [list(pair) for pair in zip(canvas.unread(0), canvas.unread(1), strict=True)]
        return torch.cat((before[:, :1], own), dim=1).permute(0, 2, 3, 1), unread

    def answers(self, prompts: Sequence[Tensor]) -> list[dict[str, int]]:
        """Of stock's answers: slots needed, their end included, whether there is an end, prompt tokens and steps."""
        ends = set(self.model.end_ids)
        found = []
        for result in api.generate(self.model, list(prompts), config=self.config, truncation=None):
            end = next((i for i, token in enumerate(result.window_ids) if token in ends), None)
            needs = self.config.window if end is None else end + 1
            found.append(
                {"needs": needs, "ended": end is not None, "prompt": result.prompt_tokens, "steps": result.steps}
            )
        return found

    def thresholds(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Thresholds spread over what a few samples' activations span: in all layers, before and behind the end.

        Quantiles of their quantiles, so that most lie where most layers have their activations, and a few dead layers
        do not draw the grid apart.
        """
        picked = [samples[i] for i in sorted({i * len(samples) // LOOKED_AT for i in range(LOOKED_AT)})]
        prompts = self.prompts(picked)
        values, _ = self.step_zero(prompts, Quantiles(self.layers, 0.0, thresholds=LEVELS))
        before, behind = [], []
        for row, answer in zip(values[..., 1:], self.answers(prompts), strict=True):
            before.append(row[..., : answer["needs"]])
            behind.append(row[..., answer["needs"] :])
        span = torch.stack([torch.cat(side, dim=-1).mean(-1) for side in (before, behind)])
        span = span[span.isfinite() & (span > 0)]  # a side without slots has no mean
        if not len(span):
            raise ValueError("model must have MLP activations that are not zero for calibration, it has none")
        grid = span.double().log().quantile(torch.linspace(0, 1, THRESHOLDS).double()).exp()
        return tuple(dict.fromkeys(float(f"{threshold:.2g}") for threshold in grid.tolist()))

    def collect(self, samples: Sequence[Sample], work: Path) -> Measured:
        """Run what is missing in the journal `work`, and return everything."""
        owner = f"{weights_signature(self.model.modules)}; {asdict(self.config)}; samples {fingerprint(samples)}"
        lines = read_journal(work, owner, "work")
        if not lines:
            lines = [{"thresholds": self.thresholds(samples)}]
            append_journal(work, owner, lines)
        head, *made = lines
        if "thresholds" not in head or any(line.keys() != RECORD for line in made):
            raise ValueError(f"work {str(work)!r} must hold records of this command, got others")
        thresholds = tuple(head["thresholds"])
        bar = tqdm(total=len(samples), initial=len(made), desc="stock answers", mininterval=1)
        with bar:
            for first in range(len(made), len(samples), self.batch):
                prompts = self.prompts(samples[first : first + self.batch], first)
                shares, unread = self.step_zero(prompts, Sweep(self.layers, 0.0, thresholds=thresholds))
                answers = zip(self.answers(prompts), shares, unread, strict=True)
                new = [answer | {"unread": skip, "shares": _pack(share)} for answer, share, skip in answers]
                append_journal(work, owner, new)
                made += new
                bar.update(len(new))
        shape = (len(self.layers), len(thresholds), self.config.window + 1)
        return Measured(
            np.stack([_unpack(line["shares"], shape) for line in made]),
            thresholds,
            *(torch.tensor([line[name] for line in made]) for name in ("needs", "ended", "prompt", "steps", "unread")),
        )


def _pack(share: Tensor) -> str:
    """Fixed point, 65535 for 1: finer than float16 and exact enough for any width."""
    return base64.b64encode(
        zlib.compress((share.float().cpu() * FULL).round().numpy().astype("<u2").tobytes())
    ).decode()


def _unpack(text: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2").reshape(shape)


def fingerprint(samples: Sequence[Sample]) -> str:
    """Changes with any prompt and any pixel or byte of a picture."""
    digest = hashlib.sha256()
    for sample in samples:
        prompt = sample.prompt.tolist() if isinstance(sample.prompt, Tensor) else sample.prompt
        digest.update(repr(prompt).encode())
        for image in sample.images:
            digest.update(image if isinstance(image, bytes) else _bytes(image))
    return digest.hexdigest()[:16]


def _bytes(image: Image.Image | str | Path) -> bytes:
    return image.tobytes() if isinstance(image, Image.Image) else Path(image).read_bytes()
