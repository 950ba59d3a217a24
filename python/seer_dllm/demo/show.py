"""`seer demo`: held-out sheets, stock and Seer side by side, and what the cut saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from seer_dllm.api import Model, Result, generate, load
from seer_dllm.config import GenerationConfig, Truncation, check_positive
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.questions import KINDS
from seer_dllm.demo.scoring import exact
from seer_dllm.plot import draw_curve, draw_line, new_figure, save_figure

# Long and short answers from the start, however few sheets are asked for.
SHOWN = ("describe", "places", "first", "row", "mark", "above", "table", "cell", "count")
BARS = " ▁▂▃▄▅▆▇█"
CURVE_WIDTH = 64


def curve(sparsity: Sequence[float], boundary: int, kept: int) -> list[str]:
    """The quiet share over the window as one line of bars, and below it marks at the boundary and the cut."""
    step = -(-len(sparsity) // CURVE_WIDTH)
    cells = [float(np.mean(sparsity[i : i + step])) for i in range(0, len(sparsity), step)]
    low, high = min(cells), max(cells)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    bars = "".join(BARS[round((cell - low) * scale)] for cell in cells)
    marks = [" "] * (len(cells) + 1)
    marks[min(kept // step, len(cells))] = "|"
    marks[min(boundary // step, len(cells))] = "^"
    return [f"{bars}   quiet share {low:.2f} to {high:.2f}", "".join(marks)]


def shorten(text: str, width: int = 88) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def plot_curves(rows: list[tuple[str, Result]], file: Path) -> None:
    """Draw the curves with boundary, cut and true end. ImportError if matplotlib is missing."""
    figure = new_figure(9, 1.9 * len(rows))
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (question, result) in zip(axes, rows, strict=True):
        draw_curve(axis, result.sparsity)
        draw_line(axis, "boundary", result.boundary, f"boundary {result.boundary}")
        draw_line(axis, "kept", result.window_tokens, f"kept {result.window_tokens}")
        draw_line(axis, "end", result.useful_tokens, f"end {result.useful_tokens}")
        axis.set_title(question, fontsize=9, loc="left")
        axis.legend(fontsize=7, loc="lower right")
    axes[-1].set_xlabel("slot of the window at step 0")
    figure.suptitle("MLP sparsity at step 0 (induced by a penalty and an early loss at this scale)", fontsize=10)
    save_figure(figure, file)


def show(*, sheets: int, window: int, seed: int, out: Path, plot: Path | None) -> None:
    """Ask about `sheets` held-out sheets with the stock algorithm and with Seer, and print both.

    The pictures are written to `out` and read from there, as a user's own would be.
    """
    check_positive("sheets", sheets)
    config = GenerationConfig(window=window)
    model = load(model_folder())
    asked = data.heldout_questions(len(KINDS) * -(-sheets // len(KINDS)), seed)  # the kinds in turn
    kinds = [KINDS.index(kind) for kind in SHOWN]
    chosen = [asked[i - i % len(KINDS) + kinds[i % len(KINDS)]] for i in range(sheets)]
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for i, (image, *_) in enumerate(chosen):
        files.append(out / f"sheet{i + 1}.png")
        Image.fromarray(image).resize((256, 256), Image.Resampling.NEAREST).save(files[-1])

    first = generate(model, [chosen[0][2]], images=[[files[0]]], config=GenerationConfig(window=32))  # warms up
    print(
        f"model: demo (LaViDa-LLaDA layout, {count(model) / 1e6:.1f} M parameters), P={first[0].prompt_tokens}, "
        f"window={config.window}, steps={config.steps}, block={config.block}, cache=none, batch=1"
    )
    rows: list[tuple[str, Result, Result, str]] = []
    for file, (_, _, question, truth) in tqdm(list(zip(files, chosen, strict=True)), desc="sheets", leave=False):
        (stock,) = generate(model, [question], images=[[file]], config=config, truncation=None)
        (seer,) = generate(model, [question], images=[[file]], config=config, truncation=Truncation())
        rows.append((question, stock, seer, truth))
    for file, (question, stock, seer, truth) in zip(files, rows, strict=True):
        print(f"\n{file}: {question}")
        for name, result in (("stock", stock), ("Seer ", seer)):
            mark = "right" if exact(result.text, truth) else f"wrong, it is: {shorten(truth, 60)}"
            print(f"  {name}  {shorten(result.text)}  ({mark})")
        if seer.sparsity is not None:
            for line in curve(seer.sparsity, seer.boundary, seer.window_tokens):
                print("         " + line)
        print(
            f"         boundary {seer.boundary}, snr {seer.snr or 0:.1f}, "
            + (f"cut to {seer.window_tokens} of {window} slots" if seer.truncated else f"not cut: {seer.reason}")
        )

    print(
        f"\n{'':8}{'seconds':>9}{'steps':>7}{'token-forwards':>16}{'slots':>7}{'useful':>8}{'useful/s':>10}{'right':>7}"
    )
    totals = []
    for name, results in (("stock", [r[1] for r in rows]), ("Seer", [r[2] for r in rows])):
        seconds = sum(r.seconds for r in results)
        useful = sum(r.useful_tokens for r in results)
        right = sum(exact(r.text, row[3]) for r, row in zip(results, rows, strict=True))
        totals.append((seconds, useful))
        print(
            f"{name:8}{seconds:9.2f}{sum(r.steps for r in results):7}{sum(r.token_forwards for r in results):16.0f}"
            f"{sum(r.window_tokens for r in results):7}{useful:8}{useful / seconds:10.1f}{right:4}/{len(rows)}"
        )
    ratio = (totals[1][1] / totals[1][0]) / max(totals[0][1] / totals[0][0], 1e-9)
    print(f"\nuseful tokens per second, Seer / stock: {ratio:.1f}x (both in this run, one answer at a time)")
    print(
        "The quiet tail is induced by a penalty on MLP activity and an early loss in this small model's training; "
        "the paper reports it for untouched 8B models."
    )
    if plot is not None:
        plot_curves([(q, seer) for q, _, seer, _ in rows if seer.sparsity is not None], plot)
        print(f"curves: {plot}")


def count(model: Model) -> int:
    """Parameters of all parts."""
    parts = [model.backbone, *([model.vision] if model.vision is not None else [])]
    return sum(p.numel() for part in parts for p in part.parameters())
