"""Ragged batches: the router and each path beside what one would do without them, in one run.

    python bench/bench_batch.py --out bench/results/bench_batch.md
    python bench/bench_batch.py --quick

Rows have windows of different lengths, as cuts leave them, and write `--slots` slots a step. Every way answers the same
rows; medians of interleaved repeats, and ratios within the run. The file of `--out` is renewed with every line. "8B
shapes" is a backbone with layers of LLaDA-8B's sizes, few of them and of random weights, so that costs have the right
proportions.
"""

from __future__ import annotations

import argparse
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from PIL import Image
from shapes import KEPT, MODELS, random_backbone

from seer_dllm import GenerationConfig, Model, Profile, Truncation, generate, load
from seer_dllm.api import prepare
from seer_dllm.attention import library
from seer_dllm.capture import Capturer, CudaGraphs
from seer_dllm.config import CACHES
from seer_dllm.costs import CostModel, PathCost
from seer_dllm.demo import data, model_folder
from seer_dllm.denoise import Loop
from seer_dllm.engine import Engine, Request
from seer_dllm.families import FAMILIES
from seer_dllm.groups import Routing
from seer_dllm.measure import SHAPES, cost_model, measure
from seer_dllm.router import Limits, padding_waste
from seer_dllm.tables import markdown

PROMPTS = 60, 110
LEAST_SECONDS = 2.0  # of the router's runs of a batch: short ones are repeated more often
LIMITS = Limits(max_rows=256, max_tokens=1 << 17, max_length=4096)
ONE = PathCost(1.0, 0.0, 0.0)
AS_ONE = CostModel(ONE, ONE, ONE, "as few groups as may be")
WAYS = ("stock window", "pad to longest", "pad, early leaving", "per row", "one packed", "static", "varlen", "router")
SAME = ("per row", "one packed", "static", "varlen", "router")  # these give the same tokens


