"""What steps of a model cost on this machine: measurements, and the cost model fitted to them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import torch
from tqdm import tqdm

from seer_dllm.backbone import Backbone
from seer_dllm.capture import Capturer
from seer_dllm.config import GenerationConfig, Profile, check_positive
from seer_dllm.costs import CostModel, Measurement, PathCost
from seer_dllm.denoise import Loop
from seer_dllm.groups import Routing, parts_of, size_of
from seer_dllm.router import Limits, sizes_of
from seer_dllm.row import Row

# (rows, tokens fed, tokens cached); ours: both ends of what a batch of short answers feeds, with and without a prompt.
SHAPES = tuple(
    (rows, fed, past) for rows in (1, 4, 16, 64) for fed in (8, 32, 128) for past in (0, 128) if rows * fed <= 2048
)

_ONE = PathCost(1.0, 0.0, 0.0)
_AS_ONE = CostModel(_ONE, _ONE, _ONE, "one group")


def cost_model(backbone: Backbone, measurements: Sequence[Measurement] | None = None) -> CostModel:
    """The model fitted to what `measure` found; its label says on what, and how far it is off.

    None: measure the default shapes now, which takes a CPU minutes for an 8B model.
    ValueError: as `CostModel.fit`.
    """
    found = measure(backbone) if measurements is None else measurements
    costs = CostModel.fit(found, "measured")
    error, device = costs.error(found), backbone.device
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    off = f"{100 * error.median:.1f} % off in the median, {100 * error.worst:.1f} % at worst"
    return replace(costs, label=f"measured on {on}, {str(backbone.dtype).removeprefix('torch.')}, {off}")


def measure(
    backbone: Backbone,
    shapes: Iterable[tuple[int, int, int]] = SHAPES,
    *,
    repeats: int = 3,
    capturer: Capturer | None = None,
    progress: bool = True,
) -> list[Measurement]:
    """Time steps of one group on all of the router's paths, one after the other in each of the repeats: medians.

    They are steps of the denoising loop, with all that a group does by itself: its forward, the head on its masked
    slots (all that is fed with a prompt cached, half of it without), what is written, and the host's wait for it. Rows
    are as unlike as prompts are. Where no packed rows are captured, "varlen" and "eager" are the same code, and what is
    measured counts for both.

    Args:
        shapes: (rows, fed, cached) of the batches, in the middle: rows have up to a quarter more and less. `fed` is 8
            at least.
        capturer: what "static" and "varlen" run through.
        progress: show a bar where there is a terminal.
    Raises:
        ValueError: `repeats` or a shape is out of range.
    """
    check_positive("repeats", repeats)
    packs = capturer is not None and backbone.device_packed
    groups = []
    for rows, fed, past in shapes:
        check_positive("rows", rows)
        if fed < 8 or past < 0:
            raise ValueError(f"shapes must feed 8 tokens at least and see 0 cached ones at least, got {fed}, {past}")
        paths = ("static", "varlen", "eager") if packs else ("static", "varlen")
        groups += [_Group(backbone, path, rows, fed, past, capturer) for path in paths]
    bar = tqdm(range(repeats + 1), desc="measuring steps", leave=False, disable=None if progress else True)
    for repeat in bar:  # the first one warms up
        for group in groups:
            seconds = group.step()
            group.seconds += [seconds] if repeat else []
    return [
        Measurement(path, group.rows, group.tokens, group.pairs, median(group.seconds))
        for group in groups
        for path in (("varlen", "eager") if group.path == "varlen" and not packs else (group.path,))
    ]


class _Group:
    """Rows that step together by one path; made anew before any of them is done."""

    def __init__(self, backbone: Backbone, path: str, rows: int, fed: int, past: int, capturer) -> None:
        self.path, self.seconds = path, []
        self._backbone, self._past = backbone, past
        lengths, cached = _spread(fed, rows), _spread(past, rows)
        self._windows = [n if past else n // 2 for n in lengths]
        self._prompts = cached if past else [n - n // 2 for n in lengths]
        most = lengths[-1] + cached[-1]
        limits = Limits(max_rows=rows, max_tokens=2 * rows * most, max_length=2 * most)  # room for padding
        self._routing = Routing(limits, _AS_ONE, path, capturer)
        self._begin()
        made = self._loop.rows
        sizes = [size_of(row) for row in made]
        self.rows = rows if path == "static" else sizes_of(sizes)
        self.tokens, self.pairs = sum(s.fed for s in sizes), sum(s.fed * s.attended for s in sizes)
        (part,) = parts_of(made, self._routing)
        if part.dense is not None:
            self.rows, self.tokens = part.dense.rows, part.dense.rows * part.dense.fed
            self.pairs = self.tokens * (part.dense.fed + part.dense.past)
        elif part.packed is not None:
            self.rows, self.tokens = part.packed.rows, part.packed.fed

    def _begin(self) -> None:
        """Rows that have made their first step, a slot a step."""
        config, generator = self._backbone.config, torch.Generator().manual_seed(0)
        rows = []
        for i, (window, prompt) in enumerate(zip(self._windows, self._prompts, strict=True)):
            hidden = torch.randn(prompt, config.hidden_size, generator=generator)
            hidden = hidden.to(self._backbone.device, self._backbone.dtype)
            ids = torch.full((window,), config.mask_id)
            settings = GenerationConfig(window=window, cache="prompt" if self._past else "none")
            rows.append(Row(i, hidden, ids, settings, None, config.mask_id, (config.eos_id,), config.shift, None))
        self._loop = Loop(self._backbone, self._routing)
        self._loop.add(rows, Profile())
        self._left = min(self._windows) - int(bool(self._past) and config.shift)
        self._advance()
        if self._left > 2:  # the first one in a group lays its cached keys
            self._advance()

    def _advance(self) -> None:
        self._loop.step()
        self._left -= 1

    def step(self) -> float:
        """Seconds of one step of all rows."""
        if self._left <= 1:  # the step in which a row is done forms groups anew
            self._begin()
        _wait(self._backbone)
        began = time.perf_counter()
        self._advance()
        _wait(self._backbone)
        return time.perf_counter() - began


def _spread(middle: int, rows: int) -> list[int]:
    """Sizes from a quarter less to a quarter more, in equal steps."""
    return [middle + (2 * i - rows + 1) * middle // (4 * (rows - 1)) if rows > 1 else middle for i in range(rows)]


def _wait(backbone: Backbone) -> None:
    if backbone.device.type == "cuda":
        torch.cuda.synchronize(backbone.device)
