"""What the demo asks about a sheet of digits, and the one right answer to each question.

A sheet is a 4x4 grid of cells; a cell is a digit or ``BLANK``. Texts are words separated by single spaces,
punctuation included, so that one word is one token. Every word comes from a template below, ``NUMBERS`` or
``FRAMES``: the vocabulary is derived from them (`words`). Pure Python: no array, no picture.
"""

from collections.abc import Iterable
from string import Formatter

SIDE = 4
BLANK = -1
NUMBERS = tuple(str(n) for n in range(SIDE * SIDE + 1))
FRAMES = ("red", "green", "blue", "yellow")

QUESTIONS = {
    "count": "how many digits are there ?",
    "cell": "which digit is in row {row} column {column} ?",
    "row": "read row {row} .",
    "above": "list the digits above {digit} .",
    "places": "where is the digit {digit} ?",
    "describe": "describe the sheet .",
    "table": "write the sheet as a table .",
    "mark": "answer as the mark asks .",
    "first": "answer as the first digit asks .",
}
KINDS = tuple(QUESTIONS)

PHRASES = {
    "blank": "blank",
    "none": "none",
    "nowhere": "nowhere",
    "one": "digit",
    "many": "digits",
    "place": "row {row} column {column}",
    "found": "{digit} at {place}",
    "summary": "the sheet has {count} {noun} in a {frame} frame .",
    "extremes": "the largest is {largest} and the smallest is {smallest} .",
    "line": "row {row} : {digits}",
    "table_head": "row",
    "table_cells": "cells",
    "table_total": "total",
    "comma": " , ",
    "semicolon": " ; ",
    "bar": " | ",
    "stop": " .",
}

Grid = list[list[int]]


def words() -> list[str]:
    """Every word that a question or an answer may hold, in a fixed order and without repeats."""
    templates = [*QUESTIONS.values(), *PHRASES.values()]
    literals = " ".join(literal for text in templates for literal, *_ in Formatter().parse(text))
    return list(dict.fromkeys([*NUMBERS, *FRAMES, *literals.split()]))


def question(kind: str, *, row: int = 1, column: int = 1, digit: int = 0) -> str:
    """The wording of a kind; ``row`` and ``column`` count from 1. A kind ignores slots it has no use for."""
    return QUESTIONS[kind].format(row=row, column=column, digit=digit)


def answer(kind: str, cells: Grid, mark: int, *, row: int = 1, column: int = 1, digit: int = 0) -> str:
    """The answer to ``question(kind, ...)`` for ``cells`` (4 lists of 4) in the frame ``FRAMES[mark]``."""
    match kind:
        case "count":
            return NUMBERS[len(_digits(cells))]
        case "cell":
            found = cells[row - 1][column - 1]
            return PHRASES["none"] if found == BLANK else NUMBERS[found]
        case "row":
            return " ".join(map(_word, cells[row - 1]))
        case "above":
            return _listing(d for d in _digits(cells) if d > digit)
        case "places":
            return PHRASES["comma"].join(p for d, p in _places(cells) if d == digit) or PHRASES["nowhere"]
        case "describe":
            return _description(cells, mark)
        case "table":
            return _table(cells)
        case "mark":
            return _as_marked(cells, mark)
        case "first":
            return _as_first(cells, mark)
    raise ValueError(f"unknown kind of question {kind!r}; the kinds are {', '.join(KINDS)}")


def _as_marked(cells: Grid, mark: int) -> str:
    """The frame's colour alone decides the format, and with it whether the answer is one word or dozens."""
    match FRAMES[mark]:
        case "red":
            return answer("count", cells, mark)
        case "green":
            return _listing(_digits(cells))
        case "blue":
            return _inventory(cells)
        case _:
            return _description(cells, mark)


def _as_first(cells: Grid, mark: int) -> str:
    """The first digit in reading order decides the format: up to 2 the count, up to 5 the digits, else their places."""
    digits = _digits(cells)
    if not digits or digits[0] <= 2:
        return answer("count", cells, mark)
    return _listing(digits) if digits[0] <= 5 else _inventory(cells)


def _inventory(cells: Grid) -> str:
    found = (PHRASES["found"].format(digit=d, place=place) for d, place in _places(cells))
    return PHRASES["comma"].join(found) or PHRASES["nowhere"]


def _description(cells: Grid, mark: int) -> str:
    """A sentence on the whole, one on the extremes, then the rows that hold digits; a row tells only those."""
    digits = _digits(cells)
    noun = PHRASES["one" if len(digits) == 1 else "many"]
    sentences = [PHRASES["summary"].format(count=len(digits), noun=noun, frame=FRAMES[mark])]
    if digits:
        sentences.append(PHRASES["extremes"].format(largest=max(digits), smallest=min(digits)))
        lines = (PHRASES["line"].format(row=r, digits=_listing(row)) for r, row in _filled_rows(cells))
        sentences.append(PHRASES["semicolon"].join(lines) + PHRASES["stop"])
    return " ".join(sentences)


def _table(cells: Grid) -> str:
    """A table with a head, the rows that hold a digit with all their cells and their count, and the total."""
    total = PHRASES["table_total"]
    lines = [[PHRASES["table_head"], PHRASES["table_cells"], total]]
    lines += [
        [NUMBERS[r], " ".join(map(_word, row)), NUMBERS[len(row) - row.count(BLANK)]] for r, row in _filled_rows(cells)
    ]
    lines.append([total, NUMBERS[len(_digits(cells))]])
    bar = PHRASES["bar"]
    return PHRASES["semicolon"].join(f"{bar.lstrip()}{bar.join(line)}{bar.rstrip()}" for line in lines)


def _filled_rows(cells: Grid) -> list[tuple[int, list[int]]]:
    """The rows with at least one digit, each with its number."""
    return [(r, row) for r, row in enumerate(cells, 1) if _digits([row])]


def _digits(cells: Grid) -> list[int]:
    """The digits in reading order."""
    return [d for line in cells for d in line if d != BLANK]


def _places(cells: Grid) -> list[tuple[int, str]]:
    """Each digit with its place, in reading order."""
    place = PHRASES["place"]
    return [
        (d, place.format(row=r, column=c))
        for r, line in enumerate(cells, 1)
        for c, d in enumerate(line, 1)
        if d != BLANK
    ]


def _listing(digits: Iterable[int]) -> str:
    """The digits among these cells or digits; "none" where there are none."""
    return " ".join(NUMBERS[d] for d in digits if d != BLANK) or PHRASES["none"]


def _word(cell: int) -> str:
    return PHRASES["blank"] if cell == BLANK else NUMBERS[cell]
