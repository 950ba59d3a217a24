"""The `seer` command. Bad input is one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from seer_dllm.config import (
    BLOCK_CACHES,
    CACHES,
    COMMIT_RULES,
    METHODS,
    SCHEDULES,
    STEP0,
    STEPS_POLICIES,
    GenerationConfig,
    Truncation,
)
from seer_dllm.files import check_output
from seer_dllm.metrics import METRICS


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage block."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser() -> Parser:
    parser = Parser(prog="seer", description="Diffusion multimodal language models, cut where the answer ends.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")

    demo = commands.add_parser("demo", help="stock and Seer side by side on held-out sheets of the demo model")
    demo.add_argument("--sheets", type=int, default=4, metavar="N", help="sheets to ask about (default 4)")
    demo.add_argument("--window", type=int, default=128, metavar="N", help="masked slots (default 128)")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="which sheets (default 0)")
    demo.add_argument("--out", type=Path, default=Path("seer-demo"), metavar="DIR", help="where the pictures go")
    demo.add_argument("--plot", type=Path, metavar="FILE", help="draw the sparsity curves (needs matplotlib)")

    evaluate = commands.add_parser("eval-demo", help="the demo model's evaluation: stock, Seer and the controls")
    evaluate.add_argument("--full", action="store_true", help="the whole grid of settings, and more questions")
    evaluate.add_argument("--model", type=Path, metavar="DIR", help="another demo checkpoint (default: the embedded)")
    evaluate.add_argument(
        "--out",
        type=Path,
        default=Path("seer-eval"),
        metavar="DIR",
        help="answers and report; goes on where it stopped",
    )

    score = commands.add_parser("eval", help="answer a file of questions, stock and Seer, and compare the scores")
    score.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder; 'demo' is the embedded one")
    score.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help='lines of {"prompt": TEXT, "images": [FILE], "answers": [TEXT]}; \'demo\': built-in ones',
    )
    score.add_argument("--metric", required=True, metavar="NAME", help=", ".join(METRICS))
    score.add_argument("--samples", type=int, default=90, metavar="N", help="built-in questions (default 90)")
    score.add_argument("--limit", type=int, metavar="N", help="only the first N questions (default: all)")
    score.add_argument("--runs", nargs="+", default=["stock", "seer"], metavar="NAME", help="which (default both)")
    score.add_argument("--batch", type=int, default=8, metavar="N", help="rows of a batch (default 8)")
    score.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="answers, scores, report; goes on where it stopped"
    )
    add_truncation(score)
    add_settings(score)

    gen = commands.add_parser("generate", help="answer a question about a picture with a local checkpoint")
    add_run_options(gen)
    add_truncation(gen)
    gen.add_argument("--stock", action="store_true", help="run the stock algorithm, without the cut")
    gen.add_argument("--json", action="store_true", help="print everything that is known about the answer")

    probe = commands.add_parser("probe", help="what one prompt shows at step 0, layer by layer, and what stock answers")
    add_run_options(probe)
    probe.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    probe.add_argument("--png", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    probe.add_argument("--layers", default="all", choices=("all", "profile"), help="which to measure (default all)")

    check = commands.add_parser("check", help="ids, masks and shift of a checkpoint, by masked tokens it must recover")
    check.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder; 'demo' is the embedded one")
    check.add_argument("--text", type=Path, metavar="FILE", help="plain texts, one a line (default: a built-in set)")
    add_device_options(check)
    check.add_argument("--json", action="store_true", help="print the measured figures")

    cal = commands.add_parser("calibrate", help="find where a checkpoint shows the end of its answers, and prove it")
    cal.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder; 'demo' is the embedded one")
    cal.add_argument(
        "--data", metavar="FILE", help='lines of {"prompt": TEXT, "images": [FILE]}; \'demo\': built-in ones'
    )
    cal.add_argument("--samples", type=int, default=400, metavar="N", help="built-in questions (default 400)")
    cal.add_argument("--max-cut", type=float, default=0.001, metavar="X", help="windows cut too short (default 0.001)")
    cal.add_argument("--confidence", type=float, default=0.95, metavar="X", help="of the bound (default 0.95)")
    cal.add_argument(
        "--holdout", type=float, metavar="X", help="share of samples that test (default: half, or as needed)"
    )
    cal.add_argument("--batch", type=int, default=8, metavar="N", help="rows of a forward (default 8)")
    cal.add_argument("--out", type=Path, metavar="FILE", help="the profile (default: the model's seer_profile.json)")
    cal.add_argument(
        "--work", type=Path, metavar="FILE", help="what was run; goes on where it stopped (default: by --out)"
    )
    cal.add_argument("--plot", type=Path, metavar="FILE", help="draw the curve around the end (needs matplotlib)")
    add_settings(cal)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """A prompt and how it is answered."""
    parser.add_argument("--model", required=True, metavar="DIR", help="checkpoint folder; 'demo' is the embedded one")
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="may be given several times")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options of a `GenerationConfig`, and where the model runs."""
    parser.add_argument("--window", type=int, default=128, metavar="N", help="masked slots (default 128)")
    parser.add_argument("--steps", type=int, metavar="N", help="denoising steps (default: one slot a step)")
    parser.add_argument("--block", type=int, metavar="N", help="slots of a block (default: the whole window)")
    parser.add_argument("--schedule", default="even", metavar="NAME", help=", ".join(SCHEDULES))
    parser.add_argument("--shift", type=float, default=3.0, metavar="X", help="of the shift schedule (default 3)")
    parser.add_argument("--eps", type=float, default=1e-3, metavar="X", help="end of the dream schedule's times")
    parser.add_argument("--times", type=int, metavar="N", help="steps of the dream schedule's times (default: --steps)")
    parser.add_argument("--commit", default="low_confidence", metavar="NAME", help=", ".join(COMMIT_RULES))
    parser.add_argument("--threshold", type=float, metavar="X", help="write every slot at or above this confidence")
    parser.add_argument(
        "--hold-back", action="store_true", help="a step writes its quota at most, the threshold's rest comes later"
    )
    parser.add_argument("--factor", type=float, metavar="X", help="Fast-dLLM's factor rule")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X")
    parser.add_argument("--top-p", type=float, metavar="X", help="only the most probable tokens, up to this mass")
    parser.add_argument("--top-k", type=int, metavar="N", help="only this many of the most probable tokens")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--cfg-scale", type=float, default=0.0, metavar="X", help="classifier-free guidance")
    parser.add_argument("--cache", default="none", metavar="NAME", help=", ".join(CACHES))
    parser.add_argument("--suppress-eos", action="store_true", help="never predict EOS (switches the cut off)")
    parser.add_argument("--defer-end", action="store_true", help="write ends last (switches the cut off)")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="cut the answer at this string")
    add_device_options(parser)


