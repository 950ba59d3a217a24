"""What steps of a group cost on this device by the router's paths, and the cost model fitted to it, as a file.

    python bench/measure_costs.py --shape llada-8b --layers 32 --device cuda --out costs.json
    python bench/measure_costs.py                                                    # the demo model, on this CPU

`Engine(mode="cost", costs=CostModel.load("costs.json"))` plans by the file, `bench/sim_router.py --costs costs.json`
judges the router on it. A shape has random weights. On CUDA, static and varlen groups run as captured graphs, which all
hold keys and values of their own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from shapes import MODELS, check_memory, random_backbone

from seer_dllm import load
from seer_dllm.backbone import Backbone
from seer_dllm.capture import CudaGraphs
from seer_dllm.demo import model_folder
from seer_dllm.measure import SHAPES, cost_model, measure
from seer_dllm.tables import markdown


def backbone_of(args) -> Backbone:
    device = torch.device(args.device)
    if args.shape is None:
        return load(model_folder(), device=args.device).backbone
    config = replace(MODELS[args.shape], n_layers=args.layers)
    # All shapes are held at once: packed rows, and a recording of either path, with padding.
    held = sum(rows * (fed + past) for rows, fed, past in args.shapes) * (4 if device.type == "cuda" else 2)
    check_memory(config, torch.bfloat16, device, held, max(rows * fed for rows, fed, _ in args.shapes))
    return random_backbone(config, torch.bfloat16, device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(MODELS), help="layers of a real model, in bfloat16; default: the demo")
    parser.add_argument("--layers", type=int, default=2, help="of the shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=2048, help="at most, fed in a step; 128 suit a CPU and 8B")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the cost model here, as JSON")
    args = parser.parse_args()
    args.shapes = [(rows, fed, past) for rows, fed, past in SHAPES if rows * fed <= args.tokens]
    try:
        backbone = backbone_of(args)
    except ValueError as error:
        print(f"measure_costs: {error}", file=sys.stderr)
        return 2
    capturer = CudaGraphs() if backbone.device.type == "cuda" else None
    found = measure(backbone, args.shapes, repeats=args.repeats, capturer=capturer)
    costs = cost_model(backbone, found)
    lines = []
    for m in found:
        told = costs.seconds(m.path, m.rows, m.tokens, m.pairs)
        sizes = [m.path, str(m.rows), str(m.tokens), str(m.pairs)]
        lines.append([*sizes, f"{1e3 * m.seconds:.3f}", f"{1e3 * told:.3f}", f"{100 * (told / m.seconds - 1):+.1f} %"])
    print(markdown(["path", "rows", "tokens", "pairs", "ms", "ms by the model", "off"], lines))
    print(f"\n{costs}")
    if args.out is not None:
        costs.save(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
