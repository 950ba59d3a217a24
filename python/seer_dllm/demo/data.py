"""Sheets of real handwritten digits with questions and answers: what the demo learns from and is asked about.

The digits are scikit-learn's `load_digits` (1,797 pictures of 8x8). 1,500 serve training; 297 are never
trained on ("held out") and ship inside the package, so that only training needs scikit-learn. Chance comes
from the caller's generator alone: equal seeds give equal sheets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from seer_dllm.demo.questions import BLANK, FRAMES, KINDS, SIDE, answer, question

CELL = 16
PIXELS = SIDE * CELL
FRAME_WIDTH = 2
FRAME_COLOURS = np.array([(214, 40, 40), (36, 150, 60), (40, 80, 214), (240, 190, 20)], np.uint8)  # as FRAMES

HELDOUT_FILE = Path(__file__).with_name("heldout_digits.npz")
HELDOUT_COUNT = 297
SPLIT_SEED = 20240
SPLITS = ("train", "heldout")

SIZES = (12, 13, 14)
CANVAS = max(SIZES)
# (size, slant, turn in radians). 1,500 digits are few, so training also sees them slanted and turned;
# held-out digits are only scaled, so that they stay somebody's real handwriting.
POSES = {
    "train": tuple(product(SIZES, (-0.2, 0.0, 0.2), (-0.15, 0.0, 0.15))),
    "heldout": tuple((size, 0.0, 0.0) for size in SIZES),
}


@dataclass(frozen=True)
class Sheet:
    """One sheet: what is on it and how it is drawn."""

    cells: np.ndarray  # int8 [4, 4], a digit or BLANK
    mark: int  # the frame: an index into FRAMES
    source: np.ndarray  # int16 [4, 4], which digit of the split is drawn; BLANK where there is none
    pose: np.ndarray  # int8 [4, 4], an index into POSES[split]
    corner: np.ndarray  # int8 [4, 4, 2], top and left of the digit within its cell
    split: str = "train"


def make_sheet(rng: np.random.Generator, split: str = "train") -> Sheet:
    """One random sheet of the split."""
    return make_sheets(rng, 1, split)[0]


def make_sheets(rng: np.random.Generator, n: int, split: str = "train") -> list[Sheet]:
    """``n`` random sheets; the count of digits is uniform in 1..16: sparse and full are equally common."""
    labels = digits(split)[1]
    poses = POSES[split]
    grid = (n, SIDE, SIDE)
    rank = rng.random((n, SIDE * SIDE)).argsort(axis=1).argsort(axis=1).reshape(grid)
    filled = rank < rng.integers(1, SIDE * SIDE + 1, (n, 1, 1))
    source = rng.integers(len(labels), size=grid)
    cells = np.where(filled, labels[source], BLANK).astype(np.int8)
    source = np.where(filled, source, BLANK).astype(np.int16)
    pose = rng.integers(len(poses), size=grid).astype(np.int8)
    size = np.array([size for size, *_ in poses])[pose][..., None]
    # The digit stays inside its cell and, in the outer cells, clear of the frame.
    index = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1)
    low = np.where(index == 0, FRAME_WIDTH, 0)
    high = CELL - size - np.where(index == SIDE - 1, FRAME_WIDTH, 0)
    corner = rng.integers(np.broadcast_to(low, high.shape), high + 1).astype(np.int8)
    marks = rng.integers(len(FRAMES), size=n).tolist()
    return [Sheet(cells[i], marks[i], source[i], pose[i], corner[i], split) for i in range(n)]


def draw(sheet: Sheet) -> np.ndarray:
    """The sheet's picture: dark digits on white paper in a coloured frame, uint8 [64, 64, 3]."""
    return draw_sheets([sheet])[0]


def draw_sheets(sheets: Sequence[Sheet]) -> np.ndarray:
    """The pictures of sheets of one split, uint8 [n, 64, 64, 3]."""
    n = len(sheets)
    split = sheets[0].split
    if any(sheet.split != split for sheet in sheets):
        raise ValueError("draw_sheets draws sheets of one split at a time")
    source = np.stack([sheet.source for sheet in sheets]).reshape(-1)
    pose = np.stack([sheet.pose for sheet in sheets]).reshape(-1)
    corner = np.stack([sheet.corner for sheet in sheets]).reshape(-1, 2)
    filled = np.flatnonzero(source != BLANK)
    # The canvas of a small digit may stick out of the cell, empty there: draw with room, then crop.
    room = CELL - min(SIZES) + CANVAS
    ink = np.zeros((n * SIDE * SIDE, room, room), np.uint8)
    y = corner[filled, 0, None, None] + np.arange(CANVAS)[:, None]
    x = corner[filled, 1, None, None] + np.arange(CANVAS)
    ink[filled[:, None, None], y, x] = _bank(split)[pose[filled], source[filled]]
    ink = ink[:, :CELL, :CELL].reshape(n, SIDE, SIDE, CELL, CELL).swapaxes(2, 3).reshape(n, PIXELS, PIXELS, 1)
    images = np.repeat(255 - ink, 3, axis=3)
    colour = FRAME_COLOURS[[sheet.mark for sheet in sheets]][:, None, None]
    for side in (slice(None, FRAME_WIDTH), slice(-FRAME_WIDTH, None)):
        images[:, side] = colour
        images[:, :, side] = colour
    return images


