"""bench/gpu_check.sh as far as it goes without a GPU: what it asks for, and that it reports each step and goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEPS = ["build", "ops", "graph", "runtime", "bench", "sanitizer_memcheck", "sanitizer_racecheck", "costs", "denoise"]


@pytest.fixture
def check(tmp_path):
    """Runs the script with a Python that does `body` first, in shell, and is the real one otherwise."""

    def run(body="", **variables):
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\n{body}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        variables = {"SEER_CHECK_DEVICE": "cpu", "OUT": str(tmp_path / "out"), "PYTHON": str(python)} | variables
        script = ["bash", str(ROOT / "bench/gpu_check.sh")]
        return subprocess.run(script, env=os.environ | variables, capture_output=True, text=True, check=False)

    return run


def table(folder):
    """The result of each step, by name."""
    lines = (folder / "out/gpu_check.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines[lines.index("|---|---|---|---|") + 1 :]]
    return {cells[0].strip(): cells[1].strip() for cells in rows}


def test_every_step_runs(check, tmp_path):
    done = check()
    results = table(tmp_path)
    assert done.returncode == 0, done.stdout
    assert list(results) == STEPS
    assert all(results[name] == "PASS" for name in ("build", "ops", "graph", "runtime"))
    log = (tmp_path / "out/gpu_check.log").read_text()
    assert "tests/ops/test_cuda_graph.py" in log and "tests/runtime/test_cuda.py" in log


def test_a_step_that_fails_stops_no_other(check, tmp_path):
    done = check('case "$*" in *pytest*graph*) echo broken; exit 3;; *pytest*) exit 0;; esac')
    results = table(tmp_path)
    assert done.returncode == 1
    assert list(results) == STEPS
    assert [name for name, result in results.items() if result == "FAIL"] == ["graph"]
    assert "exit code 3: broken" in done.stdout


@pytest.mark.parametrize(
    "body, variables, said",
    [
        ('[ "$1" = -c ] && { echo torch pybind11; exit 0; }', {}, "lacks: torch pybind11"),
        ("", {"SEER_CHECK_DEVICE": "gpu"}, "SEER_CHECK_DEVICE must be cuda or cpu, got 'gpu'"),
        ("", {"PYTHON": "/nowhere/python"}, "PYTHON must be a Python 3.10 or newer, got '/nowhere/python'"),
        ("", {"SEER_CHECK_DEVICE": "cuda", "CUDACXX": "/nowhere/nvcc"}, "nvcc was not found"),
        ("", {"SEER_CHECK_DEVICE": "cuda", "CUDACXX": "true", "CUDA_VISIBLE_DEVICES": ""}, "finds no CUDA device"),
    ],
)
def test_what_is_missing_is_said_in_one_line(check, tmp_path, body, variables, said):
    done = check(body, **variables)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
