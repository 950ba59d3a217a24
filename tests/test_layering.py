"""The layers: arrows point down only, and every file stays readable."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CPP = {".h", ".cpp", ".cu", ".cuh", ".inc"}


def sources(folder, suffixes):
    found = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]
    assert found, f"no sources in {folder}"
    return found


def lines_with(pattern, paths):
    search = re.compile(pattern).search
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if search(line)
    ]


def test_kernels_know_no_tensor_library():
    kernels = sources("csrc/kernels", CPP)
    assert lines_with(r'#\s*include\s*[<"](torch|ATen|c10|pybind11|Python\.h|.*\bops/)', kernels) == []
    assert lines_with(r"\b(torch|at|c10|aoti_\w+)::|\baoti_torch", kernels) == []


def test_the_op_package_does_not_know_the_runtime():
    assert lines_with(r"\bseer_dllm\b", sources("seer_ext", {".py"}) + sources("csrc", CPP)) == []


def test_plans_are_made_without_tensors():
    policy = [ROOT / "python/seer_dllm" / f"{name}.py" for name in ("buckets", "config", "costs", "router")]
    assert lines_with(r"\b(import|from)\s+(torch|seer_ext)\b", policy) == []


def test_ops_are_called_through_their_wrappers():
    """Only the wrappers and the registrations name torch.ops.seer; others get documented functions."""
    allowed = {ROOT / "seer_ext" / name for name in ("ops.py", "fake.py")}
    others = [path for path in sources("seer_ext", {".py"}) + sources("python", {".py"}) if path not in allowed]
    mentions = lines_with(r"torch\.ops\b", others)
    code = [line for line in mentions if not re.search(r'"""|#|`torch\.ops', line)]  # prose may name it
    assert code == []


def test_bindings_keep_to_the_stable_abi():
    """Headers of the unstable ABI compile, and then fail on another torch."""
    includes = lines_with(r'#\s*include\s*[<"](torch|ATen|c10)/', sources("csrc", CPP))
    stable = r"<torch/(csrc/(stable|inductor/aoti_torch)|headeronly)/"
    assert [line for line in includes if not re.search(stable, line)] == []


def test_nothing_waits_for_a_device():
    sync = r"cuda(Device|Stream)Synchronize|cudaEventSynchronize"
    assert lines_with(sync, sources("csrc", CPP)) == []


@pytest.mark.parametrize("folder", ["csrc", "seer_ext", "python", "tests"])
def test_files_are_under_400_lines(folder):
    lengths = {path: len(path.read_text().splitlines()) for path in sources(folder, CPP | {".py"})}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n >= 400} == {}
