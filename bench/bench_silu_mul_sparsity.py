"""silu_mul_sparsity against eager SwiGLU with a count behind it, and what torch.compile makes of that.

    python bench/bench_silu_mul_sparsity.py [--device cuda] [--threads 2]

`eager` is what a model runs: two roundings, and the count as PyTorch would take it. The definition itself
(`reference`) works in float32 as the op does.
"""

import torch
from timing import Variant, compiled, main, tensor_bytes

from seer_ext import ops, reference

OP = "silu_mul_sparsity"


def eager(gate, up, threshold):
    act = torch.nn.functional.silu(gate) * up
    return act, (act.abs() < threshold).float().mean(-1)


def variants(case):
    return [
        Variant("seer", ops.silu_mul_sparsity),
        Variant("reference", reference.silu_mul_sparsity),
        Variant("eager", eager),
        Variant("torch.compile", compiled(eager)),
    ]


def moved(gate, up, threshold):
    return 3 * tensor_bytes(gate) + 4 * gate.shape[0]


if __name__ == "__main__":
    main(OP, __doc__, variants, moved)
