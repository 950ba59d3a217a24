"""mask_rewrite: a selection, so everything is exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, FLOATS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "mask_rewrite"
PREFIX = r"^seer::mask_rewrite: "
INF, NAN = math.inf, math.nan


def ints(values, device, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=device)


def rewritten(impl, mask, columns, lengths):
    """The mask after the call, which returns nothing."""
    mask = mask.clone()
    assert impl.mask_rewrite(mask, ints(columns, mask.device), ints(lengths, mask.device)) is None
    return mask


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device):
    (mask, columns, lengths), _ = inputs(OP, case, device)
    want = mask.clone()
    reference.mask_rewrite(want, columns, lengths)
    ops.mask_rewrite(mask, columns, lengths)
    assert_matches(mask, want)


def bits(text, device):
    """ "110 011" -> [[1, 1, 0], [0, 1, 1]] as bool."""
    return torch.tensor([[c == "1" for c in row] for row in text.split()], device=device)


def test_flat_by_hand(impl, device):
    """A hidden column in the range stays hidden; row 2 has nothing left, nor row 3, nor row 4 at the end."""
    mask = bits("11111 10111 00011 11111 11111", device)
    got = rewritten(impl, mask, [0, 1, 0, 2, 5], [3, 3, 3, 0, 0])
    assert got.tolist() == bits("11100 00110 10000 00100 00001", device).tolist()


def test_boolean_by_hand(impl, device):
    """Two rows of two queries each: every query is cut, and rescued, by itself."""
    mask = torch.stack([bits("1111 0001", device), bits("0110 1001", device)])[:, None]
    got = rewritten(impl, mask, [0, 1], [2, 2])
    assert got[0, 0].tolist() == bits("1100 1000", device).tolist()
    assert got[1, 0].tolist() == bits("0110 0100", device).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_additive_by_hand(impl, device, dtype):
    """Biases in the range stay, even huge ones; the rest is finfo.min, whatever it was."""
    low = torch.finfo(dtype).min
    mask = torch.tensor(
        [
            [0.0, -0.5, INF, 2.0, 3.0],
            [1.0, -INF, 0.25, NAN, 3.0],
            [1.0, -INF, NAN, low, 3.0],
            [1.0, low / 2, -INF, -INF, 3.0],
        ],
        device=device,
    ).to(dtype)[None, None]
    got = rewritten(impl, mask, [1], [3])
    want = [
        [low, -0.5, INF, 2.0, low],
        [low, low, 0.25, low, low],
        [low, 0.0, low, low, low],
        [low, low / 2, low, low, low],
    ]
    assert got[0, 0].tolist() == want


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_softmax_is_nan(impl, device, dtype):
    """case P16: lengths [4, 0, 2]; each query puts its weight inside its range, or on the one column."""
    scores = torch.randn(3, 1, 2, 4, device=device)
    mask = torch.ones(3, 1, 2, 4, dtype=torch.bool, device=device)
    mask[2, 0, 1] = False
    if dtype != torch.bool:
        mask = torch.zeros(mask.shape, device=device).masked_fill(~mask, -INF).to(dtype)
    mask = rewritten(impl, mask, [0, 3, 1], [4, 0, 2])
    masked = scores.masked_fill(~mask, -INF) if dtype == torch.bool else scores.to(dtype) + mask
    weights = torch.softmax(masked, -1)
    assert not weights.isnan().any() and not mask.isinf().any()
    assert (weights[0] > 0).all() and weights[1, 0].tolist() == [[0, 0, 0, 1]] * 2
    assert (weights[2, 0, 0] > 0).tolist() == [False, True, True, False]
    assert weights[2, 0, 1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("columns, column", [([0], 0), ([2], 2), ([3], 3), ([4], 3)])
def test_the_column_of_a_query_without_keys(impl, device, columns, column):
    got = rewritten(impl, torch.zeros(1, 4, dtype=torch.bool, device=device), columns, [0])
    assert got.int().tolist() == [[int(i == column) for i in range(4)]]


def test_again_changes_nothing(device):
    for dtype in (torch.bool, torch.float32):
        case = next(c for c in CORRECTNESS[OP] if c.name == "odd" and c.dtype == dtype)
        (mask, columns, lengths), _ = inputs(OP, case, device)
        once = rewritten(ops, mask, columns.tolist(), lengths.tolist())
        assert_matches(rewritten(ops, once, columns.tolist(), lengths.tolist()), once)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 1, 2, 4), (2, 1, 0, 4), (2, 1, 3, 0)])
def test_empty(impl, device, shape):
    """case P19: no rows, no queries, no columns."""
    zeros = [0] * shape[0]
    assert rewritten(impl, torch.ones(shape, dtype=torch.bool, device=device), zeros, zeros).shape == shape


def test_empty_with_strides_of_zero(device):
    """Comparisons of empty tensors give such strides."""
    mask = torch.zeros(2, 1, 0, 1, device=device) < 1
    assert 0 in mask.stride()
    ops.mask_rewrite(mask, torch.tensor([0, 1], device=device), torch.tensor([1, 0], device=device))


def test_any_byte_is_true(device):
    """A bool may come from bytes that are neither 0 nor 1."""
    mask = torch.tensor([[0, 2, 255, 4]], dtype=torch.uint8, device=device).view(torch.bool)
    ops.mask_rewrite(mask, ints([0], device), ints([3], device))
    assert (mask.view(torch.uint8) != 0).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("columns_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths_dtype", [torch.int32, torch.int64])
def test_index_dtypes(device, columns_dtype, lengths_dtype):
    mask = torch.ones(2, 3, dtype=torch.bool, device=device)
    ops.mask_rewrite(mask, ints([1, 0], device, columns_dtype), ints([1, 2], device, lengths_dtype))
    assert mask.tolist() == bits("010 110", device).tolist()


def test_strides(device):
    """case P18: a part of a larger mask is rewritten, and nothing around it; strided columns and lengths."""
    columns, lengths = ints([1, 9, 0, 9], device)[::2], ints([2, 9, 3, 9], device)[::2]
    for dtype in (torch.bool, torch.float32):
        wide = torch.rand(4, 3, 6, 8, device=device)
        wide = wide < 0.5 if dtype == torch.bool else wide
        for cut in (
            lambda t: t[1:3, 1:2, 2:5, 1:6],
            lambda t: t[::2, :1, ::3, 3:],
            lambda t: t[:2].transpose(1, 2)[:, :1],
        ):
            mask = wide.clone()
            want = mask.clone()
            cut(want).copy_(rewritten(ops, cut(mask).contiguous(), [1, 0], [2, 3]))
            ops.mask_rewrite(cut(mask), columns, lengths)
            assert_matches(mask, want)
    flat = torch.ones(2, 2, 5, dtype=torch.bool, device=device)
    ops.mask_rewrite(flat[:, 1], columns, lengths)
    assert flat.tolist() == torch.stack([bits("11111 01100", device), bits("11111 11100", device)]).tolist()


def test_elements_without_a_place_of_their_own_are_refused(device):
    """Queries that share memory would each rewrite what the others read."""
    zeros = ints([0, 0], device)
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool, device=device)
    text = PREFIX + r"mask must have a place in memory for each element, got strides \[4, 4, 0, 1\]"
    with pytest.raises(ValueError, match=text):
        ops.mask_rewrite(mask.expand(2, 1, 3, 4), zeros, zeros)
    with pytest.raises(ValueError, match=PREFIX + r"mask must have a place in memory .*, got strides \[0, 1\]"):
        ops.mask_rewrite(mask[0, 0].expand(2, 4), zeros, zeros)
    with pytest.raises(ValueError, match=PREFIX + r"mask must be contiguous in its last dim, got strides"):
        ops.mask_rewrite(mask[..., :1].expand(2, 1, 1, 4), zeros, zeros)
    ops.mask_rewrite(mask[:1].expand(1, 1, 1, 4), zeros[:1], zeros[:1])  # stride 0, but nothing is shared
    assert mask.all(-1).flatten().tolist() == [False, True]


def test_errors(device):
    mask = torch.ones(2, 1, 3, 4, dtype=torch.bool, device=device)
    columns, lengths = ints([0, 2], device), ints([2, 2], device)
    for wrong in (mask[0, 0, 0], mask[0], mask.expand(2, 2, 3, 4)):
        with pytest.raises(ValueError, match=PREFIX + r"mask must have shape \[B, L\] or \[B, 1, Q, L\], got \["):
            ops.mask_rewrite(wrong, columns, lengths)
    with pytest.raises(TypeError, match=PREFIX + r"mask of shape \[B, L\] must have dtype bool, got float32"):
        ops.mask_rewrite(mask[:, 0, 0].float(), columns, lengths)
    with pytest.raises(TypeError, match=PREFIX + r"mask must have dtype bool, float32, .*, got int64"):
        ops.mask_rewrite(mask.long(), columns, lengths)
    with pytest.raises(ValueError, match=PREFIX + r"columns must have shape \[B\]=\[2\], got \[1\]"):
        ops.mask_rewrite(mask, columns[:1], lengths)
    with pytest.raises(ValueError, match=PREFIX + r"lengths must have shape \[B\]=\[2\], got \[1, 2\]"):
        ops.mask_rewrite(mask, columns, lengths[None])
    with pytest.raises(TypeError, match=PREFIX + r"lengths must have dtype .*, got float32"):
        ops.mask_rewrite(mask, columns, lengths.float())
    assert mask.all()


@pytest.mark.parametrize(
    "columns, lengths, text",
    [
        ([0, 3], [2, 2], r"columns must keep row 1 in \[0, L\]=\[0, 4\], got 3 with length 2"),
        ([-1, 2], [2, 2], r"columns must keep row 0 in \[0, L\]=\[0, 4\], got -1"),
        ([0, 5], [2, 0], r"columns must keep row 1 in \[0, L\]=\[0, 4\], got 5"),
        ([0, 2**62], [2, 2**62], r"columns must keep row 1 in \[0, L\]=\[0, 4\], got 46"),
        ([0, 0], [2, -1], "lengths must be at least 0, got -1"),
    ],
)
def test_values_out_of_range_raise_on_the_cpu(columns, lengths, text):
    mask = torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=PREFIX + text):
        ops.mask_rewrite(mask, ints(columns, "cpu"), ints(lengths, "cpu"))
    assert mask.all()
