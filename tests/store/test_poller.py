"""The comparison of what stands running under a worker with what it runs."""

from typing import Any

import pytest
from sqlalchemy import Connection

from shared.settings import Settings
from shared.store import losses, runs
from shared.store.runs import Run
from tests.store.scenario import Scenario
from tests.unit.test_runner import Reports
from worker_service.delay_queue import DelayQueue
from worker_service.poller import Poller
from worker_service.runner import Runner


def compared(rows: Scenario, worker: int, *accepted: Run) -> tuple[Poller, Runner]:
    """A poller of the worker, whose process runs what it has accepted."""
    clock = rows.database.clock
    runner = Runner({}, {}, Reports(), clock, result_limit_bytes=1000, freed=lambda: None)
    for run in accepted:
        assert runner.accept(run)
    starts: DelayQueue[Run] = DelayQueue(clock)
    return Poller(rows.database, Settings.load(), worker, runner=runner, starts=starts, busy=lambda: 0), runner


def test_what_a_worker_holds_and_does_not_run_is_handed_back(rows: Scenario) -> None:
    worker = rows.worker()
    known, stranger = rows.running(worker), rows.running(worker)
    poller, _ = compared(rows, worker, known)
    poller.compare()
    assert rows.statuses() == {known.id: "running", stranger.id: "pending"}
    assert rows.row(stranger.id).reason == "its worker held it but did not run it"


def test_what_may_run_at_most_once_is_failed_and_not_handed_back(rows: Scenario) -> None:
    worker, once = rows.worker(), rows.task(on_worker_lost="fail", overlap_policy="allow")
    strangers = [rows.running(worker, once), rows.running(worker, once), rows.running(worker)]
    known = rows.running(worker, once)
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=strangers[1].id)
    compared(rows, worker, known)[0].compare()
    assert [rows.status(run.id) for run in (*strangers, known)] == ["failed", "canceled", "pending", "running"]
    row = rows.row(strangers[0].id)
    assert row.reason == "its worker held it but did not run it; its task says on_worker_lost = fail"
    assert (row.execution_result, row.modifier) == ({"error": row.reason}, "worker")
    assert rows.node_statuses(row.id) == ["failed", "canceled"]


def test_a_later_attempt_than_the_one_seen_is_left_alone(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    run = rows.running(worker, rows.task(on_worker_lost="fail"))
    held = [(run.id, run.attempt + 1)]
    assert rows.database.write(lambda c: losses.disown(c, worker, held, "test")) == 0
    assert rows.database.write(lambda c: losses.disown(c, other, [(run.id, run.attempt)], "test")) == 0
    assert rows.status(run.id) == "running"


def test_a_comparison_under_way_does_not_hand_back_what_the_stop_is_ending(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    poller, runner = compared(rows, worker, run)
    held = runs.held

    def stopped_meanwhile(connection: Connection, worker_id: int) -> Any:
        found = held(connection, worker_id)
        poller.close()
        runner.forsake()
        return found

    monkeypatch.setattr(runs, "held", stopped_meanwhile)
    poller.compare()
    assert rows.status(run.id) == "running"
