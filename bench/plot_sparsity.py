"""Draw what Seer sees at step 0: the quiet share of every slot in every layer, for three sheets with their true ends.

    python bench/plot_sparsity.py --out bench/results/demo_sparsity.png

Needs matplotlib. The sheets show one wording whose answer is short, middling and long.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from seer_dllm import GenerationConfig, load
from seer_dllm.demo import data, model_folder
from seer_dllm.plot import draw_line, draw_map, map_limits, new_figure, save_figure
from seer_dllm.probe import probe


def pick(kind: str, seed: int) -> list[tuple[np.ndarray, str, str]]:
    """Three held-out sheets of the kind: the shortest answer of fifty, the one in the middle, the longest."""
    asked = [(image, q, a) for image, k, q, a in data.heldout_questions(50 * len(data.KINDS), seed) if k == kind]
    asked.sort(key=lambda item: len(item[2].split()))
    return [asked[0], asked[len(asked) // 2], asked[-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=model_folder())
    parser.add_argument("--kind", default="mark", choices=data.KINDS)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    model = load(args.model)
    profile = model.profile
    sheets = pick(args.kind, args.seed)
    figure = new_figure(10, 6.6)
    axes = figure.subplots(3, 2, width_ratios=(1, 6))
    config = GenerationConfig(window=args.window)
    reports = [probe(model, question, [Image.fromarray(image)], config) for image, question, _ in sheets]
    quiet = np.concatenate([report.quiet for report in reports], axis=1)
    limits = map_limits(quiet, reports[0].layers, profile.probe_layers)
    for (sheet, axis), (image, _, truth), report in zip(axes, sheets, reports, strict=True):
        needs = len(model.encode(truth)) + 1
        sheet.imshow(image)
        sheet.set_axis_off()
        drawn = draw_map(axis, report.quiet, report.layers, profile.probe_layers, limits)
        draw_line(axis, "end", needs, f"true end, {needs} tokens")
        draw_line(axis, "boundary", report.boundary, f"boundary {report.boundary}")
        axis.set_title(truth if len(truth) < 90 else truth[:89] + "…", fontsize=8, loc="left")
        axis.legend(fontsize=8, loc="lower right")
    axes[-1, 1].set_xlabel("slot of the window at step 0, all slots masked; dotted: the probe layers")
    label = f"share of MLP activations below {profile.threshold:g}"
    figure.colorbar(drawn, ax=axes[:, 1], extend="both", label=label)
    figure.suptitle(f"“{sheets[0][1]}” (quietness induced by a penalty and an early loss at this scale)", fontsize=10)
    save_figure(figure, args.out)


if __name__ == "__main__":
    main()
