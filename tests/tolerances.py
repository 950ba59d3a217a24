"""How close is close enough: one rule for every op, so that no test has constants of its own to tune."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_matches(actual: Tensor, expected: Tensor, eager: Tensor | None = None) -> None:
    """Copies, masks, counts and indices are bit-exact; a computed float may err twice as much as PyTorch's.

    actual: the op's result. expected: the truth, in any dtype. eager: plain PyTorch's result, if it counts.
    Without eager the values must be equal (NaN equals NaN). With it, every element's relative error may be
    twice eager's largest, plus one rounding to actual's dtype, which eager may escape by luck. Values below
    the smallest normal number of that dtype are measured against that number.
    """
    assert actual.shape == expected.shape, f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    actual, truth = actual.detach().cpu(), expected.detach().cpu()
    same = (actual == truth) | ((actual != actual) & (truth != truth))
    allowed = "exactly"
    if eager is not None:
        truth = truth.double()
        info = torch.finfo(actual.dtype)
        size = truth.abs().clamp(min=info.tiny)
        eager_error = ((eager.detach().cpu().double() - truth).abs() / size)[truth.isfinite()]
        relative = 2 * (eager_error.max().item() if eager_error.numel() else 0.0) + info.eps
        same |= (actual.double() - truth).abs() <= relative * size
        allowed = f"to {relative:.3g} relative"
    if not bool(same.all()):
        wrong = (~same).nonzero()
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{len(wrong)} of {same.numel()} elements wrong, first at {list(at)}: "
            f"{actual[at].item()!r}, expected {truth[at].item()!r} {allowed}"
        )
