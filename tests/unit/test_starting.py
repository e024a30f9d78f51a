"""The thread that starts what is due."""

from datetime import datetime
from typing import Any, cast

import pytest

from shared.clock import DatabaseClock
from shared.settings import Settings
from shared.store.runs import Run
from tests.unit.test_runner import run
from worker_service.app import Worker
from worker_service.delay_queue import DelayQueue
from worker_service.runner import Runner

NOON = datetime.fromisoformat("2026-11-19T12:00:00")


class Fatal:
    """A runner that the first run would end the thread of."""

    def __init__(self, starts: DelayQueue[Run]) -> None:
        self.started: list[int] = []
        self._starts = starts

    def start(self, one: Run) -> None:
        self.started.append(one.id)
        if len(self.started) == 1:
            raise SystemExit(1)
        self._starts.close()


def test_whatever_a_start_raises_the_next_ones_are_started(caplog: pytest.LogCaptureFixture) -> None:
    clock = DatabaseClock(lambda: NOON)
    clock.measure()
    worker: Any = object.__new__(Worker)
    worker._settings, worker._starts = Settings.load(), DelayQueue(clock)
    fatal = Fatal(worker._starts)
    worker._runner = cast("Runner", fatal)
    for number in (1, 2):
        worker._starts.put(NOON, run(id=number))
    worker._start_when_due()
    assert fatal.started == [1, 2]
    assert "instance 1 could not be started" in caplog.text
