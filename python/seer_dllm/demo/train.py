"""Train the demo model: `python -m seer_dllm.demo.train --out DIR --work DIR`.

Two stages. The image tower first learns to name the digit of every cell (minutes); then tower, projector and language
model learn the task together with the masked-diffusion loss of these models: every slot of the window is masked with
probability t ~ U(0,1], cross-entropy over t, [EOS] padding trained like content (LLaDA, arXiv 2502.09992). Half of the
batches see the prompt blind to the window, which is LaViDa's prefix mode, so that a prompt cache costs no accuracy.

The penalty on MLP activity (`--penalty`) is ours: at this size it is what makes activations go quiet on padding, the
picture that the paper reports for untouched 8B models.

Seeded, and resumable from `--work` at any time; the weights written to `--out` are a running average (EMA).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from seer_dllm.backbone import Backbone, Packing
from seer_dllm.chat import prompt_ids
from seer_dllm.checkpoint import save_checkpoint
from seer_dllm.demo import data, vocabulary
from seer_dllm.demo.questions import SIDE
from seer_dllm.families import find_family
from seer_dllm.vision import IMAGE_PLACEHOLDER, VisionEncoder

WINDOWS = (32, 64, 96, 128)
WINDOW_ODDS = (0.15, 0.25, 0.3, 0.3)
FULLY_MASKED = 0.25  # share of rows at t = 1: the step that the boundary is read from
MIN_T = 0.02  # bounds the weight 1/t


class ActivityPenalty:
    """Mean `|silu(gate) * up|` over all layers and positions; observes the backbone like a probe does."""

    threshold = 0.0

    def __init__(self) -> None:
        self.terms: list[Tensor] = []

    def observe(self, layer: int, act: Tensor, share: Tensor | None) -> None:
        self.terms.append(act.abs().mean(dtype=torch.float32))

    def value(self) -> Tensor:
        return torch.stack(self.terms).mean()


def demo_config(tokenizer) -> tuple[dict, dict]:
    """config.json and vision_config.json of the demo model, in LaViDa-LLaDA's keys."""
    ids = {name: tokenizer.token_to_id(name) for name in (vocabulary.MASK, vocabulary.EOS)}
    config = {
        "architectures": ["LlavaLladaForMaskedDiffusion"], "model_type": "llava_llada",
        "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
        "d_model": 128, "n_layers": 8, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 384,
        "max_sequence_length": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "weight_tying": False,
        "vocab_size": tokenizer.get_vocab_size(), "embedding_size": tokenizer.get_vocab_size(),
        "mask_token_id": ids[vocabulary.MASK], "eos_token_id": ids[vocabulary.EOS], "pad_token_id": ids[vocabulary.EOS],
        "image_aspect_ratio": "pad", "mm_hidden_size": 64, "mm_newline_position": "grid",
        "mm_patch_merge_type": "spatial_unpad", "mm_projector_type": "mlp2x_gelu", "mm_spatial_pool_mode": "bilinear",
        "mm_vision_select_layer": -2, "torch_dtype": "float32",
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
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
        for module in self.backbone.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for layer in self.vision.tower.layers:  # explicit float32 softmax is what inference needs, not training
            layer.self_attn.config._attn_implementation = "sdpa"
        depth = 1 / math.sqrt(2 * self.backbone.config.n_layers)
        for layer in self.backbone.layers:
            for proj in (layer.o_proj, layer.down_proj):
                proj.weight.data.mul_(depth)


def to_pixels(images: np.ndarray) -> Tensor:
    """uint8 `[n, H, W, 3]` to the tower's float32 `[n, 3, H, W]` in [-1, 1]; sheets need no resizing."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


class Batches:
    """Rows of one total length: what a short question leaves over, its window gets."""

    def __init__(self, tokenizer, seed: int) -> None:
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.eot, self.eos, self.mask = (
            tokenizer.token_to_id(t) for t in (vocabulary.EOT, vocabulary.EOS, vocabulary.MASK)
        )
        self.seed = seed

    def draw(self, step: int, n: int, image_tokens: int) -> dict[str, Tensor]:
        """Batch number `step`: equal seeds and numbers give equal batches, whatever ran before."""
        rng = np.random.default_rng([self.seed, step])
        images, questions, answers, _ = data.sample_batch(rng, n, "train")
        prompts = [prompt_ids(self.encode, "lavida_llada", q, images=1, system=None) for q in questions]
        window = int(rng.choice(WINDOWS, p=WINDOW_ODDS))
        total = max(map(len, prompts)) - 1 + image_tokens + window
        ids = np.full((n, total), self.eos, np.int64)
        answer_from = np.zeros(n, np.int64)
        for b, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            at = prompt.index(IMAGE_PLACEHOLDER)
            ids[b, :at] = prompt[:at]
            rest = prompt[at + 1 :]
            answer_from[b] = at + image_tokens + len(rest)
            ids[b, at + image_tokens : answer_from[b]] = rest
            content = (self.encode(answer) + [self.eot])[: total - answer_from[b]]
            ids[b, answer_from[b] : answer_from[b] + len(content)] = content
        # Low-discrepancy t: one draw per stratum, so that a batch covers (0, 1] evenly.
        t = np.maximum((rng.permutation(n) + rng.random(n)) / n, MIN_T)
        t[: int(FULLY_MASKED * n)] = 1.0
        in_window = np.arange(total) >= answer_from[:, None]
        masked = in_window & (rng.random((n, total)) < t[:, None])
        return {
            "pixels": to_pixels(images), "ids": torch.from_numpy(ids), "masked": torch.from_numpy(masked),
            "in_window": torch.from_numpy(in_window), "t": torch.from_numpy(t).float(),
            "image_at": torch.tensor(prompts[0].index(IMAGE_PLACEHOLDER)), "blind": torch.tensor(bool(step % 2)),
        }  # fmt: skip


def diffusion_loss(model: DemoModel, batch: dict[str, Tensor], penalty: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss to minimise, its cross-entropy part and the mean activity."""
    config = model.backbone.config
    ids, masked = batch["ids"], batch["masked"]
    n, total = ids.shape
    hidden = model.backbone.embed(torch.where(masked, config.mask_id, ids))
    features = model.vision.encode_views(batch["pixels"])
    at = int(batch["image_at"])
    hidden = torch.cat((hidden[:, :at], features.to(hidden.dtype), hidden[:, at + features.shape[1] :]), dim=1)
    mask = None
    if batch["blind"]:  # prompt tokens do not see the window
        in_window = batch["in_window"]
        mask = (in_window[:, :, None] | ~in_window[:, None, :])[:, None]
    activity = ActivityPenalty()
    hidden = model.backbone.run(hidden.flatten(0, 1), Packing([total] * n), probe=activity, mask=mask)
    picked = masked.flatten()
    losses = F.cross_entropy(model.backbone.logits(hidden[picked]).float(), ids.flatten()[picked], reduction="none")
    weights = (1 / (batch["t"] * batch["in_window"].sum(1)))[:, None].expand(n, total).flatten()[picked]
    ce = (losses * weights).sum() / n
    return ce + penalty * activity.value(), ce.detach(), activity.value().detach()


def train_tower(model: DemoModel, steps: int, seed: int, bf16: bool, batch: int = 64) -> None:
    """Teach the tower to name what each cell holds; the small head that reads it out is thrown away."""
    head = nn.Linear(model.backbone.config.hidden_size, 11)
    optimizer = torch.optim.AdamW([*model.vision.parameters(), *head.parameters()], lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    bar = tqdm(range(steps), desc="tower", mininterval=5)
    for step in bar:
        rng = np.random.default_rng([seed, 1, step])
        sheets = data.make_sheets(rng, batch, "train")
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            features = model.vision.encode_views(to_pixels(data.draw_sheets(sheets)))[:, :-1]  # without the newline
        features = features.float()
        side = math.isqrt(features.shape[1])
        cells = F.avg_pool2d(features.transpose(1, 2).unflatten(2, (side, side)), side // SIDE)  # [n, H, 4, 4]
        logits = head(cells.flatten(2).transpose(1, 2)).flatten(0, 1)
        target = torch.from_numpy(np.stack([s.cells for s in sheets])).long().flatten() + 1
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", right=f"{(logits.argmax(1) == target).float().mean():.3f}")


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = vocabulary.build_tokenizer()
    config, vision_config = demo_config(tokenizer)
    model = DemoModel(config, vision_config)
    args.work.mkdir(parents=True, exist_ok=True)
    state_file = args.work / "state.pt"

    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.02},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=args.lr, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    start = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    else:
        train_tower(model, args.tower_steps, args.seed, args.bf16)
    average = copy.deepcopy(model).requires_grad_(False)
    if start:
        average.load_state_dict(state["average"])

    batches = Batches(tokenizer, args.seed)
    log = (args.work / "log.jsonl").open("a")

    def save(step: int) -> None:
        held = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "average": average.state_dict(),
            "step": step,
        }
        torch.save(held, state_file.with_suffix(".tmp"))
        state_file.with_suffix(".tmp").replace(state_file)  # a stop while writing loses nothing
        save_checkpoint(
            args.out, config, vision_config, average.backbone, average.vision, tokenizer, profile=args.profile
        )

    with torch.no_grad():
        image_tokens = model.vision.encode_views(torch.zeros(1, 3, data.PIXELS, data.PIXELS)).shape[1]
    bar = tqdm(range(start, args.steps), initial=start, total=args.steps, desc="task", mininterval=10)
    for step in bar:
        warm = min(1.0, (step + 1) / 200)
        # Constant, then linear decay over the last 45 %: --steps may be changed until the decay has begun.
        rate = args.lr * warm * min(1.0, (args.steps - step) / (0.45 * args.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = batches.draw(step, args.batch, image_tokens)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss, ce, activity = diffusion_loss(model, batch, args.penalty)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay = min(args.ema, (step + 1) / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        if step % 50 == 49:
            bar.set_postfix(ce=f"{ce:.3f}", activity=f"{activity:.4f}")
            log.write(json.dumps({"step": step + 1, "ce": ce.item(), "activity": activity.item()}) + "\n")
            log.flush()
        if step % args.save_every == args.save_every - 1 or step == args.steps - 1:
            save(step + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for the state that training resumes from")
    parser.add_argument("--steps", type=int, default=8600)
    parser.add_argument("--tower-steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema", type=float, default=0.998)
    parser.add_argument("--penalty", type=float, default=0.5, help="weight of the mean MLP activity in the loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    args = parser.parse_args()
    # On 400 training sheets at window 128, 2 boundaries lay before the true end, and 1 with this margin added.
    args.profile = {"margin": 4}
    train(args)


if __name__ == "__main__":
    main()
