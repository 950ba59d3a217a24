"""A scripted model: a stand-in for the backbone whose answers and quiet shares are fixed tables, and the tiny real one.

What a slot says depends on the row's `Script`, the slot's place in the window and whether anything is written yet.
Everything travels inside the hidden states, so a cut, a repack or a cache that mixes rows up changes the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import seer_dllm
from seer_dllm import GenerationConfig, Model, Profile, Result
from seer_dllm.backbone import DevicePacking
from seer_dllm.config import ModelConfig
from seer_dllm.families import FAMILIES

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
WORDS, EOS, EOT, MASK = 10, 10, 11, 12  # ids below 10 are words
VOCAB, LAYERS, SLOTS = 16, 8, 2048
TOKEN, IS_PROMPT, SCRIPT, SLOT, WRITTEN = range(5)  # columns of a hidden state


@dataclass(frozen=True)
class Script:
    """One row's part.

    Args:
        content: slots that hold words; those behind it say EOS.
        jump: slot from which the quiet share is high; None: at the end of the content.
        later: content once the first slot is written (a model that changes its mind); None: the same.
        curve: the quiet shares themselves, instead of `jump`.
        mask_at: a slot for which the model insists on the mask id.
    """

    content: int
    jump: int | None = None
    later: int | None = None
    curve: tuple[float, ...] | None = None
    mask_at: int | None = None

    def token(self, slot: int, written: bool) -> int:
        length = self.later if written and self.later is not None else self.content
        if slot == self.mask_at:
            return MASK
        return slot % WORDS if slot < length else EOS

    def share(self, slot: int) -> float:
        if self.curve is not None:
            return self.curve[slot]
        return 0.3 if slot < (self.content if self.jump is None else self.jump) else 0.8


@dataclass
class Call:
    """One pass through layers `[start, stop)`: the packed lengths, without the cached prompts."""

    start: int
    stop: int
    lengths: tuple[int, ...]


class ScriptedBackbone(nn.Module):
    """Has what `canvas.py`, `denoise.py` and `api.py` use of `Backbone`; counts what it computes by itself."""

    resumes = masks = device_packed = True

    def __init__(self, scripts: Sequence[Script], shift: bool = False) -> None:
        super().__init__()
        self.config = ModelConfig(VOCAB, 5, 4, LAYERS, 1, 1, 5, 1e4, 1e-5, mask_id=MASK, eos_id=EOS, shift=shift)
        self.embed = nn.Embedding(VOCAB, 5)
        with torch.no_grad():
            self.embed.weight.zero_()
            self.embed.weight[:, TOKEN] = torch.arange(VOCAB)
        self.requires_grad_(False)
        self.tokens = torch.tensor([[[s.token(i, w) for i in range(SLOTS)] for w in (False, True)] for s in scripts])
        self.shares = [torch.tensor([s.share(i) for i in range(len(s.curve or range(SLOTS)))]) for s in scripts]
        self.calls: list[Call] = []
        self.token_layers = 0

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def run(self, hidden, packing, start=0, stop=None, *, past=None, keep=None, probe=None, mask=None) -> Tensor:
        stop = LAYERS if stop is None else stop
        assert hidden.shape == (packing.total, 5)
        starts = packing.cu_seqlens.tolist()
        lengths = tuple(b - a for a, b in pairwise(starts))
        assert isinstance(packing, DevicePacking) or (packing.starts, packing.lengths) == (tuple(starts), lengths)
        self.calls.append(Call(start, stop, lengths))
        self.token_layers += len(hidden) * (stop - start)
        if keep is not None:
            keep.layers += [(hidden[:, None].clone(), hidden[:, None].clone())] * (stop - start)
        out, share = hidden.clone(), torch.zeros(len(hidden))
        keys, ends = hidden, starts
        if past is not None:  # prompt tokens, and with block caches window tokens as well, before a row's own
            buffer, _ = past.layers[start]
            buffer.index_copy_(0, past.packing.keys_at, hidden[:, None])
            keys, ends = buffer[:, 0], past.packing.cu_seqlens.tolist()
        for b in range(len(lengths)):
            own, seen = slice(starts[b], starts[b + 1]), keys[ends[b] : ends[b + 1]]
            if mask is not None:
                seen = seen[mask[b, 0, 0]]
            is_prompt = seen[:, IS_PROMPT] == 1
            prompt = seen[is_prompt]
            script = int(prompt[0, SCRIPT]) if len(prompt) else 0
            slot = packing.positions[own] - len(prompt)
            written = (seen[~is_prompt, TOKEN] != MASK).any()
            out[own, SCRIPT], out[own, SLOT], out[own, WRITTEN] = script, slot.to(out), written.to(out)
            share[own] = torch.where(slot >= 0, self.shares[script][slot.clamp(min=0)], 0.0)
        if probe is not None:
            for layer in range(start, stop):
                probe.observe(layer, hidden, share)
        return out if stop == LAYERS else hidden.clone()

    def logits(self, hidden: Tensor) -> Tensor:
        script, slot, written = (hidden[:, i].long() for i in (SCRIPT, SLOT, WRITTEN))
        slot = slot + self.config.shift
        out = torch.zeros(len(hidden), VOCAB)
        out[torch.arange(len(hidden)), self.tokens[script, written, slot]] = sureness(slot)
        return out


def sureness(slot: Tensor) -> Tensor:
    """Logit of the slot's token, the others having 0: it falls with the slot, so answers are written left to right."""
    return 12.0 - slot / 256


