"""Texts whose masked tokens a trained model should recover: sentences and answers of our own, or the demo's sheets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seer_dllm.api import Model

TEXTS = (
    "The sun rises in the east and sets in the west, and at night the moon and the stars can be seen in the sky.",
    "Water freezes at zero degrees Celsius and boils at one hundred degrees Celsius when the pressure is normal.",
    "She opened the door, walked into the kitchen, put the kettle on the stove and made herself a cup of tea.",
    "There are seven days in a week, twelve months in a year and sixty minutes in an hour.",
    "The children played in the garden all afternoon, and when it began to rain they ran back into the house.",
    "To bake bread you need flour, water, salt and a little yeast; the dough has to rest before it goes into the oven.",
    "The capital of France is Paris, the capital of Italy is Rome and the capital of Spain is Madrid.",
    "He missed the last train home, so he called his sister and asked her whether he could stay at her place.",
    "A dog is an animal that barks, a cat is an animal that meows, and a cow is an animal that gives milk.",
    "If you want to learn a new language, you should practise every day, read a lot and talk to other people.",
)
ANSWERS = (
    ("What is the capital of France? Answer with one word.", "Paris"),
    ("What is two plus two? Answer with a number.", "4"),
    ("Is the sun hot or cold? Answer with one word.", "Hot"),
    ("Which colour is grass? Answer with one word.", "Green"),
    ("How many days are in a week? Answer with a number.", "7"),
    ("What do you call frozen water? Answer with one word.", "Ice"),
)
SHEETS = 18  # two of each kind of question
STRIDE, ROUNDS = 6, 3  # every sixth token is masked, so that each has its neighbours; other ones in every round
MASKED_ENOUGH, MASKED_MOST = 20, 128
LONGEST = 256  # tokens of a text


@dataclass(frozen=True)
class Sample:
    """A text to recover, behind a prompt.

    Attributes:
        prompt: `[P, H]` embeddings; P is 0 for plain text.
        ids: the text, with at least one token behind `stop`, so that every shift can be read.
        start, stop: the tokens of `ids` that may be masked.
        masked: those that are, ascending.
        trained_on: the kind of text that the model is known to have learned.
    """

    prompt: Tensor
    ids: tuple[int, ...]
    start: int
    stop: int
    masked: tuple[int, ...] = ()
    trained_on: bool = False

    def with_masked(self, *positions: int) -> Sample:
        return replace(self, masked=positions)

    def with_tail(self, length: int, token: int) -> Sample:
        """`length` times `token` instead of what lies behind `stop`."""
        return replace(self, ids=(*self.ids[: self.stop], *[token] * length), masked=())


def masked_rows(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with every `STRIDE`-th token masked, in rounds with other tokens, up to `MASKED_MOST` of them.

    ValueError: they are so short that fewer than `MASKED_ENOUGH` are masked.
    """
    rows, total = [], 0
    for turn in range(ROUNDS):
        for sample in samples:
            row = sample.with_masked(*range(sample.start + turn * (STRIDE // ROUNDS), sample.stop, STRIDE))
            if row.masked and total < MASKED_MOST:
                rows.append(row)
                total += len(row.masked)
    if total < MASKED_ENOUGH:
        raise ValueError(f"text must be long enough to mask {MASKED_ENOUGH} of its tokens, got {total}")
    return rows


def text_samples(model: Model, texts: Sequence[str] = TEXTS) -> list[Sample]:
    """Plain texts without a prompt. ValueError: no tokenizer, or the texts hold too few tokens."""
    nothing = torch.empty(0, model.backbone.config.hidden_size, dtype=model.backbone.dtype)
    samples = []
    for text in texts:
        ids = model.encode(text)[: min(LONGEST, model.backbone.config.max_length)]
        samples.append(Sample(nothing.to(model.backbone.device), tuple(ids), 1, len(ids) - 1))
    masked_rows(samples)
    return samples


def question_samples(model: Model) -> list[Sample]:
    """Answers behind questions in the family's chat template: sheets for a model with the demo's words.

    ValueError: a prompt holds the mask id.
    """
    from seer_dllm.demo import data, vocabulary

    words = vocabulary.build_tokenizer().get_vocab()
    demo = all(model.tokenizer.token_to_id(w) == i for w, i in words.items())
    asked = [(question, answer, ()) for question, answer in ANSWERS]
    if demo:
        from PIL import Image

        sheets = data.heldout_questions(SHEETS, seed=0)
        asked = [(question, answer, (Image.fromarray(image),)) for image, _, question, answer in sheets]
    samples = []
    for question, answer, images in asked:
        ids = model.encode(answer)
        ended = (*ids, model.end_ids[-1], *[model.end_ids[0]] * STRIDE)
        samples.append(Sample(model.embed_prompt(question, images), ended, 0, len(ids), trained_on=demo))
    return samples
