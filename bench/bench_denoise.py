"""Stock against Seer on held-out questions of the demo model, in one run: accuracy, cuts, work and time.

    python bench/bench_denoise.py --questions 500 --window 128 --batch 8
    python bench/bench_denoise.py --window 256 --steps 256 64 --block 256 32 --cache none prompt --batch 1 32
    python bench/bench_denoise.py --shape llada-8b --layers 2 --ends headline --sample 4

Several values of a setting are all run, each beside its own stock. Prints a table in Markdown and, with `--out`, writes
it. Times are wall clock of the whole batch and mean something only relative to each other. With `--shape` it is about
random models of true layer shapes and has options of its own: see `denoise_shapes.py`, or `--shape llada-8b --help`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import denoise_shapes
import torch
from denoise_runs import oracle_config
from PIL import Image
from tqdm import tqdm

from seer_dllm import GenerationConfig, Model, Result, Truncation, generate, load
from seer_dllm.comparison import CutCounts
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.scoring import exact, score, table

WAYS = {
    "seer": ("Seer", Truncation()),
    "restart": ("Seer, restart", Truncation(step0="restart")),
    "keep": ("Seer, keep steps", Truncation(steps_policy="keep")),
}


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


def safety(run: Run, stock: Run) -> str:
    """The counts that say whether a cut ever cost an answer, against stock's answers in the same run."""
    c = CutCounts.of(zip(run.results, stock.results, strict=True))
    return (
        f"{run.name}: rows cut {c.cut} of {c.rows}; boundary before stock's end {c.early}; net fired early "
        f"{c.net_early}, late {c.net_late}, which took {sum(r.net_forwards for r in run.results)} forwards; cut and "
        f"not caught {c.lost}; shorter than stock's though not cut {c.shorter}; same ids as stock {c.same}"
    )


def measure(model: Model, questions, config: GenerationConfig, batch: int, ways: list[str]) -> list[Run]:
    """Stock, then each of the other ways, over all questions."""
    configs = [config] * len(questions)
    answer_all(model, "warm-up", questions[:batch], configs[:batch], Truncation(), batch)
    runs = [answer_all(model, "stock", questions, configs, None, batch)]
    for way in ways:
        if way == "oracle":
            short = [oracle_config(config, r.useful_tokens) for r in runs[0].results]
            runs.append(answer_all(model, "stock, oracle window", questions, short, None, batch))
        else:
            name, truncation = WAYS[way]
            runs.append(answer_all(model, name, questions, configs, truncation, batch))
    return runs


def describe(name: str, questions, config: GenerationConfig, batch: int, seed: int, runs: list[Run]) -> str:
    """The section of one setting."""
    stock = runs[0]
    p = [r.prompt_tokens for r in stock.results]
    lines = [
        f"model {name}, P {min(p)}-{max(p)}, window {config.window}, steps {config.steps}, "
        f"block {config.block}, cache {config.cache}, batch {batch}, "
        f"{len(questions)} held-out questions (seed {seed}), fp32, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} {platform.machine()} cores",
        "",
        "| run | exact | useful tokens/s vs stock | steps factor | per-step factor | useful tokens | slots/row "
        "| steps/row | token-forwards/row | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row(run, stock, questions) for run in runs),
        "",
        *(safety(run, stock) for run in runs if any(r.truncated for r in run.results)),
    ]
    truths = [(q[1], q[3]) for q in questions]
    for run in runs[:2]:
        scores = score((kind, r.text, truth) for r, (kind, truth) in zip(run.results, truths, strict=True))
        lines += ["", f"exact answers, {run.name}:", "```", table(scores), "```"]
    return "\n".join(lines)


def main() -> None:
    if any(argument.split("=")[0] == "--shape" for argument in sys.argv[1:]):
        return denoise_shapes.main()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=model_folder())
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int, nargs="+", help="one or several; default: one slot a step")
    parser.add_argument("--block", type=int, nargs="+", help="one or several; default: the window")
    parser.add_argument("--cache", nargs="+", default=["none"], help="one or several of none, prompt")
    parser.add_argument("--batch", type=int, nargs="+", default=[8], help="one or several")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", default="seer,restart,keep,oracle", help="beside stock: seer, restart, keep, oracle")
    parser.add_argument("--out", type=Path, help="write the table here")
    args = parser.parse_args()

    model = load(args.model)
    name = "demo (embedded)" if args.model == model_folder() else args.model.name
    questions = data.heldout_questions(args.questions, args.seed)
    ways = [way for way in args.rows.split(",") if way]
    grid = list(product(args.cache, args.block or [args.window], args.steps or [args.window], args.batch))
    sections, summary = [], []
    for cache, block, steps, batch in grid:
        config = GenerationConfig(window=args.window, steps=steps, block=block, cache=cache)
        runs = measure(model, questions, config, batch, ways)
        sections.append(describe(name, questions, config, batch, args.seed, runs))
        for run in runs[1:]:
            setting = f"| {cache} | {block} | {steps} | {batch} "
            summary.append(setting + row(run, runs[0], questions))
        text = "\n\n".join(sections)
        if len(grid) > 1:
            head = "| cache | block | steps | batch | run | exact | useful tokens/s vs stock | steps factor "
            head += "| per-step factor | useful tokens | slots/row | steps/row | token-forwards/row | seconds |"
            text = "\n".join([head, "|" + "---|" * 14, *summary, "", text])
        if args.out is not None:  # after every setting, so that a stop loses no more than one
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
