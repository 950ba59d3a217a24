"""varlen_unpack against filling a padded tensor by index_copy, the usual padding.

    python bench/bench_varlen_unpack.py [--device cuda] [--threads 2] [--fresh]

The indices that the rival needs are made outside the timing.
"""

import torch
from timing import Variant, main, once_per

from seer_ext import ops, reference


@once_per
def target(packed, columns, cu_seqlens, length, fill):
    """Index in the padded rows of each packed token."""
    lengths = cu_seqlens.diff().long()
    first = torch.arange(len(columns), device=packed.device) * length + columns - cu_seqlens[:-1]
    return torch.arange(int(cu_seqlens[-1]), device=packed.device) + torch.repeat_interleave(first, lengths)


def index_copy(packed, columns, cu_seqlens, length, fill):
    index = target(packed, columns, cu_seqlens, length, fill)
    out = packed.new_full((len(columns) * length, *packed.shape[1:]), fill)
    return out.index_copy_(0, index, packed[: len(index)]).view(len(columns), length, *packed.shape[1:])


def variants(case):
    return [
        Variant("seer", ops.varlen_unpack),
        Variant("reference", reference.varlen_unpack, graph=False),
        Variant("index_copy", index_copy),
    ]


def moved(packed, columns, cu_seqlens, length, fill):
    return (len(columns) * length + int(cu_seqlens[-1])) * packed[0].numel() * packed.element_size()


if __name__ == "__main__":
    main("varlen_unpack", __doc__, variants, moved)
