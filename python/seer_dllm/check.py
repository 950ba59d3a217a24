"""Are a checkpoint's ids, mask and shift right? A trained model recovers tokens that are masked in its texts.

Nothing in a checkpoint says that its mask id or shift is wrong: it loads, and answers nonsense. So both are measured,
against the alternatives. The shares and margins that decide are our defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seer_dllm.api import Model
from seer_dllm.backbone import Backbone, Packing
from seer_dllm.checkpoint import Weights
from seer_dllm.samples import Sample, masked_rows, question_samples, text_samples
from seer_dllm.vision import vision_weight_names

VERSION = 1  # of the JSON
OK, WARNING, FAILED = "ok", "warning", "FAILED"
SHIFTS = (0, 1, -1)  # the token of position p is read from the logits of p - shift
KINDS = {0: "shift=False, as in the LLaDA families", 1: "shift=True, as in the Dream families"}
MARGIN = 0.1  # how much more an alternative must recover to be believed, and any model than the best constant guess
OTHER_MASKS = 3
TAIL = 16  # masks behind a finished answer


@dataclass(frozen=True)
class Finding:
    """One check: its state (`OK`, `WARNING`, `FAILED`), what was found and what to do, and the figures behind it."""

    name: str
    state: str
    message: str
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckReport:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        return any(f.state == FAILED for f in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(f for f in self.findings if f.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `version` names this layout."""
        return {"version": VERSION, "failed": self.failed, "findings": [asdict(f) for f in self.findings]}

    def summary(self) -> str:
        """One line a check."""
        return "\n".join(f"{f.state:8} {f.name:14} {f.message}" for f in self.findings)


@torch.inference_mode()
def check(model: Model, texts: Sequence[str] | None = None, folder: Path | None = None) -> CheckReport:
    """Check a loaded checkpoint. A finding never raises; what needs sound weights or ids is left out without them.

    Args:
        texts: plain texts whose tokens are masked; None takes a built-in set, or, for a model with the demo's words,
            answers about held-out sheets.
        folder: where the model was loaded from, to compare what it does not use.
    Raises:
        TypeError: the model is a wrapped one.
        ValueError: the checkpoint has no tokenizer, or the texts are too short (`MASKED_ENOUGH` masked tokens).
    """
    if not isinstance(model, Model):
        raise TypeError(f"model must be one that load has read, got a {type(model).__name__}")
    model.encode("")  # without a tokenizer nothing can be masked
    samples = None if texts is None else text_samples(model, texts)
    findings = [_ids(model), _weights(model), _head(model, folder), _embeddings(model)]
    for needed, finding in zip(("sound ids", "finite weights"), findings, strict=False):
        if finding.state == FAILED:
            return CheckReport((*findings, _left_out(needed)))
    try:
        answered = question_samples(model)
    except ValueError as error:
        failed = Finding("prompts", FAILED, f"{error}{_looks_like(model)}", {"mask_id": model.backbone.config.mask_id})
        return CheckReport((*findings, failed, _left_out("a prompt")))
    samples = samples or (answered if answered[0].trained_on else text_samples(model))
    return CheckReport((*findings, *_recovery(model, samples, answered)))


def _left_out(needed: str) -> Finding:
    return Finding("recovery", WARNING, f"left out: masked tokens can't be recovered without {needed}")


def _spell(model: Model, token: int) -> str:
    word = model.tokenizer.spelling(token)
    return f"{token} (unused)" if word is None else f"{token} ({word})"


def _looks_like(model: Model) -> str:
    """What to do about a mask id that can't be: the special token whose name says that it is one."""
    special = {i: model.tokenizer.spelling(i) for i in model.tokenizer.special_ids()}
    named = [i for i, word in special.items() if "mask" in word.lower() and i != model.backbone.config.mask_id]
    return f": mask_token_id in config.json may have to be {_spell(model, named[0])}" if named else ""


