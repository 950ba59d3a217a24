"""varlen_repack: a copy, so everything is bit-exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "varlen_repack"
COPIED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
PREFIX = r"^seer::varlen_repack: "


def ints(values, device, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=device)


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device):
    (x, starts, cu, capacity), _ = inputs(OP, case, device)
    for size in (capacity, int(cu[-1]), capacity // 2, 0):
        assert_matches(ops.varlen_repack(x, starts, cu, size), reference.varlen_repack(x, starts, cu, size))


@pytest.mark.parametrize(
    "capacity, want",
    [
        (7, [11, 12, 13, 16, 17, 0, 0]),
        (5, [11, 12, 13, 16, 17]),
        (4, [11, 12, 13, 16]),
        (2, [11, 12]),
        (0, []),
    ],
)
def test_by_hand(impl, device, capacity, want):
    """Row 0 takes 3 tokens from index 1, row 1 takes 2 from index 6."""
    x = torch.arange(10, 20, device=device)
    starts, cu = ints([1, 6], device), ints([0, 3, 5], device)
    assert impl.varlen_repack(x, starts, cu, capacity).tolist() == want
    rows = impl.varlen_repack(torch.stack([x, -x], 1), starts, cu, capacity)
    assert rows.tolist() == [[v, -v] for v in want]


def test_rows_may_overlap_and_come_in_any_order(impl, device):
    x = torch.arange(6, device=device)
    got = impl.varlen_repack(x, ints([3, 0, 2], device), ints([0, 3, 5, 8], device), 8)
    assert got.tolist() == [3, 4, 5, 0, 1, 2, 3, 4]


def test_empty_rows_round_trip(impl, device):
    """case P15: lengths [0, 1, 0, 1] give cu_seqlens [0, 0, 1, 1, 2]; back in place nothing is lost."""
    x = torch.randn(4, 3, device=device)
    cu = ints([0, 0, 1, 1, 2], device)
    packed = impl.varlen_repack(x, torch.arange(4, device=device), cu, 2)
    assert_matches(packed, x[[1, 3]])
    back = torch.zeros_like(x)
    back[cu.diff() > 0] = packed
    assert_matches(back, x * cu.diff()[:, None])


@pytest.mark.parametrize("rows, tokens, capacity", [(0, 4, 0), (0, 4, 5), (0, 0, 0), (3, 0, 0), (3, 0, 2), (3, 4, 2)])
def test_empty(impl, device, rows, tokens, capacity):
    """case P19: no rows, no tokens, all lengths zero. Whatever isn't copied is zero."""
    x = torch.full((tokens, 2), math.nan, device=device)
    starts, cu = ints([0] * rows, device), ints([0] * (rows + 1), device)
    assert_matches(impl.varlen_repack(x, starts, cu, capacity), torch.zeros(capacity, 2))


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 33])
def test_every_dtype_is_copied_bit_by_bit(device, dtype, width):
    """Random bits, so floats hold NaN payloads and subnormals; compared as bytes."""
    size = torch.empty(0, dtype=dtype).element_size()
    if dtype == torch.bool:
        x = torch.rand(9, width, device=device) < 0.5
    else:
        x = torch.randint(0, 256, (9, width * size), dtype=torch.uint8, device=device).view(dtype)
    got = ops.varlen_repack(x, ints([5, 1], device), ints([0, 4, 6], device), 8)
    assert got.dtype == dtype
    as_bytes = lambda t: t.contiguous().view(torch.uint8)  # noqa: E731
    want = torch.cat([x[5:9], x[1:3], torch.zeros_like(x[:2])])
    assert torch.equal(as_bytes(got), as_bytes(want))


