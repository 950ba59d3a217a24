"""Scoring the demo's answers: exact match by kind of question, and what a cut cost beside stock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from seer_dllm import metrics


@dataclass
class Score:
    """How many answers were right, of how many."""

    right: int = 0
    asked: int = 0

    @property
    def share(self) -> float:
        return self.right / self.asked if self.asked else 0.0


def exact(answer: str, truth: str) -> bool:
    """Whether the answer is the truth word for word; how the words are spaced doesn't count."""
    return bool(metrics.exact(answer, (truth,)))


def score(results: Iterable[tuple[str, str, str]]) -> dict[str, Score]:
    """Scores by kind, in order of first appearance, then "all", from ``(kind, answer, truth)`` triples."""
    scores: dict[str, Score] = {}
    total = Score()
    for kind, answer, truth in results:
        for entry in (scores.setdefault(kind, Score()), total):
            entry.right += exact(answer, truth)
            entry.asked += 1
    return {**scores, "all": total}


def table(scores: dict[str, Score]) -> str:
    """The scores as lines of text: kind, right/asked, per cent."""
    width = max(map(len, scores), default=0)
    return "\n".join(
        f"{kind:<{width}}  {f'{s.right}/{s.asked}':>11}  {100 * s.share:5.1f} %" for kind, s in scores.items()
    )


@dataclass
class CutCounts:
    """What became of rows that could be cut, against stock's answers to the same questions.

    early: boundaries before the end of stock's answer. net_early, net_late: rows whose window grew again.
    lost: answers that their final window had no room for, so cut and not caught. shorter: shorter than stock's though
    there was room. same: rows with stock's ids.
    """

    rows: int = 0
    cut: int = 0
    early: int = 0
    net_early: int = 0
    net_late: int = 0
    lost: int = 0
    shorter: int = 0
    same: int = 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, Any]]) -> CutCounts:
        """From ``(row, stock's row)`` pairs; both have the fields of `Result`."""
        counts = cls()
        for row, stock in pairs:
            counts.rows += 1
            counts.same += row.ids == stock.ids
            if not row.truncated:
                continue
            counts.cut += 1
            counts.early += row.boundary < stock.useful_tokens
            counts.net_early += row.net_early > 0
            counts.net_late += row.net_late > 0
            no_room = row.window_tokens < stock.useful_tokens
            counts.lost += stock.finish_reason == "end" and (no_room or row.finish_reason == "length")
            counts.shorter += row.useful_tokens < stock.useful_tokens and not no_room
        return counts
