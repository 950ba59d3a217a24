"""What forwards of a model cost on this machine: measurements for `CostModel.fit`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median

import torch

from seer_dllm.backbone import Backbone, KeyValues, Packing
from seer_dllm.canvas import Dense
from seer_dllm.capture import Capturer, Packed
from seer_dllm.config import check_positive
from seer_dllm.costs import Measurement

# (rows, tokens fed, tokens cached); ours: both ends of what a batch of short answers feeds, with and without a prompt.
SHAPES = tuple((rows, fed, past) for rows in (1, 4, 16) for fed in (8, 32, 128) for past in (0, 128))


@torch.inference_mode()
def measure(
    backbone: Backbone,
    shapes: Iterable[tuple[int, int, int]] = SHAPES,
    *,
    repeats: int = 3,
    capturer: Capturer | None = None,
) -> list[Measurement]:
    """Time whole forwards on all of the router's paths, one after the other in each of the repeats: medians.

    The dense rows have one length, the packed ones lengths of a quarter more and less. Where no packed rows are
    captured, "varlen" and "eager" are the same code, and what is measured counts for both.

    Args:
        shapes: (rows, fed, cached) of the batches.
        capturer: what "static" and "varlen" run through.
    """
    check_positive("repeats", repeats)
    packs = capturer is not None and backbone.device_packed
    runs = {}
    for rows, fed, past in shapes:
        for path in ("static", "varlen", "eager") if packs else ("static", "varlen"):
            lengths = [fed if path == "static" else max(1, fed + (i % 3 - 1) * fed // 4) for i in range(rows)]
            packing = Packing(lengths, [past] * rows, backbone.device)
            run = backbone.run
            if capturer is not None and path == "static":
                run = capturer.bound(backbone, Dense(rows, fed, past))
            elif packs and path == "varlen":
                run = capturer.bound(backbone, Packed(rows, packing.total, rows * past))
            pairs = sum(n * (n + past) for n in lengths)
            hidden = torch.randn(packing.total, backbone.config.hidden_size).to(backbone.device, backbone.dtype)
            runs[path, rows, fed, past] = (run, hidden, packing, _cached(backbone, rows, past), pairs, [])
    for repeat in range(repeats + 1):  # the first one warms up
        for run, hidden, packing, past, _, seconds in runs.values():
            _wait(backbone)
            began = time.perf_counter()
            run(hidden, packing, 0, backbone.config.n_layers, past=past)
            _wait(backbone)
            seconds += [time.perf_counter() - began] if repeat else []
    found = []
    for (path, *_), (_, _, packing, _, pairs, seconds) in runs.items():
        for name in (path,) if path == "static" or packs else ("varlen", "eager"):
            found.append(Measurement(name, packing.total, pairs, median(seconds)))
    return found


def _cached(backbone: Backbone, rows: int, past: int) -> KeyValues | None:
    if not past:
        return None
    config, packing = backbone.config, Packing([past] * rows, device=backbone.device)
    size = packing.total, config.n_kv_heads, config.head_dim
    like = {"dtype": backbone.dtype, "device": backbone.device}
    return KeyValues(packing, [(torch.randn(size, **like), torch.randn(size, **like)) for _ in range(config.n_layers)])


def _wait(backbone: Backbone) -> None:
    if backbone.device.type == "cuda":
        torch.cuda.synchronize(backbone.device)
