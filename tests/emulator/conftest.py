"""Workers that run emulated kernels, and the count of what they ran."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from emulator import build

TIMEOUT = 300  # seconds for one call: far above any, on a busy machine as well


@pytest.fixture(scope="session", autouse=True)
def _unless_declined():
    """Nothing here is skipped because something is missing: such a loss would go unnoticed."""
    if os.environ.get("SEER_NO_EMULATOR", "0") == "1":
        pytest.skip("SEER_NO_EMULATOR=1")


class Worker:
    """A process of worker.py with the library of one mode; started anew after a sanitizer ended it."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.library = build.kernels_library(mode)
        self.process = None
        self.calls: set[str] = set()
        self.schedules = self.kernels = self.launches = 0

    def check(self, name: str, seed: int) -> None:
        """Raises AssertionError with what was found."""
        if self.process is None:
            self._start()
        with contextlib.suppress(BrokenPipeError):  # it has ended; its report is read below
            print(name, seed, file=self.process.stdin, flush=True)
        answers, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if answers else ""
        if not line:
            raise AssertionError(f"{name}, {self.mode}, seed {seed}: {self._end(hangs=not answers)}")
        answer = json.loads(line)
        self.calls.add(name)
        self.schedules += 1
        self.kernels = max(self.kernels, answer["kernels"])
        self.launches += answer["launches"]
        assert answer["error"] is None, f"{name}, {self.mode}, seed {seed}: {answer['error']}"

    def _start(self) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        path = [str(build.ROOT / "tests"), str(build.ROOT), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("worker.py"), self.library],
            env=build.environment(self.mode) | {"PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            preexec_fn=build.fixed_addresses,
        )

    def _end(self, hangs: bool) -> str:
        status, report = self.close()
        return f"no answer within {TIMEOUT} s" if hangs else f"the worker ended with status {status}\n{report}"

    def close(self) -> tuple[int, str]:
        """Status of the process and the head of what it wrote to stderr."""
        process, self.process = self.process, None
        process.kill()
        with contextlib.suppress(BrokenPipeError), process:  # closes the pipes; a call may never have got through
            status = process.wait()
        with self.errors:
            self.errors.seek(0)
            return status, "".join(self.errors.readlines()[:60])


started: dict[str, Worker] = {}  # by mode


@pytest.fixture(scope="session")
def workers():
    """The worker of a mode, started when first asked for."""

    def worker(mode: str) -> Worker:
        if mode not in started:
            started[mode] = Worker(mode)
        return started[mode]

    yield worker
    for one in started.values():
        if one.process is not None:
            one.close()


def pytest_terminal_summary(terminalreporter) -> None:
    if started:
        terminalreporter.section("emulated CUDA kernels")
    for mode, worker in started.items():
        terminalreporter.line(
            f"{mode}: {worker.kernels} kernels, {len(worker.calls)} calls, {worker.schedules} schedules, "
            f"{worker.launches} launches"
        )
