"""Tables in Markdown and the numbers in them, for reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if np.isfinite(share) else "-"


def decimal(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else float("nan")
