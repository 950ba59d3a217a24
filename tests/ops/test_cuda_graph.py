"""All ops in one CUDA graph, and on a stream of the caller's: nothing in them waits, allocates by data or strays."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from cases import FLOATS, MASK_ID, OPS, THRESHOLD
from seer_ext import ops
from tolerances import assert_matches

B, G, H, I, V = 6, 40, 64, 256, 1000  # noqa: E741
CAPACITY = 90  # some batches keep more
REPLAYS = 100


def batch(seed, dtype):
    """Inputs of one step. Shapes are those of every batch; lengths, ends and which rows are dead (length and quota 0)
    are not."""
    gen = torch.Generator().manual_seed(seed)
    alive = torch.rand(B, generator=gen) < 0.75
    lengths = torch.randint(1, G + 1, (B,), generator=gen) * alive
    ends = (torch.rand(B, generator=gen) * lengths).long()
    loud = torch.where(torch.arange(G) < ends[:, None], 3.0, 0.1).reshape(B * G, 1)
    gate, up = torch.randn(2, B * G, I, generator=gen) * loud
    visible = torch.rand(B, 1, 3, G, generator=gen) < 0.7
    return {
        "gate": gate.to(dtype),
        "up": up.to(dtype),
        "lengths": lengths.int(),
        "hidden": torch.randn(B * G, H, generator=gen).to(dtype),
        "ids": torch.where(torch.rand(B * G, generator=gen) < 0.8, MASK_ID, 3),
        "starts": torch.arange(B) * G,
        "columns": (torch.rand(B, generator=gen) * (G - lengths + 1)).long(),
        "offsets": torch.randint(0, 50, (B,), generator=gen),
        "mask": torch.randn(visible.shape, generator=gen).masked_fill(~visible, -torch.inf).to(dtype),
        "logits": (torch.randn(CAPACITY, V, generator=gen) * 4).to(dtype),
        "suppress": torch.randperm(V, generator=gen)[:2],
        "temperature": torch.randint(0, 2, (CAPACITY,), generator=gen).float(),
        "key": torch.randint(0, 2**62, (CAPACITY,), generator=gen),
        "quota": torch.randint(1, 6, (B,), generator=gen) * alive,
        "threshold": torch.where(torch.rand(B, generator=gen) < 0.5, 0.5, torch.nan).double(),
    }


def step(inputs, impl=ops):
    """What a denoising step may call, chained: each op reads what the one before has written."""
    x = SimpleNamespace(**inputs)
    act, sparsity = impl.silu_mul_sparsity(x.gate, x.up, THRESHOLD)
    again = impl.mlp_sparsity(act, THRESHOLD)
    boundary, snr = impl.snr_boundary(again.view(B, G), x.lengths, window=4)
    hidden, ids, positions, rows, cu = impl.truncate_repack(
        x.hidden, x.ids, x.starts, boundary, CAPACITY, offsets=x.offsets
    )
    moved = impl.varlen_repack(act, x.starts, cu, CAPACITY)
    unpacked = impl.varlen_unpack(hidden, x.columns, cu, G, fill=-1.5)
    impl.mask_rewrite(x.mask, x.columns, boundary)
    token, confidence = impl.token_confidence(x.logits, suppress=x.suppress, temperature=x.temperature, key=x.key)
    slots = torch.arange(CAPACITY, device=ids.device)
    written, remaining = impl.commit_tokens(
        ids, slots, token, confidence, cu, x.quota, mask_id=MASK_ID, threshold=x.threshold
    )
    return {
        "act": act,
        "sparsity": sparsity,
        "again": again,
        "boundary": boundary,
        "snr": snr,
        "hidden": hidden,
        "positions": positions,
        "rows": rows,
        "cu": cu,
        "moved": moved,
        "unpacked": unpacked,
        "mask": x.mask,
        "token": token,
        "confidence": confidence,
        "ids": ids,
        "written": written,
        "remaining": remaining,
    }


def on(device, inputs):
    return {name: value.to(device) for name, value in inputs.items()}


def assert_same(got, want):
    """Backends agree bit for bit."""
    for name, expected in want.items():
        try:
            assert_matches(got[name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@contextlib.contextmanager
def no_waiting():
    """Raises where torch waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_calls_every_op():
    called = set()

    def recorded(op):
        return lambda *args, **kwargs: (called.add(op), getattr(ops, op)(*args, **kwargs))[1]

    step(batch(0, torch.float32), SimpleNamespace(**{op: recorded(op) for op in OPS}))
    assert called == set(OPS)


def test_batches_exercise_the_ops(device):
    """Results change from batch to batch, rows die and come back, some are cut, and some batches pass the capacity: a
    replay that did nothing would show."""
    results = [step(on(device, batch(seed, torch.float32))) for seed in range(REPLAYS)]
    for one, next_one in zip(results, results[1:], strict=False):
        for name in ("act", "boundary", "cu", "hidden", "unpacked", "mask", "confidence", "ids"):
            assert not torch.equal(one[name], next_one[name]), name
    dead = torch.stack([batch(seed, torch.float32)["lengths"] == 0 for seed in range(REPLAYS)])
    assert dead.any(0).all() and not dead.all(0).any()
    lengths = torch.stack([batch(seed, torch.float32)["lengths"] for seed in range(REPLAYS)])
    boundaries = torch.stack([result["boundary"].cpu() for result in results])
    assert (boundaries < lengths).sum() > REPLAYS
    assert 0 < sum(int(result["cu"][-1]) == CAPACITY for result in results) < REPLAYS
    assert sum(int(result["written"].sum()) for result in results) > REPLAYS


@pytest.mark.needs_cuda
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_graph_serves_every_batch(dtype):
    """case P21: captured once, replayed on changed values; each replay gives what the CPU gives."""
    static = on("cuda", batch(0, dtype))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), no_waiting():  # off the capture, which lazy loading of kernels would break
        step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), no_waiting():
        captured = step(static)
    for seed in range(1, REPLAYS + 1):
        values = batch(seed, dtype)
        for name, buffer in static.items():
            buffer.copy_(values[name])
        with no_waiting():
            graph.replay()
        assert_same(captured, step(values))


@pytest.mark.needs_cuda
def test_ops_run_on_the_current_stream():
    """Inputs arrive on the caller's stream behind a long wait: an op on another stream would read what was there."""
    old, new = batch(1, torch.bfloat16), batch(2, torch.bfloat16)
    static, staged = on("cuda", old), on("cuda", new)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        for name, buffer in static.items():
            buffer.copy_(staged[name])
        with no_waiting():
            got = step(static)
        assert not side.query(), "the wait was over before the ops were launched, so nothing was shown"
    side.synchronize()
    assert_same(got, step(new))
