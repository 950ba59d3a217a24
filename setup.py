"""Builds seer_ext._C with CMake against the torch of the environment that is installed into.

torch is found as a folder and never imported, so it is no build requirement and a plain `pip install .` works
in pip's isolated build too. Knobs, all environment variables: SEER_TORCH_DIR (torch's folder), SEER_CUDA
(AUTO: where nvcc is found; ON, OFF), CUDACXX (the nvcc to take), TORCH_CUDA_ARCH_LIST (say 8.0;9.0+PTX),
SEER_CUDA_ANY_VERSION (ON: nvcc may be of another CUDA than torch), SEER_CMAKE_ARGS (more arguments, split at
blanks), SEER_BUILD_DIR, MAX_JOBS.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def version() -> str:
    return re.search(r'^__version__ = "(.+)"$', (ROOT / "seer_ext/_version.py").read_text(), re.MULTILINE)[1]


def torch_dir() -> Path:
    """In pip's isolated build sysconfig still names the site-packages of the environment installed into."""
    chosen = os.environ.get("SEER_TORCH_DIR")
    site = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    for folder in [Path(chosen)] if chosen else [Path(path) / "torch" for path in site if path]:
        if (folder / "include/torch/csrc/stable/library.h").exists():
            return folder.resolve()
    where = f"SEER_TORCH_DIR={chosen} holds none" if chosen else "this environment has none"
    raise SystemExit(
        f"seer-ext is built against an installed torch >= 2.11, and {where}: run `pip install torch` first, "
        "or set SEER_TORCH_DIR to the folder of a torch package."
    )


def tool(name: str) -> str:
    """The program that pip installed, whether or not its environment is activated; else the machine's."""
    try:
        module = importlib.import_module(name)
        folder = getattr(module, "CMAKE_BIN_DIR", None) or module.BIN_DIR or None
    except ImportError:
        folder = None
    found = shutil.which(name, path=folder)
    if found is None:
        raise SystemExit(f"seer-ext is built with {name}, and there is none: run `pip install {name}` first.")
    return found


class CMakeBuild(build_ext):
    def run(self) -> None:
        import pybind11

        torch = torch_dir()
        # One build folder per environment, kept between builds: only what changed is compiled again.
        default = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}-{zlib.crc32(bytes(torch)):08x}"
        folder = Path(os.environ.get("SEER_BUILD_DIR") or default).resolve()
        target = (ROOT if self.inplace else Path(self.build_lib).resolve()) / "seer_ext"
        arguments = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": tool("ninja"),  # each time: that of an isolated build is gone by the next
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": target,
            "Python_EXECUTABLE": sys.executable,
            "PYTHON_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "SEER_TORCH_DIR": torch,
        }
        # Always given: a build folder remembers what it was told before.
        knobs = {"SEER_CUDA": "AUTO", "SEER_CUDA_ANY_VERSION": "OFF", "TORCH_CUDA_ARCH_LIST": ""}
        arguments |= {name: os.environ.get(name) or default for name, default in knobs.items()}
        defines = [f"-D{name}={value}" for name, value in arguments.items()]
        more = os.environ.get("SEER_CMAKE_ARGS", "").split()
        cmake = tool("cmake")
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        subprocess.check_call([cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *defines, *more])
        subprocess.check_call([cmake, "--build", folder, "-j", jobs])


setup(
    version=version(),
    packages=["seer_ext", *find_packages("python")],
    package_dir={"seer_dllm": "python/seer_dllm"},
    package_data={"seer_dllm.demo": ["*.npz", "model/*"]},
    ext_modules=[Extension("seer_ext._C", [])],
    cmdclass={"build_ext": CMakeBuild},
)
