"""truncate_repack against index_select of hidden states and ids with the bookkeeping in PyTorch.

python bench/bench_truncate_repack.py [--device cuda] [--threads 2] [--fresh]
"""

import torch
from timing import Variant, main

from seer_ext import ops, reference


def library(hidden, ids, starts, lengths, capacity, offsets):
    """Without a read on the host: the row of each packed token by searchsorted."""
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    at = torch.arange(capacity, device=hidden.device)
    rows = torch.searchsorted(cu, at, right=True) - 1
    inside = rows < len(lengths)
    own = rows.clamp(max=len(lengths) - 1)
    skipped = at - cu[own]
    index = torch.where(inside, starts[own] + skipped, 0)
    positions = torch.where(inside, offsets[own] + skipped, 0).int()
    rows = torch.where(inside, rows, -1).int()
    return hidden.index_select(0, index), ids.index_select(0, index), positions, rows, cu.int()


def variants(case):
    return [
        Variant("seer", ops.truncate_repack),
        Variant("reference", reference.truncate_repack, graph=False),
        Variant("index_select", library),
    ]


def moved(hidden, ids, starts, lengths, capacity, offsets):
    return 2 * capacity * (hidden.shape[1] * hidden.element_size() + 8) + 8 * capacity


if __name__ == "__main__":
    main("truncate_repack", __doc__, variants, moved)