@dataclass
class Batch:
    """Prompts `[P, H]` and kept windows, of a full one of `longest` slots."""

    model: Model
    capturer: Capturer | None
    longest: int
    prompts: list[torch.Tensor]
    kept: list[int]
    cache: str
    slots: int  # written a step

    def rows(self, windows: list[int], steps: list[int]):
        """As `generate` makes them, of these windows and steps."""
        configs = [
            GenerationConfig(window=w, steps=min(w, s), cache=self.cache) for w, s in zip(windows, steps, strict=True)
        ]
        return prepare(self.model, self.prompts, None, configs, None)

    def seconds(self, way: str, costs: CostModel) -> tuple[float, list[list[int]]]:
        """Time of a whole run, and what was written."""
        size, own, most = len(self.kept), [max(1, n // self.slots) for n in self.kept], max(self.kept)
        windows, steps = self.kept, own
        if way == "stock window":
            windows, steps = [self.longest] * size, [self.longest // self.slots] * size
        elif way.startswith("pad"):
            windows, steps = [most] * size, own if "early" in way else [max(own)] * size
        modes = {"router": "cost", "static": "static", "varlen": "varlen"}
        routing = None  # packed, as `generate` does
        if way in modes:
            routing = Routing(LIMITS, costs, modes[way], self.capturer)
        elif way not in ("one packed", "per row"):
            routing = Routing(LIMITS, AS_ONE, "static", self.capturer)
        rows, profile = self.rows(windows, steps)
        began = time.perf_counter()
        for part in [[row] for row in rows] if way == "per row" else [rows]:
            loop = Loop(self.model.backbone, routing)
            loop.add(part, profile)
            while loop.rows:
                loop.step()
        return time.perf_counter() - began, [row.ids.tolist() for row in rows]


def shapes_of_8b(layers: int, device: str) -> Model:
    """LLaDA-8B's layers with random weights, a small vocabulary, bfloat16."""
    config = replace(MODELS["llada-8b"], n_layers=layers, vocab_size=1024, mask_id=1023, eos_id=1022)
    return Model(FAMILIES[0], random_backbone(config, torch.bfloat16, device), None, None, (1022,), Profile())


def batch_of(model: Model, capturer, kept: list[int], cache: str, args, prompts: tuple[int, int]) -> Batch:
    size, seed = model.backbone.config.hidden_size, len(kept)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    given = [torch.randn(draw.randint(*prompts), size, generator=generator) for _ in kept]
    return Batch(model, capturer, args.longest, given, kept, cache, args.slots)


def demo_windows(model: Model, longest: int, count: int) -> list[int]:
    """What the demo model keeps of its windows on held-out questions, repeated where fewer were asked."""
    questions = data.heldout_questions(min(count, 64), 0)
    images, texts = [[Image.fromarray(q[0])] for q in questions], [q[2] for q in questions]
    config = GenerationConfig(window=longest, steps=1)
    truncation = Truncation(safety_net=False)
    found = [r.window_tokens for r in generate(model, texts, images=images, config=config, truncation=truncation)]
    return [found[i % len(found)] for i in range(count)]


class Line(NamedTuple):
    """One batch: medians of seconds by way, and the rows whose tokens depend on the way."""

    cache: str
    distribution: str
    kept: list[int]
    seconds: dict[str, float]
    differing: int

    @property
    def behind(self) -> float:
        """The router's time over the best single path's."""
        return self.seconds["router"] / min(self.seconds[way] for way in ("one packed", "static", "varlen"))

    def gain(self, way: str) -> float:
        return self.seconds["pad to longest"] / self.seconds[way]

    def cells(self) -> list[str]:
        waste, pad = padding_waste(self.kept), self.seconds["pad to longest"]
        gains = (f"{self.gain(way):.2f}x" for way in self.seconds)
        head = [self.cache, self.distribution, str(len(self.kept)), f"{waste:.2f}", f"{pad:.3f}"]
        return [*head, *gains, f"{self.behind:.3f}", str(self.differing)]


def compare(
    model: Model, capturer, costs: CostModel, args, prompts: tuple[int, int], sizes: list[int]
) -> Iterator[Line]:
    """A line per cache, distribution and batch size."""

    def drawn(make: Callable, size: int) -> list[int]:
        draw = random.Random(size)
        return [8 * make(draw, args.longest // 8) for _ in range(size)]

    kept = {d: partial(drawn, make) for d, make in KEPT.items()}
    if model.vision is not None:
        kept["demo's boundaries"] = partial(demo_windows, model, args.longest)
    chosen = {d: make for d, make in kept.items() if args.lengths is None or d.split()[0] in args.lengths}
    for cache, (distribution, windows), size in product(args.cache, chosen.items(), sizes):
        batch = batch_of(model, capturer, windows(size), cache, args, prompts)
        times: dict[str, list[float]] = {way: [] for way in args.ways}
        order = random.Random(0)
        while len(times["router"]) < args.repeats or sum(times["router"]) < LEAST_SECONDS:
            answers = {}
            for way in order.sample(args.ways, len(args.ways)):  # none always runs behind the same other one
                seconds, answers[way] = batch.seconds(way, costs)
                times[way].append(seconds)
        same = [answers[way] for way in SAME if way in answers]
        differing = sum(len({tuple(ids) for ids in row}) > 1 for row in zip(*same, strict=True))
        yield Line(cache, distribution, batch.kept, {way: median(t) for way, t in times.items()}, differing)


def tables(lines: list[Line], ways: list[str]) -> str:
    """The ratios by what they are to, and all lines."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        ratios.setdefault(("router / best single path", line.cache), []).append(line.behind)
        gain = f"pad to longest / router, {line.distribution}"
        ratios.setdefault((gain, line.cache), []).append(line.gain("router"))
    summary = [
        [what, cache, f"{math.exp(sum(map(math.log, r)) / len(r)):.3f}", f"{min(r):.3f}", f"{max(r):.3f}"]
        for (what, cache), r in sorted(ratios.items())
    ]
    head = [
        "cache",
        "kept windows",
        "rows",
        "PWR",
        "pad to longest, s",
        *ways,
        "router / best single",
        "rows that differ",
    ]
    return "\n\n".join(
        [
            markdown(["ratio", "cache", "geometric mean", "least", "most"], summary),
            "Speed against padding to the longest, and the router's time over the best single path's:",
            markdown(head, [line.cells() for line in lines]),
        ]
    )


def throughput(model: Model, capturer, longest: int, count: int, max_batch: int) -> str:
    """Mixed demo requests: stock in batches, Seer one by one, and the engine, with the answers compared."""
    questions = data.heldout_questions(count, 1)
    prompts = [model.embed_prompt(q[2], [Image.fromarray(q[0])]) for q in questions]
    configs = [GenerationConfig(window=longest // (1 + i % 2)) for i in range(count)]
    ways: dict[str, tuple[float, list]] = {}
    began = time.perf_counter()
    stock = []
    for i in range(0, count, max_batch):
        part = slice(i, i + max_batch)
        stock += generate(model, prompts[part], config=configs[part], truncation=None)
    ways["stock, in batches"] = time.perf_counter() - began, stock
    began = time.perf_counter()
    alone = [generate(model, [p], config=c)[0] for p, c in zip(prompts, configs, strict=True)]
    ways["Seer, one by one"] = time.perf_counter() - began, alone
    engine = Engine(model, max_batch=max_batch, capturer=capturer)
    began = time.perf_counter()
    answers = engine.generate([Request(p, config=c) for p, c in zip(prompts, configs, strict=True)])
    ways["Seer, engine"] = time.perf_counter() - began, [a.result for a in answers]
    rows = []
    for way, (seconds, results) in ways.items():
        useful = sum(r.useful_tokens for r in results)
        same = sum(r.ids == one.ids for r, one in zip(results, alone, strict=True))
        rows.append(
            [way, f"{seconds:.2f}", f"{useful / seconds:.0f}", f"{ways['stock, in batches'][0] / seconds:.2f}x"]
        )
        rows[-1].append(same)
    head = ["way", "seconds", "useful tokens/s", "against stock", "same as one by one"]
    stats = engine.stats()
    return "\n\n".join(
        [
            f"## {count} mixed requests of the demo model\n\nWindows of {longest} and {longest // 2}, a slot a step, "
            f"no cache, {max_batch} at once.",
            markdown(head, rows),
            markdown(["engine", ""], [[name.replace("_", " "), shown(value)] for name, value in asdict(stats).items()]),
        ]
    )


def shown(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(v)}" for name, v in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def capturer_of(device: str) -> Capturer | None:
    return CudaGraphs() if torch.device(device).type == "cuda" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    parser.add_argument("--batch", type=int, nargs="*", default=sizes, help="of the demo model; none: left out")
    parser.add_argument("--batch-8b", type=int, nargs="*", default=[1, 4, 16], help="of the 8B shapes; none: left out")
    parser.add_argument("--device", default="cpu", help="on cuda, groups run as captured graphs")
    parser.add_argument("--cache", nargs="+", default=list(CACHES), choices=CACHES)
    parser.add_argument("--lengths", nargs="+", help="first words of distributions; default: all")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--longest", type=int, default=128, help="slots of the full window")
    parser.add_argument("--slots", type=int, default=2, help="written a step")
    parser.add_argument("--repeats", type=int, default=7, help="at least; batches that take milliseconds have more")
    parser.add_argument("--layers", type=int, default=2, help="of the 8B shapes")
    parser.add_argument("--requests", type=int, default=256, help="of the demo model, mixed; 0 leaves them out")
    parser.add_argument("--quick", action="store_true", help="one size and cache, short windows, no 8B shapes")
    parser.add_argument("--out", type=Path, help="write the tables here")
    args = parser.parse_args()
    if missing := {"pad to longest", "one packed", "static", "varlen", "router"} - set(args.ways):
        parser.error(f"--ways must hold what the router is compared with, {', '.join(sorted(missing))} is missing")
    warnings.simplefilter("ignore")  # the prompt cache is an approximation for the 8B shapes' family
    if args.quick:
        args.batch, args.batch_8b, args.cache, args.longest = [8], [], ["prompt"], 64
        args.repeats, args.requests = 3, 12
    on = torch.cuda.get_device_name() if args.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    machine = f"torch {torch.__version__}, {on}"
    parts = [
        f"# Ragged batches\n\n{machine}; times are medians of {args.repeats} interleaved repeats or more; full windows "
        f"of {args.longest} slots, {args.slots} written a step; prompts of {PROMPTS[0]} to {PROMPTS[1]} tokens."
    ]
    models = {}
    if args.batch:
        models["demo"] = partial(load, model_folder(), device=args.device), args.batch
    if args.batch_8b:
        models[f"8B shapes, {args.layers} layers"] = partial(shapes_of_8b, args.layers, args.device), args.batch_8b

    def write(*more: str) -> None:
        if args.out is not None:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text("\n\n".join([*parts, *more]) + "\n")

    for name, (make, sizes) in models.items():
        model, capturer = make(), capturer_of(args.device)
        backbone = model.backbone
        most = 128 if name != "demo" and args.device == "cpu" else 2048  # fed at once: a CPU takes seconds for more
        shapes = [shape for shape in SHAPES if shape[0] * shape[1] <= most]
        costs = cost_model(backbone, measure(backbone, shapes, repeats=args.repeats, capturer=capturer))
        about = f"## {name}\n\n{backbone.dtype}, {library(backbone.device.type, backbone.dtype)[0]}.\n\n{costs}"
        lines: list[Line] = []
        for line in compare(model, capturer, costs, args, PROMPTS, sizes):
            lines.append(line)
            print(name, *line.cells(), sep=" | ", flush=True)
            write(about, tables(lines, args.ways))
        parts += [about, tables(lines, args.ways)]
    if args.requests:
        model = load(model_folder(), device=args.device)
        parts.append(throughput(model, capturer_of(args.device), args.longest, args.requests, 32))
    write()
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
