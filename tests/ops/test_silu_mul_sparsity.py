"""silu_mul_sparsity: act within one rounding of the exact SwiGLU, sparsity exact for the act it returns."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, FLOATS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "silu_mul_sparsity"


def exact(gate, up):
    g, u = gate.double(), up.double()
    return g * torch.sigmoid(g) * u


@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_exact(case, device):
    """case P19 among them: no rows, no columns."""
    (gate, up, threshold), _ = inputs(OP, case, device)
    act, sparsity = ops.silu_mul_sparsity(gate, up, threshold)
    assert act.dtype == gate.dtype and sparsity.dtype == torch.float32
    assert_matches(act, exact(gate, up), eager=torch.nn.functional.silu(gate) * up)
    assert_matches(sparsity, reference.mlp_sparsity(act, threshold))


@pytest.mark.parametrize("dtype", FLOATS)
def test_by_hand(impl, device, dtype):
    # silu(1) = 1/(1+e^-1) = 0.731058579, silu(-1) = -0.268941421, silu(0) = 0; times 2, 1, 5.
    gate = torch.tensor([1.0, -1.0, 0.0], dtype=dtype, device=device)
    up = torch.tensor([2.0, 1.0, 5.0], dtype=dtype, device=device)
    act, sparsity = impl.silu_mul_sparsity(gate, up, 0.5)
    want = torch.tensor([1.462117157, -0.268941421, 0.0], dtype=torch.float64)
    assert (act.cpu().double() - want).abs().max() <= torch.finfo(dtype).eps
    assert sparsity.item() == torch.tensor(2 / 3).item()


def test_act_is_rounded_once(impl, device):
    """silu(2.265625) = 2.0526334, times 1.484375 = 3.0468774, in bfloat16 3.046875.

    Eager rounds twice: silu to 2.046875, the product 3.0383 to 3.03125.
    """
    gate, up = (torch.tensor([v], dtype=torch.bfloat16, device=device) for v in (2.265625, 1.484375))
    assert impl.silu_mul_sparsity(gate, up, 0.0)[0].item() == 3.046875
    assert (torch.nn.functional.silu(gate) * up).item() == 3.03125


def test_sparsity_is_that_of_the_rounded_act(impl, device):
    # silu(31.75) = 31.75; times 129/4096 = 0.99993896, quiet at threshold 1. bfloat16 rounds it to 1: active.
    gate = torch.tensor([31.75], dtype=torch.bfloat16, device=device)
    up = torch.tensor([129 / 4096], dtype=torch.bfloat16, device=device)
    act, sparsity = impl.silu_mul_sparsity(gate, up, 1.0)
    assert act.item() == 1.0 and sparsity.item() == 0.0
    assert impl.silu_mul_sparsity(gate.float(), up.float(), 1.0)[1].item() == 1.0


def _rank(x):
    """bfloat16 -> integers that count representable values, so that a difference of 1 is one rounding
    step."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def test_every_bfloat16_gate(device):
    """All 65,536 gates: never more than one step from the correctly rounded silu, and nearly always it.

    A float32 sigmoid errs by an ulp or two; a value that close to the middle between two bfloat16 is rounded
    the other way: about 3 * 2^-16 of the values, which is 3 gates.
    """
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    up = torch.ones_like(gate)
    act = ops.silu_mul_sparsity(gate.to(device), up.to(device), 0.0)[0].cpu()
    want = exact(gate, up).bfloat16()
    assert torch.equal(act.isnan(), want.isnan())
    step = (_rank(act) - _rank(want)).abs()[~want.isnan()]
    assert step.max() <= 1, f"gate {gate[~want.isnan()][step.argmax()].item()} is {step.max()} steps off"
    assert (step == 1).sum() <= 4


