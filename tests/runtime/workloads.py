"""Random rows for loops and engines, each with the answer that it gets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scripted import EAGER, Script, Scripted, random_prompt, tiny
from torch import Tensor

from seer_dllm import GenerationConfig, Model, Profile, Result, Truncation, generate
from seer_dllm.api import prepare, result_of
from seer_dllm.canvas import Dense
from seer_dllm.capture import Capturer, Packed
from seer_dllm.config import CACHES
from seer_dllm.costs import CostModel, PathCost
from seer_dllm.denoise import Loop
from seer_dllm.groups import Routing
from seer_dllm.router import MODES, Limits

# Static wins for rows of nearly one length, eager alone, packed for what lies between: all of them occur.
COSTS = CostModel(PathCost(4, 0.9, 0.001), PathCost(12, 1.0, 0.001), PathCost(14, 0.99, 0.001), "made up")


@dataclass
class Case:
    """One row, and how a model answers it alone."""

    model: Model
    prompt: Tensor
    config: GenerationConfig
    truncation: Truncation | None

    @cached_property
    def alone(self) -> Result:
        return generate(self.model, [self.prompt], config=self.config, truncation=self.truncation)[0]

    def row(self, index: int):
        (row,), profile = prepare(self.model, [self.prompt], config=self.config, truncation=self.truncation)
        row.index = index
        return row, profile


def random_config(draw: random.Random, **more) -> GenerationConfig:
    window = draw.choice([8, 16, 24, 32, 48])
    block = draw.choice([b for b in (8, 16, window) if window % b == 0])
    steps = window // block * draw.choice([2, 3, 4])
    settings = {
        "window": window,
        "block": block,
        "steps": steps,
        "cache": draw.choice(CACHES),
        "seed": draw.randint(0, 9),
    }
    if draw.random() < 0.2:
        settings["threshold"] = 0.9
    if draw.random() < 0.2:
        settings["temperature"] = 0.7
    if draw.random() < 0.15:
        settings["cfg_scale"] = 0.5
    if draw.random() < 0.2:
        settings["schedule"] = draw.choice(["linear", "cosine", "dream"])
    return GenerationConfig(**settings, **more)


def scripted_cases(count: int, seed: int) -> list[Case]:
    """Rows that are cut, grow early or late, end early or never, with every cache."""
    draw = random.Random(seed)
    scripts = []
    for _ in range(count):
        content = draw.randint(1, 40)
        jump = draw.choice([None, None, 8, draw.randint(1, 40)])
        scripts.append(Script(content, jump, later=draw.choice([None, None, draw.randint(1, 60)])))
    scripted, cases = Scripted(scripts, shift=draw.random() < 0.5), []
    for i in range(count):
        truncation = draw.choice([None, Truncation(), Truncation(step0="restart"), Truncation(Profile(margin=0))])
        truncation = truncation and replace(truncation, profile=Profile(margin=0, window=4))
        cases.append(Case(scripted.model, scripted.prompt(i, draw.randint(1, 9)), random_config(draw), truncation))
    return cases


def family_cases(family: str, count: int, seed: int) -> list[Case]:
    """Rows of a tiny model with random weights, most of them cut and grown again."""
    draw = random.Random(seed)
    return [
        Case(
            tiny(family),
            random_prompt(seed + i, draw.randint(1, 12), family),
            random_config(draw),
            draw.choice([None, Truncation(EAGER), Truncation(EAGER), Truncation(EAGER, step0="restart")]),
        )
        for i in range(count)
    ]


class Recorder(Capturer):
    """Replays by computing anew on the static buffers, into the same output: what a graph does, without a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Dense | Packed] = []

    def _capture(self, backbone, shape, masked):
        self.order.append(shape)
        return super()._capture(backbone, shape, masked)

    def record(self, body):
        out = body()
        return lambda: out.copy_(body()), out


def random_routing(draw: random.Random, capturer: Capturer | None = None) -> Routing | None:
    if draw.random() < 0.1 and capturer is None:
        return None
    limits = Limits(draw.choice([1, 2, 4, 32]), draw.choice([40, 100, 4096]), draw.choice([24, 64, 4096]))
    return Routing(limits, COSTS, draw.choice([*MODES, "cost", "static"]), capturer)


def run_in_waves(cases: Sequence[Case], routing: Routing | None, draw: random.Random) -> tuple[list[Result], Loop]:
    """Answers by one loop that the rows join at random times."""
    loop = Loop(cases[0].model.backbone, routing)
    rows = [case.row(i) for i, case in enumerate(cases)]
    waiting, finished = list(rows), []
    while waiting or loop.rows:
        for _ in range(draw.choice([0, 0, 1, 2, 9]) if loop.rows else 1):
            if waiting:
                row, profile = waiting.pop(0)
                loop.add([row], profile)
        finished += loop.step()
    assert sorted(row.index for row in finished) == list(range(len(cases)))
    return [result_of(case.model, row) for case, (row, _) in zip(cases, rows, strict=True)], loop
