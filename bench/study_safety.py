"""Whether a cut ever costs an answer: many held-out questions of the demo model, stock beside Seer.

    python bench/study_safety.py --questions 3000 --work FILE.jsonl --out bench/results/study_safety.md

Counts windows that the boundary alone left too short, before and after the safety net, with the share that they prove
(one-sided Clopper-Pearson); the slots kept beside those of an oracle that knows stock's answer; and what the detection
costs, timed against a stock step 0 without it. Answers are kept in `--work`, from which a second call goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench_rivals import look_costs
from PIL import Image

from seer_dllm import Model
from seer_dllm.comparison import CutCounts
from seer_dllm.demo import evaluate, model_folder
from seer_dllm.search import clopper_pearson
from seer_dllm.tables import markdown, mean, percent

CONFIDENCE = 0.95


def counts(records: list[evaluate.Record], setting: evaluate.Setting) -> list[list[str]]:
    """What happened, as lines of a table."""
    stock, seer = (
        sorted((r for r in records if r.setting == setting and r.run == run), key=lambda r: r.index)
        for run in ("stock", "carry")
    )
    c = CutCounts.of(zip(seer, stock, strict=True))
    # Stock's answer with its end; one without an end needs the whole window.
    needs = [min(s.useful_tokens + (s.finish_reason == "end"), s.window_tokens) for s in stock]
    short = sum(r.planned < n for r, n in zip(seer, needs, strict=True))
    oracle = [min(setting.window, -(-n // 8) * 8) for n in needs]  # kept windows are multiples of 8
    caught = sum(r.net_early + r.net_late > 0 for r in seer)
    slots = (mean(values) for values in ([r.planned for r in seer], [r.window_tokens for r in seer], oracle))
    work = mean(s.token_forwards for s in stock) / mean(r.token_forwards for r in seer)

    def rate(k: int) -> str:
        bound = clopper_pearson(k, c.rows, CONFIDENCE)
        return f"{k} of {c.rows}; at most {100 * bound:.3f} % ({CONFIDENCE:.0%} confidence)"

    return [
        ["questions", c.rows],
        ["exact, stock / Seer", f"{percent(mean(r.right for r in stock))} / {percent(mean(r.right for r in seer))}"],
        ["windows cut", c.cut],
        ["boundary before stock's end", c.early],
        ["kept window too short for stock's answer, before the net", rate(short)],
        ["net fired, early / late", f"{c.net_early} / {c.net_late} ({caught} rows)"],
        ["cut and not caught", rate(c.lost)],
        ["shorter than stock's though not cut", c.shorter],
        ["same ids as stock", f"{c.same} ({percent(c.same / c.rows)})"],
        ["kept slots: boundary, after the net, oracle", " / ".join(f"{n:.1f}" for n in slots)],
        ["token-forwards, stock / Seer", f"{work:.2f}x"],
    ]  # fmt: skip


def detection_cost(model: Model, setting: evaluate.Setting, batch: int, repeats: int) -> float:
    """Time of the probe and the boundary as a share of a stock step 0: medians of interleaved repeats."""
    prompts = [model.embed_prompt(text, [Image.fromarray(image)]) for image, _, text, _ in evaluate.questions(batch)]
    return look_costs(model, prompts, setting.config, repeats)["seer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=model_folder())
    parser.add_argument("--questions", type=int, default=3000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--cache", default="none", choices=("none", "prompt"))
    parser.add_argument("--repeats", type=int, default=30, help="of the timing of the detection")
    parser.add_argument("--work", type=Path, required=True, help="file for the answers; a second call goes on from it")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    setting = evaluate.Setting(args.window, args.steps, args.window, args.cache)
    tasks = [evaluate.Task(setting, run, args.questions) for run in ("stock", "carry")]
    records, model = evaluate.evaluate(args.model, args.work, tasks)
    lines = counts(records, setting)
    for batch in (1, 32):
        cost = detection_cost(model, setting, batch, args.repeats)
        lines.append([f"detection, share of one stock step 0 (batch {batch})", percent(cost)])
    text = f"{setting}; carry; {model.profile}\n\n" + markdown(["", "demo model"], lines) + "\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