def _ids(model: Model) -> Finding:
    """Mask and ends are special tokens of the vocabulary, and differ."""
    config, tokenizer = model.backbone.config, model.tokenizer
    rows, words = config.vocab_size, len(tokenizer)
    measured = {"mask_id": config.mask_id, "end_ids": list(model.end_ids), "embedding_rows": rows, "words": words}
    if config.mask_id in model.end_ids:
        message = f"the mask id {_spell(model, config.mask_id)} also ends an answer{_looks_like(model)}"
        return Finding("ids", FAILED, message, measured)
    outside = [i for i in model.end_ids if not 0 <= i < rows]
    if outside:
        message = f"the end {_spell(model, outside[0])} has no row among the embedding's {rows}: another tokenizer's?"
        return Finding("ids", FAILED, message, measured)
    if words > rows:
        message = f"the tokenizer has {words} words, the embedding {rows} rows: they belong to different checkpoints"
        return Finding("ids", FAILED, message, measured)
    plain = set(range(words)) - set(tokenizer.special_ids())
    for name, token in (("mask", config.mask_id), *(("end", i) for i in model.end_ids)):
        if token in plain:
            message = f"the {name} id {_spell(model, token)} is an ordinary word: is config.json's the right one?"
            return Finding("ids", WARNING, message, measured)
    ends = ", ".join(_spell(model, i) for i in model.end_ids)
    return Finding("ids", OK, f"mask {_spell(model, config.mask_id)}, ends {ends}", measured)


def _weights(model: Model) -> Finding:
    """No NaN and no infinity in any tensor, which are named as in the checkpoint."""
    names = dict(model.family.backbone_names(model.backbone.config))
    parts = {names.get(ours, ours): p for ours, p in model.backbone.named_parameters()}
    if isinstance(model.vision, nn.Module):
        own = dict(model.vision.named_parameters())
        parts |= {theirs: own[ours] for ours, theirs in vision_weight_names(own).items()}
    elif model.vision is not None:
        parts |= {f"magvitv2: {ours}": p for ours, p in model.vision.encoder.named_parameters()}
    bad = [name for name, p in parts.items() if not bool(torch.isfinite(p).all())]
    measured = {"tensors": len(parts), "not_finite": bad}
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        message = f"NaN or infinity in {', '.join(bad[:3])}{more}: a damaged file, or a dtype too narrow for it"
        return Finding("weights", FAILED, message, measured)
    return Finding("weights", OK, f"{len(parts)} tensors, all values finite", measured)


def _head(model: Model, folder: Path | None) -> Finding:
    """A head of its own holds something; one that is tied to the embedding does not lie in the folder as another."""
    backbone, name = model.backbone, model.family.weight_names["head.weight"]
    head, embed, tied = backbone.head.weight, backbone.embed.weight, backbone.config.tie_embeddings
    if tied and folder is not None and name in (weights := Weights(folder)):
        head = weights.read(name, backbone.dtype, backbone.device)
    equal = head.shape == embed.shape and torch.equal(head, embed)
    measured = {"tied": tied, "equal": equal}
    if tied and not equal:
        message = f"config.json ties the head to the embedding, but the checkpoint holds another one as {name}"
        return Finding("head", FAILED, message, measured)
    if not head.any():
        return Finding("head", FAILED, f"{name} holds zeros only: was it saved with the checkpoint?", measured)
    if not tied and equal:
        message = f"config.json does not tie the head, but {name} equals the embedding: was the head's own lost?"
        return Finding("head", WARNING, message, measured)
    return Finding("head", OK, "tied to the embedding" if tied else "has weights of its own", measured)


def _embeddings(model: Model) -> Finding:
    """The mask and the ends have been trained: their embeddings are not empty."""
    weight = model.backbone.embed.weight.float()
    norms = weight.norm(dim=1)
    median, ids = float(norms.median()), (model.backbone.config.mask_id, *model.end_ids)
    own = {i: float(norms[i]) for i in ids if i < len(norms)}
    finite = {str(i): norm for i, norm in own.items() if norm < float("inf")}
    measured = {"norms": finite, "median_norm": median if median < float("inf") else None}
    for state, least, what in ((FAILED, 0.0, "zeros"), (WARNING, 0.01 * median, "next to nothing")):
        low = [i for i, norm in own.items() if norm <= least]
        if low:
            message = f"the embedding of {_spell(model, low[0])} holds {what}: a wrong id, or rows that were not saved"
            return Finding("embeddings", state, message, measured)
    shown = ", ".join(f"{_spell(model, i)} {norm:.2f}" for i, norm in own.items())
    return Finding("embeddings", OK, f"norms {shown}; median {median:.2f}", measured)


