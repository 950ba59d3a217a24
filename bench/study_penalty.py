"""What the activity penalty does to the demo model: one training per strength, from the same weights, measured alike.

    python bench/study_penalty.py --start DIR --work DIR --out bench/results/study_penalty.md

`--start` is a checkpoint that has learned the task without a penalty, so that strength 0 is the negative control: a
twin that has seen as much, the early loss included. Each training has the penalty for 80 % of its steps and rests for
the last fifth. Trainings resume from `--work`; finished ones are only measured again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from seer_dllm import Profile, load
from seer_dllm.comparison import CutCounts
from seer_dllm.demo import data, evaluate, model_folder
from seer_dllm.demo.questions import KINDS
from seer_dllm.tables import markdown, mean, percent

SETTING = evaluate.Setting(window=128, steps=32, block=128, cache="none")


def measure(folder: Path, profile: Profile, questions: int) -> list[str]:
    """Accuracy, jump and cuts of one checkpoint, as cells of the table."""
    model = replace(load(folder), profile=profile)
    asked = data.heldout_questions(questions, evaluate.SEED)
    tasks = {run: evaluate.Task(SETTING, run, questions) for run in ("stock", "carry")}
    found = {run: list(evaluate.answer(model, task, list(range(questions)), asked)) for run, task in tasks.items()}
    stock, seer = found["stock"], found["carry"]
    counts = CutCounts.of(zip(seer, stock, strict=True))
    return [
        percent(mean(r.right for r in stock)),
        percent(mean(r.right for r in seer)),
        f"{mean(r.quiet_answer for r in seer):.3f}",
        f"{mean(r.quiet_padding for r in seer):.3f}",
        f"{counts.cut}/{counts.rows}",
        str(sum(r.truncated and r.boundary < r.needs for r in seer)),
        str(counts.net_early + counts.net_late),
        str(counts.lost),
        f"{mean(r.window_tokens for r in seer):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--penalties", type=float, nargs="+", default=[0.0, 0.1, 0.5, 2.0, 8.0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--early", type=float, default=0.3, help="weight of the early loss, as the demo model had")
    parser.add_argument("--threshold", type=float, help="what counts as quiet; default: the embedded model's profile")
    parser.add_argument("--questions", type=int, default=10 * len(KINDS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    profile = load(model_folder()).profile  # one profile for all, that of the embedded model
    if args.threshold is not None:  # that one is made for activations that a long training has quietened
        profile = replace(profile, threshold=args.threshold)
    rows = []
    for penalty in args.penalties:
        work = args.work / f"penalty_{penalty:g}"
        train = [sys.executable, "-m", "seer_dllm.demo.train", "--start", args.start, "--work", work, "--decay", "0.3"]
        train += ["--out", work / "model", "--penalty", penalty, "--early", args.early]
        train += ["--steps", args.steps, "--vision-from", "1"]
        subprocess.run([*map(str, train)], check=True)
        rows.append([f"{penalty:g}", *measure(work / "model", profile, args.questions)])
        head = ["penalty", "exact, stock", "exact, Seer", "quiet share, answer", "quiet share, padding", "rows cut"]
        head += ["boundary before the true end", "net fired", "cut and not caught", "kept slots"]
        text = f"{args.steps} steps each from the same weights, early loss {args.early:g}; {SETTING};\n"
        text += f"{args.questions} held-out questions;\n"
        text += f"{profile}\n\n"
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + markdown(head, rows) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
