"""What a group's step costs on each of the router's paths: a linear model, fitted to measurements or from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from seer_dllm.config import check_choice, check_number, check_positive, from_mapping, read_json

PATHS = ("static", "varlen", "eager")
VERSION = 1  # of the file


@dataclass(frozen=True)
class PathCost:
    """Seconds of one step of a group: `fixed + per_row * rows + per_token * tokens + per_pair * pairs`.

    All are at least 0. Files of before rows counted have no `per_row`.
    """

    fixed: float
    per_token: float
    per_pair: float
    per_row: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            check_number(f.name, getattr(self, f.name), 0.0)


@dataclass(frozen=True)
class Measurement:
    """The time of one step of a group.

    Args:
        path: "static", "varlen" or "eager".
        rows: rows computed, those included that the path adds as padding. Packed rows that are not captured count
            once per size, as those of one size share a call of attention.
        tokens: tokens computed, the path's padding included.
        pairs: sum over rows of tokens fed times tokens attended to, again as the path pads.
        seconds: above 0.
    """

    path: str
    rows: int
    tokens: int
    pairs: int
    seconds: float

    def __post_init__(self) -> None:
        check_choice("path", self.path, PATHS)
        for name in ("rows", "tokens", "pairs"):
            check_positive(name, getattr(self, name))
        check_number("seconds", self.seconds, 0.0)
        if self.seconds == 0:
            raise ValueError(f"seconds must be above 0, got {self.seconds!r}")


class FitError(NamedTuple):
    """`abs(predicted - measured) / measured` over some measurements."""

    median: float
    worst: float


@dataclass(frozen=True)
class CostModel:
    """Seconds of a group's step by path. The form is ours: fixed cost, cost per row, per token, and of attention.

    A row costs the host's work for it by itself and, where packed rows take a call of attention each, that call.
    A device that reads its weights as long as it computes few tokens has a bend in its true times, which a straight
    line misses; `error` says by how much.

    Args:
        label: where the numbers come from, for people ("measured on ...").
    """

    static: PathCost
    varlen: PathCost
    eager: PathCost
    label: str

    def __post_init__(self) -> None:
        for path in PATHS:
            if not isinstance(getattr(self, path), PathCost):
                raise ValueError(f"{path} must be a PathCost, got {getattr(self, path)!r}")
        if not isinstance(self.label, str) or not self.label:
            raise ValueError(f"label must be a string that is not empty, got {self.label!r}")

    def seconds(self, path: str, rows, tokens, pairs):
        """Seconds of one step; the sizes as in `Measurement`, numbers or numpy arrays that broadcast."""
        check_choice("path", path, PATHS)
        cost = getattr(self, path)
        return cost.fixed + cost.per_row * rows + cost.per_token * tokens + cost.per_pair * pairs

    @classmethod
    def fit(cls, measurements: Iterable[Measurement], label: str) -> CostModel:
        """The model of least squared relative error, without a negative cost.

        ValueError: the sizes measured of a path leave its four numbers open: they are fewer, or all of one number of
        rows, or one size grows with another.
        """
        measurements = list(measurements)
        paths = {}
        for path in PATHS:
            own = [m for m in measurements if m.path == path]
            sizes = np.array(sorted({(1.0, m.tokens, m.pairs, m.rows) for m in own})).reshape(-1, 4)
            if not len(sizes) or np.linalg.matrix_rank(sizes / sizes.max(axis=0)) < 4:
                rule = f"sizes of the {path} path that tell fixed cost, rows, tokens and pairs apart"
                raise ValueError(f"measurements must hold {rule}, got {sizes[:, [3, 1, 2]].astype(int).tolist()}")
            seconds = np.array([m.seconds for m in own])
            columns = np.array([(1.0, m.tokens, m.pairs, m.rows) for m in own]) / seconds[:, None]
            paths[path] = PathCost(*_nonnegative_least_squares(columns, np.ones(len(own))))
        return cls(**paths, label=label)

    def error(self, measurements: Iterable[Measurement]) -> FitError:
        """How far the predictions are off. ValueError: there are no measurements."""
        off = [abs(self.seconds(m.path, m.rows, m.tokens, m.pairs) - m.seconds) / m.seconds for m in measurements]
        if not off:
            raise ValueError("measurements must not be empty, got none")
        return FitError(median(off), max(off))

    def save(self, path: str | Path) -> None:
        """Write a JSON file for `load`."""
        text = json.dumps({"seer_costs": VERSION, **asdict(self)}, indent=2)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Read a file of `save`.

        FileNotFoundError: there is none. ValueError names the file: another version, unknown or missing names, values
        that are no costs.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"costs must be a file, got {str(path)!r}, which is missing")
        values = read_json(path)
        version = values.pop("seer_costs", None)
        if version != VERSION:
            raise ValueError(f"{path} must be of seer_costs version {VERSION}, got {version!r}")
        try:
            for name in PATHS:
                if isinstance(values.get(name), dict):
                    values[name] = from_mapping(PathCost, values[name])
            return from_mapping(cls, values)
        except (TypeError, ValueError) as error:  # TypeError: a name is missing
            raise ValueError(f"{path} must hold a cost model: {error}") from None


def _nonnegative_least_squares(a: np.ndarray, b: np.ndarray) -> list[float]:
    """The `x >= 0` of least `|a x - b|`; `a [N, K]`, `b [N]`, K tiny.

    The answer is the free least-squares solution on the columns where it is positive. So with few columns every choice
    of them is tried, and the best solution without a negative number is exact.
    """
    scale = a.max(axis=0)  # seconds per pair are a millionth of seconds per forward
    best, best_rest = np.zeros(a.shape[1]), float(b @ b)
    for count in range(1, a.shape[1] + 1):
        for chosen in map(list, combinations(range(a.shape[1]), count)):
            x = np.linalg.lstsq(a[:, chosen] / scale[chosen], b, rcond=None)[0] / scale[chosen]
            rest = float(np.sum((a[:, chosen] @ x - b) ** 2))
            if (x >= 0).all() and rest < best_rest:
                best, best_rest = np.zeros(a.shape[1]), rest
                best[chosen] = x
    return best.tolist()


# What stands in until something is measured: reckoned for an 8B model in bfloat16 (16 GB of weights, 16 GFLOP a token,
# 4 * hidden 4096 * 32 layers = 0.52 MFLOP a pair). Only the ratios matter to a plan.
# cuda: an H200 reads the weights in 4.2 ms (80 % of 4.8 TB/s), computes 600 TFLOP/s in linear layers and 300 in
# attention (270 packed); 800 kernels have gaps of 1 us, and cost 8 us each to launch without a graph.
# cpu: 40 GB/s, 1 TFLOP/s, half of that in attention; nothing is captured, so the paths differ by their padding, and by
# the calls of attention of packed rows, 32 of 20 us each.
_CPU = PathCost(fixed=0.4, per_token=16e-3, per_pair=1e-6)
_CPU_PACKED = PathCost(fixed=0.4, per_token=16e-3, per_pair=1e-6, per_row=0.64e-3)
DEFAULT_COSTS = {
    "cuda": CostModel(
        static=PathCost(fixed=5.0e-3, per_token=27e-6, per_pair=1.75e-9),
        varlen=PathCost(fixed=5.0e-3, per_token=27e-6, per_pair=1.95e-9),
        eager=PathCost(fixed=7.2e-3, per_token=27e-6, per_pair=1.95e-9),
        label="default, not measured: reckoned for 8B in bfloat16 on an H200",
    ),
    "cpu": CostModel(
        _CPU, _CPU_PACKED, _CPU_PACKED, label="default, not measured: reckoned for 8B in bfloat16 on a server CPU"
    ),
}
