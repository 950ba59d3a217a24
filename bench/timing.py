"""The harness of the op benchmarks: calls of several variants, interleaved, on inputs that no cache holds.

A *variant* is one way to get an op's result: the op, the PyTorch definition, what torch.compile makes of it, a
library's call. Per case the variants take turns in one process, so that a change of the machine's speed meets
them all: compare ratios within a case, never times of two runs. Inputs rotate through copies that together
exceed the last cache. On CUDA the L2 cache is flushed before each call, calls are timed by events, and variants
that can be captured are replayed from a graph, which takes the launch overhead of Python away.

`copy` is torch's own copy moving as many bytes (half read, half written) into memory already touched.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch._inductor.config
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cases import PERF, Case, inputs  # noqa: E402
from seer_ext import _loader  # noqa: E402

MAX_SETS = 64  # copies of the inputs
MAX_SET_BYTES = 1 << 30


@dataclass(frozen=True)
class Variant:
    """call: takes the op's arguments. graph: whether a CUDA graph can capture it (no read on the host)."""

    name: str
    call: Callable
    graph: bool = True


@dataclass(frozen=True)
class Result:
    """median, p90: microseconds per call. gbs: bytes of the op's definition per median, in 1e9/s. ratio: the
    variant's time over the first variant's, the median of the repeats' ratios."""

    op: str
    case: str
    variant: str
    median: float
    p90: float
    gbs: float
    ratio: float


