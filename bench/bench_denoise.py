"""Stock against Seer on held-out questions of the demo model, in one run: accuracy, cuts, work and time.

    python bench/bench_denoise.py --questions 500 --window 128 --batch 8

Prints a table in Markdown and, with `--out`, writes it. Times are wall clock of the whole batch and mean something
only relative to each other.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from tqdm import tqdm

from seer_dllm import GenerationConfig, Model, Result, Truncation, generate, load
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.scoring import exact, score, table


@dataclass
class Run:
    """One way to answer all questions."""

    name: str
    results: list[Result]
    seconds: float


def answer_all(model: Model, name: str, questions, configs: list[GenerationConfig], truncation, batch: int) -> Run:
    results: list[Result] = []
    prompts = [
        model.embed_prompt(q, [Image.fromarray(image)]) for image, _, q, _ in questions
    ]  # the tower's time is not the loop's
    started = time.perf_counter()
    for i in tqdm(range(0, len(questions), batch), desc=name, mininterval=5):
        results += generate(model, prompts[i : i + batch], config=configs[i : i + batch], truncation=truncation)
    return Run(name, results, time.perf_counter() - started)


def row(run: Run, stock: Run, questions) -> str:
    r = run.results
    useful = sum(x.useful_tokens for x in r)
    right = sum(exact(x.text, q[3]) for x, q in zip(r, questions, strict=True))
    per_second, stock_rate = useful / run.seconds, sum(x.useful_tokens for x in stock.results) / stock.seconds
    steps, stock_steps = sum(x.steps for x in r), sum(x.steps for x in stock.results)
    gain = per_second / stock_rate
    cells = [
        run.name,
        f"{100 * right / len(r):.1f} %",
        f"{gain:.2f}x",
        f"{stock_steps / steps:.2f}x",
        f"{gain / (stock_steps / steps):.2f}x",
        f"{useful}",
        f"{sum(x.window_tokens for x in r) / len(r):.1f}",
        f"{steps / len(r):.1f}",
        f"{sum(x.token_forwards for x in r) / len(r):.0f}",
        f"{run.seconds:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def safety(run: Run, stock: Run) -> list[str]:
    """The counts that say whether a cut ever cost an answer, against stock's answers in the same run."""
    pairs = list(zip(run.results, stock.results, strict=True))
    cut = [(a, b) for a, b in pairs if a.truncated]
    early = sum(a.boundary < b.useful_tokens for a, b in cut)
    lost = sum(b.finish_reason == "end" and a.window_tokens < b.useful_tokens for a, b in cut)
    lost += sum(a.finish_reason == "length" and a.window_tokens < b.window_tokens for a, b in cut)
    shorter = sum(a.useful_tokens < b.useful_tokens and a.window_tokens > b.useful_tokens for a, b in cut)
    same = sum(a.ids == b.ids for a, b in pairs)
    return [
        f"{run.name}: rows cut {len(cut)} of {len(pairs)}; boundary before stock's end {early}; net fired early "
        f"{sum(a.net_early > 0 for a, _ in pairs)}, late {sum(a.net_late > 0 for a, _ in pairs)}; "
        f"cut and not caught {lost}; shorter than stock's though not cut {shorter}; same ids as stock {same}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=model_folder())
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--block", type=int)
    parser.add_argument("--cache", default="none")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", default="seer,restart,keep,oracle", help="beside stock: seer, restart, keep, oracle")
    parser.add_argument("--out", type=Path, help="write the table here")
    args = parser.parse_args()

    model = load(args.model)
    questions = data.heldout_questions(args.questions, args.seed)
    config = GenerationConfig(window=args.window, steps=args.steps, block=args.block, cache=args.cache)
    configs = [config] * len(questions)
    answer_all(model, "warm-up", questions[: args.batch], configs[: args.batch], Truncation(), args.batch)
    stock = answer_all(model, "stock", questions, configs, None, args.batch)
    ways = {"seer": Truncation(), "restart": Truncation(step0="restart"), "keep": Truncation(steps_policy="keep")}
    names = {"seer": "Seer", "restart": "Seer, restart", "keep": "Seer, keep steps"}
    runs = []
    for way in filter(None, args.rows.split(",")):
        if way == "oracle":
            # What a perfect detector without a probe would give: windows that just hold stock's answer and its end.
            fits = [min(args.window, -(-(r.useful_tokens + 1) // 8) * 8) for r in stock.results]
            short = [replace(config, window=w, block=w, steps=w) for w in fits]
            runs.append(answer_all(model, "stock, oracle window", questions, short, None, args.batch))
        else:
            runs.append(answer_all(model, names[way], questions, configs, ways[way], args.batch))

    p = [r.prompt_tokens for r in stock.results]
    lines = [
        f"model {args.model.name}, P {min(p)}-{max(p)}, window {args.window}, steps {config.steps}, "
        f"block {config.block}, cache {args.cache}, batch {args.batch}, "
        f"{len(questions)} held-out questions (seed {args.seed}), fp32, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} {platform.machine()} cores",
        "",
        "| run | exact | useful tokens/s vs stock | steps factor | per-step factor | useful tokens | slots/row "
        "| steps/row | token-forwards/row | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row(run, stock, questions) for run in [stock, *runs]),
        "",
    ]
    for run in runs:
        if any(r.truncated for r in run.results):
            lines += safety(run, stock)
    truths = [(q[1], q[3]) for q in questions]
    for run in [stock, *runs[:1]]:
        scores = score((kind, r.text, truth) for r, (kind, truth) in zip(run.results, truths, strict=True))
        lines += ["", f"exact answers, {run.name}:", "```", table(scores), "```"]
    text = "\n".join(lines)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
