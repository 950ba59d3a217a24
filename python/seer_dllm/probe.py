"""One prompt under the lens: what the probe sees at step 0 in every layer, and what stock then answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from seer_dllm.api import Model, prepare, result_of
from seer_dllm.backbone import Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.config import GenerationConfig, Profile, Truncation, check_choice
from seer_dllm.denoise import OnStep, denoise
from seer_dllm.detection import NO_JUMP, NOTHING_TO_CUT, find_boundary, kept_window, last_fixed
from seer_dllm.files import written_whole
from seer_dllm.wrap import Wrapped
from seer_ext.reference import Candidate, snr_candidates

VERSION = 1  # of the JSON
LAYERS = ("all", "profile")


@dataclass(frozen=True)
class ProbeReport:
    """What step 0 shows of one prompt, and what stock answered to it.

    Attributes:
        quiet: share of quiet activations `[len(layers)][G]` of each measured layer and slot, in [0, 1].
        layers: 0-based layers of `quiet`.
        curve: mean of the profile's probe layers `[G]`, in which the end is looked for.
        candidates: every cut with its signal, noise, snr and plateau share (`seer_ext.reference.snr_candidates`).
        boundary, snr: the cut that `snr_boundary` chose; the window and 0 if it found none.
        kept, block: slots that would be kept (boundary, margin, rounding), in blocks of this many.
        reason: why the window would not be cut; None if it would.
        stock_text, stock_ids: the stock algorithm's answer; all ids of its window.
        stock_end: slot of the first end token in it; None if stock fills the window without one.
        prompt_tokens: length of the prompt.
        config, profile: the settings of both.
    """

    quiet: list[list[float]] = field(repr=False)
    layers: tuple[int, ...]
    curve: list[float] = field(repr=False)
    candidates: list[Candidate] = field(repr=False)
    boundary: int
    snr: float
    kept: int
    block: int
    reason: str | None
    stock_text: str
    stock_ids: list[int] = field(repr=False)
    stock_end: int | None
    prompt_tokens: int
    config: GenerationConfig
    profile: Profile

    @property
    def passing(self) -> list[Candidate]:
        """The candidates that meet the profile's conditions, among which the highest snr wins."""
        p = self.profile
        return [c for c in self.candidates if c.passes(p.min_snr, p.plateau, p.min_jump)]

    @property
    def offset(self) -> int | None:
        """Slots from stock's end to the boundary: below 0 it is early, above late. None without a stock end."""
        return None if self.stock_end is None else self.boundary - self.stock_end

    @property
    def holds(self) -> bool:
        """Whether the kept window has room for stock's answer and its end."""
        return self.kept == self.config.window or (self.stock_end is not None and self.stock_end < self.kept)

    def as_dict(self) -> dict:
        """Plain values for JSON, candidates as objects; `version` names this layout."""
        values = asdict(self) | {"candidates": [c._asdict() for c in self.candidates]}
        return {"version": VERSION, **values, "offset": self.offset, "holds": self.holds}

    def summary(self) -> str:
        """A few lines for a terminal."""
        found = f"boundary {self.boundary}, snr {self.snr:.1f}" if self.snr > 0 else f"no boundary, snr {self.snr:.1f}"
        block = "one block" if self.block == self.kept else f"blocks of {self.block}"
        kept = f"kept {self.kept} of {self.config.window} slots ({block})"
        if self.stock_end is None:
            stock = "no end in the window"
        else:
            stock = f"ends in slot {self.stock_end}"
        lines = [
            f"step 0: {found}, {len(self.passing)} of {len(self.candidates)} candidates pass",
            f"cut:    margin {self.profile.margin}, {kept}" + (f": {self.reason}" if self.reason else ""),
            f"stock:  {stock}, {len(self.stock_ids)} slots, {self.prompt_tokens} prompt tokens",
        ]
        if self.snr > 0 and self.offset is not None:
            side = "early" if self.offset < 0 else "late"
            lines.append(f"        the boundary is {f'{abs(self.offset)} {side}' if self.offset else 'right there'}")
        lines.append(f"        the kept window {'holds' if self.holds else 'DOES NOT hold'} stock's answer")
        return "\n".join([*lines, self.stock_text] if self.stock_text else lines)

    def save_json(self, file: Path, **more) -> None:
        """Write `as_dict` and `more`, whole or not at all. No NaN can be in it."""
        text = json.dumps({**self.as_dict(), **more}, ensure_ascii=False, indent=1, allow_nan=False)
        with written_whole(file) as partial:
            partial.write_text(text + "\n", encoding="utf-8")


@torch.inference_mode()
def probe(
    model: Model | Wrapped,
    prompt,
    images=None,
    config: GenerationConfig | None = None,
    profile: Profile | None = None,
    *,
    layers: str = "all",
    on_step: OnStep | None = None,
) -> ProbeReport:
    """Look at step 0 of one prompt, with every slot masked, and run the stock algorithm beside it.

    Args:
        model: of `load`, with any cache, or of `wrap`, with none.
        prompt, images: as one row of `generate` (a wrapped model's: of its `generate`).
        config: None takes the default `GenerationConfig`.
        profile: None takes the model's.
        layers: "all" measures every layer; "profile" the probe layers alone.
        on_step: called with the row's state after each step of the stock run.
    Raises:
        ValueError, TypeError, OSError: an argument is invalid; nothing has been run then.
    """
    config = GenerationConfig() if config is None else config
    check_choice("layers", layers, LAYERS)
    profile = model.profile if profile is None else profile
    prompts = [prompt, prompt]
    if isinstance(model, Wrapped):
        if images:
            raise ValueError(f"images must be empty for a wrapped model, got {len(images)}")
        model, prompts = model.prepared(prompts, config)
    (row, stock_row), _ = prepare(model, prompts, [images, images], config, [Truncation(profile=profile), None])
    denoise(model.backbone, [stock_row], profile, on_step)
    stock = result_of(model, stock_row)

    canvas = Canvas(model.backbone, [row], prefill(model.backbone, [row]))
    n_layers = model.backbone.config.n_layers
    measured = tuple(range(n_layers)) if layers == "all" else tuple(sorted(set(profile.probe_layers)))
    seen = Probe(measured, profile.threshold)
    canvas.forward(canvas.embeddings(), 0, max(measured) + 1, seen)
    mean = Probe(profile.probe_layers, profile.threshold, seen.per_layer).mean()
    share, lengths = canvas.window_values(mean, profile.slot_offset)
    fixed, (unread,) = last_fixed(row.ids, row.mask_id), canvas.unread(profile.slot_offset)
    (boundary,), (snr,) = find_boundary(share, lengths, profile, [fixed], [unread])
    kept, block = kept_window(boundary, config, profile.margin, fixed)
    reason = row.reason or (NO_JUMP if snr == 0 else NOTHING_TO_CUT if kept == config.window else None)
    if reason is not None:
        kept, block = config.window, config.block

    curve = share[0].tolist()
    candidates = snr_candidates(curve[unread:], profile.window, max(1, fixed - unread))
    return ProbeReport(
        quiet=[canvas.window_values(seen.per_layer[i], profile.slot_offset)[0][0].tolist() for i in measured],
        layers=measured,
        curve=curve,
        candidates=[c._replace(keep=c.keep + unread) for c in candidates],
        boundary=boundary,
        snr=snr,
        kept=kept,
        block=block,
        reason=reason,
        stock_text=stock.text,
        stock_ids=stock.window_ids,
        stock_end=stock_row.end(),
        prompt_tokens=stock.prompt_tokens,
        config=config,
        profile=profile,
    )
