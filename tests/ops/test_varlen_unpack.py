"""varlen_unpack: a copy, so everything is bit-exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "varlen_unpack"
COPIED = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
PREFIX = r"^seer::varlen_unpack: "


def ints(values, device, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=device)


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device):
    (packed, columns, cu, length, fill), _ = inputs(OP, case, device)
    for size in (length, length + 3):
        assert_matches(
            ops.varlen_unpack(packed, columns, cu, size, fill), reference.varlen_unpack(packed, columns, cu, size, fill)
        )


@pytest.mark.parametrize(
    "columns, want",
    [
        ([0, 0, 0], [[11, 12, 13, -1, -1], [-1, -1, -1, -1, -1], [14, 15, -1, -1, -1]]),
        ([2, 5, 3], [[-1, -1, 11, 12, 13], [-1, -1, -1, -1, -1], [-1, -1, -1, 14, 15]]),
        ([1, 2, 2], [[-1, 11, 12, 13, -1], [-1, -1, -1, -1, -1], [-1, -1, 14, 15, -1]]),
    ],
    ids=["right_padded", "left_padded", "between"],
)
def test_by_hand(impl, device, columns, want):
    """Rows of 3, 0 and 2 tokens in five columns; token 16 belongs to none."""
    packed, cu = torch.arange(11, 17, device=device), ints([0, 3, 3, 5], device)
    assert impl.varlen_unpack(packed, ints(columns, device), cu, 5, -1).tolist() == want
    pairs = impl.varlen_unpack(torch.stack([packed, -packed], 1), ints(columns, device), cu, 5, -1)
    assert pairs.tolist() == [[[v, -v if v > 0 else -1] for v in row] for row in want]


def test_the_width_asked_for_is_restored(impl, device):
    """case P14: masks 0011100 and 0111000 of width 7, whose longest row is 3; what they hide is zero."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0, 0]], dtype=torch.bool, device=device)
    x = torch.randn(2, 7, 4, device=device)
    got = impl.varlen_unpack(x[mask], ints([2, 1], device), ints([0, 3, 6], device), 7)
    assert_matches(got, torch.where(mask[..., None], x, 0))


def test_empty_rows_round_trip(impl, device):
    """case P15: lengths [0, 1, 0, 1] there and back."""
    x = torch.randn(4, 1, 3, device=device)
    zeros, cu = ints([0] * 4, device), ints([0, 0, 1, 1, 2], device)
    packed = ops.varlen_repack(x, zeros, cu, 2, padded=True)
    assert_matches(packed, x[[1, 3], 0])
    assert_matches(impl.varlen_unpack(packed, zeros, cu, 1), x * cu.diff()[:, None, None])


def test_inverts_repack(device):
    """Any starts and lengths: what was packed comes back to its columns."""
    starts, lengths = ints([0, 4, 2, 9], device), ints([9, 3, 0, 1], device)
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    x = torch.randn(4, 10, 2, device=device)
    packed = ops.varlen_repack(x, starts, cu, 16, padded=True)
    at = torch.arange(10, device=device)
    kept = (at >= starts[:, None]) & (at < (starts + lengths)[:, None])
    back = ops.varlen_unpack(packed, starts, cu, 10, fill=7)
    assert_matches(back, torch.where(kept[..., None], x, 7.0))


