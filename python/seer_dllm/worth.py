"""Whether cutting a row pays, by the router's cost model. Knows no tensors."""

from __future__ import annotations

from typing import NamedTuple

from seer_dllm.config import check_number, check_positive
from seer_dllm.costs import CostModel
from seer_dllm.router import RowSize


class Verdict(NamedTuple):
    """Whether a cut pays; `saving` in seconds, before what the cut itself costs."""

    worth: bool
    saving: float
    reason: str


def worth_cutting(
    now: RowSize, cut: RowSize, costs: CostModel, *, overhead: float, path: str = "varlen", batch: int = 1
) -> Verdict:
    """Whether truncating a row pays for what the cut costs: predicted on exact sizes, before padding.

    Args:
        now, cut: the row with its full window and steps, and with those it would keep.
        overhead: seconds that the cut costs (repacking; with a restart also the probe layers, run in vain).
        batch: rows that share each forward, and thus its fixed cost.
    Raises:
        ValueError: an argument out of range, or `cut` is larger than `now`.
    """
    check_number("overhead", overhead, 0.0)
    check_positive("batch", batch)
    for name in ("fed", "attended", "steps"):
        if getattr(cut, name) > getattr(now, name):
            raise ValueError(f"cut must have no more {name} than now={getattr(now, name)}, got {getattr(cut, name)}")
    fixed = costs.seconds(path, 0, 0, 0)

    def run(row: RowSize) -> float:
        own = costs.seconds(path, 1, row.fed, row.fed * row.attended) - fixed
        return row.steps * (own + fixed / batch)

    saving = run(now) - run(cut)
    worth = saving > overhead
    verdict = "more than" if worth else "no more than"
    return Verdict(
        worth, saving, f"predicted saving {1e3 * saving:.3f} ms is {verdict} the cut's {1e3 * overhead:.3f} ms"
    )