class Words:
    """A tokenizer that spells out everything it is given, special ids too."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join({EOS: "<eos>", EOT: "<eot>", MASK: "<mask>"}.get(i, f"w{i}") for i in ids)


@dataclass
class Scripted:
    """A model of these scripts, one row each unless asked otherwise."""

    scripts: Sequence[Script]
    margin: int = 0
    shift: bool = False  # as in Dream, whose tokens decide the slots behind them
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        profile = Profile(margin=self.margin)
        self.backbone = ScriptedBackbone(self.scripts, self.shift)
        self.model = Model(FAMILIES[0], self.backbone, None, Words(), (EOS, EOT), profile)

    def prompt(self, script: int = 0, length: int = 5) -> Tensor:
        prompt = torch.zeros(length, 5)
        prompt[:, IS_PROMPT], prompt[:, SCRIPT] = 1, script
        return prompt

    def answers(self, config, truncation="default", *, rows=None, prompt_lengths=None, **more) -> list[Result]:
        rows = range(len(self.scripts)) if rows is None else rows
        prompts = [self.prompt(i, 5 if prompt_lengths is None else prompt_lengths[i]) for i in rows]
        return seer_dllm.generate(self.model, prompts, config=config, truncation=truncation, **more)

    def answer(self, config: GenerationConfig, truncation="default", **more) -> Result:
        (result,) = self.answers(config, truncation, rows=[0], **more)
        return result


def words(n: int) -> list[int]:
    """What a row with content `n` says."""
    return [i % WORDS for i in range(n)]


@cache
def tiny(family: str) -> Model:
    """A tiny random-weight model of the golden data, with the ends that its cases name."""
    model = seer_dllm.load(GOLDEN / family)
    ids = json.loads((GOLDEN / family / "cases.json").read_text())["token_ids"]
    model.end_ids = tuple(ids[name] for name in ("eos", "eot") if name in ids)
    return model


def llada() -> Model:
    return tiny("llada")


def random_prompt(seed: int, length: int, family: str = "llada") -> Tensor:
    """Embeddings `[length, H]` of random ids of a tiny model, none of them special."""
    model = tiny(family)
    plain = min(model.backbone.config.mask_id, *model.end_ids) - 1
    return model.embed_ids(torch.randint(0, plain, (length,), generator=torch.Generator().manual_seed(seed)))


EAGER = Profile(margin=0, min_snr=0.05, plateau=0.0, threshold=0.05)  # almost any rise is an end: random weights cut


def differences(result: Result, other: Result) -> list[str]:
    """What of two rows' answers and their cost is not the same."""
    names = (
        "window_ids", "boundary", "reason", "steps", "forwards", "token_forwards", "net_early", "net_late",
        "net_forwards", "net_token_forwards",
    )  # fmt: skip
    return [name for name in names if getattr(result, name) != getattr(other, name)]


class Written:
    """An `on_step` callback: per row the windows' ids after each step, and how many masks each step replaced."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.ids: dict[int, list[list[int]]] = {}

    def __call__(self, row) -> None:
        self.order.append(row.index)
        self.ids.setdefault(row.index, []).append(row.ids.tolist())

    def windows(self, row: int = 0) -> list[int]:
        return [len(ids) for ids in self.ids[row]]

    def filled(self, row: int = 0, mask: int = MASK) -> list[int]:
        """Slots that are not masks after each step."""
        return [sum(i != mask for i in ids) for ids in self.ids[row]]

    def per_step(self, row: int = 0, mask: int = MASK) -> list[int]:
        filled = self.filled(row, mask)
        return [after - before for before, after in zip([0, *filled], filled, strict=False)]
