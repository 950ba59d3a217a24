"""Installing, importing and reporting: also where torch or the extension is missing or doesn't fit."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import seer_ext
from cases import OPS
from seer_ext import _C, _loader, info, plan_keep

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(seer_ext.__file__).parent


def python(*arguments, path=None, **variables):
    environment = os.environ | variables | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=path, capture_output=True, text=True, check=False
    )


def import_error(path, **variables):
    """The sentence that `import seer_ext` fails with; it must be an ImportError, and one line."""
    done = python("-c", "import seer_ext", path=path, **variables)
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("ImportError: "), done.stderr
    return last.removeprefix("ImportError: ")


@pytest.fixture
def broken(tmp_path):
    """A copy of the package that a test may spoil, in the folder to import it from."""
    shutil.copytree(PACKAGE, tmp_path / "seer_ext", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def patch_build_info(folder, **changes):
    record = folder / "seer_ext" / "_build_info.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))


def fake_torch(folder, text):
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)


# ---- version and files -------------------------------------------------------------------------------------


def test_one_version():
    version = seer_ext.__version__
    assert importlib.metadata.version("seer-ext") == version
    assert json.loads(_C.build_info())["version"] == version
    literal = [
        path.name
        for path in (ROOT / "setup.py", ROOT / "pyproject.toml", ROOT / "CMakeLists.txt")
        if version in path.read_text()
    ]
    assert literal == [], "only seer_ext/_version.py spells the version out"


def test_the_record_is_that_of_the_module():
    assert _loader.build_info() == json.loads(_C.build_info())


def test_setup_stays_small():
    assert len((ROOT / "setup.py").read_text().splitlines()) < 120


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm (binutils) isn't installed")
def test_only_stable_symbols_are_used():
    symbols = subprocess.check_output(["nm", "-D", "--undefined-only", "-C", _C.__file__], text=True)
    assert "aoti_torch_" in symbols
    assert re.findall(r".*\b(?:c10|at|torch)::.*", symbols) == []


# ---- import ------------------------------------------------------------------------------------------------


def test_import_without_torch(broken):
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    message = import_error(broken)
    built = _loader.build_info()["torch"]
    assert re.fullmatch(rf"seer_ext .* torch >= 2\.11 \(against {re.escape(built)}\).*none.*", message)


def test_import_with_an_older_torch(broken):
    """case P24: versions are compared before the library is touched, which here isn't even one."""
    next((broken / "seer_ext").glob("_C*.so")).write_bytes(b"not a library")
    fake_torch(broken, "__version__ = '2.10.1'\n")
    assert re.search(r"built for torch >= 2\.11 .*, but found torch 2\.10\.1\.", import_error(broken))


@pytest.mark.parametrize("change", [{"torch_target": "97.3", "torch": "97.4.0"}, {"torch": "97.4.0+cpu"}])
def test_import_with_a_build_for_another_torch(broken, change):
    """case P24: the recorded build torch patched to another version."""
    next((broken / "seer_ext").glob("_C*.so")).write_bytes(b"not a library")
    patch_build_info(broken, **change)
    message = import_error(broken)
    assert change["torch"] in message and f"found torch {torch.__version__}" in message


