"""Training batches of the demo: sheets with a question each, several masked copies of every answer.

Every step draws one window length and one mode. In every second step the prompt is blind to the window, LaViDa's
prefix mode: what is computed of a prompt then serves all masked copies of its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from seer_dllm.chat import prompt_ids
from seer_dllm.demo import data, vocabulary
from seer_dllm.demo.questions import question
from seer_dllm.vision import IMAGE_PLACEHOLDER

WINDOWS = (16, 32, 64, 128, 256)
WINDOW_ODDS = (0.25, 0.25, 0.2, 0.2, 0.1)  # a long window costs most and teaches little beyond padding
# To find a digit and say where it stands is learned last, long after everything else.
KINDS_DRAWN = (*data.KINDS, *["places"] * 4)
COPIES = {True: 4, False: 2}  # masked copies of an answer; a blind prompt is shared, so that copies are cheap
MIN_ROWS, MAX_ROWS = 8, 64
MIN_T = 0.04  # bounds the weight 1/t


@dataclass
class Batch:
    """`n` sheets with a question each, `k` masked copies of every answer, all windows `w` long."""

    pixels: Tensor  # float32 [n, 3, 64, 64] in [-1, 1]
    prompt: Tensor  # int64 [n, p], padded on the left; the picture's slots hold anything
    real: Tensor  # bool [n, p], False on that padding
    image_from: list[int]  # n columns of the prompt where the picture's tokens begin
    answer: Tensor  # int64 [n, w]: the answer, end-of-turn, padding; cut off where the window is too short
    masked: Tensor  # bool [n, k, w]
    t: Tensor  # float32 [n, k], the share of slots masked, in expectation
    blind: bool  # the prompt does not see the window


class Batches:
    """Draws batches: equal seeds, steps and ranks give equal batches, whatever was drawn before.

    budget: tokens that one batch should cost; it decides how many rows there are.
    """

    def __init__(self, tokenizer, image_tokens: int, seed: int, budget: int = 4096) -> None:
        self.eot, self.eos = (tokenizer.token_to_id(t) for t in (vocabulary.EOT, vocabulary.EOS))
        encode = lru_cache(maxsize=4096)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids))
        self.encode = encode
        self.prompt_of = lru_cache(maxsize=4096)(
            lambda asked: prompt_ids(lambda text: list(encode(text)), "lavida_llada", asked, images=1, system=None)
        )
        self.image_tokens, self.seed, self.budget = image_tokens, seed, budget
        self.length = max(len(self.prompt_of(question(kind))) for kind in data.KINDS) - 1 + image_tokens

    def rows(self, window: int, blind: bool) -> int:
        """Masked copies in a batch: a multiple of 4 near the budget."""
        cost = window + (self.length / COPIES[blind] if blind else self.length)
        return min(MAX_ROWS, max(MIN_ROWS, round(self.budget / cost / 4) * 4))

    def draw(self, step: int, rank: int = 0) -> Batch:
        """The batch of a step and a process; processes get different rows of one shape."""
        shape = np.random.default_rng([self.seed, step])
        window, blind = int(shape.choice(WINDOWS, p=WINDOW_ODDS)), bool(step % 2)
        rng = np.random.default_rng([self.seed, step, 1 + rank])
        k = COPIES[blind]
        rows = self.rows(window, blind)
        n = rows // k
        images, questions, answers, _ = data.sample_batch(rng, n, "train", KINDS_DRAWN)
        prompt = np.full((n, self.length), self.eos, np.int64)
        real = np.zeros((n, self.length), bool)
        answer = np.full((n, window), self.eos, np.int64)
        image_from = []
        for b, (asked, answered) in enumerate(zip(questions, answers, strict=True)):
            ids = self.prompt_of(asked)
            at = ids.index(IMAGE_PLACEHOLDER)
            ids = [*ids[:at], *[self.eos] * self.image_tokens, *ids[at + 1 :]]
            pad = self.length - len(ids)
            prompt[b, pad:] = ids
            real[b, pad:] = True
            image_from.append(pad + at)
            content = [*self.encode(answered), self.eot][:window]
            answer[b, : len(content)] = content
        t, masked = mask_copies(rng, rows, window, k)
        return Batch(
            to_pixels(images), torch.from_numpy(prompt), torch.from_numpy(real), image_from, torch.from_numpy(answer),
            torch.from_numpy(masked.reshape(n, k, window)), torch.from_numpy(t.reshape(n, k)).float(), blind,
        )  # fmt: skip


def mask_copies(rng: np.random.Generator, rows: int, window: int, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """t `[rows]` and masks `[rows, window]` of which each four consecutive rows are: everything masked (the step that
    the boundary is read from); a random share t; and a pair of complements, t and 1 - t.

    Over the batch the random t are evenly spread in (0, 1): low-discrepancy sampling. The pair masks every slot exactly
    once, as in LaViDa, so its two rows must be copies of one answer: `copies` is even and divides `rows`.
    """
    if rows % 4 or copies % 2 or rows % copies:
        raise ValueError(f"rows must be a multiple of 4 and of copies, an even number, got {rows} and {copies}")
    groups = rows // 4
    spread = (rng.permutation(2 * groups) + rng.random(2 * groups)) / (2 * groups)
    spread = spread.clip(MIN_T, 1 - MIN_T).reshape(groups, 2)
    t = np.stack([np.ones(groups), spread[:, 0], spread[:, 1], 1 - spread[:, 1]], axis=1)
    noise = rng.random((groups, 4, window))
    masked = noise < t[:, :, None]
    masked[:, 3] = ~masked[:, 2]
    return t.reshape(rows), masked.reshape(rows, window)


def to_pixels(images: np.ndarray) -> Tensor:
    """uint8 `[n, H, W, 3]` to the tower's float32 `[n, 3, H, W]` in [-1, 1]; sheets need no resizing."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
