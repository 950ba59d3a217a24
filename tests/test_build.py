"""What the build decides before it compiles: which nvcc, for which devices, and whether it fits torch's CUDA."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
pybind11 = pytest.importorskip("pybind11", reason="the build's own requirements aren't installed")


def cmake() -> str:
    try:
        import cmake as package

        return os.path.join(package.CMAKE_BIN_DIR, "cmake")
    except ImportError:
        return shutil.which("cmake") or pytest.skip("the build's own requirements aren't installed")


@pytest.fixture
def configure(tmp_path):
    """Configures with a stand-in nvcc of a release (none at all for None) and a torch of a CUDA version (none: the
    CPU's)."""

    def run(release, torch_cuda, **options):
        nvcc = tmp_path / "nvcc"
        if release is not None:
            nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.8\n")
            nvcc.chmod(0o755)
        fake = tmp_path / "torch"
        fake.mkdir()
        (fake / "include").symlink_to(Path(torch.__file__).parent / "include")
        value = f"Optional[str] = {torch_cuda!r}"
        (fake / "version.py").write_text(f"__version__ = '2.99.1+stand.in'\ncuda: {value}\nhip: Optional[str] = None\n")
        options |= {
            "SEER_TORCH_DIR": fake,
            "Python_EXECUTABLE": sys.executable,
            "PYTHON_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": tmp_path,
        }
        command = [cmake(), "-S", ROOT, "-B", tmp_path / "build", *(f"-D{k}={v}" for k, v in options.items())]
        environment = os.environ | {"CUDACXX": str(nvcc)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join(done.stderr.split()), tmp_path / "_build_info.json"

    return run


def test_nvcc_of_another_cuda_than_torch(configure):
    """case P25: both named, before compiling, and what to do about it."""
    status, error, _ = configure("11.8", "13.0")
    assert status != 0
    for words in ("nvcc is of CUDA 11.8", "torch 2.99.1+stand.in of CUDA 13.0", "CUDACXX", "SEER_CUDA_ANY_VERSION=ON"):
        assert words in error


def test_nvcc_of_another_cuda_is_taken_on_request(configure):
    _, error, _ = configure("12.9", "13.0", SEER_CUDA_ANY_VERSION="ON", TORCH_CUDA_ARCH_LIST="nothing")
    assert "of CUDA 13.0" not in error and "got 'nothing'" in error  # the next check


@pytest.mark.parametrize("torch_cuda", [None, "13.2"])
def test_capabilities(configure, torch_cuda):
    """A minor version apart, or a torch without CUDA: fine. So is each entry of the list but the third."""
    status, error, _ = configure("13.0", torch_cuda, TORCH_CUDA_ARCH_LIST="8.0 9.0a;Hopper+PTX,12.0")
    assert status != 0
    assert "TORCH_CUDA_ARCH_LIST must list capabilities such as 8.0;9.0+PTX, got 'Hopper+PTX'" in error


@pytest.mark.parametrize("release, why", [(None, "nvcc was not found"), ("11.4", "nvcc 11.4 is older than 12.0")])
def test_without_a_fitting_nvcc(configure, release, why):
    status, error, record = configure(release, None)
    assert status == 0, error
    built = json.loads(record.read_text())
    assert built["cuda_archs"] == [] and built["cuda_compiler"] == why


def test_cuda_on_request_needs_nvcc(configure):
    status, error, _ = configure(None, None, SEER_CUDA="ON")
    assert status != 0 and "SEER_CUDA=ON, but nvcc was not found" in error
