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
}
KINDS = tuple(QUESTIONS)

PHRASES = {
    "blank": "blank",
    "none": "none",
    "nowhere": "nowhere",
    "empty": "empty",
    "one": "digit",
    "many": "digits",
    "place": "row {row} column {column}",
    "found": "{digit} {place}",
    "summary": "the sheet has {count} {noun} in a {frame} frame .",
    "extremes": "the largest is {largest} and the smallest is {smallest} .",
    "line": "row {row} : {cells}",
    "table_head": "row",
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
    raise ValueError(f"unknown kind of question {kind!r}; the kinds are {', '.join(KINDS)}")


def _as_marked(cells: Grid, mark: int) -> str:
    """The frame's colour alone decides the format, and with it whether the answer is one word or dozens."""
    match FRAMES[mark]:
        case "red":
            return answer("count", cells, mark)
        case "green":
            return _listing(_digits(cells))
        case "blue":
            found = (PHRASES["found"].format(digit=d, place=place) for d, place in _places(cells))
            return PHRASES["comma"].join(found) or PHRASES["nowhere"]
        case _:
            return _description(cells, mark)


def _description(cells: Grid, mark: int) -> str:
    """A sentence on the whole, one on the extremes, then the rows; a row without digits is just "empty"."""
    digits = _digits(cells)
    noun = PHRASES["one" if len(digits) == 1 else "many"]
    sentences = [PHRASES["summary"].format(count=len(digits), noun=noun, frame=FRAMES[mark])]
    if digits:
        sentences.append(PHRASES["extremes"].format(largest=max(digits), smallest=min(digits)))
    rows = (" ".join(map(_word, line)) if _digits([line]) else PHRASES["empty"] for line in cells)
    lines = (PHRASES["line"].format(row=r, cells=row) for r, row in enumerate(rows, 1))
    sentences.append(PHRASES["semicolon"].join(lines) + PHRASES["stop"])
    return " ".join(sentences)


def _table(cells: Grid) -> str:
    """A table with a head, the rows that hold a digit, and how many digits each row and each column has."""
    total = PHRASES["table_total"]
    lines = [[PHRASES["table_head"], *NUMBERS[1 : SIDE + 1], total]]
    for r, line in enumerate(cells, 1):
        count = len(_digits([line]))
        if count:
            lines.append([NUMBERS[r], *map(_word, line), NUMBERS[count]])
    per_column = [len(_digits([column])) for column in zip(*cells, strict=True)]
    lines.append([total, *(NUMBERS[n] for n in per_column), NUMBERS[sum(per_column)]])
    bar = PHRASES["bar"]
    return PHRASES["semicolon"].join(f"{bar.lstrip()}{bar.join(line)}{bar.rstrip()}" for line in lines)


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
    return " ".join(NUMBERS[d] for d in digits) or PHRASES["none"]


def _word(cell: int) -> str:
    return PHRASES["blank"] if cell == BLANK else NUMBERS[cell]
