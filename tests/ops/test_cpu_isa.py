"""Every level of the CPU kernels gives the same bits: an answer must not depend on the machine."""

import os
import subprocess
import sys

import pytest

DIGEST = """
import hashlib, sys, torch, seer_ext
from seer_ext import ops
sys.path.insert(0, sys.argv[1])
from cases import CORNER, CORRECTNESS, OPS, inputs
digest = hashlib.sha256()
for op in OPS:
    for case in CORRECTNESS[op] + CORNER[op]:
        args, kwargs = inputs(op, case)
        result = getattr(ops, op)(*args, **kwargs)
        for tensor in (*(result if isinstance(result, tuple) else (result,)), args[0]):  # some ops change the first
            if tensor is not None:
                digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
digest.update(ops.silu_mul_sparsity(gate, gate.flip(0), 0.1)[0].view(torch.uint8).numpy().tobytes())
print(seer_ext._C.cpu_isa(), digest.hexdigest())
"""


def run(isa):
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = os.environ | {"SEER_CPU_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST, tests], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_all_levels_agree():
    from seer_ext import _C

    levels = _C.cpu_isas()
    if len(levels) == 1:
        pytest.skip(f"{levels[0]} is the only level of this build and machine")
    results = [run(level) for level in levels]
    assert [used for used, _ in results] == levels
    assert len({digest for _, digest in results}) == 1, results
