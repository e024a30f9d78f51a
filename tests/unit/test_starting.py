"""The thread that starts what is due."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from shared.clock import DatabaseClock
from shared.settings import Settings
from shared.store.runs import Run
from tests.unit.test_runner import run
from worker_service.app import Worker
from worker_service.delay_queue import DelayQueue

NOON = datetime.fromisoformat("2026-11-19T12:00:00")


@dataclass
class Slots:
    """Stands for the runner, and for the threads that were abandoned; the first start would end its thread."""

    starts: DelayQueue[Run]
    started: list[list[int]] = field(default_factory=list)
    running: int = 0
    abandoned: int = 0

    def start(self, runs: Sequence[Run]) -> None:
        self.started.append([run.id for run in runs])
        if len(self.started) == 1:
            raise SystemExit(1)
        self.starts.close()


@pytest.fixture
def worker() -> Any:
    """A worker of capacity 5, with nothing but what starts runs; 1 runs, 2 threads are abandoned, 4 runs are due."""
    clock = DatabaseClock(lambda: NOON)
    clock.measure()
    worker: Any = object.__new__(Worker)
    worker._settings, worker._starts = Settings.load(capacity=5), DelayQueue(clock)
    worker._runner = worker._thread_executor = Slots(worker._starts, running=1, abandoned=2)
    worker._starts.put_all((NOON, run(id=number), 0) for number in range(4))
    return worker


def test_no_more_are_started_than_there_are_idle_slots(worker: Any) -> None:
    worker._start_when_due()
    assert worker._runner.started == [[0, 1], [2, 3]]


def test_whatever_a_start_raises_the_next_ones_are_started(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker._start_when_due()
    assert len(worker._runner.started) == 2
    assert "2 instances could not be started" in caplog.text
