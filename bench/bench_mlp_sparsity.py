"""mlp_sparsity against the definition and torch.compile of it.

python bench/bench_mlp_sparsity.py [--device cuda] [--threads 2]
"""

from timing import Variant, compiled, main, tensor_bytes

from seer_ext import ops, reference


def eager(act, threshold):
    return (act.abs() < threshold).float().mean(-1)


def variants(case):
    return [
        Variant("seer", ops.mlp_sparsity),
        Variant("reference", reference.mlp_sparsity, graph=False),
        Variant("eager", eager),
        Variant("torch.compile", compiled(eager)),
    ]


def moved(act, threshold):
    return tensor_bytes(act) + 4 * act.shape[0]


if __name__ == "__main__":
    main("mlp_sparsity", __doc__, variants, moved)