def test_import_with_a_broken_torch(broken):
    fake_torch(broken, "import no_such_module\n")
    assert re.search(r"torch doesn't import: No module named 'no_such_module'", import_error(broken))
    (broken / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: no such file')\n")
    assert re.search(r"torch doesn't import: libtorch\.so: no such file", import_error(broken))


@pytest.mark.parametrize("text", [None, "{"])
def test_import_without_a_build(broken, text):
    record = broken / "seer_ext" / "_build_info.json"
    record.unlink() if text is None else record.write_text(text)
    assert re.search(r"no compiled extension .*pip install", import_error(broken))


def test_import_with_an_unloadable_library(broken):
    next((broken / "seer_ext").glob("_C*.so")).write_bytes(b"not a library")
    message = import_error(broken)
    assert _loader.build_info()["torch"] in message and "doesn't load" in message and "pip install" in message


# ---- info --------------------------------------------------------------------------------------------------


def test_info_reports_every_op():
    report = info.collect()
    assert report["error"] is None and report["torch"] == torch.__version__
    assert report["extension"] == _C.__file__
    assert report["cpu_isa"] in report["cpu_isas"] and report["cpu_isas"][0] == "baseline"
    assert set(OPS) <= set(report["ops"])
    for op, backends in report["ops"].items():
        assert backends["CPU"] and backends["Meta"], op
        assert backends["CUDA"] == bool(report["built"]["cuda_archs"]), op
    text = info.render(report)
    assert all(re.search(rf"^{op} +yes", text, re.MULTILINE) for op in OPS)
    cuda = next(line for line in text.splitlines() if line.startswith("CUDA kernels"))
    assert report["built"]["cuda_compiler"] in cuda  # which nvcc, or why there is none
    assert all(arch in cuda for arch in report["built"]["cuda_archs"])


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf (binutils) isn't installed")
def test_import_needs_no_cuda_library():
    """case P26: neither a driver nor a CUDA runtime, with CUDA kernels or without."""
    needed = subprocess.check_output(["readelf", "-d", _C.__file__], text=True)
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", needed)
    assert "libtorch_cpu.so" in libraries
    assert [name for name in libraries if re.search(r"cuda|nvidia|cudart", name)] == []


def test_info_as_a_command():
    done = python("-m", "seer_ext.info", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == info.collect()
    done = python("-m", "seer_ext.info")
    assert done.returncode == 0 and "silu_mul_sparsity" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("fault", ["no torch", "broken torch", "old torch", "no library", "no record", "bad record"])
def test_info_on_a_broken_install(broken, fault):
    """The report is for exactly these moments: it names the fault and exits with 0."""
    record = broken / "seer_ext" / "_build_info.json"
    if fault == "no torch":
        (broken / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    elif fault == "broken torch":
        fake_torch(broken, "raise OSError('libtorch.so: no such file')\n")
    elif fault == "old torch":
        fake_torch(broken, "__version__ = '2.3.0'\n")
    elif fault == "no library":
        next((broken / "seer_ext").glob("_C*.so")).unlink()
    elif fault == "no record":
        record.unlink()
    else:
        record.write_text('{"torch": 3}')
    done = python("-m", "seer_ext.info", "--json", path=broken)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["error"] and report["ops"] == {} and report["seer-ext"] == seer_ext.__version__
    text = python("-m", "seer_ext.info", path=broken)
    assert text.returncode == 0 and report["error"] in text.stdout


def test_info_names_an_unavailable_isa():
    done = python("-m", "seer_ext.info", "--json", SEER_CPU_ISA="v9")
    assert done.returncode == 0 and json.loads(done.stdout)["cpu_isa"] is None
    call = "import torch\nfrom seer_ext import ops\nops.mlp_sparsity(torch.zeros(3), 0.5)"
    done = python("-c", call, SEER_CPU_ISA="v9")
    assert "ValueError: seer::mlp_sparsity: SEER_CPU_ISA must be one of" in done.stderr
    assert "got v9" in done.stderr


# ---- the plan helper ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, kept",
    [
        # boundary + margin fits one block: one block, rounded up to 8, never more than the window
        ((10, 64, 32, 0), (16, 16)),
        ((10, 64, 32, 16), (32, 32)),
        ((8, 64, 32, 0), (8, 8)),
        ((9, 10, 32, 0), (10, 10)),
        ((3, 64, 4, 0), (4, 4)),
        ((10, 96, 12, 0), (12, 12)),
        # more: whole blocks
        ((33, 64, 32, 0), (64, 32)),
        ((33, 128, 16, 0), (48, 16)),
        ((60, 64, 16, 16), (64, 16)),
        ((30, 40, 16, 0), (32, 16)),
        ((33, 40, 16, 0), (40, 16)),
        # nothing cut
        ((64, 64, 64, 16), (64, 64)),
        ((0, 0, 8, 16), (0, 0)),
        ((5, 64, 32, 2**62), (64, 32)),
    ],
)
def test_plan_keep(arguments, kept):
    assert plan_keep(*arguments) == kept


def test_plan_keep_errors():
    for arguments, words in [
        ((-1, 64, 32, 0), "boundary must lie in [0, window], got -1"),
        ((65, 64, 32, 0), "boundary must lie in [0, window], got 65"),
        ((1, -1, 32, 0), "window must be at least 0, got -1"),
        ((1, 64, 0, 0), "block must be at least 1, got 0"),
        ((1, 64, 32, -1), "margin must be at least 0, got -1"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            plan_keep(*arguments)
