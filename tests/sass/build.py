"""Compiles the CUDA kernels for every architecture that releases are for, by the project's own CMake files, so with
its flags and its one knob for architectures. Objects stay under build/sass: only what changed is compiled again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "sass"
CAPABILITIES = "7.5;8.0;8.6;8.9;9.0;10.0;12.0+PTX"
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "compute_120"]
OLDEST_NVCC = (12, 8)  # that knows them all
JOBS = "2"


class BuildError(Exception):
    """What is missing or doesn't compile."""


@cache
def nvcc() -> str:
    found = os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        raise BuildError("nvcc was not found")
    release = re.search(r"release (\d+)\.(\d+)", run(found, "--version"))
    if release is None or (int(release[1]), int(release[2])) < OLDEST_NVCC:
        raise BuildError(f"{found} must be of CUDA {'.'.join(map(str, OLDEST_NVCC))} or newer")
    return found


def objects() -> list[Path]:
    """One for each source of kernels."""
    import pybind11
    import torch

    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": _program("ninja"),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": FOLDER,
        "Python_EXECUTABLE": sys.executable,
        "PYTHON_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(),
        "SEER_TORCH_DIR": Path(torch.__file__).parent,
        "SEER_CUDA": "ON",
        "SEER_CUDA_ANY_VERSION": "ON",  # nothing is linked to torch here
        "TORCH_CUDA_ARCH_LIST": CAPABILITIES,
    }
    cmake = _program("cmake")
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run(cmake, "-S", str(ROOT), "-B", str(FOLDER), "-G", "Ninja", *defines, env=os.environ | {"CUDACXX": nvcc()})
    run(cmake, "--build", str(FOLDER), "--target", "seer_cuda", "-j", JOBS)
    found = sorted(FOLDER.glob("CMakeFiles/seer_cuda.dir/csrc/kernels/cuda/*.o"))
    sources = sorted((ROOT / "csrc/kernels/cuda").glob("*.cu"))
    if [file.name for file in found] != [f"{file.name}.o" for file in sources]:
        raise BuildError(f"CMakeLists.txt must list every kernel source, got objects {[file.name for file in found]}")
    return found


def object_of(source: Path, folder: Path, architecture: str) -> Path:
    """A single file, with the flags that decide about machine code."""
    target = folder / f"{source.stem}.o"
    run(nvcc(), "-std=c++17", "-O3", "--fmad=false", f"-arch={architecture}", "-c", str(source), "-o", str(target))
    return target


def _program(name: str) -> str:
    """That of this Python's environment, activated or not; else the machine's."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        raise BuildError(f"{name} was not found: run `pip install {name}`")
    return found


def run(*command: str, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    except OSError as error:
        raise BuildError(f"{command[0]} can't be run: {error}") from None
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nfails:\n{done.stdout}{done.stderr}")
    return done.stdout
