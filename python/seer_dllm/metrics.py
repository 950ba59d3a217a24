"""Scores of one answer against the accepted ones, as the benchmarks define them: 0 to 1, the best over the answers.

Before anything is compared, white space goes from both ends and each run of it becomes one space. Where a paper and the
scorer that published figures come from disagree, the scorer is followed, and the docstring says so. Answers are short,
so a plain edit distance costs nothing beside generating them, and no library is asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal

ANLS_THRESHOLD = 0.5
TOLERANCE = Decimal("0.05")
NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?)( ?%)?", re.IGNORECASE)

Metric = Callable[[str, Sequence[str]], float]


def exact(prediction: str, answers: Sequence[str]) -> float:
    """1.0 for one of the answers, character for character, else 0.0. Our default: case and punctuation count.

    ValueError: there are no answers.
    """
    return float(_spaced(prediction) in [_spaced(answer) for answer in _checked(answers)])


def anls(prediction: str, answers: Sequence[str]) -> float:
    """Normalized Levenshtein similarity (ANLS is its mean over questions): DocVQA's and InfographicVQA's metric.

    `1 - distance / longer length` over Unicode code points, in lower case, with no other normalization (accents in two
    spellings differ, spaces count); below 0.5 it is 0. Two empty texts are equal. Source: Biten et al., "Scene Text
    Visual Question Answering" (2019), which "DocVQA" (Mathew et al., 2021) takes over. At exactly 0.5 the
    equation gives 0, while the challenge's scorer and those modelled on it keep 0.5, as is done here.
    ValueError: there are no answers.
    """
    said = _spaced(prediction).lower()
    best = max(_similarity(said, _spaced(answer).lower()) for answer in _checked(answers))
    return best if best >= ANLS_THRESHOLD else 0.0


def relaxed_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1.0 for a number within 5 % of the answer's, or else the same text in any case: ChartQA's metric.

    A number is decimal digits with an optional sign, point, exponent and percent sign, the latter a hundredth: `12%` is
    0.12 and not within 5 % of `12`. Anything else, `1,200` and `$5` included, is a text. The difference is taken
    relative to the answer and in decimal arithmetic, so that 1.05 is within 5 % of 1. Source: Masry et al., "ChartQA"
    (2022), after Methani et al., "PlotQA" (2020). As in the scorer in use (pix2struct's), an answer of zero
    is compared as text.
    ValueError: there are no answers.
    """
    said = _spaced(prediction).lower()
    return float(any(_relaxed(said, _spaced(answer).lower()) for answer in _checked(answers)))


METRICS: dict[str, Metric] = {"exact": exact, "anls": anls, "relaxed_accuracy": relaxed_accuracy}
NOT_DONE = (
    "VQA accuracy (VQAv2, TextVQA)",
    "multiple choice (AI2D, ScienceQA, MMBench, MMMU, RealWorldQA)",
    "MME",
    "GQA",
    "CIDEr (captions)",
    "MathVista, MathVerse and MM-Vet (a language model judges)",
)


def find_metric(name: str) -> Metric:
    """The metric of this name. ValueError lists those that are there and those that are not done."""
    if name not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {name!r}; not done: {'; '.join(NOT_DONE)}")
    return METRICS[name]


def levenshtein(a: str, b: str) -> int:
    """Insertions, deletions and substitutions of code points that make one text the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _checked(answers: Sequence[str]) -> Sequence[str]:
    if isinstance(answers, str) or not answers:
        raise ValueError(f"answers must be a list of at least one text, got {answers!r}")
    return answers


def _similarity(a: str, b: str) -> float:
    longer = max(len(a), len(b))
    return 1 - levenshtein(a, b) / longer if longer else 1.0


def _relaxed(said: str, answer: str) -> bool:
    value, target = _number(said), _number(answer)
    if value is not None and target:  # neither a text nor zero
        return abs(value - target) <= TOLERANCE * abs(target)
    return said == answer


def _number(text: str) -> Decimal | None:
    found = NUMBER.fullmatch(text)
    return Decimal(found[1]) / (100 if found[2] else 1) if found else None
