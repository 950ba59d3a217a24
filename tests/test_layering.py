"""The layers: arrows point down only, and every file stays readable."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CPP = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inc"}


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


def test_nothing_waits_for_a_device_or_takes_memory():
    """Also torch's own checks see no call of a statically linked runtime. Workspaces come from the bindings."""
    runtime = r"cuda\w*Synchronize|cuda(Malloc|Free|HostAlloc|Memcpy|Memset|EventQuery|StreamQuery)"
    assert lines_with(runtime, sources("csrc", CPP)) == []
    waits = r"\.item\(|torch::stable::(to|copy_)\("
    bindings = [path for path in sources("csrc/ops/cuda", CPP) if path.name != "common.h"]
    assert lines_with(waits, bindings) == []


def test_device_values_are_read_for_debugging_alone():
    for path in sources("csrc/ops/cuda", {".cpp"}):
        text = path.read_text()
        blocks = re.findall(r"^  if \((?:lengths && )?debug\(\)\) \{\n.*?^  \}\n", text, re.MULTILINE | re.DOTALL)
        assert text.count("to_host(") == sum(block.count("to_host(") for block in blocks), path.name
        assert ("_values(" in text) == bool(blocks), path.name


def test_every_op_has_every_backend():
    schemas = set(re.findall(r'm\.def\(\s*"(\w+)\(', (ROOT / "csrc/ops/library.cpp").read_text()))
    for folder, suffix in [
        ("csrc/ops", ".h"),
        ("csrc/ops", ".cpp"),
        ("csrc/ops/cpu", ".cpp"),
        ("csrc/ops/cuda", ".cpp"),
        ("csrc/kernels/cpu", ".h"),
        ("csrc/kernels/cuda", ".cu"),
        ("csrc/kernels/cuda", ".cuh"),
    ]:
        missing = [op for op in sorted(schemas) if not (ROOT / folder / f"{op}{suffix}").exists()]
        assert missing == [], folder


def test_cuda_kernels_include_nothing_but_ours():
    """What a kernel includes, the emulator of the tests must have too; CUDA's own headers come by compat.cuh."""
    includes = lines_with(r"#\s*include", sources("csrc/kernels/cuda", {".h", ".cu", ".cuh"}))
    compat = "csrc/kernels/cuda/compat.cuh"
    assert {line.split(": ")[1] for line in includes if line.startswith(compat)} == {
        '#include "cuda_emulator.hpp"',
        "#include <cuda_runtime.h>",
    }
    ours = r'#include (<cstdint>|"(\.\./)?\w+\.h"|"\w+\.cuh")$'
    assert [line for line in includes if not line.startswith(compat) and not re.search(ours, line)] == []


def test_cuda_kernels_keep_to_what_the_emulator_runs():
    kernels = [path for path in sources("csrc/kernels/cuda", {".cu", ".cuh"}) if path.name != "compat.cuh"]
    assert lines_with(r"__shared__|<<<|__activemask|\basm\b|\batomicAdd\(.*\b(float|double)\b", kernels) == []
    assert lines_with(r"__syncthreads.*__syncthreads", kernels) == []
    assert lines_with(r"__(shfl\w*|ballot|any|all)_sync\((?!kAllLanes)|__syncwarp\(\)", kernels) == []


def test_every_launch_is_checked():
    """By the launcher, which returns the status, and by the binding, which raises it."""
    for path in sources("csrc/kernels/cuda", {".cu"}):
        text = path.read_text()
        launches = [match.end() for match in re.finditer(r"SEER_LAUNCH\(", text)]
        for end in launches:
            statement = text.index(";\n", end) + 2
            rest = re.sub(r"^\s*(\} else \{\s*SEER_LAUNCH\([^;]*;\s*)?\}?\s*", "", text[statement:])
            assert re.match(r"(return|const int status =) launch_status\(\);", rest), f"{path.name}: {rest[:60]}"
        assert launches or path.name == "status.cu"
    launchers = re.findall(
        r"^int (seer_cuda_\w+)\(", (ROOT / "csrc/kernels/cuda/launchers.h").read_text(), re.MULTILINE
    )
    bindings = "".join(path.read_text() for path in sources("csrc/ops/cuda", {".cpp"}))
    for launcher in launchers:
        checked = rf"check_launch\(\"\w+\", {launcher}\(|const int status = {launcher}\([^;]*;\s*check_launch\("
        assert len(re.findall(checked, bindings)) == bindings.count(f"{launcher}(") == 1, launcher


def test_contraction_is_off_everywhere():
    """Backends agree bit for bit only without it."""
    flags = (ROOT / "CMakeLists.txt").read_text()
    assert "-ffp-contract=off" in flags and "--fmad=false" in flags
    assert not re.search(r"fast.math", flags)


@pytest.mark.parametrize("folder", ["csrc", "seer_ext", "python", "tests"])
def test_files_are_under_400_lines(folder):
    lengths = {path: len(path.read_text().splitlines()) for path in sources(folder, CPP | {".py"})}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n >= 400} == {}
