"""token_confidence against float64 softmax and max as the reference loops have it, and torch.compile of that.

python bench/bench_token_confidence.py [--device cuda] [--threads 2]
"""

import torch
from timing import Variant, compiled, main, tensor_bytes

from seer_ext import ops, reference

OP = "token_confidence"


def softmax_max(logits, kind, suppress):
    """Without the suppressed ids, which costs these variants nothing."""
    token = logits.argmax(-1)
    p = torch.softmax(logits.double(), -1)
    return token, p.gather(1, token[:, None])[:, 0]


def variants(case):
    return [
        Variant("seer", ops.token_confidence),
        Variant("reference", reference.token_confidence),
        Variant("softmax_f64", softmax_max),
        Variant("torch.compile", compiled(softmax_max)),
    ]


def moved(logits, kind, suppress):
    return tensor_bytes(logits) + 16 * logits.shape[0]


if __name__ == "__main__":
    main(OP, __doc__, variants, moved)
