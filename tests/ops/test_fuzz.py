"""Random calls: the definition's result for a valid one; for an invalid one a named error, and nothing changed.

SEER_FUZZ=2000 asks for that many calls of each kind per op, other ones each time; by default the same few are made.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from cases import OPS
from faults import FAULTS, Fault, broken
from layouts import bits, memory_of, with_memory
from seer_ext import ops, reference
from strategies import valid
from tolerances import assert_matches

COUNT = int(os.environ.get("SEER_FUZZ", "60"))


def fuzz(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize="SEER_FUZZ" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(bits(got), bits(want)), f"{got}, expected {want}"


def assert_same_memory(got, want) -> None:
    for ours, theirs in zip(memory_of(got), memory_of(want), strict=True):
        assert torch.equal(ours, theirs), "what the op must not touch has changed"


def copied(call: dict) -> dict:
    return tree_map_only(Tensor, lambda t: t if t.device.type == "meta" else with_memory(t), call)


# ---- valid calls -------------------------------------------------------------------------------------------


def check_copies(call, got, expect) -> None:
    """Ops whose results, and whatever they change, are exactly the definition's."""
    for ours, theirs in zip(tree_leaves(got), tree_leaves(expect(**call)), strict=True):
        if ours is not None:
            assert_same_bits(ours, theirs)


def check_silu_mul_sparsity(call, got, _) -> None:
    gate, up = call["gate"], call["up"]
    g, u = gate.double(), up.double()
    exact = (g * torch.sigmoid(g) * u).to(gate.dtype)  # rounded here, so that what overflows is inf
    assert_matches(got[0], exact, eager=(gate.float() * torch.sigmoid(gate.float()) * up.float()).to(gate.dtype))
    assert_same_bits(got[1], reference.mlp_sparsity(got[0], call["threshold"]))


def check_token_confidence(call, got, expect) -> None:
    """A drawn token need not be the definition's, whose noise is float64: but none may be better by more than that."""
    token, confidence = got
    options = {key: call.get(key) for key in ("suppress", "chosen")}
    want, _ = expect(call["logits"], **options)
    temperature = call.get("temperature")
    if temperature is not None:
        x = call["logits"].double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if options["suppress"] is not None:
            x[:, options["suppress"]] = -torch.inf
        scores = x + temperature.double()[:, None] * reference.gumbel_noise(call["key"], x.shape[1])
        drawn = (temperature > 0) & (x > -torch.inf).any(-1)
        for n in drawn.nonzero()[:, 0].tolist():
            best = scores[n].max()
            near = 1e-5 * (1 + best.abs() + temperature[n])
            assert scores[n, token[n]] >= best - near or scores[n, token[n]] == best
        want = torch.where(drawn, token, want)
    assert_same_bits(token, want)
    if call["logits"].shape[1] == 0:
        assert not confidence.any()
        return
    _, want = expect(call["logits"], call["kind"], options["suppress"], chosen=token)
    assert torch.allclose(confidence, want, rtol=1e-12, atol=1e-14), f"{confidence}, expected {want}"


CHECKS = {"silu_mul_sparsity": check_silu_mul_sparsity, "token_confidence": check_token_confidence}


@pytest.mark.parametrize("op", OPS)
def test_valid_calls(op):
    @fuzz(COUNT)
    @given(valid(op))
    def run(call):
        before, twin = copied(call), copied(call)
        got = getattr(ops, op)(**call)
        CHECKS.get(op, check_copies)(twin, got, getattr(reference, op))
        assert all(t.is_contiguous() for t in tree_leaves(got) if t is not None)
        # The definition has changed its copy of what the op may change; the rest is as before.
        assert_same_memory(call, twin)
        assert_same_memory([call[name] for name in list(call)[1:]], [before[name] for name in list(call)[1:]])

    run()


# ---- invalid calls -----------------------------------------------------------------------------------------


def message_of(op: str, raised: Exception) -> str:
    lines = [line for line in str(raised).splitlines() if f"seer::{op}: " in line]
    assert lines, f"not ours: {raised!r}"
    return lines[0][lines[0].index("seer::") :]


@pytest.mark.parametrize("fault", [fault for op in OPS for fault in FAULTS[op]], ids=str)
def test_invalid_calls(fault: Fault):
    @fuzz(max(10, math.ceil(COUNT / len(FAULTS[fault.op]))))
    @given(broken(fault))
    def run(call):
        before = copied(call)
        with pytest.raises(fault.error) as ours:
            getattr(ops, fault.op)(**call)
        text = message_of(fault.op, ours.value)
        assert text == str(ours.value)
        assert fault.matches(text), text
        assert_same_memory(call, before)
        with pytest.raises((RuntimeError, NotImplementedError)) as raw:
            getattr(torch.ops.seer, fault.op)(**call)
        if not fault.of_python:  # torch's own text: the call doesn't reach the op
            assert message_of(fault.op, raw.value) == text
        assert_same_memory(call, before)

    run()
