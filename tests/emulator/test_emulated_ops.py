"""The CUDA kernels, emulated: results are those of the CPU op, under every schedule, and the sanitizers are content.

Indices, counts and copies are equal; computed floats may be the neighbour.
"""

from __future__ import annotations

import pytest

from emulator.calls import CALLS

SEEDS = {"plain": (0, 1, 2), "asan": (0,), "tsan": (1,)}


@pytest.mark.parametrize(
    "mode, name", [(mode, name) for mode in SEEDS for name, call in CALLS.items() if call.small or mode == "plain"]
)
def test_results_are_those_of_the_cpu_op(workers, mode, name):
    for seed in SEEDS[mode] if CALLS[name].small else SEEDS[mode][:1]:
        workers(mode).check(name, seed)
