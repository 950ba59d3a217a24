"""The tests of the ops that name a device, with the emulated kernels in the place of the CPU ops."""

from __future__ import annotations

import importlib.util
import inspect
import re
import warnings

import pytest
import torch

from cases import OPS
from emulator import build, worker
from emulator.calls import CALLS
from seer_ext import ops

# The wrappers, fakes and gradients that these are about are in front of every backend alike.
OTHERS = {"test_contract", "test_compile_chain"}


@pytest.fixture(scope="session")
def kernels():
    return worker.load(str(build.kernels_library("plain")))


@pytest.fixture
def device(kernels):
    """CPU tensors go to the emulated kernels for the time of the test."""
    with torch.library._scoped_library("seer", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
        for op in OPS:
            library.impl(op, getattr(torch.ops.seer_emu, op).default, "CPU", allow_override=True)
        yield "cpu"


@pytest.fixture
def impl():
    """The ops alone: the definitions are tested elsewhere."""
    return ops


def test_ops_launch_kernels(device, kernels):
    before = kernels.cuda_emulator_launches()
    assert ops.mlp_sparsity(torch.zeros(2, 3, device=device), 0.5).tolist() == [1, 1]
    assert kernels.cuda_emulator_launches() == before + 1


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.truth is not None or call.free])
def test_debugging_refuses_what_the_cpu_op_refuses(kernels, monkeypatch, name):
    """SEER_DEBUG=1: values in device memory are checked, with the same text."""
    call = CALLS[name]
    monkeypatch.setenv("SEER_DEBUG", "1")
    texts = []
    for namespace in (torch.ops.seer, torch.ops.seer_emu):
        args, kwargs = call.make()
        try:
            getattr(namespace, call.op)(*args, **kwargs)
            texts.append(None)
        except RuntimeError as error:
            texts.append(re.search(rf"seer::{call.op}: .*", str(error))[0])
    assert texts[0] == texts[1]


def _device_tests(path) -> type:
    """A class of the module's tests that take the device."""
    spec = importlib.util.spec_from_file_location(f"emulated_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = {
        name: staticmethod(test)
        for name, test in vars(module).items()
        if name.startswith("test_") and "device" in inspect.signature(test).parameters
    }
    return type(path.stem.title().replace("_", ""), (), tests)


for _path in sorted((build.ROOT / "tests/ops").glob("test_*.py")):
    if _path.stem not in OTHERS:
        _tests = _device_tests(_path)
        globals()[_tests.__name__] = _tests
