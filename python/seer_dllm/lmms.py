"""The model "seer" of the evaluation library lmms-eval, which finds it by this project's entry point.

Only this file imports that library. Requests run through the engine, as many at once as `--batch_size` says: each has
the settings of its own task, and its answer does not depend on the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.model import lmms
from loguru import logger
from tqdm import tqdm

from seer_dllm import api
from seer_dllm.config import GenerationConfig, Truncation, check_bool, check_choice, check_number, check_positive
from seer_dllm.demo import model_folder
from seer_dllm.engine import Engine
from seer_dllm.evaluation import prediction_of

# Names in `gen_kwargs` of Hugging Face, LLaDA, LaViDa, LLaDA-V and MMaDA for fields of `GenerationConfig`.
ALIASES = {
    "max_new_tokens": "window",
    "gen_length": "window",
    "block_length": "block",
    "gen_steps": "steps",
    "schedule__shift": "shift",
    "remasking": "commit",
    "alg": "commit",
    "cfg": "cfg_scale",
    "logits_eos_inf": "suppress_eos",
    "confidence_eos_eot_inf": "defer_end",
}
COMMIT = {"entrophy": "entropy", "topk_margin": "margin", "maskgit_plus": "low_confidence"}  # (sic)
STOPS = ("until", "stopping_criteria", "stop")
CONVERTED = ("prefix_lm", "step_per_block", "step_ratio", "do_sample")
ONE = ("num_beams", "repetition_penalty")  # what they would change, no sampler here does
IGNORED = ("image_aspect_ratio",)
FIELDS = tuple(f.name for f in fields(GenerationConfig))
NO_STOP = ["\n\n"]  # lmms-eval's entry for a task that names no stop string: its separator of few-shot examples
NOT_SAMPLING = {"temperature": 0, "top_p": 1, "top_k": None}


def settings(gen_kwargs: Mapping, family: str) -> GenerationConfig:
    """What a task's `gen_kwargs` ask of a model of this family (`Family.name`).

    Known are the fields of `GenerationConfig`, the references' names for them (`ALIASES`), and

    * until, stopping_criteria, stop: stop strings, one or a list; all of them cut. Two newlines as the only `until` are
      none, because lmms-eval puts them where a task has none; the references ignore `until` altogether.
    * prefix_lm: LaViDa's name for the "prompt" cache.
    * step_per_block, step_ratio: LaViDa's steps of a block: at most its slots, or this share of them.
    * do_sample: False leaves temperature, top_p and top_k unused, as in Hugging Face; a warning tells if they are set.
    * num_beams, repetition_penalty: must be 1. image_aspect_ratio: ignored with a warning, the checkpoint's holds.

    None is as good as absent. What is left open is as in LaViDa's evaluation (window 256, blocks of at most 128, one
    slot a step, temperature 0), and for Dream's families as in Dream's (no blocks, its schedule, rule "entropy").

    Raises:
        ValueError: a name is unknown, two of them say the same, or a value is out of range.
    """
    known = (*FIELDS, *ALIASES, *STOPS[:2], *CONVERTED, *ONE, *IGNORED)
    values: dict[str, Any] = {}
    source: dict[str, str] = {}
    stop: list[str] = []
    for name, value in gen_kwargs.items():
        if name not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; it is none, got {value!r}")
        if value is None:
            continue
        if name in ONE:
            if value != 1:
                raise ValueError(f"{name} must be 1, got {value!r}")
        elif name in IGNORED:
            _warn_once(f"{name}={value!r} is not used: pictures are prepared as the checkpoint says")
        elif name in STOPS:
            stop += _stops(name, value)
        else:
            field = ALIASES.get(name, name)
            if field in source:
                raise ValueError(f"{name} must be left out beside {source[field]}, which says the same, got {value!r}")
            source[field], values[field] = name, value
    return _completed(values, tuple(dict.fromkeys(stop)), "dream" in family)


def _stops(name: str, value) -> list[str]:
    texts = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} must be a string or a list of strings, got {value!r}")
    return [] if name == "until" and list(texts) == NO_STOP else list(texts)


def _completed(values: dict[str, Any], stop: tuple[str, ...], dream: bool) -> GenerationConfig:
    """The configuration, from fields and `CONVERTED` by their names; those are taken out."""
    window = values.setdefault("window", 256)
    check_positive("window", window)
    block = values.setdefault("block", window if dream else min(128, window))
    check_positive("block", block)
    values.setdefault("schedule", "dream" if dream else "even")
    rule = values.get("commit", "entropy" if dream else "low_confidence")
    values["commit"] = COMMIT.get(str(rule), rule)
    if "prefix_lm" in values:
        if "cache" in values:
            raise ValueError(f"prefix_lm must be left out beside cache, got {values['prefix_lm']!r}")
        check_bool("prefix_lm", values["prefix_lm"])
        values["cache"] = "prompt" if values.pop("prefix_lm") else "none"
    blocks = -(-window // block)
    given = {name: values[name] for name in ("steps", "step_per_block", "step_ratio") if name in values}
    if len(given) > 1:
        raise ValueError(f"steps must be given by one name, got {given}")
    if "step_ratio" in given:
        ratio = values.pop("step_ratio")
        check_number("step_ratio", ratio, 0.0, 1.0)
        values["steps"] = int(block * ratio) * blocks
        values["times"] = window  # Dream's times are laid out for all steps, and only the first are walked
    if "step_per_block" in given:
        check_positive("step_per_block", values["step_per_block"])
        values["steps"] = min(values.pop("step_per_block"), block) * blocks
    do_sample = values.pop("do_sample", True)
    check_bool("do_sample", do_sample)
    for name, neutral in NOT_SAMPLING.items():
        if not do_sample and (value := values.pop(name, neutral)) != neutral:
            _warn_once(f"{name}={value!r} is not used with do_sample=False")
    if values.get("top_p") == 1:
        del values["top_p"]  # nothing is left out, and the filter costs a sort
    return GenerationConfig(**values, stop=stop)


@cache
def _warn_once(text: str) -> None:
    """By lmms-eval's logger: its tasks turn Python's warnings off."""
    logger.warning(text)


class Seer(lmms):
    """A checkpoint as `seer_dllm.load` reads it, stock or cut.

    Args, all but `batch_size` and `device` from `--model_args`:
        pretrained: the checkpoint's folder; "demo" is the embedded model.
        dtype: "float32", "bfloat16" or "float16".
        device: a torch device; None: the CUDA device of this process (`LOCAL_RANK`), without CUDA the CPU.
        batch_size: requests that run at once.
        truncation: "seer", or "off" for the stock algorithm.
        profile: file of `seer calibrate`; None: as `seer_dllm.load` finds it.
        step0, steps_policy, safety_net: as in `Truncation`; None: its defaults.
    Raises:
        ValueError, FileNotFoundError: an argument is unknown or out of range, or `load` refuses the checkpoint.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        dtype: str = "float32",
        device: str | None = None,
        batch_size: int | str = 1,
        truncation: str = "seer",
        profile: str | None = None,
        step0: str | None = None,
        steps_policy: str | None = None,
        safety_net: bool | None = None,
        **unknown,
    ) -> None:
        super().__init__()
        given = {"step0": step0, "steps_policy": steps_policy, "safety_net": safety_net}
        given = {name: value for name, value in given.items() if value is not None}
        if unknown:
            known = ("pretrained", "dtype", "truncation", "profile", "step0", "steps_policy", "safety_net")
            raise ValueError(f"model_args must be of {', '.join(known)}, got {', '.join(unknown)}")
        if not pretrained or not isinstance(pretrained, str):
            raise ValueError(f"pretrained must be a checkpoint's folder or 'demo', got {pretrained!r}")
        self.batch_size = int(batch_size) if isinstance(batch_size, str) and batch_size.isdecimal() else batch_size
        check_positive("batch_size", self.batch_size)
        check_choice("truncation", truncation, ("seer", "off"))
        if truncation == "off" and given:
            raise ValueError(f"{', '.join(given)} must be left out with truncation=off, got {given}")
        self.truncation = None if truncation == "off" else Truncation(**given)
        if device in (None, "cuda"):
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device or torch.cuda.is_available() else "cpu"
        folder = model_folder() if pretrained == "demo" else Path(pretrained)
        self.model = api.load(folder, device=device, dtype=dtype, profile=profile)
        self.device = self.model.backbone.device

    def generate_until(self, requests) -> list[str]:
        """The texts that are scored (`seer_dllm.evaluation.prediction_of`), in the order of the requests.

        All settings are checked first. A request that fails by itself (a picture that can't be read, a prompt that
        doesn't fit) is told of in a warning, and its text is empty; the bar counts them.

        Raises:
            ValueError: the settings of a task are wrong; no request has been run then.
            RuntimeError: all requests failed.
        """
        configs = [self._config(i, request) for i, request in enumerate(requests)]
        texts = [""] * len(requests)
        engine = Engine(self.model, max_batch=self.batch_size)
        waiting, running = iter(enumerate(requests)), {}
        cut, failures = 0, []

        with tqdm(total=len(texts), desc="answers", unit="answer", mininterval=1, disable=self.rank != 0) as bar:

            def failed(i: int, error: Exception) -> None:
                _, _, _, document, task, split = requests[i].args
                failures.append(error)
                logger.warning(f"{task}, {split}, document {document} is scored as empty: {error}")
                bar.update()

            # Pictures are decoded when it is their turn: those of a whole benchmark don't fit into memory.
            while (new := list(islice(waiting, self.batch_size - len(running)))) or running:
                for i, request in new:
                    context, _, to_visual, document, task, split = request.args
                    try:
                        pictures = to_visual(self.task_dict[task][split][document])
                    except Exception as error:  # decoders raise almost anything
                        failed(i, error)
                        continue
                    id = engine.add_request(context, images=pictures, config=configs[i], truncation=self.truncation)
                    running[id] = i
                for answer in engine.step():
                    i = running.pop(answer.id)
                    if answer.error is not None:
                        failed(i, answer.error)
                        continue
                    texts[i] = prediction_of(answer.result.text, self.model.family.name)
                    cut += answer.result.truncated
                    bar.update()
                bar.set_postfix(cut=cut, failed=len(failures), refresh=False)
        if failures and len(failures) == len(texts):
            raise RuntimeError(f"all {len(texts)} requests failed, the first with: {failures[0]}") from failures[0]
        return texts

    def _config(self, i: int, request) -> GenerationConfig:
        """The settings of request number `i`. With a temperature, each draws numbers of its own."""
        _, gen_kwargs, *_, task, _ = request.args
        try:
            config = settings(gen_kwargs, self.model.family.name)
            return replace(config, seed=config.seed + i)
        except ValueError as error:
            raise ValueError(f"gen_kwargs of {task}: {error}") from None

    def loglikelihood(self, requests):
        raise NotImplementedError(
            "seer has no loglikelihood: a diffusion model gives none without sampling; "
            "take a task whose output_type is generate_until"
        )

    def generate_until_multi_round(self, requests):
        raise NotImplementedError("seer answers one user turn; take a task whose output_type is generate_until")


def manifest():
    """What lmms-eval asks of the entry point."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="seer", simple_class_path=f"{__name__}.{Seer.__name__}")
