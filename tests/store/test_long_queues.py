"""What workers with long queues hold is counted in turn, and estimated meanwhile."""

from collections.abc import Callable
from datetime import datetime

import pytest

from rota.scheduler_service import long_queues
from rota.scheduler_service.long_queues import ROWS_A_SECOND, LongQueues, counted
from rota.shared.settable_clock import SettableClock
from rota.shared.store import loads
from tests.harness.scenario import Scenario

COUNTED = 100
ROOM = 1_010

Known = Callable[[int], int | None]


def nobody(worker_id: int) -> None:
    """Nobody knows the load of a worker."""


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(datetime.fromisoformat("2026-11-22 12:00:00"))


def worker_with(rows: Scenario, queued: int, *, running: int = 0) -> int:
    worker = rows.worker(capacity=10, prefetch=1_000)
    rows.queued(worker, queued)
    for _ in range(running):
        rows.running(worker)
    return worker


def estimated(rows: Scenario, queues: LongQueues, known: Known = nobody) -> dict[int, int]:
    """The loads of the workers by their ids."""
    live = rows.database.read(lambda c: queues.estimated(c, loads.fleet(c, COUNTED), known))
    return {worker.id: worker.load for worker in live}


def test_what_a_worker_holds_is_counted_up_to_a_limit(rows: Scenario) -> None:
    at, above, empty = worker_with(rows, 100, running=2), worker_with(rows, 101, running=1), rows.worker()
    found = {worker.id: worker for worker in rows.database.read(lambda c: loads.fleet(c, COUNTED))}
    assert [(found[i].load, found[i].running, found[i].holds_more) for i in (at, above, empty)] == [
        (102, 2, False),
        (102, 1, True),
        (0, 0, False),
    ]
    assert rows.database.read(lambda c: loads.assigned_to(c, [at, above], 100)) == {at: 100, above: None}


def test_a_worker_that_holds_more_than_is_counted_has_no_free_slot(rows: Scenario) -> None:
    rows.queued(rows.worker(capacity=10_000, prefetch=0), COUNTED + 1)
    [found] = rows.database.read(lambda c: loads.fleet(c, COUNTED))
    assert not found.free_slots


def test_a_long_queue_is_counted_and_then_estimated_until_it_is_counted_again(
    rows: Scenario, clock: SettableClock
) -> None:
    worker = worker_with(rows, 400, running=3)
    queues = LongQueues(clock)
    assert estimated(rows, queues) == {worker: 403}
    rows.queued(worker, 200)
    assert estimated(rows, queues, lambda _: 500) == {worker: 500}, "known before, with what was given since"
    assert estimated(rows, queues, lambda _: 7) == {worker: 104}, "no less than was counted"
    clock.advance(400 / ROWS_A_SECOND - 0.001)
    assert estimated(rows, queues, lambda _: 500) == {worker: 500}
    clock.advance(0.002)
    assert estimated(rows, queues, lambda _: 500) == {worker: 603}


def test_a_queue_that_was_never_counted_counts_as_full(rows: Scenario, clock: SettableClock) -> None:
    first = worker_with(rows, 200)
    queues = LongQueues(clock)
    estimated(rows, queues)
    second = worker_with(rows, 300)
    assert estimated(rows, queues, {first: 200}.get) == {first: 200, second: ROOM}


def test_queues_are_counted_in_turn(rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_queues, "ROWS_AT_ONCE", 2 * ROOM)
    workers = [worker_with(rows, number) for number in (200, 300, 400)]
    queues = LongQueues(clock)
    exact = []
    for _ in range(3):
        found = estimated(rows, queues)
        exact.append({at for at, worker in enumerate(workers) if found[worker] < ROOM})
        clock.advance(1)
    assert exact[0] | exact[1] == {0, 1, 2}
    assert [len(some) for some in exact] == [2, 2, 2]


def test_a_queue_is_counted_no_further_than_a_count_may_read(
    rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_queues, "ROWS_AT_ONCE", 300)
    worker = worker_with(rows, 500)
    queues = LongQueues(clock)
    assert estimated(rows, queues) == {worker: ROOM}, "nobody knows how many there are"
    clock.advance(1)
    assert estimated(rows, queues, lambda _: 450) == {worker: 450}
    clock.advance(1)
    assert estimated(rows, queues, lambda _: 200) == {worker: 301}


def test_the_more_workers_there_are_the_less_is_counted_of_each() -> None:
    assert [counted(workers) for workers in (0, 1, 10, 20, 100, 250, 1_000)] == [
        2_000,
        2_000,
        2_000,
        1_250,
        250,
        100,
        100,
    ]
