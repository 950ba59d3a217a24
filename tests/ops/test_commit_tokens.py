"""commit_tokens: a selection, so everything is exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, MASK_ID, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "commit_tokens"
PREFIX = r"^seer::commit_tokens: "
NAN = math.nan
M = MASK_ID


def commit(
    impl,
    device,
    confidence,
    quota,
    *,
    ids=None,
    slots=None,
    token=None,
    cu=None,
    dtype=torch.float64,
    **kwargs,
):
    """One call; by default N masked slots in order, in one row, with tokens 100, 101, ... Returns ids,
    written, left."""
    n = len(confidence)
    tensor = lambda values, dtype=torch.int64: torch.tensor(values, dtype=dtype, device=device)  # noqa: E731
    ids = tensor([M] * n if ids is None else ids)
    threshold = kwargs.pop("threshold", None)
    written, remaining = impl.commit_tokens(
        ids,
        tensor(list(range(n)) if slots is None else slots),
        tensor(list(range(100, 100 + n)) if token is None else token),
        tensor(confidence, dtype),
        tensor([0, n] if cu is None else cu, torch.int32),
        tensor(quota),
        mask_id=M,
        threshold=None if threshold is None else tensor(threshold, torch.float64),
        **kwargs,
    )
    assert written.dtype == remaining.dtype == torch.int32
    return ids.tolist(), written.tolist(), remaining.tolist()


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 0.99, 2.0, NAN])
@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device, threshold):
    (ids, *rest), kwargs = inputs(OP, case, device)
    if threshold is not None:
        kwargs["threshold"] = torch.full((case.dims["B"],), threshold, dtype=torch.float64, device=device)
    want_ids = ids.clone()
    want = reference.commit_tokens(want_ids, *rest, **kwargs)
    got = ops.commit_tokens(ids, *rest, **kwargs)
    assert_matches(ids, want_ids)
    assert_matches(got[0], want[0])
    assert_matches(got[1], want[1])


def test_the_most_confident_by_hand(impl, device):
    # Best two of five: slots 3 and 1.
    got = commit(impl, device, [0.1, 0.8, 0.3, 0.9, 0.2], [2])
    assert got == ([M, 101, M, 103, M], [2], [3])


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_equal_confidences(impl, device, rows, dtype):
    """case P17: eight times 0.5, quota 3: the three lowest slots, in every row and batch size."""
    cu = [8 * b for b in range(rows + 1)]
    ids, written, remaining = commit(impl, device, [0.5] * 8 * rows, [3] * rows, cu=cu, dtype=dtype)
    for b in range(rows):
        assert ids[8 * b : 8 * b + 8] == [100 + 8 * b, 101 + 8 * b, 102 + 8 * b, M, M, M, M, M]
    assert written == [3] * rows and remaining == [5] * rows


def test_ties_are_broken_by_slot_not_by_entry(impl, device):
    got = commit(impl, device, [0.5] * 4, [2], slots=[3, 1, 2, 0])
    assert got == ([103, 101, M, M], [2], [2])


@pytest.mark.parametrize("quota, count", [(-5, 0), (0, 0), (1, 1), (4, 4), (5, 4), (2**40, 4)])
def test_quota(impl, device, quota, count):
    ids, written, remaining = commit(impl, device, [0.4, 0.3, 0.2, 0.1], [quota])
    assert ids == [100, 101, 102, 103][:count] + [M] * (4 - count)
    assert written == [count] and remaining == [4 - count]


def test_nan_and_infinity(impl, device):
    # Order: inf, 0.5, -inf, then NaN by slot.
    confidence = [NAN, -math.inf, NAN, math.inf, 0.5]
    want = [3, 4, 1, 0, 2]
    for quota in range(6):
        ids, written, remaining = commit(impl, device, confidence, [quota])
        assert ids == [100 + i if i in want[:quota] else M for i in range(5)]
        assert written == [quota] and remaining == [5 - quota]


def test_only_slots_that_hold_the_mask(impl, device):
    # Slots 1 and 4 hold tokens already, the most confident ones too; slot 5 isn't listed.
    got = commit(impl, device, [0.2, 0.9, 0.3, 0.1, 0.8], [2], ids=[M, 5, M, M, 6, M])
    assert got == ([100, 5, 102, M, 6, M], [2], [1])


def test_negative_slots_are_skipped(impl, device):
    got = commit(impl, device, [0.9, 0.8, 0.7, 0.6], [2], ids=[M] * 3, slots=[-1, 2, -7, 0])
    assert got == ([103, M, 101], [2], [0])


def test_entries_past_the_last_row_are_skipped(impl, device):
    # Four entries, two in the only row. The others would win, and one of their slots is out of range.
    got = commit(impl, device, [0.1, 0.2, 0.9, 0.9], [9], ids=[M] * 3, slots=[0, 1, 2, 99], cu=[0, 2])
    assert got == ([100, 101, M], [2], [0])


def test_rows(impl, device):
    """Row 0 has a quota of 1, row 1 no slots, row 2 a quota of 2, row 3 one of 0."""
    got = commit(impl, device, [0.1, 0.2, 0.5, 0.4, 0.3, 0.9], [1, 3, 2, 0], cu=[0, 2, 2, 5, 6])
    assert got == ([M, 101, 102, 103, M, M], [1, 0, 2, 0], [1, 0, 1, 1])


def test_threshold(impl, device):
    """At or above it all are written, quota or not; below it still the best; a NaN threshold leaves the
    quota."""
    confidence = [0.5, 0.9, 0.7] * 4
    got = commit(impl, device, confidence, [0, 0, 3, 1], cu=[0, 3, 6, 9, 12], threshold=[0.7, 0.95, 0.9, NAN])
    assert got[0] == [M, 101, 102, M, 104, M, M, 107, M, M, 110, M]
    assert got[1:] == ([2, 1, 1, 1], [1, 2, 2, 2])


def test_threshold_without_a_number_at_or_above(impl, device):
    # Ties below the threshold: one only, the lowest slot. NaN is at or above nothing, but can be the best.
    assert commit(impl, device, [0.5, 0.5], [0], threshold=[0.9]) == ([100, M], [1], [1])
    assert commit(impl, device, [NAN, 0.1], [0], threshold=[0.9]) == ([M, 101], [1], [1])
    assert commit(impl, device, [NAN, NAN], [0], threshold=[0.9]) == ([100, M], [1], [1])
    assert commit(impl, device, [NAN, 0.1], [0], threshold=[-math.inf]) == ([M, 101], [1], [1])
    assert commit(impl, device, [0.1], [0], ids=[5], threshold=[0.0]) == ([5], [0], [0])  # no mask left


def test_a_slot_listed_twice_counts_once(impl, device):
    # Slot 0 twice, best as entry 2; a quota of 2 reaches slot 1.
    got = commit(impl, device, [0.3, 0.4, 0.9], [2], ids=[M, M], slots=[0, 1, 0])
    assert got == ([102, 101], [2], [0])
    got = commit(impl, device, [0.3, 0.4, 0.9], [1], ids=[M, M], slots=[0, 1, 0])
    assert got == ([102, M], [1], [1])
    got = commit(impl, device, [0.8, 0.1, 0.9], [0], ids=[M, M], slots=[0, 1, 0], threshold=[0.5])
    assert got == ([102, M], [1], [1])


def test_a_written_mask_is_still_a_mask(impl, device):
    got = commit(impl, device, [0.9, 0.1], [1], token=[M, 101])
    assert got == ([M, M], [1], [2])


@pytest.mark.parametrize("rows, entries", [(0, 0), (0, 3), (3, 0)])
def test_empty(impl, device, rows, entries):
    """case P19"""
    got = commit(impl, device, [0.5] * entries, [1] * rows, cu=[0] * (rows + 1))
    assert got == ([M] * entries, [0] * rows, [0] * rows)


def test_nothing_else_is_written(device):
    """Canaries: ids is a strided piece of a larger tensor, other rows' masks and everything around it
    survive."""
    wide = torch.full((40,), M, device=device)
    view = wide[5:35:3]  # ten ids
    slots, token = torch.tensor([8, 2, 4], device=device), torch.tensor([1, 2, 3], device=device)
    confidence = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64, device=device)
    cu, quota = torch.tensor([0, 3], device=device), torch.tensor([2], device=device)
    want = wide.clone()
    want[5 + 3 * 8], want[5 + 3 * 2] = 1, 2
    ops.commit_tokens(view, slots, token, confidence, cu, quota, mask_id=M)
    assert_matches(wide, want)


def test_strided_entries(device):
    """case P18: confidence and token as columns of a table."""
    (ids, slots, token, confidence, cu, quota), kwargs = inputs(OP, CORRECTNESS[OP][0], device)
    want_ids = ids.clone()
    want = ops.commit_tokens(want_ids, slots, token, confidence, cu, quota, **kwargs)
    column = lambda t: torch.stack([t, torch.zeros_like(t)], 1)[:, 0]  # noqa: E731
    got = ops.commit_tokens(ids, column(slots), column(token), column(confidence), cu, quota, **kwargs)
    assert_matches(ids, want_ids)
    assert_matches(got[0], want[0])
    assert_matches(got[1], want[1])


def test_repeats_give_the_same(device):
    (ids, *rest), kwargs = inputs(OP, CORRECTNESS[OP][2], device)
    results = []
    for _ in range(3):
        fresh = ids.clone()
        ops.commit_tokens(fresh, *rest, **kwargs)
        results.append(fresh)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


# ---- errors ------------------------------------------------------------------------------------------------


def arguments(device="cpu"):
    """Two rows of two slots, all masked."""
    return {
        "ids": torch.full((4,), M, device=device),
        "slots": torch.arange(4, device=device),
        "token": torch.arange(100, 104, device=device),
        "confidence": torch.full((4,), 0.5, dtype=torch.float64, device=device),
        "cu_slots": torch.tensor([0, 2, 4], device=device),
        "quota": torch.tensor([2, 2], device=device),
        "mask_id": M,
    }


@pytest.mark.parametrize(
    "name, change, error, text",
    [
        ("ids", lambda t: t.int(), TypeError, r"ids must have dtype .*, got "),
        ("ids", lambda t: t.view(2, 2), ValueError, r"ids must .*, got "),
        ("slots", lambda t: t.float(), TypeError, r"slots must have dtype .*, got "),
        ("token", lambda t: t[:3], ValueError, r"token must have shape \[N\]=\[4\], got \[3\]"),
        ("token", lambda t: t.int(), TypeError, r"token must have dtype .*, got "),
        ("confidence", lambda t: t[:3], ValueError, r"confidence must have shape \[N\]=\[4\], got \[3\]"),
        ("confidence", lambda t: t.long(), TypeError, r"confidence must have dtype .*, got "),
        ("cu_slots", lambda t: t[:0], ValueError, r"cu_slots must .*, got "),
        ("cu_slots", lambda t: t.float(), TypeError, r"cu_slots must have dtype .*, got "),
        ("quota", lambda t: t[:1], ValueError, r"(quota|cu_slots) must have shape .*, got "),
        ("quota", lambda t: t.double(), TypeError, r"quota must have dtype .*, got "),
    ],
)
def test_errors(device, name, change, error, text):
    kwargs = arguments(device)
    kwargs[name] = change(kwargs[name])
    with pytest.raises(error, match=PREFIX + text):
        ops.commit_tokens(**kwargs)
    assert bool((kwargs["ids"] == M).all())


def test_threshold_errors(device):
    with pytest.raises(ValueError, match=PREFIX + r"threshold must have shape \[B\]=\[2\], got \[1\]"):
        ops.commit_tokens(**arguments(device), threshold=torch.ones(1, dtype=torch.float64, device=device))


@pytest.mark.parametrize(
    "name, values, text",
    [
        ("slots", [0, 1, 2, 0], "slots must belong to one row each, got 0 in rows 0 and 1"),
        ("slots", [0, 1, 2, 4], "slots must be below T=4, got 4"),
        ("slots", [0, 1, 2, 2**40], f"slots must be below T=4, got {2**40}"),
        ("cu_slots", [1, 2, 4], "cu_slots must start at 0, got 1"),
        ("cu_slots", [0, 3, 2], "cu_slots must not decrease, got 3 before 2"),
        ("cu_slots", [0, 2, 5], "cu_slots must end at or before N=4, got 5"),
    ],
)
def test_bad_values_raise_on_the_cpu_before_any_write(name, values, text):
    kwargs = arguments()
    kwargs[name] = torch.tensor(values)
    with pytest.raises(ValueError, match=PREFIX + text):
        ops.commit_tokens(**kwargs)
    assert kwargs["ids"].tolist() == [M] * 4
