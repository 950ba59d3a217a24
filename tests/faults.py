"""What can be wrong with a call of an op, one thing at a time, and what the error must say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import seer_ext  # noqa: F401  registers torch.ops.seer, whose schemas are read here
from cases import OPS
from strategies import Source, valid

HUGE = (2**62, -(2**62), 2**63 - 1, -(2**63))


@dataclass(frozen=True)
class Fault:
    """spoil: changes one argument of a call; it may reject calls that don't lend themselves to it. argument, rule: what
    the error names and says, as regular expressions. of_python: what torch itself refuses, before the op is reached."""

    op: str
    name: str
    argument: str
    rule: str
    spoil: Callable[[Source, dict], object]
    error: type[Exception] = ValueError
    of_python: bool = False

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    def matches(self, text: str) -> bool:
        return re.fullmatch(rf"seer::{self.op}: ({self.argument}) must .*({self.rule}).*, got .+", text) is not None


@st.composite
def broken(draw, fault: Fault) -> dict:
    call = draw(valid(fault.op))
    fault.spoil(Source(draw), call)
    return call


# ---- faults of any op, by what its arguments are -----------------------------------------------------------

FLOAT, INDEX, IDS = "float32, bfloat16 or float16", "int32 or int64", "int64"
REALS = "float64, " + FLOAT
# Per op its tensors: the dtypes they may have, and whether their shape follows from an argument named before.
TENSORS: dict[str, dict[str, tuple[str, bool]]] = {
    "mlp_sparsity": {"act": (FLOAT, False)},
    "silu_mul_sparsity": {"gate": (FLOAT, False), "up": ("gate", True)},
    "snr_boundary": {"sparsity": ("float32", False), "lengths": (INDEX, True)},
    "varlen_repack": {"x": ("bytes", False), "starts": (INDEX, False), "cu_seqlens": (INDEX, True)},
    "varlen_unpack": {"packed": ("bytes", False), "columns": (INDEX, False), "cu_seqlens": (INDEX, True)},
    "mask_rewrite": {"mask": ("bool", False), "columns": (INDEX, True), "lengths": (INDEX, True)},
    "truncate_repack": {
        "hidden": ("bytes", False),
        "ids": (IDS, True),
        "starts": (INDEX, False),
        "lengths": (INDEX, True),
        "offsets": (INDEX, True),
    },
    "token_confidence": {
        "logits": (FLOAT, False),
        "suppress": (IDS, False),
        "chosen": (IDS, True),
        "temperature": ("float32", True),
        "key": (IDS, True),
    },
    "commit_tokens": {
        "ids": (IDS, False),
        "slots": (IDS, False),
        "token": (IDS, True),
        "confidence": (REALS, True),
        "cu_slots": (INDEX, True),
        "quota": (INDEX, False),
        "threshold": (REALS, True),
    },
}
WRONG_DTYPES = {
    FLOAT: (torch.float64, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn),
    "gate": (torch.float64, torch.int32, torch.bool),
    "float32": (torch.float64, torch.bfloat16, torch.int64),
    "bytes": (torch.complex128,),
    "bool": (torch.int64, torch.uint8, torch.float64, torch.complex64),
    INDEX: (torch.float32, torch.int16, torch.uint8, torch.bool, torch.uint64),
    IDS: (torch.int32, torch.float64, torch.bool, torch.uint64),
    REALS: (torch.int64, torch.bool, torch.complex64),
}
# No rank but one will do, or these ranks.
TOO_LOW = {"act", "gate", "x", "packed"}
DENSE = {"act", "gate", "up", "sparsity", "x", "packed", "mask", "hidden", "logits"}
NUMBERS = {"threshold", "min_snr", "plateau", "min_jump"}


def _given(call: dict, name: str) -> Tensor:
    assume(call.get(name) is not None)
    return call[name]


def _of_any_op(op: str) -> Iterator[Fault]:
    schema = getattr(torch.ops.seer, op).default._schema.arguments
    kinds = {argument.name: str(argument.type) for argument in schema}

    def fault(name: str, kind: str, rule: str, spoil, error=ValueError, argument: str | None = None, **more) -> Fault:
        return Fault(op, f"{name}-{kind}", argument or name, rule, spoil, error, **more)

    for name, kind in kinds.items():
        wrong = {
            "Tensor": ([1.0], 3, "x", None),
            "Optional[Tensor]": ([1.0], 3, "x"),
            "float": ("0.5", None, [1.0], 1j),
            "int": (2.5, "1", None),
            "str": (3, None),
        }[kind]

        def other(s, call, name=name, wrong=wrong):
            call[name] = s.pick(*wrong)
            assume(any(isinstance(value, Tensor) for value in call.values()))

        if sum(k.endswith("Tensor") for k in kinds.values()) > 1 or kind != "Tensor":
            rule = {"float": "be a number", "int": "be an integer", "str": "be a string"}.get(kind, "be a Tensor")
            yield fault(name, "of_another_type", rule, other, TypeError, of_python=True)
        if kind == "int":
            far = lambda s, call, name=name: call.update({name: s.pick(2**63, -(2**63) - 1, 2**200)})  # noqa: E731
            yield fault(name, "beyond_64_bits", "fit in 64 bits", far, of_python=True)
        if name in NUMBERS and kind == "float":
            nan = lambda s, call, name=name: call.update({name: math.nan})  # noqa: E731
            yield fault(name, "nan", "be a number|lie in", nan)

    for name, (dtypes, follows) in TENSORS[op].items():

        def dtype(s, call, name=name, dtypes=dtypes):
            call[name] = _given(call, name).to(s.pick(*WRONG_DTYPES[dtypes]))

        yield fault(name, "dtype", "dtype", dtype, TypeError, argument=rf"{name}( of shape \[B, L\])?")

        def rank(s, call, name=name):
            t = _given(call, name)
            low = t.flatten()[0] if t.numel() else t.new_zeros(())
            call[name] = low if name in TOO_LOW or s.flip() else t[None, None, None]

        yield fault(name, "rank", "shape", rank)
        if follows:

            def shape(s, call, name=name):
                t = _given(call, name)
                call[name] = torch.cat([t, t.new_zeros((s.pick(1, 2), *t.shape[1:]))])

            yield fault(name, "shape", "shape", shape)

        if len(TENSORS[op]) > 1:

            def meta(s, call, name=name):
                assume(sum(isinstance(value, Tensor) for value in call.values()) > 1)
                call[name] = _given(call, name).to("meta")

            yield fault(name, "device", "be on", meta, argument="|".join(TENSORS[op]))

        if name in DENSE:

            def strides(s, call, name=name):
                t = _given(call, name)
                assume(t.ndim > 1 and t.shape[-1] > 1)
                call[name] = torch.stack([t, t], -1)[..., 0] if s.flip() else t[..., :1].expand_as(t)

            yield fault(name, "strides", "contiguous", strides)

        if op != "silu_mul_sparsity" and dtypes not in (INDEX, IDS):

            def grad(s, call, name=name):
                t = _given(call, name)
                assume(t.is_floating_point())
                call[name] = t.clone().requires_grad_()

            yield fault(name, "gradient", "not require grad", grad)


# ---- values ------------------------------------------------------------------------------------------------


def _put(call: dict, name: str, at: int, value: int) -> None:
    call[name] = _given(call, name).clone()
    info = torch.iinfo(call[name].dtype)
    call[name][at] = min(max(value, info.min), info.max)


def _somewhere(s: Source, call: dict, name: str) -> int:
    assume(len(_given(call, name)))
    return s.size(len(call[name]) - 1)


def _entry(name: str, *values) -> Callable[[Source, dict], None]:
    """One entry of `name` becomes one of the values, or what they say for the call and the place."""

    def spoil(s: Source, call: dict) -> None:
        at = _somewhere(s, call, name)
        value = s.pick(*values)
        _put(call, name, at, value(call, at) if callable(value) else value)

    return spoil


def _option(name: str, *values) -> Callable[[Source, dict], None]:
    return lambda s, call: call.update({name: s.pick(*values)})


def _start(name: str) -> Callable[[Source, dict], None]:
    """The offsets don't start at 0."""
    return lambda s, call: _put(call, name, 0, s.pick(1, -1, *HUGE))


