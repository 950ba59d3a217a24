"""Compiles the CUDA sources for the CPU with g++: the ops as a library for torch, the planted bugs as a program.

Three modes: `plain`; `asan` finds accesses out of bounds and misaligned ones; `tsan` finds races. Only kernels
and their launchers are instrumented; bindings are shared, and the scheduler tells the sanitizers what it does.
Objects are kept under build/emulator by a hash of what goes into them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
OBJECTS = ROOT / "build" / "emulator"

# No contraction, as on every backend. Kernels read memory through vector types, which nvcc allows, and unroll loops.
COMMON = ("-std=c++17", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-ffp-contract=off")
KERNEL = ("-x", "c++", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-DSEER_EMULATE", f"-I{CSRC}", f"-I{HERE}")
NO_RANDOM_ADDRESSES = 0x0040000  # of personality(2)
TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"


@dataclass(frozen=True)
class Mode:
    """kernel: flags of instrumented code. scheduler: flags of the rest of the emulator. runtime: libraries to preload.
    options: environment of a run."""

    kernel: tuple[str, ...]
    scheduler: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()


_FEW_BLOCKS = "-DSEER_MAX_BLOCKS=3"  # loops over the grid go round, which takes millions of rows otherwise
MODES = {
    "plain": Mode(("-O2",), options=(("MALLOC_PERTURB_", "85"),)),  # outputs start with garbage
    "ucontext": Mode(("-O2",), ("-DEMULATOR_UCONTEXT",)),
    "asan": Mode(
        ("-O1", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment", _FEW_BLOCKS),
        ("-DEMULATOR_ASAN",),
        ("libasan.so", "libstdc++.so"),
        (
            ("ASAN_OPTIONS", "detect_leaks=0:exitcode=101:max_malloc_fill_size=1000000000"),
            ("UBSAN_OPTIONS", "exitcode=101:print_stacktrace=1"),
        ),
    ),
    "tsan": Mode(
        ("-O1", "-fsanitize=thread", _FEW_BLOCKS),
        ("-DEMULATOR_TSAN",),
        ("libtsan.so", "libstdc++.so"),
        (("TSAN_OPTIONS", "halt_on_error=1:exitcode=101:ignore_noninstrumented_modules=1"),),
    ),
}


class BuildError(Exception):
    """What is missing or doesn't compile."""


@cache
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        raise BuildError("the emulator tests need g++: install it, or skip them with SEER_NO_EMULATOR=1")
    return found


@cache
def _version() -> str:
    return _run([compiler(), "--version"])


def runtime_library(name: str) -> str:
    path = _run([compiler(), f"-print-file-name={name}"]).strip()
    if not os.path.isabs(path):
        raise BuildError(f"g++ has no {name}: install it, or skip the emulator tests with SEER_NO_EMULATOR=1")
    return path


def environment(mode: str) -> dict[str, str]:
    """What a process needs that loads a library of this mode."""
    names = MODES[mode].runtime
    preload = {"LD_PRELOAD": " ".join(map(runtime_library, names))} if names else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", **preload, **dict(MODES[mode].options)}


def fixed_addresses() -> None:
    """For `preexec_fn`: the sanitizers of older compilers don't cope with widely scattered addresses."""
    ctypes.CDLL(None).personality(NO_RANDOM_ADDRESSES)


def kernels_library(mode: str) -> Path:
    """Registers torch.ops.seer_emu for CPU tensors; the schemas come from whoever loads it."""
    import torch

    kernels = sorted((CSRC / "kernels/cuda").glob("*.cu"))
    bindings = sorted((CSRC / "ops").glob("*.cpp")) + sorted((CSRC / "ops/cuda").glob("*.cpp"))
    own = {"library.cpp", "module.cpp"}  # of seer_ext alone
    folder = Path(torch.__file__).parent
    binding = ("-O1", "-DSEER_EMULATE", f"-I{CSRC}", "-isystem", str(folder / "include"), TORCH_TARGET)
    objects = [(source, KERNEL + MODES[mode].kernel) for source in kernels]
    objects += [(source, binding) for source in bindings if source.name not in own]
    objects += _scheduler(mode)
    libraries = [f"{folder}/lib/libtorch.so", f"{folder}/lib/libtorch_cpu.so", f"-Wl,-rpath,{folder}/lib"]
    return _link(f"kernels_{mode}.so", objects, [*MODES[mode].kernel, "-shared", "-Wl,-z,defs", *libraries])


def planted_bugs(mode: str) -> Path:
    objects = [(HERE / "planted_bugs.cu", KERNEL + MODES[mode].kernel)]
    objects += _scheduler(mode)
    return _link(f"planted_bugs_{mode}", objects, list(MODES[mode].kernel))


def _scheduler(mode: str) -> list[tuple[Path, tuple[str, ...]]]:
    return [(HERE / name, ("-O2", *MODES[mode].scheduler)) for name in ("fibers.cpp", "host.cpp")]


def compiles(text: str) -> str | None:
    """None, or what g++ says against kernel source of this text."""
    command = [compiler(), *COMMON, *KERNEL, "-fsyntax-only", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr


def _link(name: str, sources: list[tuple[Path, tuple[str, ...]]], flags: list[str]) -> Path:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda item: _compile(*item), sources))
    key = _hash(*map(str, objects), *flags)
    return _cached(name, key, [compiler(), *map(str, objects), *flags])


def _compile(source: Path, flags: tuple[str, ...]) -> Path:
    command = [compiler(), *COMMON, *flags, "-c", str(source)]
    texts = (str(path) + path.read_text() for path in sorted(_sources(source, set())))
    key = _hash(_version(), *texts, *command)
    variant = _hash(*flags)[:8]  # modes don't remove each other's objects
    return _cached(f"{source.parent.name}_{source.stem}_{variant}.o", key, command)


def _cached(name: str, key: str, command: list[str]) -> Path:
    """The command's output under `name`, made if there is none of this key; older ones are removed."""
    target = OBJECTS / f"{key[:16]}-{name}"
    if not target.exists():
        unfinished = OBJECTS / f"{os.getpid()}-{target.name}"
        _run([*command, "-o", str(unfinished)])
        for old in OBJECTS.glob(f"*-{name}"):
            if old != unfinished:
                old.unlink(missing_ok=True)
        unfinished.replace(target)  # complete or absent, also for another process that builds at the same time
    return target


def _sources(path: Path, found: set[Path]) -> set[Path]:
    """The file and all of ours that it includes."""
    if path not in found:
        found.add(path)
        for name in re.findall(r'#include "(.+)"', path.read_text()):
            places = (folder / name for folder in (path.parent, CSRC, HERE))
            included = next((place.resolve() for place in places if place.exists()), None)
            if included is not None:
                _sources(included, found)
    return found


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nfails:\n{done.stderr}")
    return done.stdout