@pytest.mark.parametrize("rows, tokens, length", [(0, 4, 0), (0, 4, 5), (0, 0, 0), (3, 0, 0), (3, 0, 2), (3, 4, 2)])
def test_empty(impl, device, rows, tokens, length):
    """case P19: no rows, no tokens, no columns, all lengths zero."""
    packed = torch.full((tokens, 2), math.nan, device=device)
    zeros = ints([0] * (rows + 1), device)
    got = impl.varlen_unpack(packed, zeros[:-1] + length, zeros, length, fill=3)
    assert_matches(got, torch.full((rows, length, 2), 3.0))


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@pytest.mark.parametrize("width", [1, 3, 33])
def test_every_dtype_is_copied_bit_by_bit(device, dtype, width):
    """Random bits, so floats hold NaN payloads and subnormals; compared as bytes. The fill is torch's."""
    size = torch.empty(0, dtype=dtype).element_size()
    packed = torch.randint(0, 256, (6, width * size), dtype=torch.uint8, device=device).view(dtype)
    got = ops.varlen_unpack(packed, ints([2, 0], device), ints([0, 2, 5], device), 5, 97)
    assert got.dtype == dtype and got.shape == (2, 5, width)
    as_bytes = lambda t: t.contiguous().view(torch.uint8)  # noqa: E731
    fill = torch.full((3, width), 97, dtype=dtype, device=device)
    assert torch.equal(as_bytes(got[0]), as_bytes(torch.cat([fill[:2], packed[:2], fill[:1]])))
    assert torch.equal(as_bytes(got[1]), as_bytes(torch.cat([packed[2:5], fill[:2]])))


@pytest.mark.parametrize("fill", [0, 1])
def test_bool(device, fill):
    packed = torch.tensor([True, False, True], device=device)
    got = ops.varlen_unpack(packed, ints([1, 0], device), ints([0, 2, 3], device), 3, fill)
    assert got.tolist() == [[bool(fill), True, False], [True, bool(fill), bool(fill)]]


@pytest.mark.parametrize(
    "dtype, fill, want",
    [
        (torch.float32, -math.inf, -math.inf),
        (torch.float32, 0.1, 0.10000000149011612),
        (torch.float64, 0.1, 0.1),
        (torch.bfloat16, 0.1, 0.10009765625),
        (torch.float16, 0.1, 0.0999755859375),
        (torch.float16, -65504.0, -65504.0),
        (torch.bfloat16, torch.finfo(torch.bfloat16).min, torch.finfo(torch.bfloat16).min),
        (torch.int8, -128, -128),
        (torch.uint8, 255, 255),
        (torch.int64, -(2**63), -(2**63)),
    ],
    ids=str,
)
def test_fill_values(impl, device, dtype, fill, want):
    packed = torch.ones(1, device=device).to(dtype)
    got = impl.varlen_unpack(packed, ints([1], device), ints([0, 1], device), 3, fill)
    assert got.tolist() == [[want, 1, want]]


def test_fill_may_be_nan(impl, device):
    got = impl.varlen_unpack(torch.ones(1, 2, device=device), ints([0], device), ints([0, 1], device), 2, math.nan)
    assert_matches(got, torch.tensor([[[1.0, 1.0], [math.nan, math.nan]]]))


@pytest.mark.parametrize("columns_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("cu_dtype", [torch.int32, torch.int64])
def test_index_dtypes(device, columns_dtype, cu_dtype):
    packed = torch.arange(1, 4, device=device)
    got = ops.varlen_unpack(packed, ints([1, 0], device, columns_dtype), ints([0, 1, 3], device, cu_dtype), 2)
    assert got.tolist() == [[0, 1], [2, 3]]


def test_what_no_row_owns_is_not_read(device):
    """Poison past the last row, as in the tail of a bucket."""
    packed = torch.full((8, 5), math.nan, device=device)
    packed[:3] = 1.0
    got = ops.varlen_unpack(packed, ints([1, 0], device), ints([0, 2, 3], device), 4)
    assert_matches(got, torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 0]])[..., None].expand(2, 4, 5))


def test_strides(device):
    """case P18: heads before tokens, slices and steps equal their copies; so do strided columns and offsets."""
    x = torch.randn(6, 10, 8, device=device)
    columns, cu = ints([2, 9, 0], device)[::2], ints([0, 9, 2, 9, 5, 9], device)[::2]
    views = (x.transpose(0, 1), x[:, ::2], x[:, :, 2:7], x[:, 0], x[..., 0, :].flip(0), x[:1].expand(6, 10, 8))
    for view in (*views, x[:, 3, 1]):
        got = ops.varlen_unpack(view, columns, cu, 4)
        assert got.is_contiguous()
        assert_matches(got, ops.varlen_unpack(view.contiguous(), ints([2, 0], device), ints([0, 2, 5], device), 4))
    with pytest.raises(ValueError, match=PREFIX + r"packed must .*contiguous.*, got "):
        ops.varlen_unpack(x[0, :, ::2], columns, cu, 4)