def _recovery(model: Model, samples: list[Sample], answered: list[Sample]) -> list[Finding]:
    """Mask, shift, both directions and the end, by what the model recovers."""
    backbone, mask_id = model.backbone, model.backbone.config.mask_id
    rows = masked_rows(samples)
    truth = torch.tensor([row.ids[p] for row in rows for p in row.masked], device=backbone.device)
    guess = max(Counter(truth.tolist()).values()) / len(truth)
    masks = (mask_id, *_other_masks(model, rows))
    shares, finite = {}, True
    for mask in masks:
        hidden, starts = _forward(backbone, rows, mask)
        at = torch.tensor([start + p for row, start in zip(rows, starts, strict=True) for p in row.masked])
        for shift in SHIFTS:
            logits = backbone.logits(hidden[at.to(backbone.device) - shift])
            finite = finite and bool(torch.isfinite(logits).all())
            shares[mask, shift] = float((logits.argmax(dim=-1) == truth).float().mean())
    mask, shift = max(shares, key=shares.get)
    measured = {"masked_tokens": len(truth), "constant_guess": guess, "best": shares[mask, shift]}
    if not finite:
        message = "the forward gives NaN or infinite logits: try --dtype bfloat16 or float32"
        return [Finding("recovery", FAILED, message, measured)]
    if shares[mask, shift] < guess + MARGIN:
        message = (
            f"nothing recovered, weights look untrained: at best {shares[mask, shift]:.0%} of {len(truth)} masked "
            f"tokens, where one constant guess gets {guess:.0%}; or the tokenizer is another checkpoint's"
        )
        return [Finding("recovery", FAILED, message, measured)]
    message = f"{shares[mask, shift]:.0%} of {len(truth)} masked tokens recovered, one constant guess gets {guess:.0%}"
    return [
        Finding("recovery", OK, message, measured),
        _shift(model, {s: shares[mask, s] for s in SHIFTS}),
        _mask(model, {m: shares[m, shift] for m in masks}),
        _directions(backbone, rows, mask, shift),
        _end(model, answered, mask, shift),
    ]


def _other_masks(model: Model, rows: list[Sample]) -> list[int]:
    """Ids that might be the mask instead: special or unused, seen in no text, first those with "mask" in their name."""
    config, tokenizer = model.backbone.config, model.tokenizer
    seen = {config.mask_id, *model.end_ids, *(token for row in rows for token in row.ids)}
    special = [i for i in tokenizer.special_ids() if i < config.vocab_size and i not in seen]
    special.sort(key=lambda i: ("mask" not in tokenizer.spelling(i).lower(), i))
    unused = [i for i in (len(tokenizer),) if i < config.vocab_size and i not in seen]
    return special[: OTHER_MASKS - len(unused)] + unused


def _forward(backbone: Backbone, rows: list[Sample], mask_id: int) -> tuple[Tensor, list[int]]:
    """`[T, H]` of all rows, masked, and where each row's ids begin in it."""
    parts, starts, lengths = [], [], []
    for row in rows:
        ids = torch.tensor(row.ids, device=backbone.device)
        ids[list(row.masked)] = mask_id
        starts.append(sum(lengths) + len(row.prompt))
        lengths.append(len(row.prompt) + len(ids))
        parts += [row.prompt, backbone.embed(ids)]
    return backbone.run(torch.cat(parts), Packing(lengths, device=backbone.device)), starts


