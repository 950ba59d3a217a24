"""Fixtures and marks shared by all tests."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_cuda: runs on a CUDA device; skipped without one")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips GPU tests on machines without one, unless SEER_REQUIRE_CUDA=1: a GPU job can't pass by
    skipping."""
    if item.get_closest_marker("needs_cuda") and not torch.cuda.is_available():
        if os.environ.get("SEER_REQUIRE_CUDA", "0") == "1":
            pytest.fail("SEER_REQUIRE_CUDA=1, but torch finds no CUDA device")
        pytest.skip("no CUDA device")


# The CUDA half of each test exists where it can run or must: hundreds of skips would hide the one that matters.
CUDA = torch.cuda.is_available() or os.environ.get("SEER_REQUIRE_CUDA", "0") == "1"


@pytest.fixture(params=["cpu", *([pytest.param("cuda", marks=pytest.mark.needs_cuda)] if CUDA else [])])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["op", "reference"])
def impl(request: pytest.FixtureRequest):
    """The module to call. Hand-worked numbers are put to the definitions as well, which nothing else
    checks."""
    from seer_ext import ops, reference  # here, so that tests of pure Python run without a build

    return {"op": ops, "reference": reference}[request.param]


@pytest.fixture(autouse=True)
def restored_rng():
    """Every test starts from one seed and leaves the generators as it found them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
