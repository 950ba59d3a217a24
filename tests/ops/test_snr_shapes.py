"""snr_boundary on signals of every shape: what it says of each by hand, and what the embedded profile makes of it.

All values are exact in float32, so that means, variances and ties are exact as well.
"""

import math

import pytest
import torch

from seer_ext import ops

DEMO = {"min_jump": 0.03}  # the embedded model's profile: beside this the defaults, window 8, min_snr 1, plateau 0.9
LONG = (1, 2, 7, 8, 9, 64, 256, 2048)


def check(impl, device, row, default, demo=None):
    """Boundary and snr of one row by the defaults, and by the demo's profile (None: the same)."""
    sparsity = torch.tensor([row], dtype=torch.float32, device=device)
    assert sparsity[0].tolist() == list(row), "not exact in float32"
    for options, (boundary, snr) in (({}, default), (DEMO, demo or default)):
        got = impl.snr_boundary(sparsity, **options)
        assert got[0].item() == boundary, options
        assert got[1].item() == pytest.approx(snr, rel=1e-6), options


@pytest.mark.parametrize("slots", LONG)
@pytest.mark.parametrize("level", [0.0, 0.25, 1.0], ids=["dense", "in between", "quiet"])
def test_all_alike(impl, device, slots, level):
    """Nothing rises: an answer that fills the window, one whose end is the first slot, and what can't be told."""
    check(impl, device, [level] * slots, (slots, 0))


@pytest.mark.parametrize("slots", LONG[1:])
def test_a_clean_step_is_found_wherever_it_is(impl, device, slots):
    """An answer of one slot, ends at the edges of the windows compared, and an end in the last slot."""
    for j in {1, 8, slots // 2, slots - 8, slots - 1} & set(range(1, slots)):
        # Only at j both windows are constant: 0.5 over the floor of 0.001.
        check(impl, device, [0.25] * j + [0.75] * (slots - j), (j, 500))


@pytest.mark.parametrize("slots", [64, 2048])
def test_a_fall_is_no_end(impl, device, slots):
    check(impl, device, [0.75] * (slots // 2) + [0.25] * (slots // 2), (slots, 0))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (0.5, 0.75, (20, 250)),  # equal jumps: the earlier one
        (0.375, 0.875, (40, 500)),  # the higher jump, whatever the order
        (0.75, 0.875, (20, 500)),
        (0.75, 0.375, (64, 0)),  # of the 44 slots from 20 on only 20 are above the middle
    ],
)
def test_two_plateaus(impl, device, first, second, found):
    check(impl, device, [0.25] * 20 + [first] * 20 + [second] * 24, found)


@pytest.mark.parametrize("slots", [24, 64, 128, 256])
@pytest.mark.parametrize("per_slot", [2**-7, 2**-8, 2**-9, 2**-10])
def test_ramps(impl, device, slots, per_slot):
    """In units of a slot's rise: means 8 apart and a variance of (64 - 1) / 12 on either side, at every slot from 8 on.

    Shorter windows at the edges have less. The earliest of all these equals is taken, unless 8 slots rise by no more
    than `min_jump`: a ramp steeper than that can't be told from an answer that ends gently.
    """
    row = [i * per_slot for i in range(slots)]
    found = (8, 8 / math.sqrt(63 / 12))
    check(impl, device, row, found, found if 8 * per_slot > 0.03 else (slots, 0))


@pytest.mark.parametrize(("rise", "found"), [(2**-5, (30, 31.25)), (2**-6, (64, 0)), (2**-9, (64, 0))])
def test_tiny_steps(impl, device, rise, found):
    check(impl, device, [0.5] * 30 + [0.5 + rise] * 34, (30, rise / 1e-3), found)


def test_noise_that_alternates(impl, device):
    """Even windows have equal means. The last slot alone: d above 8 slots of mean 0 and variance d^2, with n = 9.

    Its snr is d / sqrt(8 d^2 / 9) = 1.06, and it is a plateau of its own. Slot 1 has as much, but half of the slots
    behind it are below the middle.
    """
    d = 2**-7
    check(impl, device, [0.5 - d, 0.5 + d] * 32, (63, math.sqrt(9 / 8)), (64, 0))


@pytest.mark.parametrize("slots", [9, 64, 257])
def test_noise_below_the_smallest_jump(device, slots):
    """No two means of numbers within 0.03 can differ by more."""
    noise = 0.6 + 0.0299 * torch.rand(100, slots, generator=torch.Generator().manual_seed(slots))
    boundary, snr = ops.snr_boundary(noise.to(device), **DEMO)
    assert boundary.tolist() == [slots] * 100 and snr.tolist() == [0] * 100


def test_noise_on_a_step(device):
    """Noise of 0.1 on a step of 0.5: one slot too early or too late, a window holds a stray from the other side."""
    generator = torch.Generator().manual_seed(3)
    ends = torch.arange(1, 128)
    step = torch.where(torch.arange(128) < ends[:, None], 0.2, 0.7)
    boundary, _ = ops.snr_boundary((step + 0.1 * torch.rand(127, 128, generator=generator)).to(device), **DEMO)
    assert boundary.tolist() == ends.tolist()