def test_float32_gates_over_the_whole_range(device):
    """From -1e38 to 1e38: relative error of at most 3 * 2^-23, also where exp under- or overflows."""
    size = torch.logspace(-38, 38, 4001, dtype=torch.float64)
    near = torch.linspace(-110, 110, 20001, dtype=torch.float64)
    gate = torch.cat([-size, size, near]).float()
    act = ops.silu_mul_sparsity(gate.to(device), torch.ones_like(gate).to(device), 0.0)[0].cpu().double()
    want = exact(gate, torch.ones_like(gate))
    # Below the smallest normal a float32 keeps fewer digits; there the error is absolute.
    allowed = 3 * torch.finfo(torch.float32).eps * want.abs() + torch.finfo(torch.float32).tiny
    off = (act - want).abs() - allowed
    assert off.max() <= 0, f"gate {gate[off.argmax()].item()}: {act[off.argmax()]}, want {want[off.argmax()]}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_values_as_in_torch(impl, device, dtype):
    """The values where a fast exp goes wrong; the last four have an extreme `up`."""
    inf, nan = math.inf, math.nan
    gate = [inf, -inf, nan, 1e30, -1e30, 3e38, -3e38, 0.0, -0.0, 0.0, inf, 100.0, -1000.0]
    up = [1.0] * 9 + [inf, 0.0, -inf, nan]
    want = [inf, nan, nan, 1e30, 0.0, 3e38, 0.0, 0.0, 0.0, nan, nan, -inf, nan]
    gate, up, want = (torch.tensor(v, dtype=dtype) for v in (gate, up, want))
    assert_matches(impl.silu_mul_sparsity(gate.to(device), up.to(device), 1.0)[0], want)
    # One row each: every element also passes through the loop's tail, and the counts follow |act| < 1.
    act, sparsity = impl.silu_mul_sparsity(gate[:, None].to(device), up[:, None].to(device), 1.0)
    assert_matches(act[:, 0], want)
    assert sparsity.tolist() == [0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("columns", [1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 257])
@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_are_independent(device, dtype, columns):
    """Vector body and tail agree: one row gives what its elements give alone. Poison on both sides stays
    there."""
    wide = torch.full((2, 3, columns + 6), math.nan, dtype=dtype, device=device)
    gate, up = wide[0, :, 3 : columns + 3], wide[1, :, 3 : columns + 3]
    gate.copy_(torch.randn(3, columns))
    up.copy_(torch.randn(3, columns))
    act, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
    alone, quiet = ops.silu_mul_sparsity(gate.reshape(-1, 1), up.reshape(-1, 1), 0.25)
    assert_matches(act, alone.view(3, columns))
    assert_matches(sparsity, (quiet.view(3, columns).sum(-1).double() / columns).float())


def test_outer_strides(device):
    """case P18: gate and up are often halves of one projection; strides differ and equal their copies."""
    both = torch.randn(4, 6, 80, device=device)
    other = torch.randn(6, 4, 40, device=device)
    pairs = [
        (both[..., :40], both[..., 40:]),
        (both[..., :40].transpose(0, 1), other),
        (both[:, ::2, :40], both[:, 1::2, 40:]),
        (both[..., :40], both[0, 0, :40].expand(4, 6, 40)),
    ]
    for gate, up in pairs:
        act, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
        want_act, want_sparsity = ops.silu_mul_sparsity(gate.contiguous(), up.contiguous(), 0.25)
        assert act.is_contiguous()
        assert_matches(act, want_act)
        assert_matches(sparsity, want_sparsity)


def test_errors(device):
    x = torch.randn(4, 8, device=device)
    with pytest.raises(ValueError, match=r"^seer::silu_mul_sparsity: up must have .*\[4, 8\].*, got \[4, 7\]"):
        ops.silu_mul_sparsity(x, torch.randn(4, 7, device=device), 0.5)
    with pytest.raises(TypeError, match=r"^seer::silu_mul_sparsity: up must have .*dtype.*, got "):
        ops.silu_mul_sparsity(x, x.bfloat16(), 0.5)
    with pytest.raises(TypeError, match=r"^seer::silu_mul_sparsity: gate must have dtype .*, got "):
        ops.silu_mul_sparsity(x.double(), x.double(), 0.5)
    with pytest.raises(ValueError, match=r"^seer::silu_mul_sparsity: gate must .*contiguous.*, got "):
        ops.silu_mul_sparsity(x[:, ::2], x[:, :4], 0.5)
    with pytest.raises(ValueError, match=r"^seer::silu_mul_sparsity: up must .*contiguous.*, got "):
        ops.silu_mul_sparsity(x[:, :4], x[:, ::2], 0.5)
    with pytest.raises(ValueError, match=r"^seer::silu_mul_sparsity: gate must .*, got "):
        ops.silu_mul_sparsity(torch.tensor(1.0, device=device), torch.tensor(1.0, device=device), 0.5)
    with pytest.raises(ValueError, match=r"^seer::silu_mul_sparsity: threshold must be a number, got nan"):
        ops.silu_mul_sparsity(x, x, math.nan)


# ---- gradient ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_matches_float64_autograd(device, dtype):
    gate, up = (torch.randn(5, 33, device=device).mul_(2).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(5, 33, device=device).to(dtype)
    act, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
    assert act.requires_grad and not sparsity.requires_grad
    got = torch.autograd.grad(act, (gate, up), weight)

    wide = [t.detach().double().requires_grad_() for t in (gate, up)]
    want = torch.autograd.grad(torch.nn.functional.silu(wide[0]) * wide[1], wide, weight.double())
    eager = torch.autograd.grad(torch.nn.functional.silu(gate) * up, (gate, up), weight)
    for ours, truth, torchs in zip(got, want, eager, strict=True):
        assert ours.dtype == dtype
        assert_matches(ours, truth, eager=torchs)


def test_gradcheck(device):
    """Against finite differences; the op stops at float32, so the step is wide and the tolerance its
    square."""
    gate, up = (torch.randn(3, 5, device=device, requires_grad=True) for _ in range(2))
    ours = lambda g, u: ops.silu_mul_sparsity(g, u, 0.25)[0]  # noqa: E731
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(ours, (gate, up), eps=1e-2, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_input(device, which):
    pair = [torch.randn(2, 9, device=device) for _ in range(2)]
    pair[which].requires_grad_()
    act, _ = ops.silu_mul_sparsity(*pair, 0.25)
    act.sum().backward()  # the incoming gradient is an expanded scalar
    assert pair[which].grad.shape == (2, 9) and pair[1 - which].grad is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradient(device, mode):
    gate, up = (torch.randn(2, 9, device=device, requires_grad=True) for _ in range(2))
    want, _ = ops.silu_mul_sparsity(gate.detach(), up.detach(), 0.25)
    with mode():
        act, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
        fresh, _ = ops.silu_mul_sparsity(gate * 1, up * 1, 0.25)  # tensors born in this mode
    assert not act.requires_grad and not sparsity.requires_grad
    assert_matches(act, want)
    assert_matches(fresh, want)
