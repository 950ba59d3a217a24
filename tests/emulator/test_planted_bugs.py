"""The emulator and the sanitizers find what they are there to find: each kind of bug is planted once."""

from __future__ import annotations

import subprocess

import pytest

from emulator import build
from emulator.build import MODES

RIGHT, WRONG, LAUNCH_ERROR, SANITIZER = 0, 1, 2, 101

# Name: the modes that must find it, with the exit status and a text of the report.
LINE = r"planted_bugs.cu:"
EVERYWHERE = ("plain", "asan", "tsan", "ucontext")
BUGS = {
    "missing_barrier": [("tsan", SANITIZER, "data race"), ("plain", WRONG, "")],
    "missing_second_barrier": [("tsan", SANITIZER, "data race"), ("plain", WRONG, "")],
    "missing_syncwarp": [("tsan", SANITIZER, "data race")],
    "cross_block_race": [("tsan", SANITIZER, "data race")],
    "uninitialised_shared": [(mode, WRONG, "") for mode in EVERYWHERE],
    "static_shared_overflow": [("asan", SANITIZER, "heap-buffer-overflow")],
    "dynamic_shared_overflow": [("asan", SANITIZER, "heap-buffer-overflow")],
    "global_read_overflow": [("asan", SANITIZER, "heap-buffer-overflow")],
    "global_write_overflow": [("asan", SANITIZER, "heap-buffer-overflow")],
    "misaligned_vector": [("asan", SANITIZER, "misaligned address")],
    "divergent_barrier": [(mode, LAUNCH_ERROR, "divergent barriers") for mode in EVERYWHERE],
    "deadlock": [(mode, LAUNCH_ERROR, "deadlock") for mode in EVERYWHERE],
    "exited_lane": [(mode, LAUNCH_ERROR, "exited") for mode in EVERYWHERE],
    "unequal_masks": [(mode, LAUNCH_ERROR, "unequal masks") for mode in EVERYWHERE],
    "lane_not_in_mask": [(mode, LAUNCH_ERROR, "doesn't name the calling lane") for mode in EVERYWHERE],
    "divergent_shuffle": [(mode, LAUNCH_ERROR, "different operations") for mode in EVERYWHERE],
    "absent_source": [(mode, WRONG, "") for mode in EVERYWHERE],
    "too_much_shared": [(mode, LAUNCH_ERROR, "more shared memory than a block has") for mode in EVERYWHERE],
}
TWO_PLACES = {"divergent_barrier", "deadlock", "unequal_masks", "divergent_shuffle"}
SEEDS = (0, 1)


@pytest.fixture(scope="session")
def programs():
    return {mode: build.planted_bugs(mode) for mode in MODES}


def run(programs, mode, *arguments, seed):
    # The program has its sanitizer linked in.
    environment = build.environment(mode) | {"SEER_EMU_SEED": str(seed)}
    environment.pop("LD_PRELOAD", None)
    return subprocess.run(
        [programs[mode], *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("mode, name, status, text", [(m, n, s, t) for n, f in BUGS.items() for m, s, t in f])
def test_bug_is_found(programs, name, mode, status, text):
    for seed in SEEDS:
        done = run(programs, mode, name, seed=seed)
        assert done.returncode == status, done.stderr
        assert text in done.stderr
        if text and name != "too_much_shared":
            assert done.stderr.count(LINE) >= (2 if name in TWO_PLACES else 1), done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BUGS)
def test_fixed_twin_is_right(programs, name, mode):
    for seed in SEEDS:
        done = run(programs, mode, name, "fixed", seed=seed)
        assert done.returncode == RIGHT, done.stderr


# ---- what isn't modelled doesn't compile -------------------------------------------------------------------

KERNEL = '#include "cuda_emulator.hpp"\n__global__ void kernel(float* x, int* i) {{ {} }}\n'


@pytest.mark.parametrize(
    "statement",
    [
        "*i = __activemask();",
        "*x = __expf(*x);",
        "__shared__ float box[4];",
        "kernel<<<1, 1>>>(x, i);",
        "*x = max(x[0], x[1]);",  # drops NaN in CUDA, and not in C++
        "short s = 0; s = __shfl_sync(~0u, s, 0);",
        "__shfl(*i, 0);",
        "unsigned char c = 0; atomicAdd(&c, 1);",
        "atomicMax(x, 1.0f);",
    ],
)
def test_what_is_not_modelled_does_not_compile(statement):
    assert build.compiles(KERNEL.format("")) is None
    assert "error" in (build.compiles(KERNEL.format(statement)) or "")
