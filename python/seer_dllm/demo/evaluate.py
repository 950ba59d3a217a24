"""`seer eval-demo`: held-out questions under many settings, stock beside Seer.

Every answer is one line of a JSONL file, written as soon as its batch is done; a second call with the same file goes on
where the first stopped. A longer evaluation contains a shorter one: it asks the same questions and more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain, product
from pathlib import Path
from statistics import fmean

from PIL import Image
from tqdm import tqdm

from seer_dllm.api import Model, Result, generate, load
from seer_dllm.config import GenerationConfig, Truncation
from seer_dllm.demo import data
from seer_dllm.demo.questions import KINDS
from seer_dllm.demo.scoring import exact
from seer_dllm.detection import kept_window
from seer_dllm.journal import append_journal, read_journal, weights_signature

SEED = 20261
DRAWN = 360  # questions drawn at a time: `heldout_questions` gives others where it is asked for another number
BATCH = 18
RUNS = {"stock": None, "carry": Truncation(step0="carry"), "restart": Truncation(step0="restart")}


@dataclass(frozen=True)
class Setting:
    """What a question is asked with: slots of the window, steps over all of it, slots of a block, and the cache."""

    window: int
    steps: int
    block: int
    cache: str

    @property
    def config(self) -> GenerationConfig:
        return GenerationConfig(window=self.window, steps=self.steps, block=self.block, cache=self.cache)

    def __str__(self) -> str:
        return f"window {self.window}, steps {self.steps}, block {self.block}, cache {self.cache}"


BASE = Setting(128, 128, 128, "none")
WINDOWS = tuple(Setting(w, w, w, "none") for w in (64, 128, 256))
# One factor at a time around the base.
STAR = (*WINDOWS, Setting(128, 32, 128, "none"), Setting(128, 128, 32, "none"), Setting(128, 128, 128, "prompt"))
GRID = tuple(
    Setting(w, w // divisor, block or w, cache)
    for w, divisor, block, cache in product((64, 128, 256), (1, 4), (None, 32), ("none", "prompt"))
)


@dataclass(frozen=True)
class Task:
    """One setting and run over the first `questions` questions."""

    setting: Setting
    run: str
    questions: int


def questions(n: int) -> list[tuple]:
    """The first `n` questions of the evaluation, kinds in turn, as `data.heldout_questions` gives them."""
    drawn = [data.heldout_questions(DRAWN, SEED + i) for i in range(-(-n // DRAWN))]
    return list(chain.from_iterable(drawn))[:n]


def plan(full: bool) -> list[Task]:
    """What is run, each setting and run once: the star, or in full the grid, and more questions for Seer alone."""
    tasks = {(s, run): 4 * len(KINDS) for s in (GRID if full else STAR) for run in RUNS}
    if full:
        tasks |= {(s, "carry"): 40 * len(KINDS) for s in WINDOWS}
    return [Task(setting, run, n) for (setting, run), n in tasks.items()]


@dataclass(frozen=True)
class Record:
    """One answer to question number `index`; the fields from `ids` on are those of `Result`.

    needs: tokens of the right answer, end included. planned: slots that the boundary alone kept, before the safety net.
    quiet_answer, quiet_padding: mean quiet share at step 0 of the slots that the right answer needs, and of the rest;
    None where the row was not probed or has no rest.
    """

    setting: Setting
    run: str
    index: int
    kind: str
    needs: int
    planned: int
    right: bool
    quiet_answer: float | None
    quiet_padding: float | None
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

    @classmethod
    def of(cls, model: Model, task: Task, index: int, kind: str, truth: str, result: Result) -> Record:
        planned = task.setting.window
        if result.truncated:
            planned, _ = kept_window(result.boundary, task.setting.config, model.profile.margin)
        needs = len(model.encode(truth)) + 1
        answer, rest = (result.sparsity or [])[:needs], (result.sparsity or [])[needs:]
        quiet = [fmean(shares) if rest else None for shares in (answer, rest)]
        taken = [f.name for f in fields(cls) if f.name in Result.__dataclass_fields__]
        return cls(
            task.setting, task.run, index, kind, needs, planned, exact(result.text, truth), *quiet,
            **{name: getattr(result, name) for name in taken},
        )  # fmt: skip


def read(file: Path, signature: str) -> list[Record]:
    """The records of an earlier call. A half-written last line, left by a stop, is dropped from the file.

    Raises:
        ValueError: the file belongs to other weights, another profile or other questions, or holds something else.
    """
    try:
        return [
            Record(**{**line, "setting": Setting(**line["setting"])}) for line in read_journal(file, signature, "out")
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"out {str(file)!r} must hold records of this command: {error}") from None


def evaluate(folder: Path, file: Path, tasks: Sequence[Task]) -> tuple[list[Record], Model]:
    """Run what of these tasks is missing in `file`, and return all its records and the model."""
    model = load(folder)
    signature = f"{weights_signature(model.modules)}; {model.profile}; {DRAWN} questions each of seed {SEED} on"
    records = read(file, signature)
    asked = questions(max(task.questions for task in tasks))
    done = {(r.setting, r.run, r.index) for r in records}
    missing = [(t, [i for i in range(t.questions) if (t.setting, t.run, i) not in done]) for t in tasks]
    with tqdm(total=sum(len(m) for _, m in missing), desc="answers", mininterval=1) as bar:
        for task, indices in missing:
            bar.set_postfix_str(f"{task.run}: {task.setting}")
            for first in range(0, len(indices), BATCH):
                made = list(answer(model, task, indices[first : first + BATCH], asked))
                records += made
                append_journal(file, signature, map(asdict, made))
                bar.update(len(made))
    return records, model


def answer(model: Model, task: Task, indices: list[int], asked) -> Iterator[Record]:
    """Records of these questions, batch by batch."""
    for first in range(0, len(indices), BATCH):
        some = indices[first : first + BATCH]
        results = generate(
            model,
            [asked[i][2] for i in some],
            images=[Image.fromarray(asked[i][0]) for i in some],
            config=task.setting.config,
            truncation=RUNS[task.run],
        )
        for i, result in zip(some, results, strict=True):
            _, kind, _, truth = asked[i]
            yield Record.of(model, task, i, kind, truth, result)
