"""A model that no library knows, with names of its own and activations that can be worked out by hand."""

import torch
from torch import Tensor, nn

HIDDEN, INNER, VOCAB, DEPTH = 6, 8, 12, 8
MASK, EOS = 9, 10


class Glu(nn.Module):
    """Half of its activations are silu(10) * 1 = 9.9995 where column 0 of the input is 1; all others are 0."""

    def __init__(self, gated: bool = True) -> None:
        super().__init__()
        self.a = nn.Linear(HIDDEN, INNER, bias=False)
        self.b = nn.Linear(HIDDEN, INNER, bias=False) if gated else None
        self.c = nn.Linear(INNER, HIDDEN, bias=False)
        nn.init.zeros_(self.a.weight)
        nn.init.constant_(self.a.weight[: INNER // 2, 0], 10.0)
        nn.init.zeros_(self.c.weight[0])  # column 0 stays as it is
        if gated:
            nn.init.zeros_(self.b.weight)
            nn.init.constant_(self.b.weight[:, 0], 1.0)

    def forward(self, x: Tensor) -> Tensor:
        act = nn.functional.silu(self.a(x))
        return self.c(act if self.b is None else act * self.b(x))


class Stage(nn.Module):
    def __init__(self, gated: bool = True) -> None:
        super().__init__()
        self.ff = Glu(gated)

    def forward(self, x: Tensor, loud: Tensor) -> Tensor:
        return x + self.ff(x * loud[..., None])


class Toy(nn.Module):
    """`loud [B, L]`, 1 by default, is 0 where the MLPs are to be quiet. Only the logits mix the tokens."""

    def __init__(self, gated: bool = True, mixing: bool = True) -> None:
        super().__init__()
        self.mixing = mixing
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.trunk = nn.Module()
        self.trunk.stages = nn.ModuleList(Stage(gated) for _ in range(DEPTH))
        self.out = nn.Linear(HIDDEN, VOCAB)
        nn.init.ones_(self.words.weight[:, 0])
        self.requires_grad_(False).eval()

    def forward(self, tokens: Tensor, loud: Tensor | None = None) -> Tensor:
        x = self.words(tokens)
        for stage in self.trunk.stages:
            x = stage(x, torch.ones(tokens.shape) if loud is None else loud)
        return self.out(x + x.mean(dim=1, keepdim=True) if self.mixing else x)
