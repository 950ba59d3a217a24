"""Seer against other ways to fit the window to the answer: the demo model, the same questions, in one run.

    python bench/bench_rivals.py --out bench/results/rivals.md --json rivals.json
    python bench/bench_rivals.py --window 128 --block 128 --cache none --seed 4242 --methods seer grow:start=32

A method may name other numbers than its defaults, and how step 0 goes on: `grow:start=16,check=16`,
`eos_logit:step0=restart`. `seer_dllm.rivals` says what each does and what of it is ours. The windows, blocks and caches
given are combined; each setting is compared with its own stock run (`none`), and takes a quarter of its window in steps
unless told otherwise. All methods take turns batch by batch. Times mean something only relative to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from unittest import mock

import torch
from PIL import Image
from tqdm import tqdm

from seer_dllm import GenerationConfig, Model, Result, Truncation, generate, load, rivals
from seer_dllm.api import prepare
from seer_dllm.backbone import Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.comparison import paired
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.scoring import exact
from seer_dllm.detection import find_boundary
from seer_dllm.tables import markdown, percent

STOCK = "none"
# The second eos_logit is the paper's; the second grow has numbers for windows as short as the demo's. They were chosen
# with the questions of seed 4242, which the table does not ask: of start and check of 8, 16 and 32 the least slots kept
# without an answer cut short. The default survival of eos_logit comes from there too; eos_density was not helped by
# other units.
METHODS = (
    "seer", "eos_logit", "eos_logit:step0=restart", "eos_density", "grow", "grow:start=8,check=8", "early_stop",
)  # fmt: skip
HEAD = (
    "method", "windows cut", "slots kept", "cut short", "grown/row", "one look", "looks/row", "extra",
    "token-forwards", "useful tokens/s", "exact", "difference",
)  # fmt: skip
NOTES = """\
windows cut: answers whose final window is shorter than the full one. slots kept: final window by the full one. cut
short: answers that stock ends and that have no end here, or had no room for it. grown: by the safety net, or by the
method. one look: what detecting adds to a stock step 0 in time, medians of interleaved repeats; looks: how often per
row. A rival's look is a pass of the LM head over all masked slots; where the block is the whole window, code of its own
could share it with the commit. extra: token-forwards beyond as many steps on the final window, in stock step 0s: what
not knowing the length ahead has cost. token-forwards: stock's by the method's. useful tokens/s: the method's by
stock's. difference: of the share of exact answers to stock's, with the 95 % paired bootstrap interval."""


@dataclass
class Run:
    """One method's answers to all questions."""

    name: str
    truncation: Truncation | None
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    looks: int = 0


def truncation_of(spec: str) -> Truncation:
    """`name`, or `name:number=value,...`. ValueError says what is wrong with it."""
    name, _, numbers = spec.partition(":")
    given = dict(pair.partition("=")[::2] for pair in numbers.split(",") if pair)
    step0 = given.pop("step0", None)
    if not given:
        return Truncation(step0=step0, method=name)
    known = {f.name: f.type for f in fields(rivals.RIVALS[name])} if name in rivals.RIVALS else {}
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"method {name!r} must name numbers that it has ({', '.join(known)}), got {unknown[0]!r}")
    typed = {key: int(value) if known[key] == "int" else float(value) for key, value in given.items()}
    return Truncation(step0=step0, method=rivals.RIVALS[name](**typed))


def run_all(model: Model, prompts, config: GenerationConfig, methods: list[str], batch: int, bar: tqdm) -> list[Run]:
    """Stock and the methods in turn, batch by batch."""
    runs = [Run(STOCK, None), *(Run(method, truncation_of(method)) for method in methods)]
    for run in runs:  # warm up
        generate(model, prompts[:1], config=config, truncation=run.truncation)
    for first in range(0, len(prompts), batch):
        asked = prompts[first : first + batch]
        for run in runs:
            with mock.patch.object(rivals, "predictions", wraps=rivals.predictions) as seen:
                started = time.perf_counter()
                run.results += generate(model, asked, config=config, truncation=run.truncation)
                run.seconds += time.perf_counter() - started
            run.looks += sum(len(call.args[2]) for call in seen.call_args_list)
            bar.update(len(asked))
    return runs


@torch.inference_mode()
def look_costs(model: Model, prompts, config: GenerationConfig, repeats: int) -> dict[str, float]:
    """Time of one look, as a share of a stock step 0: the probe and boundary of "seer", a rival's predictions."""
    rows, profile = prepare(model, prompts, None, config, None)
    canvas = Canvas(model.backbone, rows, prefill(model.backbone, rows))
    hidden = canvas.embeddings()

    def stock() -> None:
        canvas.forward(hidden)

    def seer() -> None:
        probe = Probe(profile.probe_layers, profile.threshold)
        canvas.forward(hidden, probe=probe)
        values = canvas.window_values(probe.mean(), profile.slot_offset)
        find_boundary(*values, profile, [0] * len(rows), canvas.unread(profile.slot_offset))

    def rival() -> None:
        rivals.predictions(canvas, canvas.forward(hidden), rows)

    times: dict[Callable[[], None], list[float]] = {stock: [], seer: [], rival: []}
    for i in range(repeats + 2):
        for run, seconds in times.items():
            started = time.perf_counter()
            run()
            if i >= 2:
                seconds.append(time.perf_counter() - started)
    base = statistics.median(times[stock])
    return {run.__name__: statistics.median(seconds) / base - 1 for run, seconds in times.items()}


