"""Requests that come and go: admission within the limits, streaming, cancelling, and what all of it took."""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from seer_dllm.api import Model, Result, prepare, result_of
from seer_dllm.attention import library
from seer_dllm.capture import Capturer
from seer_dllm.config import BLOCK_CACHES, GenerationConfig, Profile, Truncation, check_choice, check_positive
from seer_dllm.costs import DEFAULT_COSTS, CostModel
from seer_dllm.denoise import Loop, OnStep
from seer_dllm.detection import kept_window, last_fixed
from seer_dllm.groups import Routing, full_size
from seer_dllm.host import HostRead
from seer_dllm.router import Limits, RowSize
from seer_dllm.row import Row
from seer_dllm.worth import worth_cutting

log = logging.getLogger(__name__)
EVERY = ("step", "block")
REMEMBERED = 4096  # latest latencies that the percentiles are taken of


class Cancelled(Exception):
    """The request was cancelled before its answer was complete."""


@dataclass(frozen=True)
class Request:
    """A question; nothing of it is looked at before it is admitted.

    Args:
        prompt, images, config, truncation, draft: one row's of what `seer_dllm.generate` takes.
        callback: called with the row's state (`seer_dllm.row.Row`; its `index` is the request's id, `ids` the window so
            far) after each of its steps or blocks. It may cancel any request; if it raises, its own request fails.
        every: "step" or "block".
    """

    prompt: str | Tensor
    images: Sequence | None = None
    config: GenerationConfig | None = None
    truncation: Truncation | str | None = "default"
    draft: Sequence[int] | Tensor | None = None
    callback: OnStep | None = None
    every: str = "step"

    def __post_init__(self) -> None:
        check_choice("every", self.every, EVERY)


@dataclass(frozen=True)
class Answer:
    """What became of a request: one of `result` and `error` is None.

    error: what was wrong with it (an argument, its picture, its size, its callback), or `Cancelled`.
    """

    id: int
    result: Result | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Stats:
    """An engine's work since it was made.

    Attributes:
        answered, failed, cancelled: requests. waiting, running: now.
        real_tokens, padded_tokens: of all forwards. path_shares: of the real ones, by path; "step 0" runs packed.
        forwards: of groups. plans: how often groups were formed. host_reads: how often the host waited for the device.
        hits, captures: of captured shapes; misses: forwards of rows that no bucket holds. captured_bytes: of buffers.
        useful_tokens: of answers, and per second of `seconds`, the time spent in `step`.
        latency: seconds from `add_request` to the answer, the 50th, 90th and 99th percentile of the latest answers.
        reserved_bytes: for keys and values of the running requests.
        attention: the library that packed rows run through. costs: where the router's numbers come from.
    """

    answered: int
    failed: int
    cancelled: int
    waiting: int
    running: int
    real_tokens: int
    padded_tokens: int
    path_shares: dict[str, float]
    forwards: int
    plans: int
    host_reads: int
    hits: int
    captures: int
    misses: int
    captured_bytes: int
    useful_tokens: int
    useful_tokens_per_second: float
    seconds: float
    latency: dict[str, float]
    reserved_bytes: int
    attention: str
    costs: str


@dataclass(eq=False)
class _Entry:
    """A request on its way."""

    id: int
    request: Request
    added: float = field(default_factory=time.perf_counter)
    row: Row | None = None
    profile: Profile | None = None
    bytes: int = 0
    at: int = 0  # block at the last callback


