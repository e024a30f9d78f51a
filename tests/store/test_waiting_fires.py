"""Fires that wait for a worker: which of them run when one comes, and what `off` makes of them."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import assignments
from tests.harness.databases import is_mysql, run_sql, unchecked
from tests.harness.scenario import Scenario

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


@pytest.fixture
def assign(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A pass of an assigner, which sees the workers as they are then."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Assigner(database, Settings.load()).step


def ages(rows: Scenario, *ages: int, task: int) -> list[int]:
    """Pending fires of a task, so many seconds late, and the reason that the scheduler gave."""
    return [rows.pending(task, rows.start - n * SECOND, reason="no worker is live") for n in ages]


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_of_fires_that_waited_for_a_worker_only_the_newest_runs(
    rows: Scenario, assign: Callable[[], float], policy: str
) -> None:
    task = rows.task(overlap_policy=policy)
    *missed, newest = ages(rows, *range(89, 0, -1), task=task)
    assign()
    assert {rows.status(i) for i in missed} == {"canceled"}, "they pile up no further, though nobody can run them"
    assert rows.row(missed[0]).reason == f"missed: no worker could run it in time; instance {newest} runs"
    assert rows.status(newest) == "pending"
    rows.worker()
    assign()
    assert rows.status(newest) == "assigned"


def test_fires_that_waited_no_longer_than_their_grace_all_run(rows: Scenario, assign: Callable[[], float]) -> None:
    waiting = ages(rows, 3, 2, 1, task=rows.task(misfire_grace_seconds=3600))
    rows.worker()
    assign()
    assert {rows.status(i) for i in waiting} == {"assigned"}


def test_what_somebody_asked_for_runs_however_long_it_has_waited(rows: Scenario, assign: Callable[[], float]) -> None:
    task = rows.task()
    asked = [rows.by_sql(task, rows.start - n * MINUTE) for n in (3, 2, 1)]
    rows.worker()
    assign()
    assert {rows.status(i) for i in asked} == {"assigned"}


def test_what_lost_its_worker_was_not_missed(rows: Scenario, assign: Callable[[], float]) -> None:
    task, worker = rows.task(), rows.worker()
    given = [rows.assigned(worker, task, rows.start - n * MINUTE) for n in (3, 2, 1)]
    rows.bury(worker)
    rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 10))
    assign()
    assert {rows.status(i) for i in given} == {"pending"}


def test_of_replacing_fires_that_wait_for_a_worker_the_newest_runs(rows: Scenario, assign: Callable[[], float]) -> None:
    *older, newest = ages(rows, 3, 2, 1, task=rows.task(overlap_policy="replace"))
    rows.worker()
    assign()
    assert [rows.status(i) for i in (*older, newest)] == ["canceled", "canceled", "assigned"]


def test_fires_that_pass_while_their_task_is_off_and_no_worker_is_there_do_not_run_afterwards(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    task = rows.task(misfire_grace_seconds=3600)
    passed, ahead = ages(rows, 2, -3, task=task)
    asked = rows.by_sql(task)
    rows.sql("UPDATE schedule_task SET status = 'off'")
    assign()
    assert (rows.status(passed), rows.row(passed).reason) == ("canceled", "its task was off when it was due")
    rows.sql("UPDATE schedule_task SET status = 'on'")
    rows.worker()
    assign()
    assert [rows.status(i) for i in (passed, ahead, asked)] == ["canceled", "assigned", "assigned"]


def test_fires_that_pass_in_the_queue_of_a_busy_worker_while_their_task_is_off_do_not_run_afterwards(
    rows: Scenario,
) -> None:
    task, worker = rows.planned_task(rows.start + MINUTE, misfire_grace_seconds=3600), rows.worker()
    passed = rows.assigned(worker, task, rows.start - SECOND)
    ahead = rows.assigned(worker, task, rows.start + 30 * SECOND)
    asked = rows.assigned(worker, task, rows.start - 2 * SECOND, origin="manual", run_number=1)
    jittered = rows.assigned(worker, task, rows.start - 3 * SECOND, due_at=rows.start + 30 * SECOND)
    materialize = Materializer(rows.database, Settings.load()).step
    for status in ("off", "on"):
        rows.sql(f"UPDATE schedule_task SET status = '{status}'")
        materialize()
    assert (rows.status(passed), rows.row(passed).reason) == ("canceled", "its task was off when it was due")
    assert rows.node_statuses(passed) == ["canceled"] * 2
    assert [rows.status(i) for i in (ahead, asked, jittered)] == ["assigned"] * 3


def test_fires_of_a_queue_that_fell_due_while_no_worker_could_run_it_are_missed_and_those_before_keep_their_turns(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    task = rows.task(overlap_policy="queue")
    url = rows.database.url.render_as_string(hide_password=False)
    if is_mysql(url):
        run_sql(url, *unchecked(url))
    rows.sql("UPDATE schedule_task SET misfire_grace_seconds = 0")
    had_a_worker = ages(rows, 300, 200, 100, task=task)
    assign()
    *missed, newest = [rows.pending(task, rows.now()) for _ in range(4)]
    assign()
    assert {rows.status(i) for i in missed} == {"canceled"}
    assert {rows.status(i) for i in (*had_a_worker, newest)} == {"pending"}
    rows.worker()
    assign()
    assert {rows.status(i) for i in (*had_a_worker, newest)} == {"assigned"}
    rows.sql("UPDATE schedule_worker_node SET state = 'dead'")
    again = [rows.pending(task, rows.now()) for _ in range(4)]
    assign()
    assert {rows.status(i) for i in again} == {"pending"}, "it counts anew"
