"""Train the demo model: `python -m seer_dllm.demo.train --out DIR --work DIR`.

Two stages. First image tower and projector learn to tell what each image token shows and where it stands (minutes).
Then the language model learns the task, at half-time joined by them, with the masked-diffusion loss of these models:
every slot of the window is masked with probability t, cross-entropy over t, [EOS] padding trained like content (LLaDA,
arXiv 2502.09992), masked copies in complementary pairs, half of the batches with a prompt blind to the window (LaViDa).

The penalty on MLP activity is ours: at this size it is what makes activations go quiet on padding, the picture that the
paper reports for untouched 8B models. It acts on all positions alike, prompt, answer and padding, and rests for the
last fifth of the training. `--early` is ours too: the same cross-entropy read off before layer `EARLY_EXIT`, so that
early layers know the answer's length; without it only the deep ones do.

One process per core, each with its own rows, gradients averaged after every step; working weights in bfloat16, masters
in float32. Seeded, and resumable from `--work` at any time; the weights written to `--out` are a running average (EMA).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from seer_dllm.backbone import Backbone, KeyValues, Packing
from seer_dllm.checkpoint import load_parts, save_checkpoint
from seer_dllm.demo import data, vocabulary
from seer_dllm.demo.batches import Batch, Batches, to_pixels
from seer_dllm.demo.questions import SIDE
from seer_dllm.families import find_family
from seer_dllm.vision import VisionEncoder

EMBEDDING_STD = 0.2
EARLY_EXIT = 4  # a layer among the probe layers 3 to 6, so that they know what they are to show
VISION_SHARE = 0.05  # of the rate; at the full rate an untaught language model had ruined the tower after 700 steps
TOKENS = 32.0  # the loss is a sum over this many tokens: a constant, so that no window length changes a token's weight


def demo_config(tokenizer) -> tuple[dict, dict]:
    """config.json and vision_config.json of the demo model, in LaViDa-LLaDA's keys."""
    ids = {name: tokenizer.token_to_id(name) for name in (vocabulary.MASK, vocabulary.EOS)}
    config = {
        "architectures": ["LlavaLladaForMaskedDiffusion"], "model_type": "llava_llada",
        "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
        "d_model": 96, "n_layers": 16, "n_heads": 3, "n_kv_heads": 3, "mlp_hidden_size": 288,
        "max_sequence_length": 1024, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "weight_tying": False,
        "vocab_size": tokenizer.get_vocab_size(), "embedding_size": tokenizer.get_vocab_size(),
        "mask_token_id": ids[vocabulary.MASK], "eos_token_id": ids[vocabulary.EOS], "pad_token_id": ids[vocabulary.EOS],
        "image_aspect_ratio": "pad", "mm_hidden_size": 64, "mm_newline_position": "grid",
        "mm_patch_merge_type": "spatial_unpad", "mm_projector_type": "mlp2x_gelu", "mm_spatial_pool_mode": "bilinear",
        "mm_vision_select_layer": -2, "torch_dtype": "float16",
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_channels": 3, "image_size": data.PIXELS, "patch_size": 4,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "attention_dropout": 0.0,
    }  # fmt: skip
    return config, vision


class DemoModel(nn.Module):
    """The two trained parts, under the names that `save_checkpoint` expects."""

    def __init__(self, config: dict, vision_config: dict) -> None:
        super().__init__()
        self.backbone = Backbone(find_family(config).read_config(config))
        self.vision = VisionEncoder.from_config(config, vision_config)
        width = self.backbone.config.hidden_size**-0.5
        for name, module in self.backbone.named_modules():
            if isinstance(module, nn.Linear):  # queries and keys twice as large, so that attention is not uniform
                nn.init.normal_(module.weight, std=width if name.endswith(("q_proj", "k_proj")) else width / 2)
        nn.init.normal_(self.backbone.embed.weight, std=EMBEDDING_STD)
        depth = 1 / math.sqrt(2 * self.backbone.config.n_layers)
        for layer in self.backbone.layers:
            for proj in (layer.o_proj, layer.down_proj):
                proj.weight.data.mul_(depth)

    def compile(self) -> None:
        """Fuse what lies between the matrix products; one compilation serves all layers."""
        torch._dynamo.config.recompile_limit = 64  # window lengths x modes, all small and all reused
        self.vision.encode_views = torch.compile(self.vision.encode_views, dynamic=False)
        for layer in self.backbone.layers:
            layer.attention = torch.compile(layer.attention, dynamic=False)
            layer.mlp = torch.compile(layer.mlp, dynamic=False)


