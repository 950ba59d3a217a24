"""An engine under random requests, cancels and bad input for some minutes: is memory flat, and nothing lost?

    python bench/soak_engine.py --minutes 10

Exit code 1 if a request did not end exactly once, or ended as it should not have, or if memory grew by more than 1 %.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from seer_dllm import Engine, GenerationConfig, load
from seer_dllm.config import CACHES
from seer_dllm.demo import model_folder
from seer_dllm.engine import Cancelled
from seer_dllm.router import MODES

SAMPLES = 10  # of the memory, each when all that was asked for has ended
GROWTH = 1.01  # of the last sample over the second: the first one is from before anything ran


def resident_mb() -> tuple[float, float]:
    """Resident memory, and what is left of it when the allocator has given back what it keeps free (glibc alone)."""

    def now() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    before = now()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return before, now()


def settings_of(draw: random.Random, bad: bool) -> dict:
    window = draw.choice([16, 32, 64])
    config = GenerationConfig(
        window, window // draw.choice([2, 4, 8]), window // 2, cache=draw.choice(CACHES), seed=draw.randint(0, 99)
    )
    wrong = draw.choice([{"images": ["missing.png"]}, {"draft": [-1]}, {"config": GenerationConfig(8192)}])
    return {"config": config} | (wrong if bad else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the prompt cache is an approximation in some families
    model, draw = load(model_folder()), random.Random(args.seed)
    engine = Engine(model, max_batch=16, memory=64 << 20, mode=draw.choice(MODES))
    hidden = model.backbone.config.hidden_size
    want: dict[int, type] = {}
    ended: Counter[str] = Counter()
    sizes, wrong, began = [], 0, time.perf_counter()
    while len(sizes) <= SAMPLES:
        minutes = (time.perf_counter() - began) / 60
        due = minutes >= len(sizes) * args.minutes / SAMPLES
        if due and not engine.active:  # between two samples what runs comes and goes
            held, size = resident_mb()
            sizes.append(size)
            print(f"{minutes:.1f} min: {sum(ended.values())} ended, {held:.0f} MB, in use {size:.1f} MB", flush=True)
        if not due and engine.stats().waiting < 8:
            bad = draw.random() < 0.15
            prompt = torch.randn(draw.randint(1, 100), hidden)
            want[engine.add_request(prompt, **settings_of(draw, bad))] = Exception if bad else type(None)
            if draw.random() < 0.1 and engine.cancel(victim := draw.choice(list(want))):
                want[victim] = Cancelled
        for answer in engine.step():
            wrong += not isinstance(answer.error, want.pop(answer.id))  # a second answer is a KeyError
            ended["answered" if answer.error is None else type(answer.error).__name__] += 1
    print(f"{dict(ended)}; lost {len(want)}, ended wrongly {wrong}; in use {sizes[1]:.1f} to {sizes[-1]:.1f} MB")
    print(engine.stats())
    return int(bool(want or wrong) or sizes[-1] > GROWTH * sizes[1])


if __name__ == "__main__":
    sys.exit(main())
