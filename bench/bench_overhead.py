"""What a call costs beside its work: CPU time of ops on inputs of one element, and of torch's own smallest calls.

python bench/bench_overhead.py
"""

import statistics
import time

import torch

from seer_ext import ops


def microseconds(call, *args, calls=2000, repeats=7):
    times = []
    for _ in range(repeats):
        started = time.process_time()
        for _ in range(calls):
            call(*args)
        times.append((time.process_time() - started) / calls * 1e6)
    return statistics.median(times)


def main():
    x, zero, one = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])
    mask = torch.ones(1, 1, dtype=torch.bool)
    calls = {
        "torch: abs": (torch.abs, x),
        "torch: index_select": (torch.index_select, x, 0, zero),
        "mlp_sparsity": (ops.mlp_sparsity, x, 0.5),
        "mlp_sparsity, raw op": (torch.ops.seer.mlp_sparsity.default, x, 0.5),
        "silu_mul_sparsity": (ops.silu_mul_sparsity, x, x, 0.5),
        "snr_boundary": (ops.snr_boundary, x),
        "varlen_repack": (ops.varlen_repack, x, zero, one, 1),
        "varlen_unpack": (ops.varlen_unpack, x, zero, one, 1),
        "mask_rewrite": (ops.mask_rewrite, mask, zero, zero + 1),
        "token_confidence": (ops.token_confidence, x),
    }
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name, (call, *args) in calls.items():
            microseconds(call, *args, calls=200, repeats=2)
            print(f"{name:<22}{microseconds(call, *args):8.2f} us")


if __name__ == "__main__":
    main()
