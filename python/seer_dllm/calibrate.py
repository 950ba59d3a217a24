"""`seer calibrate`: find where and how a model shows the end of its answers, and prove it on samples of its own.

Stock runs tell where answers end, step 0 how quiet each layer is (`collect.py`); some of the samples choose the profile
(`search.py`), the others, which had no say in it, tell how often it cuts a window too short. A model without the signal
is refused: then nothing is written.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from seer_dllm import api, plot
from seer_dllm.collect import Collector, Measured, Sample, read_samples
from seer_dllm.config import GenerationConfig, Profile, check_number, check_positive
from seer_dllm.demo import data, model_folder
from seer_dllm.files import check_output
from seer_dllm.profile import PROFILE_FILE, write_profile
from seer_dllm.search import Costs, Outcome, Search, clopper_pearson, samples_needed
from seer_dllm.wrap import Wrapped

SEED = 20263  # of the built-in questions and of the split; no evaluation asks these
LEAST = 30  # samples for choosing and for testing: fewer can't bound a rate of 10 % at 95 %
ENOUGH = 500  # samples for choosing, beyond which more go to the test if it needs them
LEAST_ENDED = 0.25  # share of stock's answers that must end inside the window
LEAST_SAVED = 0.1  # share of the token-layers that a profile must save, of stock's and of a constant window's
LEAST_OF_ORACLE = 0.5  # of what an oracle saves; with less, it is the margin that keeps answers whole, not the signal
AROUND_END = range(-16, 33)  # slots of the mean curve, from stock's first slot behind the end


class Refused(ValueError):
    """No profile for this model: the signal isn't there, or the samples can't show it."""


@dataclass(frozen=True)
class Calibration:
    """A profile and what it rests on.

    Attributes:
        evidence: plain values for the profile's file.
        candidates: the best profile of several layer ranges, cheapest first, on the samples that chose.
        tested: the first of them on the samples that did not.
    """

    profile: Profile
    evidence: dict[str, Any]
    candidates: list[Outcome]
    tested: Outcome


def calibrate(
    model: api.Model | Wrapped,
    samples: Sequence[Sample],
    *,
    config: GenerationConfig | None = None,
    max_cut: float = 0.001,
    confidence: float = 0.95,
    holdout: float | None = None,
    batch: int = 8,
    work: str | Path | None = None,
) -> Calibration:
    """Choose a profile for a model on sample prompts.

    Args:
        model: its own profile is not looked at.
        samples: what the model is going to be asked; for a wrapped model with prompts as its `generate` takes them.
        config: how it is going to be run.
        max_cut: the share of windows that may be cut too short: to fewer slots than stock's answer with its end.
        confidence: of the one-sided bound on that share.
        holdout: share of the samples that test the choice. None: half, or more where the bound needs more.
        batch: rows of a forward.
        work: file of what was run, from which another call goes on.
    Raises:
        Refused: there is no profile that cuts, meets the bound and saves work.
        ValueError, OSError: an argument is invalid (before any work) or a sample can't be run.
    """
    config = GenerationConfig() if config is None else config
    check_number("max_cut", max_cut, 1e-6, 0.5)
    check_number("confidence", confidence, 0.5, 1 - 1e-9)
    check_positive("batch", batch)
    if config.suppress_eos or config.defer_end:
        raise ValueError("suppress_eos and defer_end must be off for calibration: with them no window is cut")
    if config.window < 32:
        raise ValueError(f"window must have at least 32 slots for calibration, got {config.window}")
    chosen, held = split(len(samples), samples_needed(max_cut, confidence), holdout)
    wrapped = isinstance(model, Wrapped)
    if wrapped:
        prompts = model.embed_prompts([sample.prompt for sample in samples])
        samples, model = [Sample(prompt) for prompt in prompts], model.as_model()
    collector = Collector(model, config, batch)
    if work is None:
        with tempfile.TemporaryDirectory() as folder:
            measured = collector.collect(samples, Path(folder) / "work.jsonl")
    else:
        measured = collector.collect(samples, Path(work))
    search = Search(Costs.of(config, measured.n_layers, wrapped), max_cut, confidence)
    candidates, tested = choose(measured, search, chosen, held)
    evidence = {"runtime": "wrap" if wrapped else "native", "settings": asdict(config), "samples": len(samples)}
    evidence |= findings(measured.rows(held), tested, max_cut, confidence)
    evidence["work_saved_by_slot_offset"] = {
        offset: 1 - search.fitted(measured.rows(chosen), replace(tested.profile, slot_offset=offset)).cost
        for offset in (0, 1)
    }
    return Calibration(tested.profile, evidence, candidates, tested)


def split(n: int, needed: int, holdout: float | None) -> tuple[Tensor, Tensor]:
    """Indices of the samples that choose and of those that test, drawn by `SEED`. ValueError if there are too few."""
    if holdout is not None:
        check_number("holdout", holdout, 0.0, 1.0)
        test = round(n * holdout)
    else:
        test = max(n // 2, min(needed, n - ENOUGH))
    if min(test, n - test) < LEAST:
        raise ValueError(
            f"samples must leave at least {LEAST} for choosing and {LEAST} for the test, got {n - test} and {test}"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(SEED))
    return order[test:].sort().values, order[:test].sort().values


def choose(measured: Measured, search: Search, chosen: Tensor, held: Tensor) -> tuple[list[Outcome], Outcome]:
    """The candidates by the samples `chosen`, and the first of them on those `held` back. Refused if it fails there."""
    ended = int(measured.ended.sum())
    if ended < LEAST_ENDED * len(measured):
        raise Refused(
            f"stock's answers must end inside the window, at least {LEAST_ENDED:.0%} of them, to show where they end, "
            f"got {ended} of {len(measured)}; try a larger window, or other samples"
        )
    candidates = search.best(measured.rows(chosen))
    tested = search.outcome(measured.rows(held), candidates[0].profile)
    constant = search.constant(measured.rows(chosen))
    blind = search.cost_at(measured.rows(held), torch.full((len(held),), constant))
    oracle = search.cost_at(measured.rows(held), tested.needed)
    bound = clopper_pearson(tested.too_short, len(held), search.confidence)
    best = (
        f"best was {describe(tested.profile)}: {tested.too_short} of {len(held)} windows cut too short "
        f"(at most {bound:.2%} at {search.confidence:.0%}), {1 - tested.cost:.1%} of the work saved, "
        f"where a constant window of {constant} saves {1 - blind:.1%} and an oracle {1 - oracle:.1%}"
    )
    if tested.too_short and bound > search.max_cut:
        raise Refused(f"no profile meets the bound of {search.max_cut:.2%}; {best}")
    saved = 1 - tested.cost
    if tested.cost > (1 - LEAST_SAVED) * min(1.0, blind) or saved < LEAST_OF_ORACLE * (1 - oracle):
        raise Refused(
            f"no profile meets the bound and saves {LEAST_SAVED:.0%} of the work of a constant window, and "
            f"{LEAST_OF_ORACLE:.0%} of what an oracle saves; {best}"
        )
    return candidates, tested


def findings(held: Measured, tested: Outcome, max_cut: float, confidence: float) -> dict[str, Any]:
    """What the samples that had no say showed, as plain values."""
    bound = clopper_pearson(tested.too_short, len(held), confidence)
    window = held.shares.shape[-1] - 1
    curves = held.curves(tested.profile)
    aligned = {}
    for offset in AROUND_END:
        at = held.needs + offset
        there = held.ended & (at >= 0) & (at < window)
        if there.any():
            aligned[offset] = round(float(curves[there, at[there]].mean()), 5)
    return {
        "tested_on": len(held),
        "ended_inside_window": int(held.ended.sum()),
        "cut": int((tested.kept < window).sum()),
        "cut_too_short": tested.too_short,
        "bound": bound,
        "confidence": confidence,
        "max_cut": max_cut,
        "proven": bound <= max_cut,
        "samples_needed": samples_needed(max_cut, confidence),
        "kept_share": float(tested.kept.double().mean()) / window,
        "oracle_share": float(tested.needed.double().mean()) / window,
        "work_saved": 1 - tested.cost,
        "quiet_share_around_end": aligned,
    }


def describe(profile: Profile) -> str:
    layers = profile.probe_layers
    span = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
    rest = ", ".join(f"{name} {value:g}" for name, value in asdict(profile).items() if name != "probe_layers")
    return f"{span}, {rest}"


def report(found: Calibration) -> str:
    """The candidates, the choice and what it was proven to do, as text."""
    head = ("layers", "threshold", "offset", "window", "min_snr", "min_jump", "plateau", "margin", "kept", "saved")
    table = [head]
    for outcome in found.candidates[:5]:
        p = outcome.profile
        values = (p.threshold, p.slot_offset, p.window, p.min_snr, p.min_jump, p.plateau, p.margin)
        kept = f"{float(outcome.kept.double().mean()):.1f}"
        span = f"{p.probe_layers[0]}-{p.probe_layers[-1]}"
        table.append((span, *(f"{value:g}" for value in values), kept, f"{1 - outcome.cost:.1%}"))
    e = found.evidence
    lines = ["candidates, on the samples that chose:"]
    lines += ["  " + "".join(cell.rjust(10) for cell in row) for row in table]
    lines.append(f"chosen: {describe(found.profile)}")
    lines.append(
        f"on {e['tested_on']} samples that had no say: {e['cut']} windows cut, {e['cut_too_short']} too short, hence "
        f"at most {e['bound']:.3%} at {e['confidence']:.0%} (Clopper-Pearson)"
    )
    if not e["proven"]:
        lines.append(
            f"the bound asked for, {e['max_cut']:.3%}, needs {e['samples_needed']} such samples without a failure; "
            f"{e['bound']:.3%} is the best that {e['tested_on']} can prove"
        )
    lines.append(
        f"kept {e['kept_share']:.1%} of the slots, an oracle {e['oracle_share']:.1%}; "
        f"{e['work_saved']:.1%} of the token-layers saved"
    )
    by_offset = e["work_saved_by_slot_offset"]
    lines.append(f"saved by slot offset, on the samples that chose: 0: {by_offset[0]:.1%}, 1: {by_offset[1]:.1%}")
    return "\n".join(lines)


def built_in(n: int) -> list[Sample]:
    """Questions about held-out sheets for the demo model; none of them is asked by `seer eval-demo`."""
    return [Sample(text, (Image.fromarray(image),)) for image, _, text, _ in data.heldout_questions(n, SEED)]


def command(args: Namespace, config: GenerationConfig) -> None:
    """`seer calibrate`."""
    folder = model_folder() if args.model == "demo" else Path(args.model)
    out = folder / PROFILE_FILE if args.out is None else args.out
    if out.is_dir() or not out.parent.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ValueError(f"out must be a file that can be written, in a folder that exists, got {str(out)!r}")
    source = ("demo" if args.model == "demo" else None) if args.data is None else args.data
    if source is None:
        raise ValueError("data must name a JSONL file of sample prompts; only the demo model has built-in ones")
    if source == "demo":
        check_positive("samples", args.samples)
        samples = built_in(args.samples)
    else:
        samples = read_samples(Path(source))
    work = out.with_suffix(".work.jsonl") if args.work is None else args.work
    check_output("plot", args.plot)
    if args.plot is not None:
        plot.new_figure(1, 1)  # says at once if it can't be drawn
    model = api.load(folder, device=args.device, dtype=args.dtype, profile=Profile())
    try:
        found = calibrate(
            model, samples, config=config, max_cut=args.max_cut, confidence=args.confidence, holdout=args.holdout,
            batch=args.batch, work=work,
        )  # fmt: skip
    except Refused as refusal:
        raise Refused(f"{refusal} (nothing is written; what was run is in {work})") from None
    found = replace(found, evidence={"data": str(source), **found.evidence})
    print(report(found))
    if args.plot is not None:
        plot.draw_end(found.evidence["quiet_share_around_end"], describe(found.profile), args.plot)
        print(f"curve: {args.plot}")
    write_profile(out, found.profile, found.evidence)
    if args.work is None:
        work.unlink()
    print(f"written: {out}")
