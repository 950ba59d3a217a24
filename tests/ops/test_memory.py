"""No call leaves anything behind on the host's heap, whether it succeeds or is refused.

What C++ leaks, Python's own counters don't see, so the C library is asked for the bytes it has handed out.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import OPS
from faults import FAULTS, broken
from seer_ext import ops
from strategies import valid

CALLS = 200
few = settings(max_examples=6, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


C = ctypes.CDLL(None)
if hasattr(C, "mallinfo2"):
    C.mallinfo2.restype = Mallinfo2


def heap_bytes() -> int:
    info = C.mallinfo2()
    return info.uordblks + info.hblkhd


def counts_bytes() -> bool:
    """Whether glibc 2.33 or later hands out the memory; a sanitizer's own allocator is none."""
    if not hasattr(C, "mallinfo2"):
        return False
    before = heap_bytes()
    kept = ctypes.create_string_buffer(1 << 16)
    return heap_bytes() - before >= len(kept)


pytestmark = pytest.mark.skipif(not counts_bytes(), reason="the allocator does not tell what it has handed out")


def assert_nothing_stays(call) -> None:
    """Caches fill up and lists grow now and then; a leak adds to every run."""
    growth = []
    gc.collect()
    while not growth or growth[-1] >= CALLS:
        assert len(growth) < 12, f"{growth} bytes in {CALLS} calls each"
        before = heap_bytes()
        for _ in range(CALLS):
            call()
        growth.append(heap_bytes() - before)


def drawn(strategy) -> list[dict]:
    """A few calls. They are made outside of hypothesis, which keeps books on the heap while it runs."""
    calls: list[dict] = []
    few(given(strategy)(lambda call: calls.append(call)))()
    return calls


@pytest.mark.parametrize("op", OPS)
def test_valid_calls_leave_nothing(op):
    for call in drawn(valid(op)):
        assert_nothing_stays(partial(getattr(ops, op), **call))


@pytest.mark.parametrize("op", OPS)
def test_refused_calls_leave_nothing(op):
    for call in drawn(st.sampled_from(FAULTS[op]).flatmap(broken)):

        def refused(call=call):
            with contextlib.suppress(Exception):
                getattr(ops, op)(**call)

        assert_nothing_stays(refused)


def test_a_leak_is_found():
    with pytest.raises(AssertionError, match="bytes in 200 calls"):
        kept = []
        assert_nothing_stays(lambda: kept.append(ctypes.create_string_buffer(600)))
