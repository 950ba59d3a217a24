"""A whole step in one compiled graph, for windows of any length."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from cases import MASK_ID
from seer_ext import ops

BATCH, INNER, HIDDEN, VOCAB = 3, 40, 16, 50
LENGTHS = (24, 1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 100, 128, 200)


def step(gate, up, hidden, ids, head, lengths, quota):
    """sparsity -> boundary -> truncate_repack -> confidence -> commit. Slots are the packed tokens themselves."""
    batch, window = gate.shape[:2]
    _, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
    boundary, snr = ops.snr_boundary(sparsity, lengths, min_keep=2)
    starts = torch.arange(batch, device=ids.device) * window
    packed, packed_ids, positions, rows, cu = ops.truncate_repack(hidden, ids, starts, boundary, batch * window)
    token, confidence = ops.token_confidence(packed @ head, "margin")
    slots = torch.where(rows >= 0, torch.arange(batch * window, device=ids.device), -1)
    written, remaining = ops.commit_tokens(packed_ids, slots, token, confidence, cu, quota, mask_id=MASK_ID)
    return boundary, snr, positions, rows, cu, token, confidence, packed_ids, written, remaining


def inputs(window, device):
    """A plateau of quiet activations over the last third of each row."""
    gate = torch.randn(BATCH, window, INNER, device=device)
    gate[:, window - window // 3 :] *= 0.05
    n = BATCH * window
    return (
        gate,
        torch.randn(BATCH, window, INNER, device=device),
        torch.randn(n, HIDDEN, device=device),
        torch.where(torch.arange(n, device=device) % 4 > 0, MASK_ID, 3),
        torch.randn(HIDDEN, VOCAB, device=device),
        torch.full((BATCH,), window, device=device),
        torch.tensor([0, 2, 1000], device=device),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_two_graphs_serve_twenty_lengths(device, backend):
    """case P22: sizes are symbols in every op; only 1 may be a size of its own. Results are those of eager mode."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    cut = 0
    for window in LENGTHS:
        args = inputs(window, device)
        want = step(*args)
        for got, expected in zip(compiled(*args), want, strict=True):
            assert torch.equal(got, expected)
        cut += int((want[0] < window).sum())
    assert cut > len(LENGTHS)  # the chain has something to cut in most windows
    assert counter.frame_count <= 3  # the first and two more
    assert len(set(LENGTHS)) == 20
