"""Draw what Seer sees at step 0: the quiet share of every slot in every layer, for three sheets with their true ends.

    python bench/plot_sparsity.py --out bench/results/demo_sparsity.png

Needs matplotlib. The sheets show one wording whose answer is short, middling and long.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from seer_dllm import GenerationConfig, Model, Truncation, generate, load
from seer_dllm.backbone import Packing, Probe
from seer_dllm.demo import data, model_folder


def quiet_shares(model: Model, question: str, image: np.ndarray, window: int) -> np.ndarray:
    """float `[layers, window]`: share of quiet activations at step 0, where every slot is masked."""
    config = model.backbone.config
    with torch.inference_mode():
        prompt = model.embed_prompt(question, [Image.fromarray(image)])
        masks = model.backbone.embed(torch.full((window,), config.mask_id))
        probe = Probe(tuple(range(config.n_layers)), model.profile.threshold)
        model.backbone.run(torch.cat((prompt, masks)), Packing([len(prompt) + window]), probe=probe)
        return torch.stack([probe.per_layer[i][-window:] for i in range(config.n_layers)]).numpy()


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
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = load(args.model)
    layers = model.profile.probe_layers
    figure, axes = plt.subplots(3, 2, figsize=(10, 6.6), width_ratios=(1, 6), layout="constrained")
    sheets = pick(args.kind, args.seed)
    curves = [quiet_shares(model, question, image, args.window) for image, question, _ in sheets]
    # The colours span what the probe layers show.
    low, high = np.quantile(np.stack(curves)[:, list(layers)], (0.01, 0.99))
    for (sheet, axis), (image, question, truth), shares in zip(axes, sheets, curves, strict=True):
        picture = [Image.fromarray(image)]
        config = GenerationConfig(window=args.window)
        (seer,) = generate(model, [question], images=picture, config=config, truncation=Truncation())
        needs = len(model.encode(truth)) + 1
        sheet.imshow(image)
        sheet.set_axis_off()
        drawn = axis.imshow(shares, aspect="auto", cmap="magma", vmin=low, vmax=high, interpolation="nearest")
        axis.axhspan(min(layers) - 0.5, max(layers) + 0.5, fill=False, ec="white", lw=1, ls=":")
        axis.axvline(needs - 0.5, color="#4cc9f0", lw=2, label=f"true end, {needs} tokens")
        axis.axvline(seer.boundary - 0.5, color="#80ed99", lw=1.5, ls="--", label=f"boundary {seer.boundary}")
        axis.set_ylabel("layer")
        axis.set_title(truth if len(truth) < 90 else truth[:89] + "…", fontsize=8, loc="left")
        axis.legend(fontsize=8, loc="lower right")
    axes[-1, 1].set_xlabel("slot of the window at step 0, all slots masked; dotted: the probe layers")
    label = f"share of MLP activations below {model.profile.threshold:g}"
    figure.colorbar(drawn, ax=axes[:, 1], extend="both", label=label)
    figure.suptitle(f"“{question}” (quietness induced by a penalty and an early loss at this scale)", fontsize=10)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
