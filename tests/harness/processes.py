"""Real processes under test: start them, wait for what they say, kill them, and leave nothing behind."""

import atexit
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil
import pytest

from tests.harness.guard import kill_marked

ROOT = Path(__file__).resolve().parents[2]
RUN_MARKER = f"ROTA_TEST_RUN={uuid.uuid4().hex}"

T = TypeVar("T")


def gone(process: int | psutil.Process) -> bool:
    """Whether a process has ended, by its pid or as psutil knows it. It may end while somebody looks at it."""
    try:
        one = psutil.Process(process) if isinstance(process, int) else process
        return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], T], deadline_seconds: float = 60.0, what: str = "the condition") -> T:
    """Poll `condition` until it is truthy and return its value; fail the test in a sentence at the deadline."""
    end = time.monotonic() + deadline_seconds
    pause = 0.005
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            pytest.fail(f"{what}: not within {deadline_seconds:g} s; the last value was {value!r}", pytrace=True)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


class Guard:
    """The process that cleans up after this one (see tests/harness/guard.py)."""

    def __init__(self, marker: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "harness" / "guard.py"), marker],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is meant for the tests, not for the guard
        )

    def remove(self, directory: Path) -> None:
        """Delete `directory` when the tests are over, however they end."""
        self._order({"remove": str(directory)})

    def run(self, *command: str) -> None:
        """Run `command` when the tests are over, however they end."""
        self._order({"run": command})

    def _order(self, order: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let the guard do its work now and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@functools.cache
def guard() -> Guard:
    """The guard of this test process, started at its first use."""
    the_guard = Guard(RUN_MARKER)
    atexit.register(the_guard.close)
    return the_guard


def marked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with the mark by which the guard finds the process; whoever starts one must pass it."""
    guard()
    name, _, value = RUN_MARKER.partition("=")
    return {**environment, name: value}


def shifted_host_clock(shift: str = "+1h") -> dict[str, str]:
    """The environment in which a process sees a wall clock that is wrong by `shift`, as libfaketime writes it.

    Only CLOCK_REALTIME moves: monotonic clocks and timeouts stay right, as on a host whose clock is set wrong.
    """
    return {
        "LD_PRELOAD": str(_faketime_library()),
        "FAKETIME": shift,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # its name in older versions
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with the fix, timed waits may return at once
    }


def _faketime_library() -> Path:
    candidates = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    spec = importlib.util.find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        candidates.insert(0, Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1")
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise RuntimeError("libfaketime is missing: run `make test`, or pip install 'libfaketime>=3'")


class RotaProcess:
    """`python -m rota <arguments>` as a real process, in a session of its own and with its output in a file.

        with RotaProcess("worker", "--app", "examples.jobs:app", database_url=url) as worker:
            worker.wait_for_log(r"worker .* is live")
            worker.kill()

    Leaving the block kills the process and all its descendants; after a failure it prints the end of the log.
    The test's own ROTA_* variables are not inherited: what the process shall see is given here.
    """

    def __init__(
        self,
        *arguments: str,
        database_url: str | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        log: Path | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "rota"),
    ) -> None:
        self.arguments = arguments
        self._command = (*command, *arguments)
        self._cwd = cwd
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        self._environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})}
        if database_url is not None:
            self._environment["ROTA_DATABASE_URL"] = database_url
        self._marker = f"ROTA_TEST_PROCESS={uuid.uuid4().hex}"
        self._keeps_log = log is not None
        self.log_path = log or Path(tempfile.mkstemp(prefix="rota-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, once more if it has ended; the log goes on in the same file."""
        if self._process is not None and self.alive:
            raise RuntimeError(f"{self} is running already")
        name, _, value = self._marker.partition("=")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=marked_environment({**self._environment, name: value}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def worker_pid(self) -> int:
        """The process of a worker, whose guardian this one is."""
        return int(wait_until(lambda: psutil.Process(self.pid).children(), 10, "the guardian's child")[0].pid)

    @property
    def alive(self) -> bool:
        """Whether it runs (a stopped process counts as running)."""
        return self._started().poll() is None

    @property
    def returncode(self) -> int | None:
        """Its exit status, minus the signal's number if one killed it, None while it runs."""
        return self._started().poll()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        tail = "\n".join(self.log.splitlines()[-lines:])
        return f"--- the end of the log of {self} ---\n{tail}"

    def kill(self) -> None:
        """SIGKILL this process alone, as the kernel or an operator would, and reap it; its children live on."""
        self._started().kill()
        self._started().wait(10)

    def stop_signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP, SIGCONT, SIGTERM or another signal to this process alone."""
        self._started().send_signal(number)

    def wait_for_log(self, pattern: str, deadline: float = 60.0) -> re.Match[str]:
        """The first match of `pattern` in the log; fails at the deadline, or at once if the process ends before."""
        end = time.monotonic() + deadline
        while True:
            ended = not self.alive  # before the log is read, or its last words would be missed
            if match := re.search(pattern, self.log, re.MULTILINE):
                return match
            if ended:
                pytest.fail(f"{self} ended with {self.returncode} before it logged {pattern!r}\n{self.log_tail()}")
            if time.monotonic() >= end:
                pytest.fail(f"{self} did not log {pattern!r} within {deadline:g} s\n{self.log_tail()}")
            time.sleep(0.02)

    def wait_exit(self, deadline: float = 60.0) -> int:
        """Its exit status once it has ended by itself; fails at the deadline."""
        try:
            return self._started().wait(deadline)
        except subprocess.TimeoutExpired:
            self._abort()
            pytest.fail(f"{self} still runs after {deadline:g} s\n{self.log_tail(200)}")

    def _abort(self) -> None:
        """End it and its children by SIGABRT, on which Python writes into the log where each thread is."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.pid)
            processes = [*own.children(recursive=True), own]
            for process in processes:
                process.send_signal(signal.SIGABRT)
            psutil.wait_procs(processes, 5)

    def discard(self) -> None:
        """Kill it and all that descends from it, in whatever session, and delete its log (unless it was given)."""
        if self._process is not None and self.alive:
            self.kill()
        kill_marked(self._marker)
        if not self._keeps_log:
            self.log_path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.log_path.exists():
            print(self.log_tail(200))
        self.discard()

    def __str__(self) -> str:
        pid = self._process.pid if self._process is not None else "not started"
        return f"`rota {' '.join(self.arguments)}` ({pid})"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self} was not started")
        return self._process
