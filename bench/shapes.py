"""Random models with the layers of real ones, whose answers end where they are told to.

Real is the work: every layer, the head and the share of quiet activations are computed as they would be with trained
weights, and nothing in the runtime knows the difference. Given is where an answer ends (`GivenEnds`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from seer_dllm.backbone import Backbone, Packing, Probe
from seer_dllm.config import ModelConfig

# As published. MMaDA is LLaDA with picture codes behind its vocabulary; Dream has Qwen2.5-7B's layers.
LLADA = ModelConfig(126464, 4096, 12288, 32, 32, 32, 128, 5e5, 1e-5, mask_id=126336, eos_id=126081)
MODELS = {
    "llada-8b": LLADA,
    "dream-7b": ModelConfig(
        152064, 3584, 18944, 28, 28, 4, 128, 1e6, 1e-6, mask_id=151666, eos_id=151643, qkv_bias=True,
        max_length=131072, rope_full_precision=False, shift=True,
    ),
    "mmada-8b": replace(LLADA, vocab_size=134656),
}  # fmt: skip
KEPT: dict[
    str, Callable[[random.Random, int], int]
] = {  # of a window of n times 8 slots, in eights as the cut makes them
    "uniform": lambda r, n: r.randint(1, n),
    "short (DocVQA-like)": lambda r, n: min(1 + int(r.expovariate(0.8)), n),
    "bimodal": lambda r, n: r.randint(3 * n // 4, n) if r.random() < 0.2 else r.randint(1, 2),
    "heavy tail": lambda r, n: min(int(r.paretovariate(1.1)), n),
}
HEADLINE = 5  # useful tokens of the paper's headline
ACTIVE, QUIET = 0.2, 0.6  # quiet shares inside the answer and behind it; ours, as the paper gives none
SURE = 1e4  # a logit that leaves the others no probability, in float16 as well


class GivenEnds(Backbone):
    """A backbone whose answer ends at `end`: a position of the sequence, counted from the prompt's first token.

    After all is computed, three things are overwritten, for stock and Seer alike: in the last layer's output the first
    of the hidden columns, which says whether the position predicts a slot from the end on; the logits of EOS, by that
    column, and of the mask; where there is a probe, the shares that it has measured (`ACTIVE` before the end, `QUIET`
    from it on). Slots before the end take whatever the random weights say. One row at a time.
    """

    end = 0

    def run(
        self,
        hidden: Tensor,
        packing: Packing,
        start: int = 0,
        stop: int | None = None,
        *,
        probe: Probe | None = None,
        **others,
    ) -> Tensor:
        hidden = super().run(hidden, packing, start, stop, probe=probe, **others)
        if probe is not None:
            for layer, share in probe.per_layer.items():
                probe.per_layer[layer] = torch.full_like(share, ACTIVE).masked_fill_(
                    packing.positions >= self.end, QUIET
                )
        if stop is None or stop == self.config.n_layers:
            ended = packing.positions >= self.end - int(self.config.shift)
            hidden[:, 0] = ended.to(hidden.dtype) * 2 - 1
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        logits[:, self.config.eos_id] = hidden[:, 0] * SURE
        logits[:, self.config.mask_id] = -SURE
        return logits


def random_backbone(config: ModelConfig, dtype: torch.dtype, device="cpu", kind: type[Backbone] = Backbone) -> Backbone:
    """Normal weights of standard deviation 0.02, norms of 1; the same ones every time on one kind of device."""
    torch.manual_seed(0)
    with torch.device("meta"):
        backbone = kind(config)
    backbone = backbone.to(dtype).to_empty(device=device).requires_grad_(False)
    for name, weight in backbone.named_parameters():
        weight.fill_(1.0) if "norm" in name else weight.normal_(0, 0.02)
        assert weight.isfinite().all(), name
    return backbone


def first_layers(backbone: Backbone, layers: int) -> Backbone:
    """The same model with its first layers alone; the weights are shared."""
    with torch.device("meta"):
        fewer = type(backbone)(replace(backbone.config, n_layers=layers))
    fewer.embed, fewer.norm, fewer.head = backbone.embed, backbone.norm, backbone.head
    fewer.layers = backbone.layers[:layers]
    return fewer


def check_memory(config: ModelConfig, dtype: torch.dtype, device: torch.device, tokens: int, slots: int) -> None:
    """ValueError if the weights, and what a step of `tokens` with logits of `slots` holds, exceed the free memory."""
    with torch.device("meta"):
        weights = [p.numel() for p in Backbone(config).parameters()]
    held = 2 * config.n_layers * config.n_kv_heads * config.head_dim * tokens  # keys and values of a cached prompt
    work = 2 * slots * config.vocab_size + tokens * (3 * config.intermediate_size + 8 * config.hidden_size)
    # A CPU's matrix product may reorder the largest weight first.
    need = dtype.itemsize * (sum(weights) + max(weights) + held + work)
    free = _free_bytes(device)
    if free is not None and need > free:
        raise ValueError(
            f"layers must fit the memory: {config.n_layers} in {dtype} need {need / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free"
        )


def _free_bytes(device: torch.device) -> int | None:
    """None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)


def read_ends(source: str, window: int, count: int) -> list[int]:
    """Useful tokens of each request: "headline", `count` draws of a distribution, or what a file lists.

    Args:
        source: "headline", the first word of a name in `KEPT` (the answers that such a kept window would just hold with
            their ends), or a file: a JSON list of whole numbers, or one a line. As many as the window has slots: the
            answer fills it and has no end.
    Raises:
        ValueError: there is no such file or distribution, or a number that is not in [1, window].
    """
    makers = {name.split()[0]: make for name, make in KEPT.items()}
    if source == "headline":
        ends = [HEADLINE]
    elif source in makers:
        draw = random.Random(0)
        ends = [max(1, 8 * makers[source](draw, window // 8) - draw.randint(1, 8)) for _ in range(count)]
    else:
        ends = _listed(Path(source), ["headline", *makers])
    wrong = [end for end in ends if type(end) is not int or not 1 <= end <= window]
    if wrong or not ends:
        got = repr(wrong[0]) if wrong else "none"
        raise ValueError(f"ends must be whole numbers in [1, window={window}], one at least, got {got}")
    return ends


def _listed(file: Path, names: list[str]) -> list:
    if not file.is_file():
        raise ValueError(f"ends must be {', '.join(names)} or a file, got {str(file)!r}")
    text = file.read_text(encoding="utf-8")
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.split()]
    except json.JSONDecodeError as error:
        raise ValueError(f"ends must be a JSON list or a number a line, {file} is neither: {error}") from None
    return values