@pytest.mark.parametrize("starts_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("cu_dtype", [torch.int32, torch.int64])
def test_index_dtypes(device, starts_dtype, cu_dtype):
    x = torch.randn(10, 3, device=device)
    got = ops.varlen_repack(x, ints([1, 6], device, starts_dtype), ints([0, 3, 5], device, cu_dtype), 5)
    assert_matches(got, x[[1, 2, 3, 6, 7]])


def test_only_the_ranges_are_read(device):
    """Poison between and beyond the ranges stays out of the result."""
    x = torch.full((12, 5), math.nan, device=device)
    x[2:4], x[7:10] = 1.0, 2.0
    got = ops.varlen_repack(x, ints([2, 7], device), ints([0, 2, 5], device), 6)
    assert_matches(got, torch.tensor([1.0, 1, 2, 2, 2, 0])[:, None].expand(6, 5))


def test_outer_strides(device):
    """case P18: K/V `[N, heads, D]` out of a cache `[heads, N, D]`, slices and steps equal their copies."""
    x = torch.randn(6, 10, 8, device=device)
    starts, cu = ints([0, 3], device), ints([0, 2, 5], device)
    for view in (
        x.transpose(0, 1),
        x[:, ::2],
        x[:, :, 2:7],
        x[:, 0],
        x[..., 0, :].flip(0),
        x[:1].expand(6, 10, 8),
    ):
        got = ops.varlen_repack(view, starts, cu, 7)
        assert got.is_contiguous()
        assert_matches(got, ops.varlen_repack(view.contiguous(), starts, cu, 7))
    with pytest.raises(ValueError, match=PREFIX + r"x must .*contiguous.*, got "):
        ops.varlen_repack(x[0, :, ::2], starts, cu, 7)


def test_four_dims(device):
    x = torch.randn(5, 2, 3, 4, device=device).transpose(1, 2)
    got = ops.varlen_repack(x, ints([3, 0], device), ints([0, 2, 3], device), 3)
    assert_matches(got, x[[3, 4, 0]])


# ---- padded ------------------------------------------------------------------------------------------------


def test_padded_by_hand(device):
    """Left-padded rows of 2 and 3 tokens in 4 columns: starts are the padding's widths."""
    x = torch.tensor([[0, 0, 1, 2], [0, 3, 4, 5]], device=device)
    got = ops.varlen_repack(x, ints([2, 1], device), ints([0, 2, 5], device), 6, padded=True)
    assert got.tolist() == [1, 2, 3, 4, 5, 0]


def test_padded_views(device):
    """case P18: rows cut out of a wider tensor, which can't be flattened without a copy."""
    wide = torch.randn(3, 9, 4, device=device)
    starts, cu = ints([0, 2, 1], device, torch.int32), ints([0, 5, 5, 8], device, torch.int32)
    got = ops.varlen_repack(wide[:, 2:7], starts, cu, 8, padded=True)
    assert_matches(got, torch.cat([wide[0, 2:7], wide[2, 3:6]]))


def test_padded_empty(device):
    """case P19"""
    for batch, length in ((0, 4), (2, 0), (2, 4)):
        x, zeros = torch.ones(batch, length, 3, device=device), ints([0] * (batch + 1), device)
        assert_matches(ops.varlen_repack(x, zeros[:-1], zeros, 2, padded=True), torch.zeros(2, 3))


@pytest.mark.parametrize("starts, got", [([0, 3], r"\[3, 5\]"), ([0, -1], r"\[-1, 1\]")])
def test_padded_row_past_its_end_raises_on_the_cpu(starts, got):
    """The next row follows in memory, so a flat copy would silently take its tokens."""
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match=PREFIX + rf"starts must keep row 1 in \[0, L\]=\[0, 4\], got {got}"):
        ops.varlen_repack(x, ints(starts, "cpu"), ints([0, 2, 4], "cpu"), 4, padded=True)