class Engine:
    """Serves requests in the order they come: as many at once as the limits allow, each as if it were alone.

    Args:
        max_batch: requests that run at once.
        limits: of a group, that is of a forward; None: `Limits(max_rows=max_batch)`. A request whose step 0 would be
            above `limits.max_tokens` is refused.
        memory: bytes for keys and values of requests with a cache, reserved for their full windows: twice, as groups
            are laid anew beside the old ones, and three times for block caches, as what a block will reuse is kept
            beside both. Requests wait until theirs is free; one that could never fit is refused.
            What captured shapes hold comes on top (`stats().captured_bytes`). None: no bound.
        costs: what groups are formed by, and whether truncation can pay; None: `DEFAULT_COSTS` of the device.
        mode: as in `seer_dllm.groups.Routing`.
        capturer: the same.
    Raises:
        ValueError: a limit is not a positive whole number; the mode is unknown, or pads rows of a model without masks.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_batch: int = 32,
        limits: Limits | None = None,
        memory: int | None = None,
        costs: CostModel | None = None,
        mode: str = "varlen",
        capturer: Capturer | None = None,
    ) -> None:
        check_positive("max_batch", max_batch)
        if memory is not None:
            check_positive("memory", memory)
        self.model, self.max_batch, self.memory = model, max_batch, memory
        self.limits = Limits(max_rows=max_batch) if limits is None else limits
        self.costs = DEFAULT_COSTS[model.backbone.device.type] if costs is None else costs
        self._capturer = capturer
        self._loop = Loop(model.backbone, Routing(self.limits, self.costs, mode, capturer), self._stepped)
        self._waiting: deque[_Entry] = deque()
        self._running: dict[int, _Entry] = {}
        self._done: list[Answer] = []
        self._ids = 0
        self._outcomes: Counter[str] = Counter()
        self._useful = self._reads = 0
        self._seconds = 0.0
        self._latencies: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def active(self) -> bool:
        """Whether `step` has anything to do or to hand out."""
        return bool(self._waiting or self._running or self._done)

    def add_request(self, prompt, **settings) -> int:
        """Queue a request; the arguments are those of `Request`. Returns its id.

        What is wrong with it shows in its `Answer`; only unknown names (TypeError) and `every` are refused here.
        """
        return self._add(Request(prompt, **settings))

    def _add(self, request: Request) -> int:
        self._ids += 1
        self._waiting.append(_Entry(self._ids, request))
        return self._ids

    def cancel(self, id: int) -> bool:
        """Give a request up. Its answer, an error, comes with the next step; False if there is no such request."""
        entry = self._running.get(id) or next((e for e in self._waiting if e.id == id), None)
        if entry is None:
            return False
        self._finish(entry, error=Cancelled(f"request {id} was cancelled"))
        return True

    def step(self) -> list[Answer]:
        """Admit what fits and take every running request one step on. Returns the requests that ended, in order."""
        begun, reads = time.perf_counter(), HostRead.waits
        self._admit()
        for row in self._loop.step():
            self._finish(self._running[row.index], result=result_of(self.model, row))
        self._reads += HostRead.waits - reads
        self._seconds += time.perf_counter() - begun
        done, self._done = self._done, []
        return done

    def generate(self, requests: Iterable[Request], progress: bool = True) -> list[Answer]:
        """The answers of these requests, in their order. Requests that were there before are served as well; their
        answers come with the next `step`. progress: show a bar where there is a terminal.
        """
        ids = [self._add(request) for request in requests]
        mine, others = dict.fromkeys(ids), []
        with tqdm(total=len(ids), unit="answer", disable=None if progress else True) as bar:
            while None in mine.values():
                for answer in self.step():
                    if answer.id in mine:
                        mine[answer.id] = answer
                        bar.update()
                    else:
                        others.append(answer)
        self._done = others + self._done
        return [mine[id] for id in ids]

    def stats(self) -> Stats:
        counts, capturer = self._loop.counts, self._capturer
        real = sum(counts.tokens.values())
        percentiles = np.percentile(self._latencies, (50, 90, 99)) if self._latencies else (0.0,) * 3
        return Stats(
            answered=self._outcomes["answered"],
            failed=self._outcomes["failed"],
            cancelled=self._outcomes["cancelled"],
            waiting=len(self._waiting),
            running=len(self._running),
            real_tokens=real,
            padded_tokens=counts.padded_tokens,
            path_shares={path: n / real for path, n in counts.tokens.items()},
            forwards=counts.forwards,
            plans=counts.plans,
            host_reads=self._reads,
            hits=capturer.hits if capturer is not None else 0,
            captures=capturer.captures if capturer is not None else 0,
            misses=counts.misses,
            captured_bytes=capturer.bytes if capturer is not None else 0,
            useful_tokens=self._useful,
            useful_tokens_per_second=self._useful / self._seconds if self._seconds else 0.0,
            seconds=self._seconds,
            latency={f"p{p}": float(s) for p, s in zip((50, 90, 99), percentiles, strict=True)},
            reserved_bytes=self._reserved,
            attention=library(self.model.backbone.device.type, self.model.backbone.dtype)[0],
            costs=self.costs.label,
        )

    @property
    def _reserved(self) -> int:
        return sum(entry.bytes for entry in self._running.values())

    def _admit(self) -> None:
        """First come, first served: a request that has to wait for memory holds up those behind it."""
        while self._waiting and len(self._running) < self.max_batch:
            entry = self._waiting[0]
            if entry.row is None:
                try:
                    self._prepare(entry)
                except Exception as error:  # whatever is wrong with a request is its own affair
                    self._finish(entry, error=_without_frames(error))
                    continue
            if self.memory is not None and self._reserved + entry.bytes > self.memory:
                return
            self._waiting.popleft()
            self._running[entry.id] = entry
            self._loop.add([entry.row], entry.profile)

    def _prepare(self, entry: _Entry) -> None:
        """Embed the prompt and check all arguments and sizes. Raises as `seer_dllm.generate`."""
        r = entry.request
        config = GenerationConfig() if r.config is None else r.config
        truncation = Truncation() if isinstance(r.truncation, str) and r.truncation == "default" else r.truncation
        (row,), profile = prepare(self.model, [r.prompt], [r.images], [config], [truncation], [r.draft])
        tokens, prompt = full_size(row).fed, len(row.prompt)
        lanes = tokens // (prompt + row.window)

        def refuse_above(most: int, what: str) -> None:
            if tokens > most:
                fits = most // lanes - prompt
                would = f"a window of {fits} would" if fits > 0 else "no window would"
                raise ValueError(f"prompt and window must fit {what}: {would}, got {prompt} + {row.window}")

        refuse_above(self.limits.max_tokens, f"max_tokens={self.limits.max_tokens}")
        if config.cache != "none":
            each = self._token_bytes * (3 if config.cache in BLOCK_CACHES else 2)
            entry.bytes = tokens * each
            if self.memory is not None:
                refuse_above(self.memory // each, f"memory={self.memory} at {each} a token")
        row.index, row.started = entry.id, entry.added
        if row.probed:
            self._leave_uncut_if_in_vain(row, profile)
        entry.row, entry.profile = row, profile

    @property
    def _token_bytes(self) -> int:
        config = self.model.backbone.config
        values = config.n_layers * 2 * config.n_kv_heads * config.head_dim
        return values * torch.finfo(self.model.backbone.dtype).bits // 8

    def _leave_uncut_if_in_vain(self, row: Row, profile: Profile) -> None:
        """Turn truncation off where not even the shortest window would save what the cut costs.

        The cost is our estimate: a restart has run the probe layers in vain, a carried cut is a layer's worth of fixed
        cost. One row by itself is looked at, so that no answer depends on the batch.
        """
        window, block = kept_window(1, row.config, profile.margin, last_fixed(row.ids, row.mask_id))
        if window >= row.window:
            return
        cut = copy.copy(row)
        cut.cut(window, block)
        now, layers = _typical(row), self.model.backbone.config.n_layers
        share = (max(profile.probe_layers) + 1) / layers
        tokens = len(row.prompt) + row.window
        full = self.costs.seconds("varlen", 1, tokens, tokens * tokens)
        overhead = share * full if row.step0 == "restart" else self.costs.seconds("varlen", 0, 0, 0) / layers
        verdict = worth_cutting(now, _typical(cut), self.costs, overhead=overhead)
        if not verdict.worth:
            row.truncation, row.reason = None, verdict.reason

    def _stepped(self, row: Row) -> None:
        entry = self._running.get(row.index)
        if entry is None or entry.request.callback is None:  # None: cancelled by a callback in this step
            return
        if entry.request.every == "block" and row.at == entry.at:
            return
        entry.at = row.at
        try:
            entry.request.callback(row)
        except Exception as error:
            if row.index in self._running:
                self._finish(entry, error=error)

    def _finish(self, entry: _Entry, result: Result | None = None, error: Exception | None = None) -> None:
        if self._running.pop(entry.id, None) is None:
            self._waiting.remove(entry)
        elif error is not None:
            self._loop.remove(entry.row)
        self._done.append(Answer(entry.id, result, error))
        if error is not None:
            self._outcomes["cancelled" if isinstance(error, Cancelled) else "failed"] += 1
            return
        self._outcomes["answered"] += 1
        self._useful += result.useful_tokens
        self._latencies.append(time.perf_counter() - entry.added)


def _without_frames(error: Exception) -> Exception:
    """The error without its tracebacks, which go to the log.

    Whoever keeps it would keep pictures and embeddings in their frames, in cycles that the collector finds late.
    """
    log.debug("a request failed", exc_info=error)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, link = None, link.__context__
    return error


def _typical(row: Row) -> RowSize:
    """A forward in the middle of the row's run, and how many there are."""
    attended = len(row.prompt) + row.window
    fed = {"none": attended, "prompt": row.window, "prefix": row.window, "dual": row.blocks[0].end}[row.config.cache]
    return RowSize(row.index, fed, attended, max(1, sum(plan.steps for plan in row.blocks)))
