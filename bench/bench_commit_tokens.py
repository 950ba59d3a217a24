"""commit_tokens against its definition, and against topk with a scatter on padded rows.

    python bench/bench_commit_tokens.py [--device cuda] [--threads 2]

The rival takes rows of one length and one quota, which is less than the op does.
"""

import torch
from timing import Variant, main, tensor_bytes

from seer_ext import ops, reference


def topk_scatter(ids, slots, token, confidence, cu_slots, quota, mask_id):
    rows = cu_slots.shape[0] - 1
    masked = ids[slots] == mask_id
    scores = torch.where(masked, confidence, -1.0).view(rows, -1)
    best = scores.topk(scores.shape[1] // 8, dim=1)
    chosen = (best.values >= 0) & (torch.arange(best.indices.shape[1], device=ids.device) < quota[:, None])
    entry = best.indices + cu_slots[:-1, None]
    slot = slots[entry]
    ids[slot] = torch.where(chosen, token[entry], ids[slot])
    written = chosen.sum(1)
    return written.int(), (masked.view(rows, -1).sum(1) - written).int()


def variants(case):
    return [
        Variant("seer", ops.commit_tokens),
        Variant("reference", reference.commit_tokens, graph=False),
        Variant("topk, scatter", topk_scatter),
    ]


def moved(ids, slots, token, confidence, cu_slots, quota, mask_id):
    return tensor_bytes(ids, slots, confidence, cu_slots, quota)


if __name__ == "__main__":
    main("commit_tokens", __doc__, variants, moved, in_place=True)