def _falls(name: str) -> Callable[[Source, dict], None]:
    def spoil(s: Source, call: dict) -> None:
        assume(len(call[name]) > 1)
        at = 1 + s.size(len(call[name]) - 2)
        _put(call, name, at, s.pick(int(call[name][at - 1]) - 1, -(2**62)))

    return spoil


def _past(name: str, size: Callable[[dict], int]) -> Callable[[Source, dict], None]:
    """The offsets end past what there is."""

    def spoil(s: Source, call: dict) -> None:
        assume(len(call[name]) > 1)
        _put(call, name, -1, s.pick(size(call) + 1, 2**62))

    return spoil


def _length(call: dict, at: int) -> int:
    return int(call["lengths"][at]) if "lengths" in call else int(call["cu_seqlens"].diff()[at])


def _beyond(name: str, size: Callable[[dict], int]) -> Callable[[Source, dict], None]:
    """A range begins before 0, or ends past what there is."""
    return _entry(name, -1, lambda call, at: size(call) - _length(call, at) + 1, *HUGE)


def _fill(s: Source, call: dict) -> None:
    dtype = call["packed"].dtype
    bad = {torch.bool: (2, -1, 0.5), torch.float16: (1e6, -65520.0), torch.float32: (1e39,), torch.bfloat16: (1e39,)}
    bad |= {torch.complex64: (-1e39,), torch.float8_e4m3fn: (1, math.nan)}
    if not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        info = torch.iinfo(dtype)
        bad[dtype] = (0.5, math.nan, math.inf, float(info.max) + (1 if info.bits < 64 else 0), info.min - 2**12)
    call["fill"] = s.pick(*bad[dtype])


