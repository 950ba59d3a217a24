"""Stock against Seer on random models of true layer shapes: runs, what they cost, and what a whole model would cost.

One request at a time. Whole runs are *measured*, at as many layers as there are, and bare passes of the backbone say
what to expect of them. *Modelled* is what comes from a sample of steps, timed in the loop at two numbers of layers: all
steps of all layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import torch
from torch import Tensor
from tqdm import tqdm

from seer_dllm import GenerationConfig, Model, Profile, Truncation
from seer_dllm.api import prepare
from seer_dllm.backbone import KeyValues, Packing, Probe
from seer_dllm.denoise import Loop
from seer_dllm.detection import kept_window
from seer_dllm.row import Row

PROBED = Profile().probe_layers
BARE_REPEATS = 3


@dataclass(frozen=True)
class Way:
    """truncation: None for stock. oracle: in a window that just holds the answer and its end. early: see `over`."""

    name: str
    truncation: Truncation | None = None
    oracle: bool = False
    early: bool = False


STOCK = Way("stock")
SEER = Way("Seer", Truncation())
KEEP = Way("Seer, keep steps", Truncation(steps_policy="keep"))
WAYS = (STOCK, SEER, KEEP, Way("stock, oracle window", oracle=True), Way("stock, early stop", early=True))


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: `first` of its first step, with prefill, probe and cut; `later` of any other one, a mean."""

    first: float
    later: float
    steps: int

    @property
    def seconds(self) -> float:
        return self.first + self.later * (self.steps - 1)


@dataclass(frozen=True)
class Run:
    """One request answered in one way; slots of the final window, forwards (a prefill is one)."""

    way: Way
    cost: Cost
    useful: int
    slots: int
    forwards: int


@dataclass(frozen=True)
class Setting:
    """A model on `shapes.GivenEnds`, one prompt `[P, H]` for all requests, stock's settings, useful tokens of each.

    busy: time is that of the process, for a machine that others keep busy.
    """

    model: Model
    prompt: Tensor
    config: GenerationConfig
    ends: Sequence[int]
    busy: bool = False

    @property
    def cached(self) -> bool:
        return self.config.cache == "prompt" and len(self.prompt) > 0

    @property
    def ways(self) -> list[Way]:
        """All but early stop where there is one block, as it is stock then."""
        return [way for way in WAYS if self.config.blocks > 1 or not way.early]


def oracle_config(config: GenerationConfig, useful: int) -> GenerationConfig:
    """Settings of a window that just holds an answer and its end, with the tokens per step of the full one."""
    window, block = kept_window(min(useful + 1, config.window), config, margin=0)
    steps = window // block * max(1, round(config.steps * block / config.window))
    return replace(config, window=window, block=block, steps=steps)


