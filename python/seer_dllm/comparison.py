"""Two runs over the same questions, compared pairwise: scores with bootstrap intervals, and what each run cost.

Questions about one picture are not independent, so the bootstrap draws pictures: all questions about one come together
(a cluster bootstrap; Davison and Hinkley, "Bootstrap Methods and their Application", 1997). Its percentile
interval needs no model of the scores, but is too narrow with few pictures, and says nothing where no score differs;
then an exact bound on the share of pictures with any difference is given instead.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from seer_dllm.search import clopper_pearson
from seer_dllm.tables import markdown, percent

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 20265
SUMS = ("useful_tokens", "window_tokens", "prompt_tokens", "steps", "forwards", "token_forwards", "seconds")


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


def bootstrap(values: Sequence[float], clusters: Sequence[Hashable], seed: int = SEED) -> tuple[float, float] | None:
    """Percentile interval of the mean of `values [N]` at 95 %, from 10,000 draws of whole clusters.

    Args:
        clusters: `[N]`, equal for values that belong together. As many clusters as there are are drawn, with
            replacement, and each draw's mean is that of all values in them.
        seed: names the draws; equal ones give equal intervals.
    Returns:
        (low, high); None with fewer than two clusters, which show no spread.
    """
    numbers = {cluster: i for i, cluster in enumerate(dict.fromkeys(clusters))}
    of_value = [numbers[cluster] for cluster in clusters]
    n = len(numbers)
    if n < 2:
        return None
    sums, sizes = np.bincount(of_value, values, n), np.bincount(of_value, minlength=n)
    draw = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        drawn = draw.integers(n, size=n)
        means[i] = sums[drawn].sum() / sizes[drawn].sum()
    low, high = np.quantile(means, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def totals(rows: Sequence[Any], scores: Sequence[float], clusters: Sequence[Hashable]) -> dict[str, Any]:
    """A run's mean score with its interval, and its costs summed over the questions.

    rows: one per question, with the fields of `Result`. Keys are those of `SUMS`, and `questions`, `score`, `interval`,
    `ended` (answers with an end or a stop string in their window), `words_behind_end` (rows that go on behind it).
    """
    return {
        "questions": len(rows), "score": fmean(scores), "interval": bootstrap(scores, clusters),
        **{name: _sum(rows, name) for name in SUMS},
        "ended": sum(row.finish_reason != "length" for row in rows),
        "words_behind_end": sum(row.words_behind_end for row in rows),
    }  # fmt: skip


def paired(
    rows: Sequence[Any], stock: Sequence[Any], scores: Sequence[float], stock_scores: Sequence[float],
    clusters: Sequence[Hashable],
) -> dict[str, Any]:  # fmt: skip
    """A run against stock on the same questions, in the same order.

    Keys: `difference` of the mean scores (run minus stock) and its `interval`; `wins`, `losses`, `ties` of the run;
    `differing_bound`, where all are ties: with 95 % confidence, no larger share of such pictures has a difference;
    `cut`, `net_early`, `net_late` (rows in which the net fired), `lost` (cut and not caught), and `same_ids`: shares of
    the rows; `fewer_token_forwards`, `less_time`: stock's by the run's.
    """
    gains = [score - other for score, other in zip(scores, stock_scores, strict=True)]
    counts, n = CutCounts.of(zip(rows, stock, strict=True)), len(rows)
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    differ = wins + losses > 0
    saved = {name: _sum(stock, name) / _sum(rows, name) for name in ("token_forwards", "seconds")}
    return {
        "difference": fmean(gains), "interval": bootstrap(gains, clusters) if differ else None,
        "wins": wins, "losses": losses, "ties": n - wins - losses,
        "differing_bound": None if differ else clopper_pearson(0, len(set(clusters)), CONFIDENCE),
        "cut": counts.cut / n, "net_early": counts.net_early / n, "net_late": counts.net_late / n,
        "lost": counts.lost / n, "same_ids": counts.same / n,
        "fewer_token_forwards": saved["token_forwards"], "less_time": saved["seconds"],
    }  # fmt: skip


def _sum(rows: Sequence[Any], name: str) -> float:
    return sum(getattr(row, name) for row in rows)


def report(
    settings: dict[str, Any], runs: dict[str, dict[str, Any]], pair: dict[str, Any] | None, compared: str = "Seer"
) -> str:
    """The report in Markdown.

    settings: name -> value, as they are to be read; runs, pair: from `totals`, `paired`; compared: beside stock.
    """
    columns = list(runs.values())
    n, images = columns[0]["questions"], settings["pictures"]
    lines: list[tuple[str, list[str]]] = [
        (f"mean {settings['metric']}", [_with_interval(run["score"], run["interval"]) for run in columns])
    ]
    for name in ("useful_tokens", "window_tokens", "prompt_tokens", "steps", "forwards", "token_forwards"):
        lines.append((f"{name.replace('_', ' ')}, per question", [f"{run[name] / n:.1f}" for run in columns]))
    lines.append(("answers with an end", [f"{run['ended']}/{n}" for run in columns]))
    lines.append(("rows with words behind the end", [f"{run['words_behind_end']}/{n}" for run in columns]))
    lines.append(("wall time", [f"{run['seconds']:.1f} s" for run in columns]))
    lines.append(("useful tokens per second", [f"{run['useful_tokens'] / run['seconds']:.1f}" for run in columns]))
    parts = [
        markdown(["setting", "value"], [[name, _shown(value)] for name, value in settings.items()]),
        markdown([f"{n} questions", *runs], [[name, *cells] for name, cells in lines]),
    ]
    if pair is not None:
        parts += [f"### {compared} against stock, question by question", _comparison(pair, compared)]
    parts.append(
        f"In brackets: {CONFIDENCE:.0%} percentile intervals of {RESAMPLES} bootstrap draws (seed {SEED}) of whole "
        f"pictures, of which there are {images} (a question without any counts as one)."
    )
    return "\n\n".join(parts)


def _comparison(pair: dict[str, Any], compared: str) -> str:
    difference = _with_interval(pair["difference"], pair["interval"], "+")
    if pair["differing_bound"] is not None:
        difference += f"; no score differs, hence at most {percent(pair['differing_bound'])} of such pictures would"
    return markdown(
        [f"{compared} against stock", ""],
        [
            ["difference of the means", difference],
            ["better / worse / equal", f"{pair['wins']} / {pair['losses']} / {pair['ties']}"],
            ["same ids", percent(pair["same_ids"])],
            ["windows cut", percent(pair["cut"])],
            ["safety net fired, early / late", f"{percent(pair['net_early'])} / {percent(pair['net_late'])}"],
            ["cut short and not caught", percent(pair["lost"])],
            ["fewer token-forwards", f"{pair['fewer_token_forwards']:.2f}x"],
            ["less wall time", f"{pair['less_time']:.2f}x"],
        ],
    )


def _with_interval(value: float, interval: tuple[float, float] | None, sign: str = "") -> str:
    return f"{value:{sign}.4f}" + ("" if interval is None else f" [{interval[0]:{sign}.4f}, {interval[1]:{sign}.4f}]")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(v)}" for name, v in value.items())
    return value if isinstance(value, str) else json.dumps(value)