def arguments(doc: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's own choice")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--skip", default="", help="variants to leave out, by name, separated by commas")
    parser.add_argument(
        "--fresh", action="store_true", help="outputs in pages never touched (CPU); default: memory is reused"
    )
    parser.add_argument(
        "--busy", action="store_true", help="one thread, its CPU time: for a machine that others keep busy"
    )
    parser.add_argument("--csv", type=Path, help="also write the results there")
    parser.add_argument("--json", type=Path, help="the same, with the environment")
    args = parser.parse_args()
    if args.threads or args.busy:
        torch.set_num_threads(1 if args.busy else args.threads)
    if args.device == "cpu":
        _set_allocator(args.fresh)
    return args


def _set_allocator(fresh: bool) -> None:
    """Whether large blocks are mapped anew at each allocation, or freed blocks kept and given out again (glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mmap_threshold, trim_threshold, mmap_max = -3, -1, -4
    if fresh:
        mallopt(mmap_threshold, 1 << 16)
    else:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def machine(device: str) -> dict[str, str]:
    """What a result must be read beside."""
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), cpu)
    found = {
        "cpu": f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "isa": str(_loader.load().cpu_isa()),
        "torch": torch.__version__,
        "load": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
    }
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{gpu.name}, {gpu.multi_processor_count} SMs, CUDA {torch.version.cuda}"
    return found


def environment(args: argparse.Namespace) -> dict[str, str]:
    outputs, clock = "fresh" if args.fresh else "warm", "CPU time" if args.busy else "wall"
    return machine(args.device) | {"outputs": outputs, "clock": clock}


# ---- clocks ------------------------------------------------------------------------------------------------


class CpuClock:
    def __init__(self, busy: bool) -> None:
        self.cache_bytes = _last_cache_bytes()
        self._now = time.process_time if busy else time.perf_counter

    def sample(self, variant: Variant, sets: list) -> float:
        """Seconds per call, on average over the sets."""
        started = self._now()
        for args, kwargs in sets:
            variant.call(*args, **kwargs)
        return (self._now() - started) / len(sets)


class CudaClock:
    def __init__(self) -> None:
        self.cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._flush = torch.empty(2 * self.cache_bytes, dtype=torch.uint8, device="cuda")
        self._graphs: dict[tuple, Callable] = {}

    def sample(self, variant: Variant, sets: list) -> float:
        calls = [self._prepared(variant, *one) for one in sets]
        begins = [torch.cuda.Event(enable_timing=True) for _ in sets]
        ends = [torch.cuda.Event(enable_timing=True) for _ in sets]
        for call, begin, end in zip(calls, begins, ends, strict=True):
            self._flush.zero_()  # also keeps the device busy while the host enqueues what is timed
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return sum(b.elapsed_time(e) for b, e in zip(begins, ends, strict=True)) / 1e3 / len(sets)

    def _prepared(self, variant: Variant, args: tuple, kwargs: dict) -> Callable:
        if not variant.graph:
            return lambda: variant.call(*args, **kwargs)
        key = (variant, id(args))
        if key not in self._graphs:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # warm up off the capture: lazy initialisation can't be captured
                variant.call(*args, **kwargs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                variant.call(*args, **kwargs)
            self._graphs[key] = graph.replay
        return self._graphs[key]


def _last_cache_bytes() -> int:
    sizes = [64 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)


# ---- measuring ---------------------------------------------------------------------------------------------


def tensor_bytes(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _copy(moved: int, device: str, clock) -> tuple[Variant, list]:
    """A variant that moves `moved` bytes, and its own rotating arguments."""
    half = max(1, moved // 2)
    count = max(1, min(MAX_SETS, 2 * clock.cache_bytes // moved + 1))
    sets = [tuple(torch.zeros(half, dtype=torch.uint8, device=device) for _ in range(2)) for _ in range(count)]
    return Variant("copy", lambda to, source: to.copy_(source)), [(pair, {}) for pair in sets]


def _input_sets(op: str, case: Case, device: str, clock) -> list:
    """Copies of one call's arguments, together twice the last cache."""
    args, kwargs = inputs(op, case, device)
    size = max(1, tensor_bytes(*(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))))
    count = max(2, min(MAX_SETS, 2 * clock.cache_bytes // size + 1, MAX_SET_BYTES // size))
    copied = lambda v: v.clone() if isinstance(v, Tensor) else v  # noqa: E731
    return [(tuple(map(copied, args)), {k: copied(v) for k, v in kwargs.items()}) for _ in range(count)]


def measure(op: str, case: Case, variants: list[Variant], moved: int, args: argparse.Namespace, in_place=False):
    """The case's results, one per variant and one for a copy of `moved` bytes.

    in_place: the op changes its first argument, which is then restored before each sample.
    """
    clock = CudaClock() if args.device == "cuda" else CpuClock(args.busy)
    sets = _input_sets(op, case, args.device, clock)
    original = sets[0][0][0].clone() if in_place else None
    copy, copy_sets = _copy(moved, args.device, clock)
    skipped = args.skip.split(",")
    runs = [[v, sets, 1, 0] for v in variants if v.name not in skipped] + [[copy, copy_sets, 1, 0]]

    def sample(run: list) -> float:
        variant, own, count, at = run
        chosen = [own[(at + i) % len(own)] for i in range(count)]
        run[3] = (at + count) % len(own)
        if in_place and own is sets:
            for one, _ in chosen:
                one[0].copy_(original)
        return clock.sample(variant, chosen)

    for run in runs:  # warm up, then as many calls per sample as take 5 ms
        sample(run)
        run[2] = max(1, min(len(run[1]), int(5e-3 / max(sample(run), 1e-7))))
        sample(run)
    times = [[sample(run) for run in runs] for _ in range(args.repeats)]

    results = []
    for i, (variant, *_) in enumerate(runs):
        column = sorted(row[i] for row in times)
        median = statistics.median(column)
        ratio = statistics.median(row[i] / row[0] for row in times)
        p90 = column[min(len(column) - 1, round(0.9 * (len(column) - 1)))]
        results.append(Result(op, str(case), variant.name, median * 1e6, p90 * 1e6, moved / median / 1e9, ratio))
    return results


def compiled(call: Callable) -> Callable:
    """torch.compile of a definition, for the shapes it meets, with vectors as wide as those of the ops' level."""
    widths = {"v4": 512, "v3": 256, "baseline": 128}
    torch._inductor.config.cpp.simdlen = widths.get(_loader.load().cpu_isa())
    return torch.compile(call, dynamic=False)


def once_per(make: Callable) -> Callable:
    """make, called once per first argument: for indices that a variant needs and the timing should not count."""
    made: dict[int, tuple] = {}

    def cached(first, *rest):
        if id(first) not in made:
            made[id(first)] = (first, make(first, *rest))  # holds `first`, so that its id stays its own
        return made[id(first)][1]

    return cached


# ---- reporting ---------------------------------------------------------------------------------------------


def table(results: list[Result]) -> str:
    head = ("case", "variant", "median us", "p90 us", "GB/s", "x first")
    rows = [(r.case, r.variant, f"{r.median:.1f}", f"{r.p90:.1f}", f"{r.gbs:.2f}", f"{r.ratio:.2f}") for r in results]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: tuple) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(cells))

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])


def main(op: str, doc: str, variants: Callable[[Case], list[Variant]], moved: Callable[..., int], in_place=False):
    """A benchmark's command line. variants: those of a case. moved: bytes that a call reads and writes, from its
    arguments."""
    args = arguments(doc)
    header = environment(args)
    print(op, *(f"{key}: {value}" for key, value in header.items()), sep="\n")
    results = []
    for case in PERF[op]:
        if args.only not in str(case):
            continue
        call_args, call_kwargs = inputs(op, case, args.device)
        results += measure(op, case, variants(case), moved(*call_args, **call_kwargs), args, in_place)
    print(table(results))
    if args.csv:
        with args.csv.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(Result.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(r) for r in results)
    if args.json:
        args.json.write_text(json.dumps({"environment": header, "results": [asdict(r) for r in results]}, indent=1))
