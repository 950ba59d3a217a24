"""Stock against Seer on a random model with the layers of a real one, whose answers end where they are told to.

    python bench/bench_denoise.py --shape llada-8b --layers 2 --prompt 272 --window 256 --steps 32 --ends headline
    python bench/bench_denoise.py --shape llada-8b --layers 2 --sample 4 --ends headline
    python bench/bench_denoise.py --shape llada-8b --layers 32 --device cuda --ends FILE

Real is all that is computed, by the loop as it is: the layers, the head, the probe in them, the boundary and its read
on the host, the cut, the early net. Given is the end of each answer: the quiet shares that are looked at, and which
slots say EOS (`shapes.GivenEnds`); the words before it are noise. One request at a time, a prompt of random embeddings.

Without `--sample` whole runs are measured; beside them stands the ratio to be expected from bare passes of the
backbone. With it a few steps of each run are timed, at all and at half of the layers, and the rest is modelled: all
steps, and all layers of the real model. Each cache is compared with its own stock. Early stop is stock until a finished
block holds an end, with its attention still over the whole window.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from denoise_runs import KEEP, SEER, STOCK, Bare, Run, Setting, Way, extrapolated, measured, probe_layers, sampled
from shapes import MODELS, GivenEnds, check_memory, first_layers, random_backbone, read_ends
from timing import machine

from seer_dllm import GenerationConfig, Model, Profile
from seer_dllm.checkpoint import DTYPES
from seer_dllm.families import FAMILIES
from seer_dllm.tables import markdown

HEAD = ["run", "useful tokens/s", "vs stock", "steps factor", "per-step factor", "useful tokens", "slots", "steps",
        "forwards", "seconds", "kind"]  # fmt: skip
Runs = dict[Way, list[Run]]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=MODELS)
    parser.add_argument("--layers", type=int, required=True, help="of the model that is run")
    parser.add_argument("--ends", default="headline", help="headline, uniform, short, bimodal, heavy, or a file of "
                        "useful tokens, a JSON list or one a line")  # fmt: skip
    parser.add_argument("--requests", type=int, default=4, help="drawn where --ends names a distribution")
    parser.add_argument("--prompt", type=int, default=1090, help="tokens")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--steps", type=int, help="default: a step per two slots")
    parser.add_argument("--block", type=int, nargs="+", help="one or several; default: the window")
    parser.add_argument("--cache", nargs="+", default=["none", "prompt"], choices=["none", "prompt"])
    parser.add_argument("--sample", type=int, help="steps of each run that are timed, the rest modelled; default: all")
    parser.add_argument("--repeats", type=int, default=1, help="of whole runs, of which the median is taken")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="bfloat16 is "
                        "several times as fast as float32 on a CPU with AVX512-BF16")  # fmt: skip
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's own choice")
    parser.add_argument("--busy", action="store_true", help="one thread, its CPU time: for a machine that others keep "
                        "busy")  # fmt: skip
    parser.add_argument("--out", type=Path, help="write the tables here")
    parser.add_argument("--json", type=Path, help="the same as numbers")
    args = parser.parse_args(argv)
    args.steps = args.steps or max(1, args.window // 2)
    args.block = args.block or [args.window]
    try:
        check(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def check(args: argparse.Namespace) -> None:
    """Fill in `configs` and `ends`. ValueError: what can't be run, before anything is."""
    real = MODELS[args.shape]
    if not 1 <= args.layers <= real.n_layers:
        raise ValueError(f"layers must be in [1, {real.n_layers}], as {args.shape} has them, got {args.layers}")
    if args.sample is not None and args.layers == 1:
        raise ValueError("layers must be 2 at least with --sample, which also runs half of them, got 1")
    for name in ("requests", "repeats", "sample", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if args.prompt < 0 or args.prompt + args.window > real.max_length:
        raise ValueError(
            f"prompt and window must fit the model's {real.max_length} positions, got {args.prompt} + {args.window}"
        )
    args.configs = [
        GenerationConfig(window=args.window, steps=args.steps, block=block, cache=cache)
        for block, cache in product(args.block, args.cache)
    ]
    args.ends = read_ends(args.ends, args.window, args.requests)
    if args.busy and args.device == "cuda":
        raise ValueError("busy must be left out on a GPU, whose time is not the process's, got --busy")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be there, but torch finds no CUDA device, got 'cuda'")
    config = replace(real, n_layers=args.layers)
    check_memory(config, DTYPES[args.dtype], torch.device(args.device), args.prompt + args.window, max(args.block))


# ---- tables ------------------------------------------------------------------------------------------------


def rates(runs: Runs) -> dict[Way, dict[str, float]]:
    """The numbers of a table: sums over the requests, slots a mean, and ratios to stock."""
    found = {}
    for way, own in runs.items():
        total = {
            "useful": sum(run.useful for run in own), "slots": sum(run.slots for run in own) / len(own),
            "steps": sum(run.cost.steps for run in own), "forwards": sum(run.forwards for run in own),
            "seconds": sum(run.cost.seconds for run in own),
        }  # fmt: skip
        stock = found.get(STOCK, total)
        total["ratio"] = stock["seconds"] / total["seconds"]
        total["steps_factor"] = stock["steps"] / total["steps"]
        found[way] = total
    return found


def table(found: dict[Way, dict[str, float]], kind: str) -> str:
    lines, kind = [], kind.split(",")[0]
    for way, r in found.items():
        lines.append(
            [way.name, f"{r['useful'] / r['seconds']:.3g}", f"{r['ratio']:.2f}x", f"{r['steps_factor']:.2f}x",
             f"{r['ratio'] / r['steps_factor']:.2f}x", r["useful"], f"{r['slots']:.1f}", r["steps"], r["forwards"],
             f"{r['seconds']:.1f}", kind]
        )  # fmt: skip
    return markdown(HEAD, lines)


def step_costs(parts: list[tuple[str, Runs]]) -> str:
    """Of the first request, what its steps took, by where that comes from."""
    head = ["run", *(f"{which} step, {where}" for where, _ in parts for which in ("first", "later"))]
    lines = []
    for way in parts[0][1]:
        line = [way.name]
        for cost in (runs[way][0].cost for _, runs in parts):
            line += [f"{cost.first:.3g}", f"{cost.later:.3g}" if cost.steps > 1 else "-"]
        lines.append(line)
    return "Seconds of a step of the first request:\n\n" + markdown(head, lines)


def expectations(config: GenerationConfig, runs: Runs, bare: Bare | None) -> list[dict]:
    """A cell of the 2x2 table for each of Seer's ways to count steps."""
    found, ratios = [], rates(runs)
    for way in (SEER, KEEP):
        cell = {"cache": config.cache, "block": config.block, "steps": way.truncation.steps_policy}
        cell["ratio"] = ratios[way]["ratio"]
        if bare is not None:
            stock, own = (sum(map(bare.seconds, runs[w])) for w in (STOCK, way))
            cell["predicted"] = stock / own
        found.append(cell)
    return found


def two_by_two(cells: list[dict], kind: str) -> str:
    head, lines = ["cache", "block", "Seer's steps", "vs stock"], []
    for c in cells:
        lines.append([c["cache"], c["block"], c["steps"], f"{c['ratio']:.2f}x"])
        if "predicted" in c:
            lines[-1] += [f"{c['predicted']:.2f}x", f"{100 * c['ratio'] / c['predicted']:.0f} %"]
    if "predicted" in cells[0]:
        head += ["predicted by bare passes", "measured / predicted"]
    return f"Seer against stock, {kind}:\n\n" + markdown(head, lines)


# ---- the command -------------------------------------------------------------------------------------------


def run_setting(setting: Setting, args: argparse.Namespace) -> tuple[Runs, list[tuple[str, Runs]], Bare | None, str]:
    """The runs to report, what they come from, and of which kind they are."""
    real, layers = MODELS[args.shape].n_layers, args.layers
    if args.sample is None:
        runs = measured(setting, args.repeats)
        return runs, [("mean", runs)], Bare(setting), f"measured, {layers} of {real} layers"
    many = sampled(setting, args.sample)
    kind = f"modelled, from {args.sample + 1} steps of each run"
    if layers == real:
        return many, [("sampled", many)], None, kind
    half = layers // 2
    fewer = replace(setting, model=replace(setting.model, backbone=first_layers(setting.model.backbone, half)))
    few = sampled(fewer, args.sample)
    depth = max(setting.model.profile.probe_layers) + 1
    runs = extrapolated(few, many, (half, layers, real), (depth, max(probe_layers(real, real)) + 1))
    parts = [(f"{half} layers", few), (f"{layers} layers", many), (f"{real} layers, modelled", runs)]
    return runs, parts, None, f"{kind} at {half} and {layers} layers, for all {real} layers"


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    warnings.simplefilter("ignore")  # the prompt cache is an approximation for some families
    if args.threads or args.busy:
        torch.set_num_threads(1 if args.busy else args.threads)
    real = MODELS[args.shape]
    config = replace(real, n_layers=args.layers)
    header = machine(args.device) | {"clock": "CPU time" if args.busy else "wall"}
    backbone = random_backbone(config, DTYPES[args.dtype], args.device, GivenEnds)
    profile = Profile(probe_layers=probe_layers(args.layers, real.n_layers))
    model = Model(FAMILIES[0], backbone, None, None, (config.eos_id,), profile)
    prompt = torch.randn(args.prompt, config.hidden_size).to(backbone.device, backbone.dtype) * 0.02
    title = (
        f"{args.shape}'s layers, random weights in {args.dtype}, {args.layers} of {real.n_layers} layers on "
        f"{args.device}; P {args.prompt}, window {args.window}, steps {args.steps}, batch 1, requests of "
        f"{', '.join(map(str, args.ends))} useful tokens; probe layers {list(profile.probe_layers)}, margin "
        f"{profile.margin}; " + ", ".join(f"{key} {value}" for key, value in header.items())
    )
    sections, cells, found = [], [], []
    for settings in args.configs:
        setting = Setting(model, prompt, settings, args.ends, args.busy)
        runs, parts, bare, kind = run_setting(setting, args)
        numbers = rates(runs)
        cells += expectations(settings, runs, bare)
        found.append(
            {"cache": settings.cache, "block": settings.block, "kind": kind,
             "runs": [{"run": way.name, **r} for way, r in numbers.items()]}
        )  # fmt: skip
        head = f"## cache {settings.cache}, block {settings.block}: {kind}"
        sections.append("\n\n".join([head, table(numbers, kind), step_costs(parts)]))
        text = "\n\n".join([f"# Stock and Seer at true layer shapes\n\n{title}.", two_by_two(cells, kind), *sections])
        if args.out is not None:  # after every setting, so that a stop loses no more than one
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(text + "\n")
        if args.json is not None:
            values = {"environment": header, "settings": title, "tables": found, "two_by_two": cells}
            args.json.write_text(json.dumps(values, indent=1))
    print(text)
