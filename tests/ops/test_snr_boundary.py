"""snr_boundary: float64 arithmetic in a fixed order, so boundaries and snr are exact."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "snr_boundary"


def run(impl, device, row, **options):
    """Boundary and snr of one row."""
    boundary, snr = impl.snr_boundary(torch.tensor([row], dtype=torch.float32, device=device), **options)
    assert boundary.dtype == torch.int32 and snr.dtype == torch.float32
    return boundary.item(), snr.item()


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
@pytest.mark.parametrize("options", [{}, {"window": 3, "min_snr": 0.25, "plateau": 0.5, "min_keep": 2}], ids=str)
def test_matches_reference(case, device, options):
    """case P19 among them: no rows, no columns."""
    args, _ = inputs(OP, case, device)
    got, want = ops.snr_boundary(*args, **options), reference.snr_boundary(*args, **options)
    assert_matches(got[0], want[0])
    assert_matches(got[1], want[1])


def test_random_rows_match_reference(device):
    """Rows without any structure: many weak candidates that compete closely."""
    sparsity = torch.randint(0, 17, (200, 24)).div(16).to(device)
    for options in (
        {"min_snr": 0.0, "plateau": 0.0, "window": 2},
        {"min_snr": 0.5, "plateau": 0.4, "window": 5},
    ):
        got, want = ops.snr_boundary(sparsity, **options), reference.snr_boundary(sparsity, **options)
        assert len(want[0].unique()) > 10
        assert_matches(got[0], want[0])
        assert_matches(got[1], want[1])


def test_caption_with_a_quiet_middle(impl, device):
    """case P6: three quiet slots early in the answer are not its end."""
    row = [0.30] * 6 + [0.80] * 3 + [0.30] * 31 + [0.82] * 24
    assert len(row) == 64
    boundary, snr = run(impl, device, row)
    # At 40 both windows are constant: noise is its floor, snr (0.82 - 0.30) / 0.001.
    assert boundary == 40
    assert snr == pytest.approx(520, rel=1e-6)


def test_jump_by_hand(impl, device):
    # j=1: [0]|[0,1]: signal 0.5, variance 0.5/3, but only 2 of 3 above 0.25: no plateau.
    # j=2: [0,0]|[1,1]: 1/0.001. j=3: [0,1]|[1]: 0.5/sqrt(0.5/3) = 1.22.
    assert run(impl, device, [0, 0, 1, 1], window=2) == (2, 1000.0)


def test_noise_by_hand(impl, device):
    # j=2: mean 0.1 and 0.9, squared deviations 0.02 and 0.02 over 4 slots: noise 0.1, snr 8.
    boundary, snr = run(impl, device, [0, 0.2, 1, 0.8], window=2)
    assert boundary == 2 and snr == pytest.approx(8, rel=1e-5)


def test_variance_is_pooled_over_slots(impl, device):
    # j=2: [0, 0.4] has squares 0.08, [1,1,1] none. Pooled over 5 slots: 0.016, snr 0.8/0.126491 = 6.3246.
    # (The mean of the two variances would be 0.02 and give 5.6569.)
    boundary, snr = run(impl, device, [0, 0.4, 1, 1, 1], window=3)
    assert boundary == 2 and snr == pytest.approx(6.324555, rel=1e-5)


def test_ties_go_to_the_earliest(impl, device):
    # Two jumps of 1 between constant windows: snr 1000 at 2 and at 4.
    assert run(impl, device, [0, 0, 1, 1, 2, 2], window=2) == (2, 1000.0)
    assert run(impl, device, [0, 0, 1, 1, 2.5, 2.5], window=2) == (4, 1500.0)


@pytest.mark.parametrize("low, boundary", [(1e-10, 2), (1e-8, 4)])
def test_a_later_one_must_win_clearly(impl, device, low, boundary):
    # The first jump is 1 - low, the second 1: an advantage of 1e-10 is a tie, one of 1e-8 isn't.
    assert run(impl, device, [low, low, 1, 1, 2, 2], window=2)[0] == boundary


@pytest.mark.parametrize("row", [[0.5] * 20, [0.9] * 10 + [0.1] * 10, [1 - i / 20 for i in range(20)]])
def test_no_rise_keeps_everything(impl, device, row):
    assert run(impl, device, row) == (20, 0.0)


def test_min_snr(impl, device):
    row = [0, 0, 1, 1]  # snr exactly 1000 at 2
    assert run(impl, device, row, window=2, min_snr=1000.0) == (2, 1000.0)
    assert run(impl, device, row, window=2, min_snr=1000.5) == (4, 0.0)


def test_min_jump_is_exclusive(impl, device):
    row = [0, 0, 1, 1]  # signal exactly 1 at 2
    assert run(impl, device, row, window=2, min_jump=0.9999) == (2, 1000.0)
    assert run(impl, device, row, window=2, min_jump=1.0) == (4, 0.0)


def test_plateau(impl, device):
    row = [0.0] * 4 + [1.0] * 9 + [0.0]  # from 4 on 9 of 10 are above 0.5; the window of 8 sees only ones
    assert run(impl, device, row, plateau=0.9) == (4, 1000.0)
    assert run(impl, device, row, plateau=0.95, min_snr=100.0) == (14, 0.0)


def test_plateau_level_is_exclusive(impl, device):
    # At 2 the level is 0.5 and the last two slots lie on it: 2 of 4 above, not 4.
    row = [0.0, 0.0, 1.0, 1.0, 0.5, 0.5]
    assert run(impl, device, row, window=2, plateau=0.5) == (2, 1000.0)
    assert run(impl, device, row, window=2, plateau=0.51, min_snr=100.0) == (6, 0.0)


def test_min_keep(impl, device):
    row = [0, 0, 1, 1, 2, 2]
    assert run(impl, device, row, window=2, min_keep=2)[0] == 2
    assert run(impl, device, row, window=2, min_keep=3)[0] == 4
    assert run(impl, device, row, window=2, min_keep=6) == (6, 0.0)  # past the last candidate, 5
    assert run(impl, device, row, window=2, min_keep=2**63 - 1) == (6, 0.0)
    assert run(impl, device, row, window=2, min_keep=99) == (6, 0.0)


def test_window_wider_than_the_row(impl, device):
    # j=1: [0]|[1,1]: snr 1000.
    assert run(impl, device, [0, 1, 1], window=100) == (1, 1000.0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_nothing_past_the_length_is_read(impl, device, dtype):
    jump = [0.0, 0.0, 1.0, 1.0]
    lengths = [4, 3, 2, 1, 0]
    rows = [jump[:n] + [math.nan if n % 2 else math.inf] * (8 - n) for n in lengths]
    sparsity = torch.tensor(rows, device=device)
    boundary, snr = impl.snr_boundary(sparsity, torch.tensor(lengths, dtype=dtype, device=device), window=2)
    # Length 3 at j=2: [0,0]|[1], also 1000. Without a rise: the length itself.
    assert boundary.tolist() == [2, 2, 2, 1, 0]
    assert snr.tolist() == [1000.0, 1000.0, 0.0, 0.0, 0.0]


def test_nan_is_never_a_rise(impl, device):
    nan = math.nan
    # Candidates whose windows hold NaN drop out; 5 doesn't see the one at 0.
    assert run(impl, device, [nan, 0, 0, 0, 0, 1, 1, 1, 1], window=4) == (5, 1000.0)
    # On the plateau NaN isn't above the level: 4 of 5 are.
    assert run(impl, device, [0, 0, 1, 1, 1, 1, nan], window=2, plateau=0.8) == (2, 1000.0)
    assert run(impl, device, [0, 0, 1, 1, 1, 1, nan], window=2, plateau=0.81) == (7, 0.0)
    assert run(impl, device, [nan] * 6) == (6, 0.0)
    assert run(impl, device, [0, 0, math.inf, math.inf], window=2) == (4, 0.0)


def test_rows_are_independent(device):
    sparsity = torch.rand(7, 40, device=device)
    together = ops.snr_boundary(sparsity, min_snr=0.1, plateau=0.3)
    for b in range(7):
        alone = ops.snr_boundary(sparsity[b : b + 1], min_snr=0.1, plateau=0.3)
        assert alone[0].item() == together[0][b].item() and alone[1].item() == together[1][b].item()


def test_outer_strides(device):
    """case P18: a window cut out of a wider tensor needs no copy; another last-dim stride is refused."""
    wide = torch.full((8, 60), math.nan, device=device)
    wide[::2, 10:50] = torch.rand(4, 40, device=device)
    view = wide[::2, 10:50]
    got, want = ops.snr_boundary(view, min_snr=0.1), ops.snr_boundary(view.contiguous(), min_snr=0.1)
    assert_matches(got[0], want[0])
    assert_matches(got[1], want[1])
    with pytest.raises(ValueError, match=r"^seer::snr_boundary: sparsity must .*contiguous.*, got "):
        ops.snr_boundary(wide[:, ::2])


def test_errors(device):
    s = torch.rand(3, 16, device=device)
    lengths = torch.full((3,), 16, device=device)
    prefix = r"^seer::snr_boundary: "
    with pytest.raises(ValueError, match=prefix + r"sparsity must .*, got "):
        ops.snr_boundary(s[0])
    with pytest.raises(TypeError, match=prefix + r"sparsity must have dtype .*, got "):
        ops.snr_boundary(s.bfloat16())
    with pytest.raises(ValueError, match=prefix + r"lengths must have shape \[B\]=\[3\], got \[2\]"):
        ops.snr_boundary(s, lengths[:2])
    with pytest.raises(TypeError, match=prefix + r"lengths must have dtype .*, got "):
        ops.snr_boundary(s, lengths.float())
    with pytest.raises(ValueError, match=prefix + r"window must .*, got 0"):
        ops.snr_boundary(s, window=0)
    with pytest.raises(ValueError, match=prefix + r"min_keep must .*, got 0"):
        ops.snr_boundary(s, min_keep=0)
    for plateau in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=prefix + rf"plateau must lie in \[0, 1\], got {plateau}"):
            ops.snr_boundary(s, plateau=plateau)
    for name in ("min_snr", "min_jump"):
        with pytest.raises(ValueError, match=prefix + rf"{name} must be a number, got nan"):
            ops.snr_boundary(s, **{name: math.nan})


@pytest.mark.parametrize("bad", [-1, 17])
def test_lengths_out_of_range_raise_on_the_cpu(bad):
    lengths = torch.tensor([16, bad, 16])
    with pytest.raises(ValueError, match=rf"^seer::snr_boundary: lengths must .*, got {bad}"):
        ops.snr_boundary(torch.rand(3, 16), lengths)