def _both(s: Source, call: dict) -> None:
    n = len(call["logits"])
    assume(call["logits"].shape[1] or not n)
    zeros = torch.zeros(n, dtype=torch.int64)
    call.update(chosen=zeros, key=zeros, temperature=torch.ones(n))


def _no_key(s: Source, call: dict) -> None:
    call.update(temperature=torch.ones(len(call["logits"])), key=None, chosen=None)


def _read_slot(s: Source, call: dict) -> int:
    assume(int(call["cu_slots"][-1]) > 0)
    return s.size(int(call["cu_slots"][-1]) - 1)


def _far_slot(s: Source, call: dict) -> None:
    _put(call, "slots", _read_slot(s, call), s.pick(len(call["ids"]), 2**62, 2**63 - 1))


def _shared_slot(s: Source, call: dict) -> None:
    """Two rows list one slot."""
    filled = call["cu_slots"].diff().nonzero()[:, 0].tolist()
    assume(len(filled) > 1 and len(call["ids"]))
    slot = s.size(len(call["ids"]) - 1)
    for b in filled[:2]:
        _put(call, "slots", int(call["cu_slots"][b]), slot)


def _without_place(name: str) -> Callable[[Source, dict], None]:
    def spoil(s: Source, call: dict) -> None:
        assume(call[name].shape[0] > 1 and call[name].numel())
        call[name] = call[name][:1].clone().expand_as(call[name])

    return spoil


def _size(name: str, dim: int = 0) -> Callable[[dict], int]:
    return lambda call: call[name].shape[dim]


