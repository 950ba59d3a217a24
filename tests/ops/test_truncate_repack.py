"""truncate_repack: copies and counts, so everything is bit-exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "truncate_repack"
PREFIX = r"^seer::truncate_repack: "


def ints(values, device, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=device)


def assert_all_match(got, want):
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for ours, theirs in zip(got, want, strict=True):
        assert_matches(ours, theirs)


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device):
    (*args, capacity), kwargs = inputs(OP, case, device)
    for size in (capacity, capacity - 3, capacity // 2, 0):
        got = ops.truncate_repack(*args, size, **kwargs)
        assert_all_match(got, reference.truncate_repack(*args, size, **kwargs))


def by_hand(impl, device, capacity, **kwargs):
    """Row 0 keeps tokens 0 and 1, row 1 token 3."""
    hidden = torch.tensor([[i, 10 * i] for i in range(6)], dtype=torch.float32, device=device)
    ids = torch.arange(100, 106, device=device)
    return impl.truncate_repack(hidden, ids, ints([0, 3], device), ints([2, 1], device), capacity, **kwargs)


def test_by_hand(impl, device):
    hidden, ids, positions, rows, cu = by_hand(impl, device, 5)
    assert hidden.tolist() == [[0, 0], [1, 10], [3, 30], [0, 0], [0, 0]]
    assert ids.tolist() == [100, 101, 103, 0, 0]
    assert positions.tolist() == [0, 1, 0, 0, 0]
    assert rows.tolist() == [0, 0, 1, -1, -1]
    assert cu.tolist() == [0, 2, 3]
    assert [t.dtype for t in (ids, positions, rows, cu)] == [torch.int64] + [torch.int32] * 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_start_the_positions(impl, device, dtype):
    assert by_hand(impl, device, 5, offsets=ints([5, 70], device, dtype))[2].tolist() == [5, 6, 70, 0, 0]


@pytest.mark.parametrize(
    "capacity, ids, cu",
    [
        (3, [100, 101, 103], [0, 2, 3]),
        (2, [100, 101], [0, 2, 2]),
        (1, [100], [0, 1, 1]),
        (0, [], [0, 0, 0]),
    ],
)
def test_rows_are_cut_at_capacity(impl, device, capacity, ids, cu):
    out = by_hand(impl, device, capacity)
    assert out[1].tolist() == ids and out[4].tolist() == cu
    assert [t.shape[0] for t in out[:4]] == [capacity] * 4


def test_empty_rows(impl, device):
    """case P15: lengths [0, 1, 0, 1] give cu_seqlens [0, 0, 1, 1, 2]; rows says where each token came
    from."""
    hidden, ids = torch.randn(4, 3, device=device), torch.arange(4, device=device)
    starts, lengths = torch.arange(4, device=device), ints([0, 1, 0, 1], device)
    packed, packed_ids, positions, rows, cu = impl.truncate_repack(hidden, ids, starts, lengths, 2)
    assert cu.tolist() == [0, 0, 1, 1, 2]
    assert rows.tolist() == [1, 3] and positions.tolist() == [0, 0] and packed_ids.tolist() == [1, 3]
    back = torch.zeros_like(hidden)
    back[rows.long()] = packed
    assert_matches(back, hidden * lengths[:, None])


@pytest.mark.parametrize("rows, tokens, capacity", [(0, 4, 0), (0, 4, 3), (0, 0, 0), (3, 0, 0), (3, 0, 2), (3, 4, 2)])
def test_empty(impl, device, rows, tokens, capacity):
    """case P19: no rows, no tokens, all lengths zero."""
    hidden, ids = torch.full((tokens, 2), math.nan, device=device), torch.full((tokens,), 9, device=device)
    zeros = ints([0] * rows, device)
    got = impl.truncate_repack(hidden, ids, zeros, zeros, capacity, offsets=zeros + 5)
    assert got[0].tolist() == [[0, 0]] * capacity and got[4].tolist() == [0] * (rows + 1)
    assert got[1].tolist() == got[2].tolist() == [0] * capacity and got[3].tolist() == [-1] * capacity


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 7, 64])
def test_hidden_is_copied_bit_by_bit(device, dtype, width):
    size = torch.empty(0, dtype=dtype).element_size()
    hidden = torch.randint(0, 256, (9, width * size), dtype=torch.uint8, device=device).view(dtype)
    ids = torch.arange(9, device=device)
    packed, *_ = ops.truncate_repack(hidden, ids, ints([5, 1], device), ints([4, 2], device), 7)
    want = torch.cat([hidden[5:9], hidden[1:3], torch.zeros_like(hidden[:1])])
    assert torch.equal(packed.view(torch.uint8), want.view(torch.uint8))


def test_only_what_is_kept_is_read(device):
    """Poison: cut tokens are NaN with absurd ids."""
    hidden, ids = torch.full((12, 5), math.nan, device=device), torch.full((12,), 2**60, device=device)
    hidden[2:4], hidden[7:10], ids[2:4], ids[7:10] = 1.0, 2.0, 1, 2
    packed, packed_ids, *_ = ops.truncate_repack(hidden, ids, ints([2, 7], device), ints([2, 3], device), 7)
    want = [1, 1, 2, 2, 2, 0, 0]
    assert packed_ids.tolist() == want
    assert_matches(packed, torch.tensor(want)[:, None].expand(7, 5))


def test_is_varlen_repack_with_bookkeeping(device):
    (hidden, ids, starts, lengths, capacity), kwargs = inputs(OP, CORRECTNESS[OP][0], device)
    packed, packed_ids, _, rows, cu = ops.truncate_repack(hidden, ids, starts, lengths, capacity, **kwargs)
    assert_matches(packed, ops.varlen_repack(hidden, starts, cu, capacity))
    assert_matches(packed_ids, ops.varlen_repack(ids, starts, cu, capacity))
    assert torch.bincount(rows[rows >= 0], minlength=len(lengths)).tolist() == lengths.tolist()


def test_outer_strides(device):
    """case P18"""
    x = torch.randn(2, 10, 8, device=device)
    ids = torch.arange(10, device=device)
    rows = ints([0, 3], device), ints([2, 3], device)
    for view in (x[0], x[0, :, 2:7], x.transpose(0, 1)[:, 1], x[0, :1].expand(10, 8)):
        got = ops.truncate_repack(view, ids, *rows, 6)
        assert_all_match(got, ops.truncate_repack(view.contiguous(), ids, *rows, 6))
    with pytest.raises(ValueError, match=PREFIX + r"hidden must .*contiguous.*, got "):
        ops.truncate_repack(x[0, :, ::2], ids, *rows, 6)


def test_errors(device):
    hidden, ids = torch.ones(5, 4, device=device), torch.arange(5, device=device)
    starts, lengths = ints([0, 2], device), ints([2, 2], device)
    with pytest.raises(ValueError, match=PREFIX + r"hidden must .*, got "):
        ops.truncate_repack(hidden[0], ids, starts, lengths, 4)
    with pytest.raises(ValueError, match=PREFIX + r"ids must have shape \[N\]=\[5\], got \[4\]"):
        ops.truncate_repack(hidden, ids[:4], starts, lengths, 4)
    with pytest.raises(ValueError, match=PREFIX + r"(lengths|starts) must have shape \[B\]=\[[12]\], got \[[12]\]"):
        ops.truncate_repack(hidden, ids, starts, lengths[:1], 4)
    with pytest.raises(ValueError, match=PREFIX + r"offsets must have shape \[B\]=\[2\], got \[1\]"):
        ops.truncate_repack(hidden, ids, starts, lengths, 4, offsets=starts[:1])
    with pytest.raises(TypeError, match=PREFIX + r"ids must have dtype .*, got "):
        ops.truncate_repack(hidden, ids.float(), starts, lengths, 4)
    with pytest.raises(TypeError, match=PREFIX + r"lengths must have dtype .*, got "):
        ops.truncate_repack(hidden, ids, starts, lengths.float(), 4)
    with pytest.raises(ValueError, match=PREFIX + r"capacity must .*, got -1"):
        ops.truncate_repack(hidden, ids, starts, lengths, -1)


@pytest.mark.parametrize(
    "starts, lengths, text",
    [
        ([0, 4], [2, 2], r"starts must keep row 1 in \[0, N\]=\[0, 5\], got 4"),
        ([-1, 2], [2, 2], r"starts must keep row 0 in \[0, N\]=\[0, 5\], got -1"),
        ([0, 2], [2, 2**62], r"starts must keep row 1 in \[0, N\]=\[0, 5\], got 2"),
        ([0, 2], [2, -1], "lengths must be at least 0, got -1"),
    ],
)
def test_values_out_of_range_raise_on_the_cpu(starts, lengths, text):
    hidden, ids = torch.ones(5, 4), torch.arange(5)
    with pytest.raises(ValueError, match=PREFIX + text):
        ops.truncate_repack(hidden, ids, ints(starts, "cpu"), ints(lengths, "cpu"), 4)


@pytest.mark.parametrize("bad", [-1, 2**31 - 1])
def test_offsets_out_of_range_raise_on_the_cpu(bad):
    """Positions are int32: the second token of a row that starts at 2^31 - 1 would have none."""
    rows = ints([0, 2], "cpu"), ints([2, 2], "cpu")
    with pytest.raises(ValueError, match=PREFIX + rf"offsets must .*, got {bad}"):
        ops.truncate_repack(torch.ones(5, 4), torch.arange(5), *rows, 4, offsets=ints([0, bad], "cpu"))