def add_truncation(parser: argparse.ArgumentParser) -> None:
    """The options of a `Truncation`."""
    default = f"(default: carry; restart with {', '.join(BLOCK_CACHES)})"
    parser.add_argument("--step0", metavar="NAME", help=f"{', '.join(STEP0)} {default}")
    parser.add_argument("--steps-policy", default="rescale", metavar="NAME", help=", ".join(STEPS_POLICIES))
    parser.add_argument("--method", default="seer", metavar="NAME", help=f"{', '.join(METHODS)} (default seer)")
    parser.add_argument("--no-safety-net", action="store_true", help="never let a cut window grow again")


def add_device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="NAME", help="torch device (default cpu)")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="float32, bfloat16, float16")


def checked_config(args: argparse.Namespace) -> GenerationConfig:
    """The settings and the prompt are checked before torch and the checkpoint are loaded."""
    if not args.prompt.strip():
        raise ValueError("prompt must hold some text, got an empty one")
    return config_of(args)


def config_of(args: argparse.Namespace) -> GenerationConfig:
    return GenerationConfig(**{field.name: getattr(args, field.name) for field in fields(GenerationConfig)})


def truncation_of(args: argparse.Namespace) -> Truncation:
    return Truncation(
        step0=args.step0, steps_policy=args.steps_policy, safety_net=not args.no_safety_net, method=args.method
    )


