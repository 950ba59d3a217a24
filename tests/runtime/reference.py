"""Fast-dLLM's cached sampler on one row, in float64 and without packing: every layer and step written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu


class CachedRow:
    """Greedy answers by an even quota of `per_step` slots, from a backbone's weights.

    `history`: ids after each step. `logits`: per step `[window, V]`, NaN where no slot was fed. `attended`: per step
    and layer the cached keys and values `[n, Hkv, D]` that the fed tokens saw beside themselves.
    """

    def __init__(self, backbone, prompt: Tensor, *, window: int, block: int, per_step: int, dual: bool) -> None:
        self.config = backbone.config
        self.weights = {name: tensor.double() for name, tensor in backbone.state_dict().items()}
        self.prompt, self.window, self.block = prompt.double(), window, block
        self.per_step, self.dual = per_step, dual
        self.ids = [self.config.mask_id] * window
        self.history, self.logits, self.attended = [], [], []

    def answer(self, full_window: int | None) -> None:
        """full_window: slots that layers 0..6 of the very first forward see; None: as many as there are."""
        before = len(self.prompt)
        total = before + self.window
        for start in range(0, self.window, self.block):
            stop = start + self.block
            whole = torch.cat((self.prompt, self.embed(self.ids)))
            if start == 0 and full_window is not None:
                masks = self.embed([self.config.mask_id] * (full_window - self.window))
                hidden, kept = self.layers(torch.cat((whole, masks)), 0, range(7))
                hidden, more = self.layers(hidden[:total], 0, range(7, self.config.n_layers))
                kept = [(k[:total], v[:total]) for k, v in kept] + more
            else:
                hidden, kept = self.layers(whole, 0, range(self.config.n_layers))
            self.attended.append([(k[:0], v[:0]) for k, v in kept])
            self.commit(hidden[before:], hidden, before, 0, start, stop, first=True)
            begin, end = before + start, before + stop if self.dual else total
            while self.config.mask_id in self.ids[start:stop]:
                past = [tuple(torch.cat((x[:begin], x[end:])) for x in pair) for pair in kept]
                window = self.embed(self.ids[start : end - before])
                hidden, _ = self.layers(window, begin, range(self.config.n_layers), past)
                self.attended.append(past)
                self.commit(hidden, hidden, 0, start, start, stop, first=False)

    def commit(self, slots: Tensor, fed: Tensor, at: int, slot: int, start: int, stop: int, *, first: bool) -> None:
        """One step. slots: hidden states of the fed slots, the first being `slot`, which is token `at` of `fed`."""
        if self.config.shift:  # the token behind decides; the first one has none and keeps its own
            index = (torch.arange(len(slots)) + at - 1).clamp(min=0)
            slots = fed[index]
        logits = torch.full((self.window, self.config.vocab_size), float("nan"), dtype=torch.float64)
        logits[slot : slot + len(slots)] = linear(self.norm(slots, "norm.weight"), self.weights["head.weight"])
        self.logits.append(logits)
        masked = [i for i in range(start, stop) if self.ids[i] == self.config.mask_id]
        best = {i: logits[i].softmax(-1).max(-1) for i in masked}
        order = sorted(masked, key=lambda i: -float(best[i].values))
        if first and self.config.shift:  # Fast-dLLM's Dream always writes a block's first slot now
            order.remove(start)
            order.insert(0, start)
        for i in order[: self.per_step]:
            self.ids[i] = int(best[i].indices)
        self.history.append(list(self.ids))

    def embed(self, ids: list[int]) -> Tensor:
        return embedding(torch.tensor(ids, dtype=torch.int64), self.weights["embed.weight"])

    def norm(self, x: Tensor, weight: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.norm_eps).sqrt() * self.weights[weight]

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """Half-split rotation of `[L, heads, D]` whose first token stands at `position`."""
        half = self.config.head_dim // 2
        rates = self.config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(position + torch.arange(len(x), dtype=torch.float64), rates)[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)

    def layers(self, x: Tensor, position: int, which: range, past=None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Hidden states `[L, H]` after these layers, and the keys (rotated) and values of each."""
        kept = []
        for n in which:
            name = f"layers.{n}."
            h = self.norm(x, name + "attn_norm.weight")
            q, k, v = (
                linear(h, self.weights[f"{name}{p}_proj.weight"], self.weights.get(f"{name}{p}_proj.bias"))
                .unflatten(-1, (-1, self.config.head_dim))
                for p in "qkv"
            )  # fmt: skip
            q, k = self.rotated(q, position), self.rotated(k, position)
            kept.append((k, v))
            if past is not None:
                k, v = torch.cat((past[n][0], k)), torch.cat((past[n][1], v))
            repeat = self.config.n_heads // self.config.n_kv_heads
            k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
            out = scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in (q, k, v)))[0].transpose(0, 1)
            x = x + linear(out.flatten(1), self.weights[name + "o_proj.weight"])
            h = self.norm(x, name + "mlp_norm.weight")
            gate, up = (linear(h, self.weights[f"{name}{p}_proj.weight"]) for p in ("gate", "up"))
            x = x + linear(silu(gate) * up, self.weights[name + "down_proj.weight"])
        return x, kept
