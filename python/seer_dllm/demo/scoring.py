"""Scoring the demo's answers: exact match by kind of question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
