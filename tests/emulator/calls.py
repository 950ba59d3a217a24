"""The calls that emulated kernels are put to, each with what must come out; for pytest and for its workers.

`cases`: those of tests/cases.py; the truth is the CPU op. `variants`: options and layouts that those lack, with
the same truth. `bad`: values in device memory that no caller should pass: CUDA ops don't raise, they clamp
lengths, read zeros and skip slots. The truth is worked out below; where DESIGN leaves the values open, just that they
are the same for every schedule and whatever lies around the inputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cases import CORNER, CORRECTNESS, MASK_ID, OPS, inputs


@dataclass(frozen=True)
class Call:
    """make: arguments and keyword arguments. truth: the results for them; None is the CPU op's. free: no
    truth is known. works: the op has something to launch a kernel for. small: fit for the
    sanitizers, and for several schedules."""

    op: str
    name: str
    make: Callable[[], tuple[tuple, dict]]
    truth: Callable[..., object] | None = None
    free: bool = False
    works: bool = True
    small: bool = True

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"


def _cases() -> Iterator[Call]:
    for op in OPS:
        for case in CORRECTNESS[op] + CORNER[op]:
            yield Call(
                op,
                str(case),
                lambda op=op, case=case: inputs(op, case),
                works=case not in CORNER[op],
                small=case.name not in ("threads", "long"),
            )


def _ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


HUGE = 2**62


# ---- variants ----------------------------------------------------------------------------------------------


def _variants() -> Iterator[Call]:
    def call(op: str, name: str, *args, **kwargs) -> Call:
        return Call(op, name, lambda: (args, kwargs))

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        x = _random(6, 5, 40, dtype=dtype)
        for name, view in (("sliced", x[:, :, 1:34]), ("transposed", x.transpose(0, 1)), ("stepped", x[:, ::2])):
            yield call("mlp_sparsity", f"{name}-{kind}", view, 0.25)
            yield call("silu_mul_sparsity", f"{name}-{kind}", view, view.flip(0), 0.25)
        special = torch.tensor([[math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 0.25, 3e-39]]).to(dtype)
        yield call("mlp_sparsity", f"special-{kind}", special, 0.25)
        yield call("silu_mul_sparsity", f"special-{kind}", special, special.flip(1), 0.25)
        logits = _random(5, 300, dtype=dtype) * 4
        logits[1, ::7] = -math.inf
        logits[2, 5] = math.nan
        logits[3] = -math.inf
        logits[4, 20:60] = 9.0
        n = torch.arange(5)
        for option in ("prob", "margin", "entropy"):
            yield call("token_confidence", f"{option}-{kind}", logits[:, 3:260], option, _ints(256, 0, 17))
            yield call("token_confidence", f"chosen-{option}-{kind}", logits, option, chosen=n * 59)
            temperature = torch.tensor([0.0, 1.0, 0.5, 1.0, 2.0])
            yield call("token_confidence", f"noise-{option}-{kind}", logits, option, temperature=temperature, key=n)

    rise = torch.where(torch.arange(48) < 20, 0.3, 0.8) + _random(4, 48) * 0.03
    yield call("snr_boundary", "no_lengths", rise)
    yield call("snr_boundary", "sliced", rise[:, 3:40], _ints(37, 20, 0, 30, dtype=torch.int32), window=3, min_keep=4)
    yield call("snr_boundary", "wide", rise, _ints(48, 47, 1, 2), window=100, min_snr=0.0, plateau=0.0)
    nan = rise.clone()
    nan[0, 10], nan[1] = math.nan, math.nan
    yield call("snr_boundary", "nan", nan)

    starts, cu = _ints(9, 0, 4, dtype=torch.int32), _ints(0, 3, 3, 8)
    for dtype in (torch.uint8, torch.int16, torch.float32, torch.float64):
        x = (_random(12, 3, 5) * 50).to(dtype)
        kind = str(dtype).removeprefix("torch.")
        yield call("varlen_repack", f"strided-{kind}", x[:, :2, 1:], starts, cu, 10)
        yield call("varlen_repack", f"cut-{kind}", x[:, 0, 0], starts, cu, 5)
        yield call("varlen_unpack", f"strided-{kind}", x[:, :2, 1:], starts, cu, 12, 1)
        yield call("varlen_unpack", f"flat-{kind}", x[:, 0, 0], starts, cu, 12, 2)
    hidden, ids = _random(12, 20)[:, 3:], torch.arange(24)[::2]
    yield call("truncate_repack", "cut", hidden, ids, starts, _ints(3, 0, 5), 6)
    yield call("truncate_repack", "all_empty", hidden, ids, starts, _ints(0, 0, 0), 4, offsets=starts)

    for dtype in (torch.bool, torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        mask = _random(3, 2, 6, 50) > 0
        mask = mask if dtype == torch.bool else _random(3, 2, 6, 50, dtype=dtype).masked_fill(~mask, -math.inf)
        for name, view in (("sliced", mask[:, :1, 1:5, 3:40]), ("stepped", mask[:, 1:, ::2])):
            last = view.shape[-1]
            args = (view, _ints(0, last - 1, last), _ints(last, 1, 0, dtype=torch.int32))
            yield call("mask_rewrite", f"{name}-{kind}", *args)

    slots, token = _ints(0, 9, 4, 2, 7, -1, 5, 3, 5, 8), torch.arange(100, 110)
    scores = torch.tensor([0.5, 0.5, 0.25, math.nan, 0.75, 1.0, 0.5, 0.5, 0.75, math.inf])
    limits = {"quota": None, "threshold": torch.tensor([math.nan, 0.5, 0.6], dtype=torch.float64)}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for name, threshold in limits.items():
            ids = torch.tensor([MASK_ID] * 6 + [3] + [MASK_ID] * 3)
            args = (ids, slots, token, scores.to(dtype), _ints(0, 4, 4, 10), _ints(2, 5, -1))
            kind = f"{name}-{str(dtype).removeprefix('torch.')}"
            yield call("commit_tokens", kind, *args, mask_id=MASK_ID, threshold=threshold)


# ---- bad values --------------------------------------------------------------------------------------------


def _gather(x: Tensor, sources: list[int]) -> Tensor:
    """x at `sources`; zeros where there is no such token."""
    none = torch.zeros_like(x[0])
    return torch.stack([x[i] if 0 <= i < len(x) else none for i in sources])


def _bad() -> Iterator[Call]:
    for width in (torch.int32, torch.int64):
        bits = str(width).removeprefix("torch.")
        top = torch.iinfo(width).max

        def ints(*values, width=width):
            return _ints(*values, dtype=width)

        rise = torch.where(torch.arange(40) < 20, 0.3, 0.8) + _random(4, 40) * 0.03
        yield Call(
            "snr_boundary",
            f"lengths-{bits}",
            lambda rise=rise, ints=ints, top=top: ((rise, ints(-1, -top - 1, 41, top)), {}),
            lambda rise, _: torch.ops.seer.snr_boundary(rise, _ints(0, 0, 40, 40)),
        )

        # A row that starts before x or past its end reads zeros, as does what passes the end.
        x = _random(10, 6)
        yield Call(
            "varlen_repack",
            f"starts-{bits}",
            lambda x=x, ints=ints: ((x, ints(-2, 8, 500), ints(0, 4, 8, 10), 11), {}),
            lambda x, *_: _gather(x, [-1] * 4 + [8, 9, -1, -1] + [-1] * 3),
        )
        yield Call(
            "varlen_repack",
            f"far_starts-{bits}",
            lambda x=x, ints=ints, top=top: ((x, ints(top, -top - 1), ints(0, 3, 6), 6), {}),
            lambda x, *_: torch.zeros_like(x[:6]),
        )
        for name, cu in (("falling", (8, 5, 2)), ("negative", (-7, -3, 4)), ("far", (0, top, -top - 1))):
            args = (x, ints(0, 5), ints(*cu), 9)
            yield Call("varlen_repack", f"cu_{name}-{bits}", lambda args=args: (args, {}), free=True)
            args = (x, ints(0, 5), ints(*cu), 9, -1.0)
            yield Call("varlen_unpack", f"cu_{name}-{bits}", lambda args=args: (args, {}), free=True)
        # Columns outside are skipped.
        yield Call(
            "varlen_unpack",
            f"columns-{bits}",
            lambda x=x, ints=ints: ((x, ints(-2, 3, 500, -500), ints(0, 4, 7, 8, 10), 5, -1.0), {}),
            lambda x, *_: torch.stack(
                [
                    torch.stack([x[i] if i >= 0 else torch.full_like(x[0], -1.0) for i in row])
                    for row in ((2, 3, -1, -1, -1), (-1, -1, -1, 4, 5), (-1,) * 5, (-1,) * 5)
                ]
            ),
        )
        yield Call(
            "varlen_unpack",
            f"far_columns-{bits}",
            lambda x=x, ints=ints, top=top: ((x, ints(top, -top - 1), ints(0, 3, 6), 4, 2.0), {}),
            lambda x, *_: torch.full((2, 4, 6), 2.0),
        )
        for mask in (torch.ones(5, 1, 3, 20, dtype=torch.bool), _random(5, 1, 3, 20)):
            kind = str(mask.dtype).removeprefix("torch.")
            columns, lengths = ints(-3, top, 4, -top - 1, 19), ints(5, 2, top, top, -1)
            yield Call(
                "mask_rewrite",
                f"ranges-{kind}-{bits}",
                lambda mask=mask, columns=columns, lengths=lengths: ((mask, columns, lengths), {}),
                lambda mask, *_: torch.ops.seer.mask_rewrite(mask, _ints(0, 20, 4, 0, 19), _ints(5, 0, 16, 20, 0)),
            )
        hidden, ids = _random(10, 9), torch.arange(10, 20)
        yield Call(
            "truncate_repack",
            f"starts-{bits}",
            lambda hidden=hidden, ids=ids, ints=ints: ((hidden, ids, ints(-1, 9, 3), ints(2, 2, -5), 6), {}),
            lambda hidden, ids, *_: (
                _gather(hidden, [-1, -1, 9, -1, -1, -1]),
                _gather(ids, [-1, -1, 9, -1, -1, -1]),
                _ints(0, 1, 0, 1, 0, 0, dtype=torch.int32),
                _ints(0, 0, 1, 1, -1, -1, dtype=torch.int32),
                _ints(0, 2, 4, 4, dtype=torch.int32),
            ),
        )
        for name, lengths in (("far", (top, top, top)), ("low", (-top - 1, 4, -top - 1))):
            args = (hidden, ids, ints(0, 5, top), ints(*lengths), 8)
            offsets = {"offsets": ints(-3, top, -top - 1)}
            yield Call("truncate_repack", f"{name}-{bits}", lambda a=args, o=offsets: (a, o), free=True)
        for name, cu in (("falling", (0, 5, 2, 2)), ("negative", (-7, -3, 4, 4)), ("far", (0, top, top, -top - 1))):
            yield Call("commit_tokens", f"cu_{name}-{bits}", _commit(_ints(0, 1, 2, 3, 4, 5), ints(*cu)), free=True)
        yield Call(
            "commit_tokens",
            f"quota-{bits}",
            _commit(_ints(0, 1, 2, 3, 4, 5), ints(0, 2, 4, 6), ints(top, -top - 1, 1)),
        )

    yield Call(
        "commit_tokens",
        "slots",
        _commit(_ints(8, 0, HUGE, 1, -HUGE, 2), _ints(0, 2, 4, 6)),
        lambda ids, slots, *rest, **more: torch.ops.seer.commit_tokens(
            ids, torch.where((slots >= 0) & (slots < 8), slots, -1), *rest, **more
        ),
    )
    logits = _random(4, 33)
    far = _ints(-1, 33, HUGE, -HUGE)
    for kind in ("prob", "margin", "entropy"):
        yield Call(
            "token_confidence",
            f"suppress-{kind}",
            lambda kind=kind: ((logits, kind, torch.cat([far, _ints(5, 5)])), {}),
            lambda logits, kind, _: torch.ops.seer.token_confidence(logits, kind, _ints(5)),
        )
        yield Call("token_confidence", f"chosen-{kind}", lambda kind=kind: ((logits, kind), {"chosen": far}), free=True)
    yield Call(
        "token_confidence",
        "temperature",
        lambda: ((logits,), {"temperature": torch.tensor([math.nan, math.inf, -1.0, 1e38]), "key": far}),
        free=True,
    )


def _commit(slots: Tensor, cu_slots: Tensor, quota: Tensor | None = None) -> Callable[[], tuple[tuple, dict]]:
    quota = _ints(2, 2, 2) if quota is None else quota
    confidence = torch.linspace(0, 1, len(slots), dtype=torch.float64)

    def make():
        token = torch.arange(100, 100 + len(slots))
        return (torch.full((8,), MASK_ID), slots, token, confidence, cu_slots, quota), {"mask_id": MASK_ID}

    return make


# ---- random values -----------------------------------------------------------------------------------------


def _random_values() -> Iterator[Call]:
    """Whatever may stand in device memory: few values in range, so that ranges overlap, fall and pass every end."""
    for seed in range(8):
        gen = random.Random(seed)

        def ints(count: int, near: int, gen=gen) -> Tensor:
            width = gen.choice((torch.int32, torch.int64))
            top = torch.iinfo(width).max
            pool = (*range(-2, near + 3), *range(near + 1), top, -top - 1, top - near, top // 2)
            return _ints(*(gen.choice(pool) for _ in range(count)), dtype=width)

        def call(op: str, *args, seed=seed, **kwargs) -> Call:
            copies = {f"{op}-{i}": t.clone() for i, t in enumerate(args) if isinstance(t, Tensor)}
            make = lambda: (tuple(copies.get(f"{op}-{i}", a) for i, a in enumerate(args)), kwargs)  # noqa: E731
            return Call(op, f"random{seed}", make, _of_either(op), works=False)

        rows, wide = gen.choice((1, 3, 6)), gen.choice((5, 33))
        x, ids = _random(10, wide), torch.arange(10, 20)
        yield call("snr_boundary", _random(rows, wide), ints(rows, wide), window=gen.choice((1, 8)))
        yield call("varlen_repack", x, ints(rows, 10), ints(rows + 1, 10), gen.choice((0, 7, 40)))
        yield call("varlen_unpack", x, ints(rows, 7), ints(rows + 1, 10), gen.choice((0, 7)), -1.0)
        yield call("mask_rewrite", _random(rows, 1, 2, wide), ints(rows, wide), ints(rows, wide))
        capacity, offsets = gen.choice((0, 8, 40)), ints(rows, 20)
        yield call("truncate_repack", x, ids, ints(rows, 10), ints(rows, 10), capacity, offsets=offsets)
        logits, far = _random(rows, wide), ints(rows, wide).long()
        yield call("token_confidence", logits, "margin", ints(4, wide).long(), chosen=far)
        # No slot is in two rows, as which of them wrote it would depend on the schedule.
        slots, cu_slots = torch.tensor(gen.sample((*range(-3, 11), HUGE, -HUGE), 12)), ints(rows + 1, 12).sort().values
        confidence, quota = _random(12).double(), ints(rows, 12)
        held = torch.full((8,), MASK_ID)
        yield call("commit_tokens", held, slots, slots + 100, confidence, cu_slots, quota, mask_id=MASK_ID)


def _of_either(op: str) -> Callable[..., object]:
    """The CPU op's results where it accepts the values; else those of the kernel's first schedule."""

    def truth(*args, **kwargs):
        try:
            return getattr(torch.ops.seer, op)(*args, **kwargs)
        except RuntimeError:
            return getattr(torch.ops.seer_emu, op)(*args, **kwargs)

    return truth


CALLS = {str(call): call for call in (*_cases(), *_variants(), *_bad(), *_random_values())}
