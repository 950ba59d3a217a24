"""Where the answer ends: the SNR rule beside rivals, on real curves of quiet shares and on made ones.

    python bench/study_boundary.py --out bench/results/study_boundary.md [--twins NAME=DIR ...]

Curves come from one forward of the demo model per held-out question; what a window has to hold is the right answer and
its end. Every rule has a few settings: the one is taken that keeps fewest slots at the smallest margin which cuts none
of the questions with even numbers short, over all windows together; what is shown are the questions with odd numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from seer_dllm import GenerationConfig, Model, Profile, Truncation, generate, load
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.report import round_up
from seer_dllm.tables import markdown, percent
from seer_ext import ops

SEED, BATCH, WINDOWS, MARGINS = 5, 18, (128, 256), (0, 3, 8)
EARLY = Profile(probe_layers=(3, 4, 5, 6), threshold=0.002, min_jump=0.02, margin=3)  # the paper's layers
JUMPS = (0.02, 0.03, 0.04, 0.05, 0.06)

Rule = Callable[[np.ndarray], np.ndarray]  # curves float32 [B, G] -> boundary int [B], G where none is found


def snr(curves: np.ndarray, trailing: int = 0, **arguments) -> np.ndarray:
    """The op; `trailing` quiet slots are kept on top (1: the end token itself)."""
    boundary, _ = ops.snr_boundary(torch.from_numpy(curves), **arguments)
    return np.minimum(boundary.numpy() + trailing, curves.shape[1])


def tail_plateau(curves: np.ndarray, min_jump: float, tolerance: float) -> np.ndarray:
    """Scan for where the level of the window's end begins: the median of its last eighth, less `tolerance`.

    The first slot on that level, with nine tenths of the next 8 slots and of all slots from it on, which lie more than
    `min_jump` above the 8 slots before it.
    """
    found, near, share = [], 8, 0.9
    for s in curves.astype(np.float64):
        n = len(s)
        on = s > np.median(s[-max(near, n // 8) :]) - tolerance
        rest = np.cumsum(on[::-1])[::-1] / np.arange(n, 0, -1)
        at = next((j for j in range(1, n) if on[j] and rest[j] >= share and on[j : j + near].mean() >= share), n)
        rises = at < n and s[at:].mean() - s[max(0, at - near) : at].mean() > min_jump
        found.append(at if rises else n)
    return np.array(found)


def two_segments(curves: np.ndarray, min_jump: float, explained: float) -> np.ndarray:
    """The change point of least squares between two constants, the second more than `min_jump` above the first.

    It must explain a share of the curve's variance (a straight ramp split in the middle: 0.75).
    """
    found = []
    for s in curves.astype(np.float64):
        n, j = len(s), np.arange(1, len(s))
        sums = np.cumsum(s)
        rise = (sums[-1] - sums[:-1]) / (n - j) - sums[:-1] / j
        gain = np.where(rise > min_jump, j * (n - j) / n * rise**2, 0)
        best = int(gain.argmax())
        found.append(best + 1 if gain[best] > max(0, explained * n * s.var()) else n)
    return np.array(found)


@dataclass(frozen=True)
class Curves:
    """Quiet shares float32 `[B, G]` and how many slots each window has to hold; G where nothing may be cut."""

    values: np.ndarray
    needs: np.ndarray

    def part(self, parity: int) -> Curves:
        return Curves(self.values[parity::2], self.needs[parity::2])

    def kept(self, boundary: np.ndarray, margin: int) -> np.ndarray:
        return round_up(boundary + margin, self.values.shape[1])

    def short(self, boundary: np.ndarray, margin: int) -> np.ndarray:
        """Which windows are too short by the boundary and margin alone, whatever they are rounded up to."""
        return np.minimum(boundary + margin, self.values.shape[1]) < self.needs

    def safe_margin(self, boundary: np.ndarray) -> int:
        return int(max(0, np.where(boundary < self.values.shape[1], self.needs - boundary, 0).max()))


def rivals(profile: Profile) -> dict[str, list[tuple[str, Rule]]]:
    """Per kind of rule its settings, named."""
    names = ("window", "min_snr", "plateau", "min_jump")
    fixed = {name: getattr(profile, name) for name in names}
    snrs = [
        {"window": w, "plateau": p, "min_jump": jump, "min_snr": profile.min_snr}
        for w in (4, 8, 16, 24)
        for p in (0.9, 1.0)
        for jump in JUMPS
    ]
    tails = [{"min_jump": jump, "tolerance": t} for jump in JUMPS for t in (0.02, 0.03, 0.04, 0.05, 0.06, 0.08)]
    segments = [{"min_jump": jump, "explained": e} for jump in JUMPS for e in (0.0, 0.5, 0.8)]

    def variants(rule, settings):
        return [(", ".join(f"{k} {v:g}" for k, v in s.items()), partial(rule, **s)) for s in settings]

    return {
        "snr, as the profile has it": variants(snr, [fixed]),
        "the same, keep_trailing=1": variants(snr, [fixed | {"trailing": 1}]),
        "snr, chosen": variants(snr, snrs),
        "tail plateau, chosen": variants(tail_plateau, tails),
        "two segments, chosen": variants(two_segments, segments),
    }


def choose(variants: list[tuple[str, Rule]], every: list[Curves]) -> tuple[str, Rule]:
    """The setting with the fewest slots kept, over all windows, at one margin that cuts nothing of them short."""

    def slots(variant: tuple[str, Rule]) -> float:
        found = [variant[1](curves.values) for curves in every]
        margin = max(curves.safe_margin(b) for curves, b in zip(every, found, strict=True))
        return float(np.mean([curves.kept(b, margin).mean() for curves, b in zip(every, found, strict=True)]))

    return variants[0] if len(variants) == 1 else min(variants, key=slots)


def curves_of(model: Model, profile: Profile, window: int, asked) -> Curves:
    """From step 0 of each question."""
    values = []
    for first in range(0, len(asked), BATCH):
        some = asked[first : first + BATCH]
        results = generate(
            replace(model, profile=profile),
            [question for _, _, question, _ in some],
            images=[Image.fromarray(picture) for picture, _, _, _ in some],
            config=GenerationConfig(window=window, steps=1),
            truncation=Truncation(safety_net=False),
        )
        values += [result.sparsity for result in results]
    needs = [len(model.encode(answer)) + 1 for _, _, _, answer in asked]
    return Curves(np.array(values, np.float32), np.array(needs))


def made_curves(rows: int = 200, window: int = 128) -> dict[str, Curves]:
    """Families with a known end: a step from 0.40 to 0.70 at an even spread of slots, and what is no end at all."""
    rng = np.random.default_rng(SEED)
    slot, ends = np.arange(window), np.linspace(1, window - 1, rows).astype(int)
    step = np.where(slot < ends[:, None], 0.40, 0.70)
    flat, all_of_it = np.full((rows, window), 0.6), np.full(rows, window)
    middle = np.where(slot >= ends[:, None] // 2, 0.15, 0.0)  # a first plateau half-way through the answer
    noise = {sigma: rng.normal(0, sigma, (rows, window)) for sigma in (0.01, 0.03, 0.1)}
    spikes = 0.25 * (rng.random((rows, window)) < 0.05) * np.where(slot < ends[:, None], 1, -1)
    ramp = np.linspace(0, 1, window) * np.linspace(0.05, 0.45, rows)[:, None]
    steep = np.linspace(0, 1, window) * np.linspace(0.5, 0.6, rows)[:, None]
    families = {
        "step": (step, ends),
        **{f"step, noise {sigma:g}": (step + noise[sigma], ends) for sigma in noise},
        "step, noise 0.01, 5 % spikes of 0.25": (step + noise[0.01] + spikes, ends),
        "two plateaus, noise 0.01": (step + np.where(slot < ends[:, None], middle, 0) + noise[0.01], ends),
        "tiny step of 0.02, noise 0.01": (0.5 + (step - 0.4) / 15 + noise[0.01], all_of_it),
        "noise 0.01 alone": (flat + noise[0.01], all_of_it),
        "noise 0.1 alone": (flat + noise[0.1], all_of_it),
        "ramp by 0.05 to 0.45": (0.3 + ramp, all_of_it),
        "ramp by 0.50 to 0.60": (0.3 + steep, all_of_it),
    }
    return {name: Curves(values.astype(np.float32), needs) for name, (values, needs) in families.items()}


def cells(curves: Curves, boundary: np.ndarray) -> list[str]:
    margin = curves.safe_margin(boundary)
    return [
        percent((boundary < curves.values.shape[1]).mean()),
        " / ".join(percent(curves.short(boundary, m).mean()) for m in MARGINS),
        " / ".join(f"{curves.kept(boundary, m).mean():.1f}" for m in MARGINS),
        str(margin),
        f"{curves.kept(boundary, margin).mean():.1f}",
    ]


HEAD = ["curves", "rule", "cut", "too short at margin 0 / 3 / 8", "kept at 0 / 3 / 8", "smallest safe margin"]
HEAD += ["kept with it"]


def study(name: str, profile: Profile, model: Model, twins: dict[str, Model], asked, made) -> str:
    """The tables of one profile: its settings are chosen on the model's curves and hold for all others."""
    own = {window: curves_of(model, profile, window, asked) for window in WINDOWS}
    fit = [curves.part(0) for curves in own.values()]
    chosen = {kind: choose(variants, fit) for kind, variants in rivals(profile).items()}
    shown = {f"demo, window {window}": curves.part(1) for window, curves in own.items()}
    for twin, other in twins.items():
        shown |= {f"{twin}, window {w}": curves_of(other, profile, w, asked).part(1) for w in WINDOWS}
    shown |= made
    rows = [
        [of, kind, *cells(curves, rule(curves.values))]
        for of, curves in shown.items()
        for kind, (_, rule) in chosen.items()
    ]
    settings = "\n".join(f"* {kind}: {setting}" for kind, (setting, _) in chosen.items())
    return f"### {name}\n\n{profile}\n\n{settings}\n\n{markdown(HEAD, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twins", nargs="*", default=[], metavar="NAME=DIR", help="other trainings of it")
    parser.add_argument("--questions", type=int, default=360)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(model_folder())
    twins = {name: load(folder) for name, _, folder in (twin.partition("=") for twin in args.twins)}
    asked = data.heldout_questions(args.questions, SEED)
    text = [
        f"{args.questions} held-out questions, half of them to choose settings, half to measure; windows of "
        f"{' and '.join(map(str, WINDOWS))}; margins and needs in slots, kept windows rounded up to 8.\n"
        "A margin is safe if no window of that line is too short with it. Where nothing may be cut (noise, ramps, tiny "
        "steps) every cut window is too short.",
        study("The embedded profile", model.profile, model, twins, asked, made_curves()),
        study("The early layers", EARLY, model, twins, asked, {}),
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(text) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
