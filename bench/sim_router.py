"""The router judged by simulation: batches of several length distributions, on a synthetic cost table of a GPU.

    python bench/sim_router.py --out bench/results/sim_router.md
    python bench/sim_router.py --costs costs.json --out build/sim_router.md

Nothing here is measured. The table is reckoned from first principles (`Synthetic`); the router plans with the linear
model that is fitted to samples of it, as it would be to measurements, and every plan is charged by the table itself.
With `--costs`, a file of `bench/measure_costs.py`, it plans with the recorded model and is charged by it.
Rows finish after their own number of steps: "kept" groups run on in full until their last row is done, "formed anew"
are planned again without the rows that left.
"""

from __future__ import annotations

import argparse
import inspect
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from seer_dllm.costs import PATHS, CostModel, Measurement
from seer_dllm.router import Limits, RowSize, padding_waste, route
from seer_dllm.tables import markdown

LIMITS = Limits(max_rows=256, max_tokens=65536, max_length=4096)
KEPT = {  # kept window of a row, in slots; multiples of 8 as the cut makes them
    "uniform": lambda r: 8 * r.randint(1, 32),
    "short (DocVQA-like)": lambda r: 8 * min(1 + int(r.expovariate(0.8)), 32),
    "bimodal": lambda r: 8 * (r.randint(24, 32) if r.random() < 0.2 else r.randint(2, 4)),
    "heavy tail": lambda r: 8 * min(int(2 * r.paretovariate(1.1)), 128),
}
CACHES = ("none", "prompt")
WAYS = ("static", "varlen", "eager", "pwr", "router", "router, true table")


class Synthetic:
    """An 8B model in bfloat16 on an H200, SYNTHETIC: a roofline of the linear layers, plus attention and launches.

    16 GB of weights, read at 80 % of 4.8 TB/s or hidden behind 16 GFLOP a token at 600 TFLOP/s; attention is
    4 * 4096 * 32 FLOP a pair at 300 TFLOP/s, packed at 270. 32 layers of 25 kernels: 1 us between two of them, 8 us to
    launch each outside a graph, hidden behind the device where that is slower. Left out: the LM head (it runs on slots
    that may commit), reads of cached keys, planning, repacking, captures (all shapes are warm).
    """

    label = "synthetic: 8B in bfloat16 on an H200, reckoned"

    def seconds(self, path: str, rows, tokens, pairs):
        linear = np.maximum(16e9 / (0.8 * 4.8e12), 16e9 / 600e12 * tokens)
        device = linear + 4 * 4096 * 32 / (300e12 if path == "static" else 270e12) * pairs
        launched = 32 * 25 * 8e-6 if path == "eager" else 0.0
        return np.maximum(device, launched) + 32 * 25 * 1e-6


def samples(table: Synthetic) -> list[Measurement]:
    """What a start-up would measure: batches of one to 64 rows, with and without a cached prompt."""
    sizes = [(rows, fed, fed + past) for rows in (1, 4, 16, 64) for fed in (8, 32, 128, 1024) for past in (0, 896)]
    grid = [(path, rows, rows * fed, rows * fed * attended) for path in PATHS for rows, fed, attended in sizes]
    return [Measurement(*at, float(table.seconds(*at))) for at in grid]


