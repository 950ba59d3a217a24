"""mask_rewrite against its definition, which is what one writes in PyTorch, and torch.compile of that.

python bench/bench_mask_rewrite.py [--device cuda] [--threads 2]
"""

from timing import Variant, compiled, main, tensor_bytes

from seer_ext import ops, reference


def variants(case):
    return [
        Variant("seer", ops.mask_rewrite),
        Variant("reference", reference.mask_rewrite),
        Variant("torch.compile", compiled(reference.mask_rewrite)),
    ]


def moved(mask, columns, lengths):
    return 2 * tensor_bytes(mask)


if __name__ == "__main__":
    main("mask_rewrite", __doc__, variants, moved, in_place=True)