def _shift(model: Model, shares: dict[int, float]) -> Finding:
    own = int(model.backbone.config.shift)
    best = max(shares, key=shares.get)
    measured = {"configured": own, "recovered": {str(s): share for s, share in shares.items()}}
    figures = ", ".join(f"{share:.0%} at {s:+d}" if s else f"{share:.0%} at 0" for s, share in shares.items())
    if shares[best] <= shares[own] + MARGIN:
        return Finding("shift", OK, f"{KINDS[own]} (recovered: {figures})", measured)
    if best in KINDS:
        looks = "logits look shifted by one" if best else "logits do not look shifted"
        message = f"{looks}: this checkpoint needs {KINDS[best]}; config.json's model_type says {KINDS[own]}"
    else:
        message = "logits look shifted by one to the other side, which no family here does"
    return Finding("shift", FAILED, f"{message} (recovered: {figures})", measured)


def _mask(model: Model, shares: dict[int, float]) -> Finding:
    own = model.backbone.config.mask_id
    best = max(shares, key=shares.get)
    measured = {"configured": own, "recovered": {str(m): share for m, share in shares.items()}}
    others = ", ".join(f"{share:.0%} with {_spell(model, m)}" for m, share in shares.items() if m != own)
    figures = f"recovered: {shares[own]:.0%}" + (f"; {others}" if others else "")
    if shares[best] > shares[own] + MARGIN:
        message = f"{_spell(model, best)} works as the mask, {_spell(model, own)} does not: set mask_token_id to {best}"
        return Finding("mask", FAILED, f"{message} ({figures})", measured)
    return Finding("mask", OK, f"{_spell(model, own)} ({figures})", measured)


def _directions(backbone: Backbone, rows: list[Sample], mask_id: int, shift: int) -> Finding:
    """Hide a token to the right of each row's first mask, behind every position that its logits are read from."""
    rows = [row for row in rows if row.masked[0] + 2 < len(row.ids)]
    logits = []
    for hidden_too in (False, True):
        seen = [row.with_masked(row.masked[0], *([row.masked[0] + 2] if hidden_too else [])) for row in rows]
        hidden, starts = _forward(backbone, seen, mask_id)
        at = [start + row.masked[0] - shift for row, start in zip(rows, starts, strict=True)]
        logits.append(backbone.logits(hidden[torch.tensor(at, device=backbone.device)]))
    moved = (logits[0] != logits[1]).any(dim=-1)
    other = logits[0].argmax(dim=-1) != logits[1].argmax(dim=-1)
    measured = {"rows": len(rows), "logits_changed": int(moved.sum()), "predictions_changed": int(other.sum())}
    figures = f"hiding a token on the right changes {int(moved.sum())} of {len(rows)} rows' logits"
    if not moved.any():
        return Finding("directions", FAILED, f"causal: {figures}; masked diffusion needs both sides", measured)
    return Finding("directions", OK, f"{figures}, {int(other.sum())} of their best tokens", measured)


def _end(model: Model, answered: list[Sample], mask_id: int, shift: int) -> Finding:
    """Behind a finished answer the model should predict that it ends."""
    tails = [row.with_tail(TAIL, mask_id) for row in answered]
    hidden, starts = _forward(model.backbone, tails, mask_id)
    at = [start + row.stop - shift for row, start in zip(tails, starts, strict=True)]
    token = model.backbone.logits(hidden[torch.tensor(at, device=model.backbone.device)]).argmax(dim=-1)
    ended = sum(t in model.end_ids for t in token.tolist())
    measured = {"answers": len(tails), "ended": ended, "predicted": token.tolist()}
    figures = f"an end is predicted behind {ended} of {len(tails)} finished answers"
    if 2 * ended < len(tails):
        common = Counter(token.tolist()).most_common(1)[0][0]
        message = (
            f"{figures}, mostly {_spell(model, common)}: a base model, or an end that end_tokens in seer.json should "
            "name; windows can't be cut well without it"
        )
        return Finding("end", WARNING, message, measured)
    return Finding("end", OK, figures, measured)


def read_texts(file: Path) -> list[str]:
    """The lines of a text file that hold something. FileNotFoundError; ValueError if it is not UTF-8 text."""
    if not file.is_file():
        raise FileNotFoundError(f"text must be a file, got {str(file)!r}")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"text must be UTF-8, but {str(file)!r} is not: {error}") from None
    return [line.strip() for line in lines if line.strip()]
