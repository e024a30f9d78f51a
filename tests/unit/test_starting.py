"""The thread that starts what is due."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from rota.shared.domain.groups import Groups
from rota.shared.settable_clock import SettableClock
from rota.shared.store.runs import Run
from rota.worker_service.pulling.slot import Slot
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.starter import Starter
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.runner import Runner
from tests.harness.runs import NOON, run


class Running:
    """Stands for the runner; the first start would end its thread."""

    def __init__(self) -> None:
        self.started: list[list[int]] = []

    def accept(self, runs: Iterable[Run], slots: Slots, groups: Groups) -> list[Run]:
        return list(runs)

    def is_to_stop(self, instance_id: int) -> bool:
        return False

    def drop(self, instance_id: int) -> None:
        pass

    def start(self, runs: Sequence[Run]) -> set[int]:
        self.started.append([run.id for run in runs])
        if len(self.started) == 1:
            raise SystemExit(1)
        return set()


class World:
    """A starter of capacity 5: 1 runs, 2 threads are abandoned, and 4 runs are due."""

    def __init__(self) -> None:
        clock, nothing = SettableClock(NOON), cast("WorkerRows", _Nothing())
        self.slots, self.runner = Slots(5, 1000, clock), Running()
        running = Slot()
        self.slots.claim([running])
        self.slots.start([running])
        self.slots.abandon(+2)
        starter = Starter(nothing, cast("Runner", self.runner), self.slots, clock, Listeners({}, clock, worker="w"))
        starter.put([run(id=number) for number in range(4)], NOON, {})
        clock.thread("start", starter.run).start()
        clock.advance(1)
        self.started = list(self.runner.started)
        starter.close()


class _Nothing:
    def hand_back(self, held: Sequence[Any], reason: str, *, unstarted: bool, waits: bool) -> int:
        assert not held
        assert waits
        return 0


class _HandedBack:
    """Notes what is handed back, and whether it is said that it was not started."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Any], bool]] = []

    def hand_back(self, held: Sequence[Any], reason: str, *, unstarted: bool = False, waits: bool = False) -> int:
        self.seen.append((list(held), unstarted))
        return len(held)


@pytest.fixture
def world() -> World:
    return World()


def test_no_more_are_started_than_there_are_idle_slots(world: World) -> None:
    assert world.started == [[0, 1], [2, 3]]


def test_whatever_a_start_raises_the_next_ones_are_started(caplog: pytest.LogCaptureFixture) -> None:
    assert len(World().started) == 2
    assert "2 instances could not be started" in caplog.text


@pytest.mark.parametrize("when", ["the worker stops", "the worker has stopped", "it has no slot"])
def test_what_is_handed_back_from_the_queue_is_said_to_be_unstarted(when: str) -> None:
    clock, rows = SettableClock(NOON), _HandedBack()
    starter = Starter(
        cast("WorkerRows", rows),
        cast("Runner", Running()),
        Slots(5, 1000, clock),
        clock,
        Listeners({}, clock, worker="w"),
    )
    if when == "the worker has stopped":
        starter.close()
        rows.seen.clear()
    starter.put([run(id=7, attempt=1), run(id=8, attempt=2)], NOON, {})
    if when == "the worker stops":
        starter.close()
    if when == "it has no slot":
        clock.advance(60)
        starter.give_back_late()
    assert rows.seen == [([(7, 1), (8, 2)], True)]


def test_what_waits_lasts_as_long_as_it_takes_to_end_so_many_at_the_rate_of_the_last() -> None:
    clock = SettableClock(NOON)
    slots = Slots(50, 1000, clock)
    ending, waiting = [Slot() for _ in range(40)], [Slot() for _ in range(100)]
    slots.claim([*ending, *waiting])
    assert slots.lasting(0.5) == math.inf, "none has ended"
    slots.start(ending)
    for slot in ending:
        slots.end(slot)
        clock.advance(0.01)
    assert slots.lasting(0.5) == pytest.approx(1.0)
    assert slots.lasting(0.2) == pytest.approx(1.0, rel=0.1)
    clock.advance(1)
    assert slots.lasting(0.5) == math.inf, "those were long ago"
