"""Runs calls on emulated kernels in a process of its own: the sanitizers end it when they find something.

Each line of standard input names a call of calls.py and a seed of the schedule; each is answered by a line of
JSON: `error`, null if all was well; `launches` of this call; `kernels`, the different ones launched so far.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import seer_ext  # noqa: F401  registers torch.ops.seer, whose schemas and CPU ops are used here
from cases import OPS
from emulator.calls import CALLS, Call
from layouts import placed

# Elements of garbage before and after an input: at the end of its memory, the same but shifted, and in the midst.
PLACES = ((0, 0), (1, 0), (8, 8))

_definitions = torch.library.Library("seer_emu", "DEF")


def load(library: str) -> ctypes.CDLL:
    """Registers `torch.ops.seer_emu` for CPU tensors, with the schemas of `torch.ops.seer`."""
    for op in OPS:
        _definitions.define(str(getattr(torch.ops.seer, op).default._schema).removeprefix("seer::"))
    torch.ops.load_library(library)
    loaded = ctypes.CDLL(library)
    loaded.cuda_emulator_launches.restype = ctypes.c_longlong
    return loaded


def assert_within_one_ulp(got: Tensor, want: Tensor) -> None:
    """Integers and booleans exactly; floats may be the neighbour. NaN equals NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    same = (got == want) | ((got != got) & (want != want))
    if got.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
        # As integers, floats of one sign are in order, and neighbours differ by 1.
        apart = (got.contiguous().view(bits) - want.contiguous().view(bits)).abs()
        same |= (apart <= 1) & (got.signbit() == want.signbit()) & got.isfinite() & want.isfinite()
    wrong = (~same).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(f"{len(wrong)} elements differ, first at {list(at)}: {got[at]}, expected {want[at]}")


def run(call: Call, op, before: int = 0, after: int = 0) -> list:
    """What the op returns, and its arguments after the call, some of which it changes."""
    args, kwargs = tree_map_only(Tensor, lambda t: placed(t, before, after), call.make())
    results = tree_leaves(op(*args, **kwargs))
    assert all(t.is_contiguous() for t in results if isinstance(t, Tensor))
    return [*results, *tree_leaves((args, kwargs))]


def check(call: Call, known: dict[str, list], launches) -> None:
    """One schedule, with the inputs at each of PLACES.

    known: by name, the results that must come out. Without a truth they are those of the first schedule.
    """
    op = getattr(torch.ops.seer_emu, call.op)
    if str(call) not in known:
        truth = op if call.free else call.truth or getattr(torch.ops.seer, call.op)
        known[str(call)] = run(call, truth)
    for before, after in PLACES if call.small else PLACES[:1]:
        count = launches()
        got = run(call, op, before, after)
        assert launches() > count or not call.works, "no kernel was launched"
        for ours, theirs in zip(got, known[str(call)], strict=True):
            if isinstance(ours, Tensor):
                assert_within_one_ulp(ours, theirs)


def main(library: str) -> None:
    loaded = load(library)
    known: dict[str, list] = {}
    for line in sys.stdin:
        name, seed = line.split()
        os.environ["SEER_EMU_SEED"] = seed
        error, before = None, loaded.cuda_emulator_launches()
        try:
            check(CALLS[name], known, loaded.cuda_emulator_launches)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        launches = loaded.cuda_emulator_launches() - before
        print(json.dumps({"error": error, "launches": launches, "kernels": loaded.cuda_emulator_kernels()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
