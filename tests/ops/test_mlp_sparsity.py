"""mlp_sparsity: counts are exact, so every comparison here is too."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, FLOATS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "mlp_sparsity"


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device):
    """case P19 among them: no rows, no columns."""
    args, kwargs = inputs(OP, case, device)
    assert_matches(ops.mlp_sparsity(*args, **kwargs), reference.mlp_sparsity(*args, **kwargs))


@pytest.mark.parametrize("dtype", FLOATS)
def test_by_hand(impl, device, dtype):
    act = torch.tensor([[0.0, -0.25, 0.5, -0.5], [2.0, -3.0, 0.75, 1.0], [0.0, 0.0, -0.0, 0.125]], dtype=dtype)
    # Below 0.5 in size: 0 and -0.25 of four (0.5 itself isn't); none; all.
    got = impl.mlp_sparsity(act.to(device), 0.5)
    assert got.dtype == torch.float32
    assert got.tolist() == [0.5, 0.0, 1.0]


def test_share_is_rounded_once(impl, device):
    act = torch.zeros(49)
    act[:7] = 1.0
    # 42/49 = 6/7; float32(6/7) = 0.857142865657806. Multiplying by a rounded 1/49 may miss it.
    assert impl.mlp_sparsity(act.to(device), 0.5).item() == 0.8571428656578064


def test_threshold_is_compared_as_float32(impl, device):
    # float32(0.7) = 0.699999988 lies below 0.7: it counts as quiet only if the comparison is in float64.
    act = torch.tensor([0.7, 0.6], dtype=torch.float32, device=device)
    assert impl.mlp_sparsity(act, 0.7).item() == 0.5
    # bfloat16(0.7) = 0.69921875 is quiet either way: it is below float32(0.7).
    assert impl.mlp_sparsity(act.bfloat16(), 0.7).item() == 1.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_are_active(impl, device, dtype):
    act = torch.tensor([math.nan, math.inf, -math.inf, 0.0], dtype=dtype, device=device)
    assert impl.mlp_sparsity(act, 0.5).item() == 0.25
    assert impl.mlp_sparsity(act, math.inf).item() == 0.25  # inf < inf is false


@pytest.mark.parametrize("threshold", [0.0, -1.0])
def test_nothing_is_below_zero(impl, device, threshold):
    assert impl.mlp_sparsity(torch.zeros(3, 40, device=device), threshold).tolist() == [0.0] * 3


@pytest.mark.parametrize("columns", [1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 129, 1000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_each_column_counts_once(device, dtype, columns):
    """Row r has exactly column r quiet, and a quiet neighbour just outside on both sides."""
    wide = torch.zeros(columns, columns + 6, dtype=dtype)
    wide[:, 3 : columns + 3] = 1 - torch.eye(columns).to(dtype)
    got = ops.mlp_sparsity(wide.to(device)[:, 3 : columns + 3], 0.5)
    assert_matches(got, torch.full((columns,), 1 / columns, dtype=torch.float32))


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6), (2, 1, 3, 6)])
def test_any_rank(device, shape):
    act = torch.randn(shape, device=device)
    got = ops.mlp_sparsity(act, 0.5)
    assert got.shape == shape[:-1]
    assert_matches(got, reference.mlp_sparsity(act, 0.5))


def test_no_columns_give_zero(impl, device):
    assert impl.mlp_sparsity(torch.zeros(2, 3, 0, device=device), 1.0).tolist() == [[0.0] * 3] * 2


def test_outer_strides(device):
    """case P18: transposed, sliced and expanded outer dims equal their contiguous copies."""
    x = torch.randn(4, 6, 40, device=device)
    views = [x.transpose(0, 1), x[:, ::2], x[1:, :, 5:29], x[:1].expand(3, 6, 40), x[:, :1, :1], x.flip(0)]
    for view in views:
        assert_matches(ops.mlp_sparsity(view, 0.5), ops.mlp_sparsity(view.contiguous(), 0.5))
    column = torch.randn(1, 5, device=device).t()  # one column: its stride means nothing
    assert_matches(ops.mlp_sparsity(column, 0.5), ops.mlp_sparsity(column.contiguous(), 0.5))


def test_last_dim_stride_is_refused(device):
    """case P18: what isn't handled is refused, never read wrongly."""
    x = torch.randn(4, 8, device=device)
    for view in (x[:, ::2], x.t(), x[:, :1].expand(4, 8)):
        with pytest.raises(ValueError, match=r"^seer::mlp_sparsity: act must .*contiguous.*, got "):
            ops.mlp_sparsity(view, 0.5)


def test_errors():
    with pytest.raises(TypeError, match=r"^seer::mlp_sparsity: act must have dtype .*, got "):
        ops.mlp_sparsity(torch.zeros(3, dtype=torch.int64), 0.5)
    with pytest.raises(TypeError, match=r"^seer::mlp_sparsity: act must have dtype .*, got "):
        ops.mlp_sparsity(torch.zeros(3, dtype=torch.float64), 0.5)
    with pytest.raises(ValueError, match=r"^seer::mlp_sparsity: act must .*, got "):
        ops.mlp_sparsity(torch.tensor(1.0), 0.5)
    with pytest.raises(ValueError, match=r"^seer::mlp_sparsity: threshold must be a number, got nan"):
        ops.mlp_sparsity(torch.zeros(3), math.nan)
