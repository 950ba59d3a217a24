"""snr_boundary against its definition, a loop over candidates, and against the same rule on whole tensors.

    python bench/bench_snr_boundary.py [--device cuda] [--threads 2]

`tensors` is the way without an op: windows by unfold, full ones alone, and the plateau by one comparison of all
pairs. It is also what torch.compile gets.
"""

import torch
from timing import Variant, compiled, main, tensor_bytes

from seer_ext import ops, reference

WINDOW = 8


def tensors(sparsity, lengths):
    s = sparsity.double()
    slots = s.shape[1]
    windows = s.unfold(1, WINDOW, 1)
    mean, variance = windows.mean(-1), windows.var(-1, correction=0)
    left, right = slice(0, slots - 2 * WINDOW + 1), slice(WINDOW, slots - WINDOW + 1)
    signal = mean[:, right] - mean[:, left]
    snr = signal / ((variance[:, right] + variance[:, left]) / 2).sqrt().clamp(min=1e-3)
    at = torch.arange(slots, device=s.device)
    candidates = at[right]
    behind = (at >= candidates[:, None]) & (at < lengths[:, None, None])
    above = (s[:, None] > (mean[:, left] + signal / 2)[..., None]) & behind
    share = above.sum(-1) / behind.sum(-1).clamp(min=1)
    good = (signal > 0) & (snr >= 1) & (share >= 0.9) & (candidates + WINDOW <= lengths[:, None])
    best = snr.masked_fill(~good, 0).max(-1)
    return torch.where(best.values > 0, candidates[best.indices], lengths).int(), best.values.float()


def variants(case):
    return [
        Variant("seer", ops.snr_boundary),
        Variant("reference", reference.snr_boundary, graph=False),
        Variant("tensors", tensors),
        Variant("torch.compile", compiled(tensors)),
    ]


def moved(sparsity, lengths):
    return tensor_bytes(sparsity, lengths) + 8 * sparsity.shape[0]


if __name__ == "__main__":
    main("snr_boundary", __doc__, variants, moved)
