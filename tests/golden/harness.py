"""Golden cases: found from the `cases.json` files alone, checked by functions registered per kind.

A check is registered with `@golden_kind("logits", family="llada")` in a `checks_*.py` beside this file and
gets one `Case`. A case that no check takes is listed at the end of the run, never passed silently.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

GOLDEN_DIR = Path(os.environ.get("SEER_GOLDEN_DIR") or Path(__file__).parent / "data")

Check = Callable[["Case"], None]
When = Callable[["Case"], bool]


class NotYet(Exception):
    """Raised by a `when` predicate: the kind has a check, but this case is not implemented yet, and why."""


class TensorFile(Mapping[str, torch.Tensor]):
    """Tensors of a safetensors file by name, each read when asked for."""

    def __init__(self, path: Path):
        self._file = safe_open(path, "pt")
        self._names = set(self._file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


class Roles(Mapping[str, torch.Tensor]):
    """Role -> tensor of a case, read when asked for."""

    def __init__(self, names: Mapping[str, str], tensors: Mapping[str, torch.Tensor]):
        self._names, self._tensors = names, tensors

    def __getitem__(self, role: str) -> torch.Tensor:
        return self._tensors[self._names[role]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Family:
    """One golden folder. meta: cases.json without its cases (token_ids, image_token_offset, ...)."""

    folder: Path

    @cached_property
    def meta(self) -> dict:
        return json.loads((self.folder / "cases.json").read_text())

    @cached_property
    def config(self) -> dict:
        return json.loads((self.folder / "config.json").read_text())

    @cached_property
    def weights(self) -> TensorFile:
        return TensorFile(self.folder / "model.safetensors")

    @cached_property
    def tensors(self) -> TensorFile:
        return TensorFile(self.folder / "cases.safetensors")

    def json(self, name: str) -> dict | None:
        """Another JSON file of the folder, None where there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.is_file() else None


@dataclass(frozen=True)
class Case:
    """One golden case. inputs, expected: role -> tensor; extra: the whole JSON entry, rare keys included."""

    of: Family
    extra: dict = field(repr=False)

    @property
    def name(self) -> str:
        return self.extra["name"]

    @property
    def kind(self) -> str:
        return self.extra["kind"]

    @property
    def settings(self) -> dict:
        return self.extra["settings"]

    @property
    def family(self) -> str:
        return self.of.meta["family"]

    @property
    def folder(self) -> Path:
        return self.of.folder

    @property
    def config(self) -> dict:
        return self.of.config

    @property
    def vision_config(self) -> dict | None:
        return self.of.json("vision_config.json")

    @property
    def token_ids(self) -> dict[str, int]:
        return self.of.meta["token_ids"]

    @property
    def weights(self) -> TensorFile:
        """The folder's model.safetensors, by checkpoint name."""
        return self.of.weights

    @property
    def inputs(self) -> Roles:
        return Roles(self.extra["inputs"], self.of.tensors)

    @property
    def expected(self) -> Roles:
        return Roles(self.extra["expected"], self.of.tensors)

    @property
    def expected_scalars(self) -> dict:
        return self.extra["expected_scalars"]

    @property
    def raises(self) -> str | None:
        """What the reference raises for this call, None where it returns."""
        return self.extra.get("reference_raises")

    @property
    def stats(self) -> dict:
        return self.extra.get("stats", {})

    @property
    def id(self) -> str:
        return f"{self.family}-{self.kind}-{self.name}"

    def close(self, role: str, got: torch.Tensor, atol: float) -> None:
        """Fails with the place and both values where got differs from expected[role] by more than atol."""
        want = self.expected[role]
        assert got.shape == want.shape, f"{self.id} {role}: shape {list(got.shape)}, expected {list(want.shape)}"
        distance = (got.detach().double().cpu() - want.double()).abs()
        bad = ~(distance <= atol)  # NaN is bad
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            count = f"{int(bad.sum())} of {bad.numel()}"
            pytest.fail(
                f"{self.id} {role}: {count} beyond {atol}, largest distance {distance.max():.3g}, "
                f"first at {place}: got {got[place].item()}, expected {want[place].item()}"
            )

    def same(self, role: str, got: torch.Tensor) -> None:
        """Fails where got and expected[role] are not equal: token ids, grids, counts."""
        self.close(role, got, atol=0)


@dataclass(frozen=True)
class _Entry:
    check: Check
    families: frozenset[str] | None
    when: When | None


_REGISTRY: dict[str, list[_Entry]] = {}


def golden_kind(
    kind: str, *, family: str | set[str] | None = None, when: When | None = None
) -> Callable[[Check], Check]:
    """Registers a check for the cases of a kind, of one family, a set of them, or all.

    `when(case)` narrows it: False leaves the case to other checks, `raise NotYet(reason)` lists it.
    """
    families = frozenset([family]) if isinstance(family, str) else family and frozenset(family)

    def register(check: Check) -> Check:
        _REGISTRY.setdefault(kind, []).append(_Entry(check, families, when))
        return check

    return register


def check_for(case: Case) -> Check:
    """The one check that takes this case; NotYet where there is none, LookupError where there are several."""
    entries = [e for e in _REGISTRY.get(case.kind, []) if e.families is None or case.family in e.families]
    reasons, found = [], []
    for entry in entries:
        try:
            if entry.when is None or entry.when(case):
                found.append(entry.check)
        except NotYet as reason:
            reasons.append(str(reason))
    if len(found) > 1:
        raise LookupError(f"{case.id}: one check must take a case, got {', '.join(f.__name__ for f in found)}")
    if not found:
        raise NotYet("; ".join(reasons) or f"no check for kind {case.kind!r}")
    return found[0]


@cache
def load_checks() -> tuple[str, ...]:
    """Imports every checks_*.py beside this file, once."""
    names = tuple(sorted(path.stem for path in Path(__file__).parent.glob("checks_*.py")))
    pytest.register_assert_rewrite(*names)
    for name in names:
        importlib.import_module(name)
    return names


@cache
def discover(folder: Path = GOLDEN_DIR) -> tuple[Case, ...]:
    """Every case of every golden folder below `folder`; FileNotFoundError where there is none."""
    families = [Family(path.parent) for path in sorted(folder.glob("*/cases.json"))]
    if not families:
        raise FileNotFoundError(f"golden data must hold */cases.json, none in {folder} (SEER_GOLDEN_DIR)")
    return tuple(Case(family, extra) for family in families for extra in family.meta["cases"])


@dataclass
class Plan:
    """Cases to run, and those left with the reason; `ran` fills up while the tests run."""

    ready: list[Case] = field(default_factory=list)
    left: list[tuple[Case, str]] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)


@cache
def plan() -> Plan:
    load_checks()
    made = Plan()
    for case in discover():
        try:
            check_for(case)
            made.ready.append(case)
        except NotYet as reason:
            made.left.append((case, str(reason)))
    return made