def folder_of(args: argparse.Namespace) -> Path:
    from seer_dllm.demo import model_folder

    return model_folder() if args.model == "demo" else Path(args.model)


def load_model(args: argparse.Namespace):
    from seer_dllm import api

    return api.load(folder_of(args), device=args.device, dtype=args.dtype)


def run_generate(args: argparse.Namespace) -> None:
    config = checked_config(args)
    truncation = None if args.stock else truncation_of(args)

    from tqdm import tqdm

    from seer_dllm import api

    model = load_model(args)
    with tqdm(desc="steps", leave=False, disable=None) as bar:  # silent unless a terminal
        (result,) = api.generate(
            model,
            [args.prompt],
            images=[args.image],
            config=config,
            truncation=truncation,
            on_step=lambda row: bar.update(),
        )
    if args.json:
        used = truncation and asdict(truncation.resolved(config.cache, model.profile))
        settings = {"model": str(args.model), **asdict(config), "truncation": used}
        print(json.dumps({"settings": settings, **asdict(result)}, ensure_ascii=False, indent=1))
        return
    print(result.text)
    cut = f"cut to {result.window_tokens} of {config.window} slots" if result.truncated else f"not cut: {result.reason}"
    print(
        f"[{result.useful_tokens} useful tokens, {cut}, {result.steps} steps, "
        f"{result.token_forwards:.0f} token-forwards, {result.prompt_tokens} prompt tokens, {result.seconds:.2f} s, "
        f"finish: {result.finish_reason}]",
        file=sys.stderr,
    )


def run_probe(args: argparse.Namespace) -> None:
    config = checked_config(args)
    for name in ("json", "png"):
        check_output(name, getattr(args, name))

    from tqdm import tqdm

    from seer_dllm import plot
    from seer_dllm.probe import probe

    if args.png is not None:
        plot.new_figure(1, 1)  # says at once if it can't be drawn
    model = load_model(args)
    with tqdm(desc="steps", leave=False, disable=None) as bar:
        report = probe(model, args.prompt, args.image, config, layers=args.layers, on_step=lambda row: bar.update())
    if args.json is not None:
        report.save_json(args.json, model=str(args.model), prompt=args.prompt, images=args.image)
    if args.png is not None:
        plot.draw_probe(report, args.png)
    print(report.summary())


def run_check(args: argparse.Namespace) -> int:
    from seer_dllm.check import check, read_texts

    texts = None if args.text is None else read_texts(args.text)
    report = check(load_model(args), texts, folder_of(args))
    print(json.dumps({"model": args.model, **report.as_dict()}, indent=1) if args.json else report.summary())
    return int(report.failed)


def run_demo(args: argparse.Namespace) -> None:
    from seer_dllm.demo.show import show

    show(sheets=args.sheets, window=args.window, seed=args.seed, out=args.out, plot=args.plot)


def run_eval_demo(args: argparse.Namespace) -> None:
    from seer_dllm.demo import model_folder
    from seer_dllm.demo.evaluate import evaluate, plan
    from seer_dllm.demo.report import report

    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"out must be a folder, got the file {str(args.out)!r}")
    records, model = evaluate(args.model or model_folder(), args.out / "answers.jsonl", plan(args.full))
    text = report(records, model.encode)
    (args.out / "report.md").write_text(text + "\n")
    print(text)


def run_eval(args: argparse.Namespace) -> None:
    config, truncation = config_of(args), truncation_of(args)

    from seer_dllm import evaluation

    evaluation.command(args, config, truncation)


def run_calibrate(args: argparse.Namespace) -> None:
    config = config_of(args)

    from seer_dllm import calibrate

    calibrate.command(args, config)


COMMANDS = {
    "calibrate": run_calibrate,
    "check": run_check,
    "demo": run_demo,
    "eval": run_eval,
    "eval-demo": run_eval_demo,
    "generate": run_generate,
    "probe": run_probe,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, 1 if a check failed, 2 for input that can't be used."""
    args = make_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"seer {args.command}: {message}", file=sys.stderr)
            return COMMANDS[args.command](args) or 0
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"seer {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
