"""Seeing the end at step zero: which rows are probed, and how much of their window is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seer_dllm.config import GenerationConfig, ModelConfig, Profile, Truncation
from seer_dllm.host import HostRead
from seer_ext import ops, plan_keep

TOO_SMALL = "window too small"
EOS_SUPPRESSED = "EOS is suppressed"
NO_JUMP = "no jump found"
NOTHING_TO_CUT = "the answer needs the whole window"
TEXT_AFTER = "fixed text ends the window"


def check_profile(profile: Profile, model: ModelConfig) -> None:
    """ValueError if the model has no such layers."""
    if max(profile.probe_layers) >= model.n_layers:
        raise ValueError(f"probe_layers must be below the model's {model.n_layers} layers, got {profile.probe_layers}")


def why_not(config: GenerationConfig, truncation: Truncation | None, profile: Profile, fixed: int) -> str | None:
    """Why nothing looks for the end of a row; None when its method does.

    Args:
        fixed: slots up to and including the last one that the caller has filled (drafts, infilling).
    """
    if truncation is None or truncation.method == "none":
        return "truncation is off"
    if truncation.method != "seer":
        return TEXT_AFTER if fixed >= config.window else None
    if config.suppress_eos or config.defer_end:
        return EOS_SUPPRESSED
    if config.window <= profile.margin + 8:
        return TOO_SMALL
    if fixed >= config.window:
        return TEXT_AFTER
    return None


def find_boundary(
    sparsity: Tensor, lengths: Tensor, profile: Profile, fixed: Sequence[int], skipped: Sequence[int] | None = None
) -> tuple[list[int], list[float]]:
    """Boundary and snr of each row from the mean quiet share `[B, G]` float32; lengths int `[B]`.

    No boundary lies before a row's `fixed` slots; its first `skipped` slots (default none) are not looked at. This is
    the one host read of the probe. A boundary equal to the row's length means that no jump was found.
    """
    asked = [(n, 0) for n in fixed] if skipped is None else list(zip(fixed, skipped, strict=True))
    order, parts = [], []
    for some, skip in dict.fromkeys(asked):  # the op takes one smallest boundary a call
        members = [b for b, own in enumerate(asked) if own == (some, skip)]
        at = slice(None) if len(members) == len(asked) else torch.tensor(members, device=sparsity.device)
        boundary, snr = ops.snr_boundary(
            sparsity[at, skip:],
            lengths[at] - skip,
            window=profile.window,
            min_snr=profile.min_snr,
            plateau=profile.plateau,
            min_jump=profile.min_jump,
            min_keep=max(1, some - skip),
        )
        order += members
        parts += [boundary + skip, snr]
    found = [part.tolist() for part in HostRead(*parts).wait()] if parts else []
    boundaries, snrs = [0] * len(asked), [0.0] * len(asked)
    for b, boundary, snr in zip(order, sum(found[::2], []), sum(found[1::2], []), strict=True):
        boundaries[b], snrs[b] = boundary, snr
    return boundaries, snrs


def kept_window(boundary: int, config: GenerationConfig, margin: int, fixed: int = 0) -> tuple[int, int]:
    """(window, block) to keep: the boundary plus margin, and at least one slot behind the fixed ones.

    Up to one block the window is a single block, rounded up to 8; beyond it is rounded up to whole blocks (ours).
    """
    return plan_keep(max(boundary, min(fixed + 1, config.window)), config.window, config.block, margin)


def last_fixed(ids: Tensor, mask_id: int) -> int:
    """Slots up to and including the last that does not hold the mask id; 0 if all are masked."""
    fixed = (ids != mask_id).nonzero()
    return int(fixed[-1]) + 1 if len(fixed) else 0


def ends_with(token: Tensor, end_ids: Sequence[int]) -> list[bool]:
    """Whether each predicted token `[N]` is one that ends an answer."""
    ends = torch.isin(token, torch.tensor(list(end_ids), device=token.device))
    return HostRead(ends).wait()[0].tolist()