def probe_layers(layers: int, of: int) -> tuple[int, ...]:
    """The default profile's, for a model that has only `layers` of its `of`: as deep in proportion, half at most."""
    depth = max(1, min(round((max(PROBED) + 1) * layers / of), layers // 2))
    return tuple(range(max(0, depth - len(PROBED)), depth))


def clock(setting: Setting, call: Callable[[], object]) -> float:
    """Seconds until the device has done what `call` asks for."""
    device, now = setting.model.backbone.device, time.process_time if setting.busy else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = now()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return now() - began


# ---- runs of the loop --------------------------------------------------------------------------------------


def begun(setting: Setting, config: GenerationConfig, truncation: Truncation | None, draft=None) -> tuple[Loop, Row]:
    """A loop with one row that has not made a step."""
    (row,), profile = prepare(setting.model, [setting.prompt], None, config, truncation, [draft])
    loop = Loop(setting.model.backbone)
    loop.add([row], profile)
    return loop, row


def over(row: Row) -> bool:
    """Stock's early stop: a finished block holds an end, so nobody needs the blocks behind it."""
    end = row.end()
    return end is not None and row.block is not None and end < row.block.start


def planned_steps(row: Row, last: int) -> int:
    """Steps of all blocks up to the one that holds slot `last`, of a row that has made its first step."""
    plans = [plan for plan in row.blocks if plan.start <= last]
    return sum(min(p.steps, p.end - p.start) if p.quotas is None else len(p.quotas) for p in plans)


def answer(setting: Setting, way: Way, end: int, sample: int | None = None) -> Run:
    """Answer one request whose useful tokens are `end` many. RuntimeError: the run was not the one that was meant.

    sample: steps beside the first one that are timed, where the run has more; their mean stands for all of them.
    """
    config = oracle_config(setting.config, end) if way.oracle else setting.config
    backbone = setting.model.backbone
    backbone.end = len(setting.prompt) + end
    loop, row = begun(setting, config, way.truncation)

    def step() -> None:
        loop.step()
        if way.early and loop.rows and over(row):
            loop.remove(row)

    first, times = clock(setting, step), []
    steps = planned_steps(row, end if way.early else config.window)
    if sample is not None and steps - 1 > sample:
        times = middle_steps(setting, row, sample)
    else:
        with tqdm(total=steps, initial=1, desc=way.name, mininterval=10, delay=5, leave=False) as bar:
            while loop.rows:
                times.append(clock(setting, step))
                bar.update()
        check(row, end, config.window, len(times) + 1, steps)
    return Run(way, Cost(first, mean(times or [0.0]), steps), end, row.window, steps + setting.cached)


def check(row: Row, end: int, window: int, steps: int, planned: int) -> None:
    """RuntimeError if the run ended elsewhere, took other steps, or needed the safety net."""
    found = window if row.end() is None else row.end()
    nets = row.counters.net_early + row.counters.net_late
    if found != end or steps != planned or nets:
        raise RuntimeError(
            f"a run must end at slot {end} after {planned} steps without the safety net, got slot {found}, {steps} "
            f"steps, {nets} calls of the net"
        )


def middle_steps(setting: Setting, row: Row, count: int) -> list[float]:
    """Seconds of up to `count` steps in the row's window, as it stands now, with half of a block already written.

    The head runs on masked slots alone, and all else in a step is the same each time, so such steps cost the mean.
    """
    block = row.blocks[0].end
    steps = len(row.blocks) * min(block, row.blocks[0].steps)
    config = replace(setting.config, window=row.window, block=block, steps=steps)
    loop, _ = begun(setting, config, None, torch.zeros(block // 2, dtype=torch.int64))
    loop.step()  # the one with the prefill
    times = []
    while loop.rows and len(times) < count:
        times.append(clock(setting, loop.step))
    return times


def measured(setting: Setting, repeats: int = 1) -> dict[Way, list[Run]]:
    """Every way's whole runs of all requests; repeats take turns, and of each run the one of median time is kept."""
    answer(setting, SEER, 1, sample=1)  # warms up
    rounds = [[[answer(setting, way, end) for end in setting.ends] for way in setting.ways] for _ in range(repeats)]

    def middle(same: Sequence[Run]) -> Run:
        return sorted(same, key=lambda run: run.cost.seconds)[repeats // 2]

    by_way = zip(setting.ways, zip(*rounds, strict=True), strict=True)
    return {way: [middle(same) for same in zip(*runs, strict=True)] for way, runs in by_way}


def sampled(setting: Setting, count: int) -> dict[Way, list[Run]]:
    """The same from `count` steps of each run.

    What stock's steps cost does not depend on the answer: they are timed once, also for early stop.
    """
    answer(setting, SEER, 1, sample=1)  # warms up
    stock = answer(setting, STOCK, setting.ends[0], count)
    found = {}
    for way in setting.ways:
        runs = []
        for end in setting.ends:
            steps = stock.cost.steps
            if way.early:
                steps = steps * min(end // setting.config.block + 1, setting.config.blocks) // setting.config.blocks
            cost = replace(stock.cost, steps=steps)
            alike = way.truncation is None and not way.oracle
            runs.append(
                Run(way, cost, end, stock.slots, steps + setting.cached) if alike else answer(setting, way, end, count)
            )
        found[way] = runs
    return found


# ---- what is not run ---------------------------------------------------------------------------------------


def extrapolated(
    few: dict[Way, list[Run]], many: dict[Way, list[Run]], layers: tuple[int, int, int], depths: tuple[int, int]
) -> dict[Way, list[Run]]:
    """Runs of a whole model, every cost on the straight line through those at two numbers of layers.

    Args:
        layers: of `few`, of `many`, of the whole model.
        depths: layers that a probe takes on the full window, in both runs and in the whole model. Those that it takes
            more in the whole model cost in step 0 what a layer of stock's takes more than one on the cut window.
    """
    low, high, all_layers = layers

    def slope(part: str, way: Way, i: int) -> float:
        return (getattr(many[way][i].cost, part) - getattr(few[way][i].cost, part)) / (high - low)

    found = {}
    for way, runs in many.items():
        found[way] = []
        for i, run in enumerate(runs):
            # The slopes of the first steps hold a layer of the prefill too, in both ways.
            deeper = slope("first", STOCK, i) - slope("first", way, i) if way.truncation is not None else 0.0
            first, later = (
                getattr(run.cost, part) + slope(part, way, i) * (all_layers - high) for part in ("first", "later")
            )
            cost = Cost(first + (depths[1] - depths[0]) * deeper, later, run.cost.steps)
            found[way].append(replace(run, cost=cost))
    return found


class Bare:
    """What runs should take by passes of the backbone alone, with neither loop nor ops between: medians of three."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._backbone = setting, setting.model.backbone
        self._times: dict[tuple, float] = {}
        self._past, prompt = None, len(setting.prompt)
        if setting.cached:
            self._past = KeyValues(Packing([prompt], device=self._backbone.device))
            with torch.inference_mode():
                self._backbone.run(setting.prompt, self._past.packing, keep=self._past)

    def seconds(self, run: Run) -> float:
        """Of all steps, each at the mean number of masked slots, step 0 with its probe, and the prefill."""
        setting, config = self._setting, self._setting.config
        block = min(config.block, run.slots)
        steps = run.cost.steps * block / run.slots  # of one block
        head = self._timed("head", round(block * (steps + 1) / (2 * steps)))
        later = self._timed("layers", run.slots) + head
        first = later
        if run.way.truncation is not None:
            depth = max(setting.model.profile.probe_layers) + 1
            first = (
                self._timed("layers", config.window, 0, depth) + self._timed("layers", run.slots, depth, None) + head
            )
        prefill = self._timed("prefill") if setting.cached else 0.0
        return prefill + first + later * (run.cost.steps - 1)

    @torch.inference_mode()
    def _timed(self, kind: str, slots: int = 0, start: int = 0, stop: int | None = None) -> float:
        key = kind, slots, start, stop
        if key not in self._times:
            call = self._call(kind, slots, start, stop)
            call()
            self._times[key] = median(clock(self._setting, call) for _ in range(BARE_REPEATS))
        return self._times[key]

    def _call(self, kind: str, slots: int, start: int, stop: int | None) -> Callable[[], object]:
        backbone, setting = self._backbone, self._setting
        prompt = setting.prompt
        if kind == "prefill":
            packing = Packing([len(prompt)], device=backbone.device)
            return lambda: backbone.run(prompt, packing, keep=KeyValues(packing))
        offset = len(prompt) if setting.cached else 0
        tokens = slots if kind == "head" or setting.cached else len(prompt) + slots
        hidden = torch.randn(tokens, backbone.config.hidden_size).to(backbone.device, backbone.dtype)
        if kind == "head":
            return lambda: backbone.logits(hidden)
        packing = Packing([tokens], [offset], backbone.device)
        probe = Probe(setting.model.profile.probe_layers, setting.model.profile.threshold) if stop else None
        return lambda: backbone.run(hidden, packing, start, stop, past=self._past, probe=probe)