def batch_of(kept: Callable, size: int, cache: str, seed: int) -> list[RowSize]:
    """Rows with prompts of 600 to 1100 tokens (a picture and a question), at two slots a step."""
    draw = random.Random(seed)
    rows = []
    for key in range(size):
        window, prompt = kept(draw), draw.randint(600, 1100)
        fed = window if cache == "prompt" else prompt + window
        rows.append(RowSize(key, fed, prompt + window, window // 2))
    return rows


def longest_padded(rows: list[RowSize], table: Synthetic | CostModel) -> list[tuple[float, int]]:
    """(seconds a step, steps) of dense batches in order of arrival, padded to their longest row and no further."""
    batches, current = [], []
    for row in rows:
        both = [*current, row]
        if current and len(both) * max(r.fed for r in both) > LIMITS.max_tokens:
            batches.append(current)
            both = [row]
        current = both
    batches.append(current)
    found = []
    for batch in batches:
        tokens = len(batch) * max(r.fed for r in batch)
        seconds = table.seconds("static", len(batch), tokens, tokens * max(r.attended for r in batch))
        found.append((float(seconds), max(r.steps for r in batch)))
    return found


def planned(rows: list[RowSize], table: Synthetic | CostModel, costs, mode: str, anew: bool) -> list[tuple[float, int]]:
    """The same of the router's groups, planned by `costs` and charged by the table."""
    groups = route(rows, LIMITS, costs, mode, regroup=anew).groups
    sizes = ((g.path, g.padded_rows, g.padded_tokens, g.padded_pairs) for g in groups)
    return [(float(table.seconds(*size)), max(r.steps for r in g.rows)) for size, g in zip(sizes, groups, strict=True)]


def run_time(rows: list[RowSize], step: Callable, anew: bool) -> float:
    """Seconds until all rows are done; `step(rows)` gives (seconds a step, steps) of each group."""
    if not anew:
        return sum(seconds * steps for seconds, steps in step(rows))
    total, done = 0.0, 0
    for level in sorted({row.steps for row in rows}):
        left = [row for row in rows if row.steps >= level]
        total += (level - done) * sum(seconds for seconds, _ in step(left))
        done = level
    return total


def compare(
    anew: bool, sizes: list[int], seeds: int, table: Synthetic | CostModel, costs: CostModel
) -> tuple[list, dict]:
    """Rows of the table, and per way its times over those of the best single path."""
    ways = {way: (lambda rows, way=way: planned(rows, table, costs, way, anew)) for way in WAYS[:4]}
    ways["router"] = lambda rows: planned(rows, table, costs, "cost", anew)
    ways["router, true table"] = lambda rows: planned(rows, table, table, "cost", anew)
    lines, against = [], {way: [] for way in WAYS}
    for cache in CACHES:
        for name, kept in KEPT.items():
            for size in sizes:
                batches = [batch_of(kept, size, cache, seed) for seed in range(seeds)]
                stock = sum(run_time(rows, lambda rows: longest_padded(rows, table), anew) for rows in batches)
                times = {way: sum(run_time(rows, step, anew) for rows in batches) for way, step in ways.items()}
                best = min(times[path] for path in PATHS)
                for way in WAYS:
                    against[way].append(times[way] / best)
                pwr = sum(padding_waste([row.fed for row in rows]) for rows in batches) / seeds
                cells = [cache, name, size, f"{pwr:.2f}", f"{stock / seeds:.2f}"]
                lines.append(cells + [f"{times[way] / stock:.3f}" for way in WAYS] + [f"{times['router'] / best:.3f}"])
    return lines, against


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--seeds", type=int, default=3, help="batches drawn per line")
    parser.add_argument("--costs", type=Path, help="a recorded cost model in place of the synthetic table")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    setting = f"{LIMITS}. Prompts of 600-1100 tokens, two slots a step; each line sums {args.seeds} batches."
    if args.costs is not None:
        table = costs = CostModel.load(args.costs)
        parts = [
            "# The router on a recorded cost model\n\nSimulated times of a whole run, by costs that were "
            f"{costs.label}.\n\n{setting}"
        ]
    else:
        table = Synthetic()
        costs = CostModel.fit(samples(table), "fitted to samples of the synthetic table")
        error = costs.error(samples(table))
        parts = [
            "# The router on a synthetic cost table\n\nNothing here is measured: simulated times of a whole run.",
            f"{inspect.getdoc(Synthetic)}\n\n{setting}\nFitted linear model against the table: relative error "
            f"{100 * error.median:.1f} % median, {100 * error.worst:.1f} % at worst. "
            '"router, true table" plans without that error.',
        ]
    head = ["cache", "kept window", "rows", "PWR", "pad to longest, s", *WAYS, "router / best single path"]
    for anew, title in (
        (True, "Groups formed anew when rows leave"),
        (False, "Groups kept until their last row is done"),
    ):
        lines, against = compare(anew, args.batch, args.seeds, table, costs)
        summary = [
            [way, f"{math.exp(np.mean(np.log(ratios))):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}"]
            for way, ratios in against.items()
        ]
        parts += [
            f"## {title}\n\nTime over that of the line's best single path:",
            markdown(["way", "geometric mean", "best line", "worst line"], summary),
            "Time over that of padding to the longest row, per line:",
            markdown(head, lines),
        ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
