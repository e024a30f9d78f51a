"""Unit tests are pure: none of them starts a process. What does belongs to tests/processes or tests/cluster."""

import subprocess
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from rota.shared.clock import HostTimer
from rota.worker_service.executors.event_loop import EventLoopExecutor
from rota.worker_service.executors.threads import ThreadExecutor
from tests.harness.processes import wait_until


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to start one."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError(f"a unit test starts a process: {arguments}; move it to tests/processes")

    monkeypatch.setattr(subprocess.Popen, "_execute_child", refuse)
    monkeypatch.setattr("os.fork", refuse)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Wait until the threads of a test have ended: one that rests for ever shows in the dumps of later tests."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not left_since(before), 10, "the threads of the test to end")


def left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that were not there before, but for the guardian's, which ends with its process."""
    return [thread for thread in threading.enumerate() if thread not in before and thread.name != "blocked"]


@pytest.fixture
def threads() -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor(2, HostTimer())
    yield executor
    executor.close()


@pytest.fixture
def loop() -> Iterator[EventLoopExecutor]:
    executor = EventLoopExecutor(HostTimer())
    yield executor
    executor.close()
