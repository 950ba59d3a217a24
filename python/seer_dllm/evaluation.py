"""`seer eval`: questions of a JSONL file, answered by stock and by Seer, scored, and compared pairwise.

Every answer is a line of `predictions.jsonl`, written as soon as its batch is done; another call goes on from there.
Stock and Seer take turns batch by batch, so that what else the machine does hits both. Scores are computed from the
file at the end, hence another metric costs nothing.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from seer_dllm import api
from seer_dllm.chat import prompt_ids
from seer_dllm.collect import Sample, fingerprint, read_samples
from seer_dllm.comparison import paired, report, totals
from seer_dllm.config import GenerationConfig, Truncation, check_choice, check_positive
from seer_dllm.demo import model_folder
from seer_dllm.demo.evaluate import questions
from seer_dllm.files import check_output, written_whole
from seer_dllm.journal import append_journal, read_journal, weights_signature
from seer_dllm.metrics import find_metric
from seer_dllm.rivals import rival_of

RUNS = ("stock", "seer")
# What the families' own evaluations drop from the front of a text. LaViDa's sampler puts as many zeros before its
# answer as the prompt has tokens, and "!" is zero. Of LLaDA-V's rule only its stop strings are known to us (pass them
# as `stop`), of the others nothing.
LEADING = {"lavida_llada": "!", "lavida_dream": "!"}


def prediction_of(text: str, family: str) -> str:
    """What is scored of an answer's text: without what the family's evaluation drops in front, and stripped.

    The text ends at the first end token or stop string. LaViDa's evaluation decodes the whole window instead, and would
    append words behind the end; `Answer.words_behind_end` tells of them.
    """
    return text.lstrip(LEADING.get(family, "")).strip()


@dataclass(frozen=True)
class Answer:
    """One answer of one run; the fields from `ids` on are those of `Result`.

    question: fingerprint of prompt and pictures. words_behind_end: the window holds text behind its first end token.
    seconds: wall time of its batch by the batch's rows.
    """

    run: str
    id: str | int
    question: str
    text: str
    prediction: str
    words_behind_end: bool
    seconds: float
    ids: list[int]
    boundary: int | None
    truncated: bool
    reason: str | None
    net_early: int
    net_late: int
    finish_reason: str
    steps: int
    forwards: int
    token_forwards: float
    useful_tokens: int
    window_tokens: int
    prompt_tokens: int

    @property
    def key(self) -> tuple[str, str | int, str]:
        return self.run, self.id, self.question

    @classmethod
    def of(cls, model: api.Model, key: tuple[str, str | int, str], result: api.Result, seconds: float) -> Answer:
        behind = result.window_ids[len(result.ids) + 1 :] if result.finish_reason == "end" else []
        own = {"run", "id", "question", "prediction", "words_behind_end", "seconds"}
        taken = {f.name: getattr(result, f.name) for f in fields(cls) if f.name not in own}
        return cls(
            *key, prediction=prediction_of(result.text, model.family.name),
            words_behind_end=bool(model.tokenizer.decode(behind).strip()), seconds=seconds, **taken,
        )  # fmt: skip


def answer(
    model: api.Model,
    samples: Sequence[Sample],
    file: Path,
    *,
    config: GenerationConfig,
    truncation: Truncation,
    runs: Sequence[str] = RUNS,
    batch: int = 8,
) -> dict[str, list[Answer]]:
    """Every run's answers in order of the samples; what is missing in the journal `file` is run.

    Args:
        samples: each with answers and an id of its own.
        truncation: of the run "seer", whose method may be another one.
        runs: "stock", "seer" or both.
        batch: rows of a batch. It belongs to the journal, as do all settings, for the times that are kept there.
    Raises:
        ValueError, OSError: an argument is invalid, the journal belongs to something else (before any work), or a
            question can't be run.
    """
    check_plan(runs, batch)
    check_questions(model, samples)
    rival_of(truncation, config)
    truncation = truncation.resolved(config.cache, model.profile)
    where = f"{model.backbone.device}, {model.backbone.dtype}, {torch.get_num_threads()} threads"
    owner = f"{weights_signature(model.modules)}; {asdict(config)}; {asdict(truncation)}; batch {batch}; {where}"
    try:
        done = {made.key: made for made in (Answer(**line) for line in read_journal(file, owner, "out"))}
    except TypeError as error:
        raise ValueError(f"out {str(file)!r} must hold records of this command: {error}") from None
    marks = [(sample.id, fingerprint([sample])) for sample in samples]
    keys = {run: [(run, *mark) for mark in marks] for run in runs}
    missing = {run: [i for i, key in enumerate(keys[run]) if key not in done] for run in runs}
    total = len(samples) * len(keys)
    with tqdm(total=total, initial=total - sum(map(len, missing.values())), desc="answers", mininterval=1) as bar:
        for first in range(0, len(samples), batch):
            for run, left in missing.items():
                asked = [i for i in left if first <= i < first + batch]
                if not asked:
                    continue
                started = perf_counter()
                try:
                    results = api.generate(
                        model,
                        [samples[i].prompt for i in asked],
                        images=[list(samples[i].images) for i in asked],
                        config=config,
                        truncation=truncation if run == "seer" else None,
                    )
                except (ValueError, OSError) as error:
                    ids = ", ".join(repr(samples[i].id) for i in asked)
                    raise type(error)(f"questions {ids}: {error}") from None
                seconds = (perf_counter() - started) / len(asked)
                pairs = zip(asked, results, strict=True)
                made = [Answer.of(model, keys[run][i], result, seconds) for i, result in pairs]
                append_journal(file, owner, map(asdict, made))
                done |= {one.key: one for one in made}
                bar.update(len(made))
    return {run: [done[key] for key in keys[run]] for run in keys}


def check_plan(runs: Sequence[str], batch: int) -> None:
    check_positive("batch", batch)
    for run in runs:
        check_choice("runs", run, RUNS)


def check_questions(model: api.Model, samples: Sequence[Sample]) -> None:
    """Every prompt is made into tokens, one sample of each number of pictures is embedded. Errors name the question.

    ValueError, OSError: an answer or an id of its own is missing, a prompt can't be used, or the model doesn't read so
    many pictures.
    """
    if not samples:
        raise ValueError("data must hold at least one question, got none")
    if len({sample.id for sample in samples}) < len(samples):
        raise ValueError("samples must have an id of their own each, got some twice")
    counts = set()
    for sample in samples:
        count = len(sample.images)
        try:
            if not sample.answers:
                raise ValueError("answers must hold at least one text")
            prompt_ids(model.encode, model.family.chat, sample.prompt, count, model.system_prompt)
            if count and count not in counts:
                model.embed_prompt(sample.prompt, sample.images)
        except (ValueError, OSError) as error:
            raise type(error)(f"question {sample.id!r}: {error}") from None
        counts.add(count)


def compare(samples: Sequence[Sample], answers: dict[str, list[Answer]], metric: str) -> dict[str, Any]:
    """Scores as plain values: `runs` (`comparison.totals`), `pair` (`comparison.paired`, or None) and `questions`."""
    score = find_metric(metric)
    scores = {
        run: [score(one.prediction, sample.answers) for one, sample in zip(made, samples, strict=True)]
        for run, made in answers.items()
    }
    clusters = [pictures_of(sample) for sample in samples]
    runs = {run: totals(made, scores[run], clusters) for run, made in answers.items()}
    pair = None
    if set(runs) == set(RUNS):
        pair = paired(answers["seer"], answers["stock"], scores["seer"], scores["stock"], clusters)
    by_question = [
        {"id": sample.id, "answers": sample.answers}
        | {run: {"prediction": answers[run][i].prediction, "score": scores[run][i]} for run in runs}
        for i, sample in enumerate(samples)
    ]
    return {"pictures": len(set(clusters)), "runs": runs, "pair": pair, "questions": by_question}


def pictures_of(sample: Sample) -> str:
    """Equal for samples with the same pictures; a sample without one stands alone."""
    return fingerprint([Sample("", sample.images)]) if sample.images else f"question {sample.id!r}"


def built_in(n: int) -> list[Sample]:
    """Questions about held-out sheets for the demo model: the first `n` of those that `seer eval-demo` asks."""
    asked = enumerate(questions(n), 1)
    return [Sample(text, (Image.fromarray(image),), (truth,), i) for i, (image, _, text, truth) in asked]


def command(args: Namespace, config: GenerationConfig, truncation: Truncation) -> None:
    """`seer eval`."""
    find_metric(args.metric)
    check_plan(args.runs, args.batch)
    check_positive("samples", args.samples)
    if args.limit is not None:
        check_positive("limit", args.limit)
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"out must be a folder, got the file {str(args.out)!r}")
    files = {name: args.out / name for name in ("predictions.jsonl", "scores.json", "report.md")}
    for file in files.values():
        check_output("out", file)
    samples = built_in(args.samples) if args.data == "demo" else read_samples(Path(args.data), scored=True)
    samples = samples[: args.limit]
    folder = model_folder() if args.model == "demo" else Path(args.model)
    model = api.load(folder, device=args.device, dtype=args.dtype)
    predictions = files["predictions.jsonl"]
    answers = answer(
        model, samples, predictions, config=config, truncation=truncation, runs=args.runs, batch=args.batch
    )
    found = compare(samples, answers, args.metric)
    settings = {
        "model": args.model, "family": model.family.name, "data": args.data, "metric": args.metric,
        "pictures": found.pop("pictures"), "batch": args.batch, "device": str(model.backbone.device),
        "dtype": str(model.backbone.dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
        "generation": asdict(config), "truncation": asdict(truncation.resolved(config.cache, model.profile)),
        "dropped in front of a text": LEADING.get(model.family.name, "nothing but white space"),
    }  # fmt: skip
    method = "Seer" if args.method == "seer" else args.method
    shown = {method.lower() if run == "seer" else run: sums for run, sums in found["runs"].items()}
    text = report(settings, shown, found["pair"], method)
    scores = json.dumps({"settings": settings, **found}, indent=1, ensure_ascii=False)
    written = {"scores.json": scores, "report.md": text}
    for name, content in written.items():
        with written_whole(files[name]) as file:
            file.write_text(content + "\n", encoding="utf-8")
    print(text)
