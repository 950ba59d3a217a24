"""The CPU kernels and their bindings under AddressSanitizer and UndefinedBehaviorSanitizer: the tests beside this one
run again, in a process of their own, with an extension built for it.

Left out are the tests of compilation, which is the same for any kernel, of CUDA graphs, and of glibc's heap, in whose
place a sanitizer has its own. SEER_NO_EMULATOR=1 skips these tests as it does those of the emulator; without it, a
missing compiler or sanitizer fails them.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from emulator import build

FOLDER = build.ROOT / "build" / "sanitized"
PACKAGE = FOLDER / "lib" / "seer_ext"
LEFT_OUT = ("test_compile_chain.py", "test_contract.py", "test_cuda_graph.py", "test_memory.py", "test_sanitized.py")
SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
TOOLS = {
    "CXXFLAGS": f"{SANITIZERS} -fno-omit-frame-pointer -g1",
    "SEER_CMAKE_ARGS": "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
    "SEER_BUILD_DIR": str(FOLDER / "cmake"),
    "SEER_CUDA": "OFF",
}
FOUND = 101  # exit status: a sanitizer found something

pytestmark = pytest.mark.skipif(os.environ.get("SEER_NO_EMULATOR", "0") == "1", reason="SEER_NO_EMULATOR=1")


def key() -> str:
    """Of all that goes into the extension."""
    sources = [path for path in (build.ROOT / "csrc").rglob("*") if path.is_file()]
    texts = [
        str(path).encode() + path.read_bytes()
        for path in sorted([*sources, build.ROOT / "CMakeLists.txt", build.ROOT / "setup.py"])
    ]
    tools = f"{TOOLS} {torch.__version__} {sys.version} {build.compiler()}".encode()
    return hashlib.sha256(b"\0".join([tools, *texts])).hexdigest()


@pytest.fixture(scope="module")
def sanitized():
    """Runs Python with the sanitized extension in the place of the usual one."""
    built = FOLDER / "key"
    if not built.exists() or built.read_text() != key():
        built.unlink(missing_ok=True)
        command = [
            sys.executable,
            "setup.py",
            "build_ext",
            "--build-lib",
            PACKAGE.parent,
            "--build-temp",
            FOLDER / "tmp",
        ]
        done = subprocess.run(
            command, cwd=build.ROOT, env=os.environ | TOOLS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        built.write_text(key())
    for source in (build.ROOT / "seer_ext").glob("*.py"):
        link = PACKAGE / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=PACKAGE.parent,  # Python looks there first
            env=build.environment("asan"),
            preexec_fn=build.fixed_addresses,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_ops(sanitized):
    folder = Path(__file__).parent
    tests = [str(path) for path in sorted(folder.glob("test_*.py")) if path.name not in LEFT_OUT]
    done = sanitized("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(build.ROOT / "pyproject.toml"), *tests)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert "skipped" not in done.stdout or "is the only level" in done.stdout, done.stdout[-2000:]


# ---- the sanitizers find what is there -----------------------------------------------------------------------

PAST_THE_END = """
import torch, seer_ext
act = torch.zeros(2, 64)
act.untyped_storage().resize_(300)  # of 512 bytes
seer_ext.ops.mlp_sparsity(act, 0.5)
"""
MISALIGNED = """
import torch, seer_ext
act = torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1)
seer_ext.ops.mlp_sparsity(act, 0.5)
"""


@pytest.mark.parametrize(
    "text, finding", [(PAST_THE_END, "heap-buffer-overflow"), (MISALIGNED, "misaligned address")], ids=["asan", "ubsan"]
)
def test_planted_bugs_are_found(sanitized, text, finding):
    done = sanitized("-c", text)
    assert done.returncode == FOUND, done.stderr
    assert finding in done.stderr and "mlp_sparsity" in done.stderr, done.stderr
