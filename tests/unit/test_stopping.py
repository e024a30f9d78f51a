"""The steps of stopping a worker."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from rota.shared.domain.errors import DatabaseProblem
from rota.shared.settable_clock import SettableClock
from rota.shared.store.reports import Report
from rota.supervise.parent import AFTER_GRACE_SECONDS
from rota.worker_service import guardian, liveness
from rota.worker_service.contents import Node
from rota.worker_service.engine import CLOSING_SECONDS, Engine, attempt
from rota.worker_service.executors import event_loop
from rota.worker_service.executors.base import Call, Executor, Failure, Outcome
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running.runner import Runner
from rota.worker_service.verdicts import Fail
from tests.harness.runs import NOON, Reports, run

NAMES = ("LOG", "CLEANUP")


@pytest.mark.parametrize(("error", "is_expected"), [(DatabaseProblem("away"), True), (OSError("read-only"), False)])
def test_a_step_that_fails_stops_no_other_and_shows_a_traceback_if_it_was_not_expected(
    caplog: pytest.LogCaptureFixture, error: Exception, is_expected: bool
) -> None:
    def fail() -> NoReturn:
        raise error

    with caplog.at_level(logging.WARNING):
        attempt(fail)
    [record] = caplog.records
    assert record.getMessage() == f"worker: while stopping: {error}"
    assert bool(record.exc_info) is not is_expected


def test_nobody_is_killed_while_it_hands_back_what_it_ran() -> None:
    worker = 3 * CLOSING_SECONDS + event_loop.CLOSING_SECONDS  # the poll, the handlers, the reports; then the executors
    assert worker + guardian.GROUPS_SECONDS + liveness.LAST_BEAT_SECONDS < AFTER_GRACE_SECONDS


class Rows:
    """Keeps what a stopping worker writes, in its order."""

    away = False

    def __init__(self) -> None:
        self.written: list[Report] = []
        self.handed_back: list[tuple[int, int]] = []

    def report_last(self, batch: Sequence[Report]) -> tuple[set[int], set[int]]:
        self.written += batch
        return set(), set()

    def hand_back(self, held: Sequence[tuple[int, int]], reason: str, *, waits: bool) -> int:
        assert waits
        self.handed_back += held
        return len(held)


class Away:
    """A reporter whose queue is not written in time."""

    def flush(self, timeout: float) -> bool:
        return False


class Ended:
    """A call whose handler ends as soon as it is stopped."""

    entered, place = 0.0, None

    def __init__(self, done: Callable[[Outcome], None]) -> None:
        self.done = done

    def stop(self, *, asks: bool = False) -> None:
        self.done(Outcome(0.0, 0.0, stopped=True))


class Handlers:
    """Starts calls, which the test ends."""

    def __init__(self) -> None:
        self.calls: list[Ended] = []

    def start(self, call: Call, done: Callable[[Outcome], None], *, later: bool = False) -> Ended:
        self.calls.append(Ended(done))
        return self.calls[-1]

    def begin(self) -> None: ...


@pytest.mark.parametrize("on_worker_lost", ["fail", "retry"])
def test_what_is_queued_still_is_written_before_a_run_is_handed_back(on_worker_lost: str) -> None:
    """Its node has failed, and the next one, which runs always, was not entered yet."""
    clock, rows, reports, handlers = SettableClock(NOON), Rows(), Reports(), Handlers()
    marked = [Node(f"REPORT_{n}", "REPORT", 1, lambda ctx: None, "thread", always=n == "CLEANUP") for n in NAMES]
    limits: dict[str, Any] = {"result_limit_bytes": 1000, "grace_seconds": 5}
    nodes, slots = {node.type: node for node in marked}, Slots(1, 1, clock)
    runner = Runner(nodes, {"thread": cast("Executor", handlers)}, reports, slots, clock, **limits)
    due = replace(run(*NAMES), on_worker_lost=on_worker_lost)
    runner.accept([due])
    runner.start([due])
    if on_worker_lost == "fail":
        reports.commit()
    handlers.calls[0].done(Outcome(0.0, 0.0, failure=Failure.of(Fail("no"))))
    engine = Engine.__new__(Engine)
    told = SimpleNamespace(reported=lambda report: None)
    parts = {"_runner": runner, "_rows": rows, "_reporter": Away(), "_listeners": told, "_clock": clock}
    vars(engine).update(parts, _last_grace_seconds=0.0)
    assert engine._end_the_rest(threading.Event())
    said = [[(node.id, node.status.value) for node in report.nodes] for report in rows.written]
    decided = [(101, "failed"), (102, "running")]
    if on_worker_lost == "fail":
        assert (said, rows.handed_back) == ([decided, [(102, "pending")]], [])
    else:
        assert (said, rows.handed_back) == ([decided], [(7, 1)])
