"""varlen_repack against index_select and a boolean mask, the usual unpadding.

    python bench/bench_varlen_repack.py [--device cuda] [--threads 2] [--fresh]

The indices that the rivals need are made outside the timing.
"""

import torch
from timing import Variant, main, once_per

from seer_ext import ops, reference


@once_per
def source(x, starts, cu_seqlens, capacity):
    """Index in x of each packed token; those of the tail read token 0."""
    lengths = cu_seqlens.diff().long()
    first = torch.repeat_interleave(starts - cu_seqlens[:-1], lengths)
    index = torch.arange(int(cu_seqlens[-1]), device=x.device) + first
    return torch.nn.functional.pad(index, (0, capacity - index.shape[0]))


@once_per
def mask(x, starts, cu_seqlens, capacity):
    kept = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    kept[source(x, starts, cu_seqlens, capacity)] = True
    return kept


def variants(case):
    return [
        Variant("seer", ops.varlen_repack),
        Variant("reference", reference.varlen_repack, graph=False),
        Variant("index_select", lambda x, *rest: x.index_select(0, source(x, *rest))),
        Variant("boolean mask", lambda x, *rest: x[mask(x, *rest)], graph=False),
    ]


def moved(x, starts, cu_seqlens, capacity):
    return 2 * capacity * x[0].numel() * x.element_size()


if __name__ == "__main__":
    main("varlen_repack", __doc__, variants, moved)