# ---- errors ------------------------------------------------------------------------------------------------


def test_errors(device):
    packed, columns, cu = torch.ones(5, 4, device=device), ints([0, 2], device), ints([0, 2, 4], device)
    with pytest.raises(ValueError, match=PREFIX + r"packed must have shape \[T, ...\], got \[\]"):
        ops.varlen_unpack(torch.tensor(1.0, device=device), columns, cu, 4)
    with pytest.raises(ValueError, match=PREFIX + r"columns must have shape \[B\], got \[1, 2\]"):
        ops.varlen_unpack(packed, columns[None], cu, 4)
    with pytest.raises(ValueError, match=PREFIX + r"cu_seqlens must have shape \[B\+1\]=\[3\], got \[2\]"):
        ops.varlen_unpack(packed, columns, cu[:2], 4)
    with pytest.raises(TypeError, match=PREFIX + r"columns must have dtype .*, got float32"):
        ops.varlen_unpack(packed, columns.float(), cu, 4)
    with pytest.raises(TypeError, match=PREFIX + r"cu_seqlens must have dtype .*, got int16"):
        ops.varlen_unpack(packed, columns, cu.short(), 4)
    with pytest.raises(ValueError, match=PREFIX + r"length must lie in \[0, .*\], got -1"):
        ops.varlen_unpack(packed, columns, cu, -1)
    with pytest.raises(TypeError, match=PREFIX + r"packed must have .*dtype.*, got complex128"):
        ops.varlen_unpack(packed.to(torch.complex128), columns, cu, 4)


@pytest.mark.parametrize(
    "dtype, fill, text",
    [
        (torch.bool, 2, "be a value of bool, got 2"),
        (torch.int32, 0.5, "be a value of int32, got 0.5"),
        (torch.int32, math.nan, "be a value of int32, got nan"),
        (torch.int32, 2**31, "be a value of int32, got 2.14748e"),
        (torch.uint8, -1, "be a value of uint8, got -1"),
        (torch.int64, 2**63, "be a value of int64, got 9.22337e"),
        (torch.float16, 65520, "lie in the range of float16, got 65520"),
        (torch.float32, 1e39, r"lie in the range of float32, got 1e\+39"),
        (torch.float8_e4m3fn, 1, "be 0 for float8_e4m3fn, got 1"),
    ],
    ids=str,
)
def test_fill_must_fit(device, dtype, fill, text):
    packed = torch.zeros(1, device=device).to(dtype)
    with pytest.raises(ValueError, match=PREFIX + "fill must " + text):
        ops.varlen_unpack(packed, ints([0], device), ints([0, 1], device), 1, fill)


@pytest.mark.parametrize(
    "columns, cu, text",
    [
        ([0, 3], [0, 2, 4], r"columns must keep row 1 in \[0, length\]=\[0, 4\], got 3 with length 2"),
        ([-1, 2], [0, 2, 4], r"columns must keep row 0 in \[0, length\]=\[0, 4\], got -1"),
        ([0, 2**62], [0, 2, 4], r"columns must keep row 1 in \[0, length\]=\[0, 4\], got 46"),
        ([0, 0], [0, 0, 5], r"columns must keep row 1 in \[0, length\]=\[0, 4\], got 0 with length 5"),
        ([0, 0], [0, 2, 6], "cu_seqlens must end at or before T=5, got 6"),
        ([0, 2], [0, 3, 2], "cu_seqlens must not decrease, got 3 before 2"),
        ([0, 2], [1, 2, 4], "cu_seqlens must start at 0, got 1"),
    ],
)
def test_values_out_of_range_raise_on_the_cpu(columns, cu, text):
    with pytest.raises(ValueError, match=PREFIX + text):
        ops.varlen_unpack(torch.ones(5, 4), ints(columns, "cpu"), ints(cu, "cpu"), 4)
