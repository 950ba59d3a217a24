"""Golden folders as loaded models, and a way to follow a generation step by step."""

from functools import cache
from pathlib import Path

import torch
from harness import Case

import seer_dllm
from seer_dllm.vision import splice_image

LLADA = {"llada", "llada_gqa", "mmada"}  # one model, under the same names
NATIVE = LLADA | {"lavida_llada", "dream", "lavida_dream"}


@cache
def _load(folder: Path) -> seer_dllm.Model:
    return seer_dllm.load(folder)


def model_of(case: Case) -> seer_dllm.Model:
    """The case's model. The fixtures have no tokenizer, so their ends are named in cases.json."""
    model = _load(case.folder)
    model.end_ids = tuple(case.token_ids[k] for k in ("eos", "eot") if k in case.token_ids)
    return model


@torch.inference_mode()
def prompt_of(case: Case, suffix: str = "", size_at: int | None = None) -> torch.Tensor:
    """`[P, H]` prompt embeddings of the case's only row, or of row `suffix` (".0", ".1", ...)."""
    model = model_of(case)
    ids = case.inputs["input_ids" + suffix][0]
    features = []
    if "pixel_values" + suffix in case.inputs:
        size = case.settings["image_size_wh"]
        features = [
            model.vision(case.inputs["pixel_values" + suffix], tuple(size if size_at is None else size[size_at]))
        ]
    return splice_image(ids, features, model.backbone.embed)


def run(model: seer_dllm.Model, prompts, configs, *, truncation=None, drafts=None):
    """Results and, per row, the window's ids after each step."""
    history = [[] for _ in prompts]

    def follow(row) -> None:
        history[row.index].append(row.ids.clone())

    results = seer_dllm.generate(model, prompts, config=configs, truncation=truncation, drafts=drafts, on_step=follow)
    return results, [torch.stack(h) for h in history]


def before_each_step(history: torch.Tensor, mask_id: int, known: int = 0) -> torch.Tensor:
    """Ids that each forward saw, from the ids after each step of a window that began masked but for `known` slots."""
    first = torch.full_like(history[:1], mask_id)
    first[:, :known] = history[:1, :known]
    return torch.cat((first, history[:-1]))