def test_padded_errors(device):
    x, starts, cu = torch.ones(2, 4, device=device), ints([0, 0], device), ints([0, 2, 4], device)
    with pytest.raises(ValueError, match=PREFIX + r"x must have shape \[B, L, ...\] when padded, got \[2\]"):
        ops.varlen_repack(x[:, 0], starts, cu, 4, padded=True)
    with pytest.raises(ValueError, match=PREFIX + r"starts must have shape \[B\]=\[2\], got \[1\]"):
        ops.varlen_repack(x, starts[:1], cu, 4, padded=True)
    with pytest.raises(ValueError, match=PREFIX + r"cu_seqlens must have shape \[B\+1\]=\[3\], got \[2\]"):
        ops.varlen_repack(x, starts, cu[:2], 4, padded=True)


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.float32], ids=str)
def test_padded_index_dtypes(device, dtype):
    """Added to the rows' first tokens, narrow starts would become int64 and pass."""
    x, ones, cu = torch.ones(2, 3, device=device), torch.ones(2, device=device), torch.tensor([0, 1, 2], device=device)
    for name, starts, offsets in (("starts", ones.to(dtype), cu), ("cu_seqlens", ones.int(), cu.to(dtype))):
        with pytest.raises(TypeError, match=PREFIX + f"{name} must have dtype int32 or int64, got "):
            ops.varlen_repack(x, starts, offsets, 2, padded=True)


def test_no_capacity_overflows(device):
    """Its bytes must be countable, also where a token has none."""
    one = torch.tensor([0, 1], device=device)
    for width, capacity in ((4, 2**62), (4, 2**53), (0, 2**63 - 1)):
        with pytest.raises(ValueError, match=PREFIX + rf"capacity must lie in \[0, .*\], got {capacity}$"):
            ops.varlen_repack(torch.ones(2, width, device=device), one[:1], one, capacity)


def test_errors(device):
    x, starts, cu = torch.ones(5, 4, device=device), ints([0, 2], device), ints([0, 2, 4], device)
    with pytest.raises(ValueError, match=PREFIX + r"cu_seqlens must have shape \[B\+1\]=\[3\], got \[2\]"):
        ops.varlen_repack(x, starts, cu[:2], 4)
    with pytest.raises(TypeError, match=PREFIX + r"starts must have dtype .*, got "):
        ops.varlen_repack(x, starts.float(), cu, 4)
    with pytest.raises(TypeError, match=PREFIX + r"cu_seqlens must have dtype .*, got "):
        ops.varlen_repack(x, starts, cu.short(), 4)
    with pytest.raises(ValueError, match=PREFIX + r"capacity must .*, got -1"):
        ops.varlen_repack(x, starts, cu, -1)
    with pytest.raises(ValueError, match=PREFIX + r"x must .*, got "):
        ops.varlen_repack(torch.tensor(1.0, device=device), starts, cu, 4)
    with pytest.raises(TypeError, match=PREFIX + r"x must have .*dtype.*, got "):
        ops.varlen_repack(x.to(torch.complex128), starts, cu, 4)


@pytest.mark.parametrize(
    "starts, cu, text",
    [
        ([0, 4], [0, 2, 4], r"starts must keep row 1 in \[0, N\]=\[0, 5\], got 4"),
        ([-1, 2], [0, 2, 4], r"starts must keep row 0 in \[0, N\]=\[0, 5\], got -1"),
        ([0, 2**62], [0, 2, 4], r"starts must keep row 1 in \[0, N\]=\[0, 5\], got 46"),
        ([0, 0], [0, 2, 2**62], r"starts must keep row 1 in \[0, N\]=\[0, 5\], got 0"),
        ([0, 2], [0, 3, 2], "cu_seqlens must not decrease, got 3 before 2"),
        ([0, 2], [1, 2, 4], "cu_seqlens must start at 0, got 1"),
        ([0, 2], [-1, 2, 4], "cu_seqlens must start at 0, got -1"),
    ],
)
def test_values_out_of_range_raise_on_the_cpu(starts, cu, text):
    with pytest.raises(ValueError, match=PREFIX + text):
        ops.varlen_repack(torch.ones(5, 4), ints(starts, "cpu"), ints(cu, "cpu"), 4)