class ActivityPenalty:
    """Mean `|silu(gate) * up|` over all layers and positions; observes the backbone like a probe does."""

    threshold = 0.0

    def __init__(self) -> None:
        self.terms: list[Tensor] = []

    def observe(self, layer: int, act: Tensor, share: Tensor | None) -> None:
        self.terms.append(act.abs().mean(dtype=torch.float32))

    def value(self) -> Tensor:
        return torch.stack(self.terms).mean()


def window_states(model: DemoModel, batch: Batch, probe: ActivityPenalty | None, stops: Sequence[int]) -> list[Tensor]:
    """Hidden states of all windows, `[n, k, w, H]`, before each of the layers `stops` (ascending; may be the depth)."""
    backbone = model.backbone
    n, k, w = batch.masked.shape
    p = batch.prompt.shape[1]
    features = model.vision.encode_views(batch.pixels.to(backbone.dtype))
    size = features.shape[1]
    prompt = backbone.embed(batch.prompt)
    spliced = zip(prompt, features, batch.image_from, strict=True)
    prompt = torch.stack([torch.cat((row[:at], image, row[at + size :])) for row, image, at in spliced])
    window = backbone.embed(torch.where(batch.masked, backbone.config.mask_id, batch.answer[:, None]))
    seen = torch.cat((batch.real[:, None].expand(n, k, p), torch.ones(n, k, w, dtype=torch.bool)), dim=2)
    seen = seen.reshape(n * k, 1, 1, p + w)
    past = None
    if batch.blind:
        prefix = KeyValues(Packing([p] * n))
        backbone.run(prompt.flatten(0, 1), prefix.packing, keep=prefix, probe=probe, mask=batch.real[:, None, None])

        def copies(t: Tensor) -> Tensor:
            return t.view(n, 1, p, *t.shape[1:]).expand(n, k, p, *t.shape[1:]).flatten(0, 2)

        past = KeyValues(Packing([p] * (n * k)), [(copies(key), copies(value)) for key, value in prefix.layers])
        packing, rows = Packing([w] * (n * k), offsets=[p] * (n * k)), window
    else:
        packing, rows = Packing([p + w] * (n * k)), torch.cat((prompt[:, None].expand(n, k, p, -1), window), dim=2)
    states, hidden = [], rows.flatten(0, 2)
    for start, stop in zip((0, *stops), stops, strict=False):
        hidden = backbone.run(hidden, packing, start, stop, past=past, probe=probe, mask=seen)
        states.append(hidden.view(n, k, -1, hidden.shape[-1])[:, :, -w:])
    return states