def figures(run: Run, stock: Run, config: GenerationConfig, truths: list[str], look: dict[str, float]) -> dict:
    """What the table shows of a method, as plain numbers."""
    rows, n = run.results, len(run.results)
    right, stock_right = (
        [float(exact(r.text, t)) for r, t in zip(x.results, truths, strict=True)] for x in (run, stock)
    )
    pair = paired(rows, stock.results, right, stock_right, range(n))
    cached = config.cache == "prompt"
    extra, units = 0.0, 0.0
    for r in rows:
        fixed = 0 if cached else r.prompt_tokens
        extra += r.token_forwards - cached * r.prompt_tokens - r.steps * (fixed + r.window_tokens)
        units += fixed + config.window
    ended = [(r, s) for r, s in zip(rows, stock.results, strict=True) if s.finish_reason == "end"]
    seer = run.truncation is not None and run.truncation.method == "seer"
    looks = sum(r.boundary is not None for r in rows) if seer else run.looks
    useful = sum(r.useful_tokens for r in rows) / run.seconds
    return {
        "method": run.name,
        "cut": sum(r.window_tokens < config.window for r in rows) / n,
        "kept": sum(r.window_tokens for r in rows) / (n * config.window),
        "cut_short": sum(r.finish_reason == "length" or r.window_tokens < s.useful_tokens for r, s in ended),
        "grown": sum(r.extended for r in rows) / n,
        "look": (look["seer" if seer else "rival"]) if looks else 0.0,
        "looks": looks / n,
        "extra": extra / units,
        "token_forwards": pair["fewer_token_forwards"],
        "speed": useful / (sum(r.useful_tokens for r in stock.results) / stock.seconds),
        "exact": sum(right) / n,
        "difference": pair["difference"],
        "interval": pair["interval"],
        "same_ids": pair["same_ids"],
        "seconds": run.seconds,
    }


def line(f: dict) -> list[str]:
    low_high = f["interval"]
    interval = "no score differs" if low_high is None else f"[{100 * low_high[0]:+.1f}, {100 * low_high[1]:+.1f}]"
    return [
        f["method"], percent(f["cut"]), percent(f["kept"]), f"{f['cut_short']}", f"{f['grown']:.2f}",
        percent(f["look"]), f"{f['looks']:.1f}", f"{f['extra']:+.2f}", f"{f['token_forwards']:.2f}x",
        f"{f['speed']:.2f}x", percent(f["exact"]), f"{100 * f['difference']:+.1f} {interval}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=model_folder())
    parser.add_argument("--questions", type=int, default=36)
    parser.add_argument("--window", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--block", type=int, nargs="+", default=[0, 32], help="0: the window (default 0 and 32)")
    parser.add_argument("--cache", nargs="+", default=["none", "prompt"])
    parser.add_argument("--steps", type=int, help="default: a quarter of the window")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=10, help="of the timing of one look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME[:NUMBER=VALUE,...]")
    parser.add_argument("--out", type=Path, help="write the tables here")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    for method in args.methods:
        truncation_of(method)
    grid = [
        GenerationConfig(window=window, block=block or window, cache=cache, steps=args.steps or max(1, window // 4))
        for window, block, cache in product(args.window, args.block, args.cache)
    ]

    model = load(args.model)
    questions = data.heldout_questions(args.questions, args.seed)
    prompts = [model.embed_prompt(q, [Image.fromarray(image)]) for image, _, q, _ in questions]
    truths = [truth for *_, truth in questions]
    lengths = [len(prompt) for prompt in prompts]
    name = "demo (embedded)" if args.model == model_folder() else args.model.name
    sections = [
        f"model {name}, P {min(lengths)}-{max(lengths)}, {len(questions)} held-out questions (seed {args.seed}), batch "
        f"{args.batch}, fp32, torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} "
        f"{platform.machine()} cores"
    ]
    found = []
    # early_stop with one block is stock
    asked = [[m for m in args.methods if config.blocks > 1 or m != "early_stop"] for config in grid]
    with tqdm(total=len(questions) * sum(len(some) + 1 for some in asked), desc="answers", mininterval=1) as bar:
        for config, methods in zip(grid, asked, strict=True):
            setting = f"window {config.window}, steps {config.steps}, block {config.block}, cache {config.cache}"
            bar.set_postfix_str(setting)
            look = look_costs(model, prompts[: args.batch], config, args.repeats)
            runs = run_all(model, prompts, config, methods, args.batch, bar)
            rows = [figures(run, runs[0], config, truths, look) for run in runs]
            found.append({"setting": setting, "methods": rows})
            sections.append(f"### {setting}\n\n{markdown(HEAD, map(line, rows))}")
            for file, content in (
                (args.out, "\n\n".join([*sections, NOTES])),
                (args.json, json.dumps(found, indent=1)),
            ):
                if file is not None:  # after every setting, so that a stop loses no more than one
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(content + "\n")
    print("\n\n".join([*sections, NOTES]))


if __name__ == "__main__":
    main()
