"""Pictures of what is seen at step 0. Needs matplotlib, which nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seer_dllm.files import written_whole

if TYPE_CHECKING:
    from seer_dllm.probe import ProbeReport

LINES = {
    "boundary": {"color": "#d1495b", "lw": 1.5, "ls": "--"},
    "kept": {"color": "#8d99ae", "lw": 1.5, "ls": "-."},
    "end": {"color": "#2a9d8f", "lw": 2.0, "ls": "-"},
}


def new_figure(width: float, height: float):
    """An empty figure, in inches. ImportError names the extra to install if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plotting needs matplotlib: pip install 'seer-ext[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, file: Path) -> None:
    """Write a PNG, whole or not at all."""
    with written_whole(file) as partial:
        figure.savefig(partial, dpi=120, format="png")


def draw_line(axis, kind: str, slots: int, label: str) -> None:
    """A line behind the first `slots` slots; `kind` is a key of `LINES`."""
    axis.axvline(slots - 0.5, label=label, **LINES[kind])


def draw_map(axis, quiet, layers: Sequence[int], probe_layers: Sequence[int], limits: tuple[float, float]):
    """The quiet share `[layers, G]` by slot and layer; dotted lines enclose the probe layers. Returns the image."""
    image = axis.imshow(
        quiet, aspect="auto", cmap="magma", vmin=limits[0], vmax=limits[1], interpolation="nearest", origin="upper"
    )
    rows = [row for row, layer in enumerate(layers) if layer in probe_layers]
    for row in rows:
        for edge, neighbour in ((row - 0.5, row - 1), (row + 0.5, row + 1)):
            if neighbour not in rows:
                axis.axhline(edge, color="white", lw=1, ls=":")
    ticks = range(0, len(layers), -(-len(layers) // 8))
    axis.set_yticks(ticks, [str(layers[row]) for row in ticks])
    axis.set_ylabel("layer")
    return image


def map_limits(quiet, layers: Sequence[int], probe_layers: Sequence[int]) -> tuple[float, float]:
    """Colours span what the probe layers show: others may be far quieter or louder."""
    shown = np.asarray(quiet)[[row for row, layer in enumerate(layers) if layer in probe_layers]]
    low, high = np.quantile(shown, (0.01, 0.99))
    return float(low), float(high)


def draw_curve(axis, curve: Sequence[float]) -> None:
    """The mean quiet share of each slot."""
    axis.plot(curve, color="#2a6f97", lw=1.3)
    axis.set_ylabel("quiet share")


def draw_probe(report: ProbeReport, file: Path) -> None:
    """One report as a PNG: the map, the mean curve, and the snr of every candidate that may be cut at."""
    figure = new_figure(10, 7.5)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    profile = report.profile
    limits = map_limits(report.quiet, report.layers, profile.probe_layers)
    image = draw_map(axes[0], report.quiet, report.layers, profile.probe_layers, limits)
    figure.colorbar(image, ax=axes[0], extend="both", label=f"share below {profile.threshold:g}")
    draw_curve(axes[1], report.curve)
    passing = {c.keep for c in report.passing}
    for good, colour, label in ((False, "#c9c9c9", "fails a condition"), (True, "#2a6f97", "may be the end")):
        shown = [c for c in report.candidates if (c.keep in passing) == good]
        # A candidate that keeps j slots cuts between slots j - 1 and j.
        axes[2].bar([c.keep - 0.5 for c in shown], [c.snr for c in shown], width=0.8, color=colour, label=label)
    axes[2].axhline(profile.min_snr, color="black", lw=0.8, ls=":", label=f"min_snr {profile.min_snr:g}")
    axes[2].set_yscale("symlog", linthresh=1)
    axes[2].yaxis.set_major_formatter("{x:g}")
    axes[2].set_ylabel("snr")
    axes[2].legend(fontsize=8, loc="lower right")
    for axis in axes:
        draw_line(axis, "boundary", report.boundary, f"boundary {report.boundary}")
        draw_line(axis, "kept", report.kept, f"kept {report.kept}")
        if report.stock_end is not None:
            draw_line(axis, "end", report.stock_end + 1, f"stock ends in slot {report.stock_end}")
    axes[0].legend(fontsize=8, loc="lower right")
    axes[2].set_xlabel("slot of the window at step 0, all slots masked; dotted: the probe layers")
    save_figure(figure, file)


def draw_end(curve: Mapping[int, float], title: str, file: Path) -> None:
    """The mean quiet share around the end of many answers, as a PNG; slots count from the first behind the end."""
    figure = new_figure(7, 3)
    axis = figure.subplots()
    axis.plot(list(curve), list(curve.values()), color="#2a6f97", marker=".")
    draw_line(axis, "end", 0, "end of stock's answer")
    axis.set_xlabel("slot at step 0, from the first one behind the end")
    axis.set_ylabel("mean quiet share")
    axis.set_title(title, fontsize=8)
    axis.legend()
    save_figure(figure, file)