def diffusion_loss(model: DemoModel, batch: Batch, penalty: float, early: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Loss to minimise, cross-entropy per fully masked slot, and the mean activity (0 where there is no penalty).

    early: weight of the same cross-entropy read off before layer `EARLY_EXIT`, through the model's own norm and head.
    """
    probe = ActivityPenalty() if penalty else None
    depth = model.backbone.config.n_layers
    target = batch.answer[:, None].expand(batch.masked.shape)[batch.masked]
    t = batch.t[:, :, None].expand(batch.masked.shape)[batch.masked]
    total = torch.zeros(())
    for weight, hidden in zip(
        (early, 1.0) if early else (1.0,),
        window_states(model, batch, probe, (EARLY_EXIT, depth) if early else (depth,)),
        strict=True,
    ):
        losses = F.cross_entropy(model.backbone.logits(hidden[batch.masked]).float(), target, reduction="none")
        total = total + weight * (losses / t).sum() / (TOKENS * batch.t.numel())
    activity = probe.value() if probe else torch.zeros(())
    return total + penalty * activity, losses[t == 1].mean().detach(), activity.detach()


def cell_loss(model: DemoModel, head: nn.Linear, rng: np.random.Generator, sheets: int) -> tuple[Tensor, Tensor]:
    """Each image token tells digit (or blank), row and column of its cell: loss, and the share of right digits."""
    made = data.make_sheets(rng, sheets, "train")
    tokens = model.vision.encode_views(to_pixels(data.draw_sheets(made)).to(head.weight.dtype))[:, :-1]
    tokens = F.rms_norm(tokens, tokens.shape[-1:])  # as the language model's first layer sees them
    side = math.isqrt(tokens.shape[1])
    digit = torch.from_numpy(np.stack([sheet.cells for sheet in made])).long() + 1
    digit = digit.repeat_interleave(side // SIDE, 1).repeat_interleave(side // SIDE, 2).flatten()
    place = torch.arange(side * side)
    row, column = (x.repeat(sheets) // (side // SIDE) for x in (place // side, place % side))
    digits, rows, columns = head(tokens).flatten(0, 1).float().split((11, SIDE, SIDE), dim=-1)
    loss = F.cross_entropy(digits, digit) + F.cross_entropy(rows, row) + F.cross_entropy(columns, column)
    return loss, (digits.argmax(1) == digit).float().mean()


class Masters:
    """float32 masters of a bfloat16 module: takes its gradients, steps the optimizers, hands the weights back."""

    def __init__(self, module: nn.Module, world: int) -> None:
        self.working = dict(module.named_parameters())
        self.values = {name: nn.Parameter(p.detach().float()) for name, p in self.working.items()}
        module.bfloat16()
        self.grads = torch.zeros(sum(p.numel() for p in self.values.values()))
        at = 0
        for p in self.values.values():
            p.grad = self.grads[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.world = world

    def step(self, optimizers: list[torch.optim.Optimizer], clip: float = 1.0) -> None:
        for name, p in self.working.items():
            self.values[name].grad.copy_(p.grad) if p.grad is not None else self.values[name].grad.zero_()
            p.grad = None
        if self.world > 1:
            dist.all_reduce(self.grads)
            self.grads /= self.world
        self.grads *= (clip / (self.grads.norm() + 1e-6)).clamp(max=1.0)
        for optimizer in optimizers:
            optimizer.step()
        self.publish()

    def publish(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self.working.values()), list(self.values.values()))


def make_optimizers(masters: Masters, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all else; `share` of each group is its part of the rate."""
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "others": [], "vision": []}
    for name, p in masters.values.items():
        matrix = name.startswith("backbone.layers.") and p.dim() == 2
        groups["vision" if name.startswith("vision.") else "matrices" if matrix else "others"].append(p)
    muon = torch.optim.Muon(
        [{"params": groups["matrices"], "share": 1.0}],
        lr=lr, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    adamw = torch.optim.AdamW(
        [{"params": groups["others"], "share": 1.0}, {"params": groups["vision"], "share": VISION_SHARE}],
        lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True,
    )  # fmt: skip
    return [muon, adamw]


def train_tower(model: DemoModel, args: argparse.Namespace, rank: int) -> None:
    """Tower and projector, read out by a small head that is thrown away."""
    head = nn.Linear(model.backbone.config.hidden_size, 11 + 2 * SIDE)
    trained = nn.ModuleDict({"vision": model.vision, "head": head})
    masters = Masters(trained, args.processes)
    optimizer = torch.optim.AdamW(masters.values.values(), lr=2e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.tower_steps)
    bar = tqdm(range(args.tower_steps), desc="tower", mininterval=5, disable=rank > 0)
    for step in bar:
        loss, right = cell_loss(model, head, np.random.default_rng([args.seed, 1, step, rank]), 32)
        loss.backward()
        masters.step([optimizer])
        schedule.step()
        if step % 50 == 49:
            bar.set_postfix(loss=f"{loss.item():.3f}", right=f"{right:.3f}")
    with torch.no_grad():  # what follows starts from the masters, not from their rounded copies
        for name, p in model.vision.named_parameters():
            p.data = masters.values[f"vision.{name}"].detach().clone()
        sheets = data.make_sheets(np.random.default_rng(args.seed), 64, "train")
        size = model.vision.encode_views(to_pixels(data.draw_sheets(sheets))).square().mean().sqrt()
        for p in model.vision.projector[-1].parameters():  # the language model shall be able to add to what it is given
            p.mul_(EMBEDDING_STD / size)


def train(rank: int, args: argparse.Namespace, meeting: str) -> None:
    """One of `args.processes` equal processes; `meeting` is a file they meet at."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if args.processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=args.processes)
    torch.manual_seed(args.seed)
    tokenizer = vocabulary.build_tokenizer()
    config, vision_config = demo_config(tokenizer)
    model = DemoModel(config, vision_config)
    state_file = args.work / "state.pt"
    state = torch.load(state_file, weights_only=True) if state_file.exists() else None
    if not args.eager:
        model.compile()
    if args.start is not None:
        _, _, backbone, vision = load_parts(args.start, torch.float32, "cpu")
        model.backbone.load_state_dict(backbone.state_dict())
        model.vision.load_state_dict(vision.state_dict())
    elif state is None:
        train_tower(model, args, rank)
    masters = Masters(model, args.processes)
    optimizers = make_optimizers(masters, args.lr)
    average = {name: p.detach().clone() for name, p in masters.values.items()}
    start = 0
    if state is not None:
        start = state["step"]
        with torch.no_grad():
            for name, p in masters.values.items():
                p.copy_(state["model"][name])
        average = state["average"]
        for optimizer, held in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        masters.publish()

    def save(step: int) -> None:
        held = {
            "model": {name: p.detach() for name, p in masters.values.items()}, "average": average, "step": step,
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }  # fmt: skip
        torch.save(held, state_file.with_suffix(".tmp"))
        state_file.with_suffix(".tmp").replace(state_file)  # a stop while writing loses nothing
        export(args, config, vision_config, average, tokenizer)

    if rank == 0 and state is None:
        save(0)
    image_tokens = model.vision.processor.n_image_tokens(data.PIXELS, data.PIXELS)
    batches = Batches(tokenizer, image_tokens, args.seed)
    log = (args.work / "log.jsonl").open("a")
    bar = tqdm(range(start, args.steps), initial=start, total=args.steps, desc="task", mininterval=10, disable=rank > 0)
    for step in bar:
        share = step / args.steps
        # Constant, then a linear decay: --steps may be changed until the decay has begun.
        rate = min(1.0, (step + 1) / 200, (1 - share) / args.decay)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = args.lr * rate * group["share"]
        model.vision.requires_grad_(share >= args.vision_from)
        penalty = args.penalty if args.penalty_from <= share < args.penalty_until else 0.0
        loss, ce, activity = diffusion_loss(model, batches.draw(step, rank), penalty, args.early)
        loss.backward()
        masters.step(optimizers)
        with torch.no_grad():
            decay = min(args.ema, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(average.values()), list(masters.values.values()), 1 - decay)
        if rank == 0 and step % 20 == 19:
            bar.set_postfix(ce=f"{ce:.3f}", activity=f"{activity:.4f}")
            log.write(json.dumps({"step": step + 1, "ce": ce.item(), "activity": activity.item()}) + "\n")
            log.flush()
        if rank == 0 and (step % args.save_every == args.save_every - 1 or step == args.steps - 1):
            save(step + 1)


def export(args: argparse.Namespace, config: dict, vision_config: dict, weights: dict[str, Tensor], tokenizer) -> None:
    """Write the checkpoint folder, in float16: half the size, and finer than the bfloat16 it was trained in.

    Without a profile: `seer calibrate` makes it.
    """
    model = DemoModel(config, vision_config)
    model.load_state_dict(weights)
    model.half()
    save_checkpoint(args.out, config, vision_config, model.backbone, model.vision, tokenizer)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for the state that training resumes from")
    parser.add_argument("--start", type=Path, help="checkpoint folder to start from, instead of from nothing")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument(
        "--decay", type=float, default=0.4, help="last share of the steps, over which the rate falls to 0"
    )
    parser.add_argument("--tower-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--penalty", type=float, default=0.5, help="weight of the mean MLP activity in the loss")
    parser.add_argument("--vision-from", type=float, default=0.5, help="share of the steps from which vision learns on")
    parser.add_argument("--early", type=float, default=0.0, help="weight of the loss read off among the probe layers")
    parser.add_argument("--penalty-from", type=float, default=0.0, help="share of the steps where the penalty begins")
    parser.add_argument("--penalty-until", type=float, default=0.8, help="share of the steps where it ends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="do not compile; pays for a few steps only")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--save-every", type=int, default=500)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.processes == 1:
        train(0, args, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # daemons end with their parent, if it ends in order
        mp.spawn(train, (args, f"{folder}/meeting"), nprocs=args.processes, daemon=True)


if __name__ == "__main__":
    main()
