"""The kernels as machine code, for every architecture of a release: all compile, within the budget of budget.json.

There a name (with `*` and `[...]` as in a shell) stands for kernels, `why` for the reason, and each measure for the
least and the most allowed. All names that fit a kernel hold for it. Ranges are wide enough for another nvcc to pass,
and narrow enough for a lost vector load, a spill or a second barrier in a loop to fail.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sass import build, listing

HERE = Path(__file__).resolve().parent
EVERY = "every kernel"
BUDGET = json.loads((HERE / "budget.json").read_text())


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    file = build.object_of(HERE / "planted.cu", tmp_path_factory.mktemp("planted"), "sm_80")
    return {kernel.name: kernel for kernel in listing.kernels(file, "sm_80")}


def measures(kernel):
    wide = [loop for loop in kernel.inner_loops if any(i.is_global and i.bits >= 128 for i in loop)]
    return {
        "registers": kernel.registers,
        "stack": kernel.stack,
        "shared": kernel.shared,
        "local": kernel.count("LDL", "STL"),
        "loads128": sum(bits >= 128 for bits in kernel.accesses("LDG")),
        "stores128": sum(bits >= 128 for bits in kernel.accesses("STG")),
        "narrow_loads": sum(bits < 128 for bits in kernel.accesses("LDG")),
        "narrow_beside_wide": sum(i.is_global and i.bits < 128 for loop in wide for i in loop),
        "barriers": kernel.count("BAR"),
        "atomics": kernel.count("ATOM", "ATOMG", "ATOMS", "RED"),
        "instructions": kernel.size,
    }


def entries(name, budget):
    """The names in the budget that hold for a kernel."""
    return [pattern for pattern in budget if pattern != EVERY and fnmatch.fnmatchcase(name, pattern)]


def breaches(kernel, budget):
    """What a kernel has that its budget doesn't allow."""
    measured, fitting = measures(kernel), entries(kernel.name, budget)
    found = [] if fitting else ["is not in the budget"]
    for pattern in (EVERY, *fitting):
        for measure, (least, most) in ((k, v) for k, v in budget[pattern].items() if k != "why"):
            if not least <= measured[measure] <= most:
                found.append(f"{measure} {measured[measure]}, {pattern!r} has [{least}, {most}]")
    return found


def test_every_source_compiles_for_every_architecture(objects):
    """Machine code for all, and PTX of the newest for what comes later."""
    assert {file.name: listing.architectures(file) for file in objects} == {
        file.name: build.ARCHITECTURES for file in objects
    }


@pytest.mark.parametrize("architecture", [name for name in build.ARCHITECTURES if name.startswith("sm_")])
def test_kernels_keep_to_the_budget(objects, architecture):
    kernels = [kernel for file in objects for kernel in listing.kernels(file, architecture)]
    assert {kernel.name: found for kernel in kernels if (found := breaches(kernel, BUDGET))} == {}


def test_no_name_in_the_budget_is_stale(compiled):
    names = [kernel.name for kernel in compiled]
    assert [pattern for pattern in BUDGET if pattern != EVERY and not fnmatch.filter(names, pattern)] == []


def test_every_kernel_of_the_sources_is_seen(compiled):
    """The listing's format isn't documented: what it no longer shows would pass."""
    sources = "".join(file.read_text() for file in sorted((build.ROOT / "csrc/kernels/cuda").glob("*.cuh")))
    written = set(re.findall(r"__global__[^;{]*?\b(\w+_kernel)\(", sources))
    assert {kernel.name.split("<")[0] for kernel in compiled} == written
    assert all(kernel.size > 100 and kernel.count("EXIT") > 0 and kernel.registers > 8 for kernel in compiled)


# ---- kernels as they must not be ---------------------------------------------------------------------------

_PLANTED_BUDGET = {
    EVERY: {"why": "", "stack": [0, 0], "local": [0, 0]},
    "*_kernel": {"why": "", "barriers": [0, 1]},
    "[wnm]*_kernel": {"why": "", "loads128": [1, 4], "narrow_beside_wide": [0, 0]},
}


@pytest.mark.parametrize(
    "name, breached",
    [
        ("wide_kernel", []),
        ("spilling_kernel", ["stack", "local"]),
        ("stack_kernel", ["stack", "local"]),
        ("narrow_kernel", ["loads128"]),
        ("mixed_kernel", ["narrow_beside_wide"]),
    ],
)
def test_planted(planted, name, breached):
    assert [text.split()[0] for text in breaches(planted[name], _PLANTED_BUDGET)] == breached


def test_planted_kernel_without_a_budget(planted):
    assert breaches(planted["wide_kernel"], {EVERY: _PLANTED_BUDGET[EVERY]}) == ["is not in the budget"]


@pytest.mark.parametrize("required", ["0", "1"])
def test_a_missing_nvcc_fails_where_it_is_required(required):
    variables = {"CUDACXX": "/nowhere/nvcc", "SEER_REQUIRE_NVCC": required}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "stale"]
    done = subprocess.run(
        command, env=os.environ | variables, cwd=build.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == int(required), done.stdout
    assert "/nowhere/nvcc can't be run" in done.stdout
