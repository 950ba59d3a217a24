"""Compiled kernels, shared by the tests that read them."""

import os

import pytest

from sass import build, listing


@pytest.fixture(scope="session", autouse=True)
def _needs_nvcc():
    """Skips on machines without the tools, unless SEER_REQUIRE_NVCC=1: a CI job can't pass by skipping."""
    try:
        build.nvcc()
        for name in ("cuobjdump", "nvdisasm"):
            listing.tool(name)
    except build.BuildError as error:
        if os.environ.get("SEER_REQUIRE_NVCC", "0") == "1":
            pytest.fail(f"SEER_REQUIRE_NVCC=1, but {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def objects(_needs_nvcc):
    return build.objects()


@pytest.fixture(scope="session")
def compiled(objects):
    """All kernels, for one architecture."""
    return [kernel for file in objects for kernel in listing.kernels(file, "sm_80")]