_NEGATIVE = (-1, -(2**31), -(2**63))
_SIZES = (*_NEGATIVE, 2**62, 2**63 - 1)
VALUES = (
    ("snr_boundary", "lengths", "lie in", _entry("lengths", -1, lambda c, _: c["sparsity"].shape[1] + 1, *HUGE)),
    ("snr_boundary", "window", "be at least 1", _option("window", 0, *_NEGATIVE)),
    ("snr_boundary", "min_keep", "be at least 1", _option("min_keep", 0, *_NEGATIVE)),
    ("snr_boundary", "plateau", "lie in", _option("plateau", -0.1, 1.1, math.inf, -math.inf)),
    ("varlen_repack", "starts", "keep row", _beyond("starts", _size("x"))),
    ("varlen_repack", "cu_seqlens", "start at 0", _start("cu_seqlens")),
    ("varlen_repack", "cu_seqlens", "not decrease", _falls("cu_seqlens")),
    ("varlen_repack", "starts", "keep row", _past("cu_seqlens", lambda c: int(c["cu_seqlens"][-2]) + len(c["x"]))),
    ("varlen_repack", "capacity", "lie in", _option("capacity", *_SIZES)),
    ("varlen_unpack", "columns", "keep row", _beyond("columns", lambda call: call["length"])),
    ("varlen_unpack", "cu_seqlens", "start at 0", _start("cu_seqlens")),
    ("varlen_unpack", "cu_seqlens", "not decrease", _falls("cu_seqlens")),
    ("varlen_unpack", "cu_seqlens", "end at or before", _past("cu_seqlens", _size("packed"))),
    ("varlen_unpack", "length", "lie in", _option("length", *_SIZES)),
    ("varlen_unpack", "fill", "be|lie in", _fill),
    ("mask_rewrite", "lengths", "be at least 0", _entry("lengths", *_NEGATIVE)),
    ("mask_rewrite", "columns", "keep row", _entry("lengths", lambda c, _: c["mask"].shape[-1] + 1, 2**62)),
    ("mask_rewrite", "columns", "keep row", _beyond("columns", _size("mask", -1))),
    ("mask_rewrite", "mask", "have a place", _without_place("mask")),
    ("truncate_repack", "lengths", "be at least 0", _entry("lengths", *_NEGATIVE)),
    ("truncate_repack", "starts", "keep row", _entry("lengths", lambda call, _: len(call["ids"]) + 1, 2**62)),
    ("truncate_repack", "starts", "keep row", _beyond("starts", _size("ids"))),
    ("truncate_repack", "offsets", "lie in", _entry("offsets", -1, -(2**31))),
    ("truncate_repack", "capacity", "lie in", _option("capacity", *_SIZES, 2**31)),
    ("token_confidence", "kind", "be prob", _option("kind", "", "Prob", "probability", "margin ", "entropy\0", "é")),
    ("token_confidence", "suppress", "lie in", _entry("suppress", -1, lambda c, _: c["logits"].shape[1], *HUGE)),
    ("token_confidence", "chosen", "lie in", _entry("chosen", -1, lambda c, _: c["logits"].shape[1], *HUGE)),
    ("token_confidence", "temperature", "be absent", _both),
    ("token_confidence", "key", "be given", _no_key),
    ("commit_tokens", "cu_slots", "start at 0", _start("cu_slots")),
    ("commit_tokens", "cu_slots", "not decrease", _falls("cu_slots")),
    ("commit_tokens", "cu_slots", "end at or before", _past("cu_slots", _size("slots"))),
    ("commit_tokens", "slots", "be below", _far_slot),
    ("commit_tokens", "slots", "belong to one row", _shared_slot),
    ("commit_tokens", "ids", "have a place", _without_place("ids")),
)

FAULTS = {op: list(_of_any_op(op)) for op in OPS}
for _number, (_op, _argument, _rule, _spoil) in enumerate(VALUES):
    FAULTS[_op].append(Fault(_op, f"value{_number}-{_argument}", _argument, _rule, _spoil))
