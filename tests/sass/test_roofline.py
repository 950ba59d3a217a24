"""bench/roofline.py: occupancy by hand, and kernels that are there."""

import sys

import pytest

from sass import build
from sass.listing import Kernel

sys.path.insert(0, str(build.ROOT / "bench"))

import roofline  # noqa: E402


@pytest.mark.parametrize(
    "registers, shared, architecture, blocks",
    [
        (32, 0, "sm_90", 8),  # 64 warps of 8 to a block
        (33, 0, "sm_90", 6),  # given out as 40: 65536 / (40 * 256) = 6.4
        (64, 0, "sm_80", 4),
        (255, 0, "sm_90", 1),
        (32, 38912, "sm_80", 4),  # 164 KiB / (38 + 1) KiB = 4.2
        (32, 39936, "sm_90", 5),  # 228 KiB / 39 KiB = 5.8; the listing counts the KiB
    ],
)
def test_blocks_per_sm(registers, shared, architecture, blocks):
    assert roofline.blocks_per_sm(Kernel("a", registers, 0, shared), architecture) == blocks


def test_every_kernel_of_the_table_is_compiled(compiled):
    names = {kernel.name for kernel in compiled}
    assert [work.kernel for work in roofline.works() if work.kernel not in names] == []
    assert all(0 < work.must <= work.moves for work in roofline.works())


def test_main_loops(compiled):
    """By the vectors that one turn of the source's loop reads: four of an activation, one of gate and one of up."""
    by_name = {kernel.name: kernel for kernel in compiled}
    counted = [work for work in roofline.works() if work.marker is not None]
    assert [(work.op, roofline.turn(work, by_name[work.kernel])[1]) for work in counted] == [
        ("silu_mul_sparsity", 8),
        ("mlp_sparsity", 32),
        ("mask_rewrite", 8),
        ("mask_rewrite", 16),
        ("token_confidence", 2),
        ("token_confidence", 2),
    ]