def sample_batch(
    rng: np.random.Generator, n: int, split: str = "train", kinds: Sequence[str] = KINDS
) -> tuple[np.ndarray, list[str], list[str], list[str]]:
    """``n`` random sheets with one question each: images uint8 [n, 64, 64, 3], questions, answers, kinds.

    The kind is drawn evenly from ``kinds``; naming a kind more than once makes it more frequent.
    """
    chosen = [kinds[i] for i in rng.integers(len(kinds), size=n)]
    sheets, questions, answers = _ask(rng, chosen, split)
    return draw_sheets(sheets), questions, answers, chosen


def heldout_questions(n: int, seed: int) -> list[tuple[np.ndarray, str, str, str]]:
    """``n`` held-out (image uint8 [64, 64, 3], kind, question, answer), kinds in turn; fixed by seed and ``n``."""
    if n == 0:
        return []
    kinds = [KINDS[i % len(KINDS)] for i in range(n)]
    sheets, questions, answers = _ask(np.random.default_rng(seed), kinds, "heldout")
    return list(zip(draw_sheets(sheets), kinds, questions, answers, strict=True))


def _ask(rng: np.random.Generator, kinds: Sequence[str], split: str) -> tuple[list[Sheet], list[str], list[str]]:
    """A random sheet for each kind, with its question and its answer."""
    n = len(kinds)
    sheets = make_sheets(rng, n, split)
    rows, columns = rng.integers(1, SIDE + 1, (2, n)).tolist()
    anything = rng.integers(10, size=n).tolist()
    # Any one digit is mostly absent from a sheet: three times in four ask about one that is there.
    there = rng.random(n).tolist()
    questions, answers = [], []
    for i, (kind, sheet) in enumerate(zip(kinds, sheets, strict=True)):
        present = sheet.cells[sheet.cells != BLANK]
        pick = there[i] / 0.75
        digit = int(present[int(pick * len(present))]) if pick < 1 else anything[i]
        slots = {"row": rows[i], "column": columns[i], "digit": digit}
        questions.append(question(kind, **slots))
        answers.append(answer(kind, sheet.cells.tolist(), sheet.mark, **slots))
    return sheets, questions, answers


@cache
def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The split's pictures, uint8 [N, 8, 8], ink 0..16, and labels, int8 [N]; "train" needs scikit-learn."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
    with np.load(HELDOUT_FILE, allow_pickle=False) as file:
        if split == "heldout":
            return file["images"], file["labels"]
        heldout = file["indices"]
    images, labels = _load_sklearn()
    return np.delete(images, heldout, axis=0), np.delete(labels, heldout)


def write_heldout(path: Path = HELDOUT_FILE) -> None:
    """Write the held-out digits: images uint8 [297, 8, 8], labels int8 [297], indices int16 [297]."""
    images, labels = _load_sklearn()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    indices = np.sort(order[:HELDOUT_COUNT]).astype(np.int16)
    np.savez_compressed(path, images=images[indices], labels=labels[indices], indices=indices)


def _load_sklearn() -> tuple[np.ndarray, np.ndarray]:
    """All of `load_digits`: images uint8 [1797, 8, 8], labels int8 [1797]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the demo's training digits come from scikit-learn, which is not installed: "
            'pip install scikit-learn (the split "heldout" needs no extra package)'
        ) from error
    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int8)


@cache
def _bank(split: str) -> np.ndarray:
    """Every digit of the split in every pose, once and for all: ink, uint8 [poses, N, 14, 14]."""
    images = digits(split)[0].reshape(-1, 64).astype(np.float32) * (255 / 16)
    posed = [np.rint(images @ _resampler(*pose).T).astype(np.uint8) for pose in POSES[split]]
    return np.stack(posed).reshape(len(posed), -1, CANVAS, CANVAS)


def _resampler(size: int, slant: float, turn: float) -> np.ndarray:
    """Bilinear interpolation of a flat 8x8 picture to ``size``, slanted and turned, as a matrix.

    float32 [14 * 14, 64]. The result lies in the canvas's upper left; beyond the picture there is no ink.
    """
    inside = np.arange(CANVAS) < size
    steps = (np.arange(CANVAS) + 0.5) * (8 / size) - 4
    y, x = np.meshgrid(steps, steps, indexing="ij")
    x = x + slant * y
    y, x = np.cos(turn) * y - np.sin(turn) * x, np.sin(turn) * y + np.cos(turn) * x
    near_y, near_x = (np.maximum(0, 1 - np.abs(v[..., None] + 3.5 - np.arange(8))) for v in (y, x))
    weights = near_y[..., :, None] * near_x[..., None, :] * (inside[:, None] & inside)[..., None, None]
    return weights.reshape(CANVAS * CANVAS, 64).astype(np.float32)
