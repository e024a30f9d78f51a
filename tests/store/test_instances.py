"""Instances as people see and steer them."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.control import instances as control
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NotFound, NotPossible
from rota.shared.settings import Settings
from rota.shared.store import instances, recovery, tasks
from tests.harness.databases import MariaDBServer
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.together import impatient, wait_for_lock_wait

MINUTE = timedelta(minutes=1)


def listed(rows: Scenario, limit: int = 100, **chosen: Any) -> list[int]:
    return [row.id for row in rows.database.read(lambda c: instances.listed(c, limit, **chosen))]


def cancel(rows: Scenario, instance: int, database: Database | None = None) -> bool:
    [done] = control.cancel(database or rows.database, Actor("operator", "cli"), [instance])
    return bool(done["canceled"])


def replay(rows: Scenario, instance: int) -> int:
    return rows.database.write(lambda c: instances.replay(c, instance, "operator"))


def test_an_instance_is_shown_with_its_task_and_its_worker(rows: Scenario) -> None:
    worker = rows.worker(name="worker-7")
    run = rows.running(worker, rows.task(name="daily", timezone="Asia/Shanghai"))
    row = rows.row(run.id)
    assert (row.task_name, row.timezone, row.worker_name) == ("daily", "Asia/Shanghai", "worker-7")
    with pytest.raises(NotFound, match="there is no instance 999999"):
        rows.row(999_999)


def test_an_instance_of_no_known_task_is_shown_all_the_same(rows: Scenario) -> None:
    instance = rows.by_sql(4_711)
    assert (rows.row(instance).task_name, rows.row(instance).worker_name) == (None, None)
    assert listed(rows) == [instance]


def test_the_newest_are_listed_first(rows: Scenario) -> None:
    made = [rows.pending() for _ in range(4)]
    assert listed(rows) == made[::-1]
    assert listed(rows, 2) == made[:1:-1]
    assert listed(rows, after_id=made[1]) == made[:1:-1]


@pytest.mark.parametrize("status", ["pending", "assigned", "running", "failed", "canceled", "succeed"])
def test_instances_are_listed_by_status(rows: Scenario, status: str) -> None:
    worker = rows.worker()
    made = {
        "pending": [rows.pending(), rows.pending()],
        "assigned": [rows.assigned(worker), rows.assigned(worker)],
        "running": [rows.running(worker).id, rows.running(worker).id],
        **{end: [rows.ended(end, worker), rows.ended(end, worker)] for end in ("failed", "canceled", "succeed")},
    }
    assert listed(rows, status=status) == made[status][::-1]
    assert listed(rows, status=status, after_id=made[status][0]) == made[status][1:]


def test_instances_of_a_task_are_listed_by_their_nominal_time_and_replays_first(rows: Scenario) -> None:
    task, other, worker = rows.task(), rows.task(), rows.worker()
    newest, oldest, middle = (rows.pending(task, rows.start - MINUTE * n) for n in (1, 3, 2))
    rows.pending(other)
    again = rows.pending(task, rows.start - MINUTE * 9, schedule_datetime=rows.start - MINUTE * 2, run_number=1)
    assert listed(rows, task_id=task) == [newest, again, middle, oldest]
    assert listed(rows, 1, task_id=task) == [newest]
    failed = rows.ended("failed", worker, task)
    assert listed(rows, task_id=task, status="failed") == [failed]
    assert listed(rows, task_id=task, status="pending", after_id=newest) == [again, middle, oldest]


def test_what_is_asked_for_is_due_at_once_with_its_own_param(rows: Scenario) -> None:
    rows.task(name="daily", priority=2)
    row = rows.database.read(lambda c: tasks.find(c, "daily"))
    at = rows.start - timedelta(days=1)
    instance = rows.database.write(lambda c: instances.ask(c, row, at, "operator", param={"region": "us"}))
    found = rows.row(instance)
    assert (found.status, found.origin, found.schedule_datetime, found.run_number) == ("pending", "manual", at, None)
    assert (found.priority, found.param, found.creator) == (2, {"region": "us"}, "operator")
    assert abs(found.due_at - rows.now()) < MINUTE


@pytest.mark.parametrize("status", ["failed", "canceled", "succeed"])
def test_what_has_ended_can_be_replayed_and_stays_as_history(rows: Scenario, status: str) -> None:
    instance = rows.ended(status)
    before = rows.row(instance)
    again = replay(rows, instance)
    assert rows.row(instance) == before
    row = rows.row(again)
    assert (row.status, row.origin, row.schedule_datetime) == ("pending", "replay", before.schedule_datetime)


def test_what_has_not_ended_or_whose_task_is_deleted_cannot_be_replayed(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(name="gone")
    for instance in (rows.pending(), rows.assigned(worker), rows.running(worker).id):
        with pytest.raises(NotPossible, match=f"instance {instance} is .*, not ended"):
            replay(rows, instance)
    of_gone = rows.ended(task=task)
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "gone"), "test"))
    with pytest.raises(NotPossible, match="belongs to a task that was deleted"):
        replay(rows, of_gone)
    with pytest.raises(NotFound):
        replay(rows, 999_999)


def test_what_waits_is_canceled_at_once_with_its_nodes(rows: Scenario) -> None:
    for instance in (rows.pending(), rows.assigned(rows.worker())):
        assert cancel(rows, instance)
        row = rows.row(instance)
        assert (row.status, row.reason, row.modifier) == ("canceled", "canceled by hand", "operator")
        assert row.gmt_completed is not None
        assert set(rows.node_statuses(instance)) <= {"canceled"}


def test_what_runs_is_asked_to_stop(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert not cancel(rows, run.id)
    assert not cancel(rows, run.id)
    row = rows.row(run.id)
    assert (row.status, row.reason) == ("running", "canceled by hand")
    assert rows.database.read(lambda c: recovery.held(c, worker)) == [(run.id, 1, True)]
    assert rows.report(worker, ended(run)) == set()


def test_what_has_ended_cannot_be_canceled(rows: Scenario) -> None:
    instance = rows.ended()
    with pytest.raises(NotPossible, match=f"instance {instance} has ended already: succeed"):
        cancel(rows, instance)
    with pytest.raises(NotFound):
        cancel(rows, 999_999)


def test_a_cancel_that_meets_a_retry_cancels_or_asks_and_never_says_so_alone(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    """The retry comes as soon as the cancel has looked at the row."""
    rows = mariadb_rows
    worker = rows.worker()
    run = rows.running(worker)
    retries: list[Future[set[int]]] = []

    def retry(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not retries and "schedule_instance" in statement:
            retries.append(pool.submit(rows.report, worker, to_retry(run, rows.start)))
            with contextlib.suppress(AssertionError):  # it has been written
                wait_for_lock_wait(mariadb_server, retries[0])

    with ThreadPoolExecutor(1) as pool, impatient(rows.database) as database:
        event.listen(database.engine, "after_cursor_execute", retry)
        canceled = cancel(rows, run.id, database)
    assert retries[0].result() == set()
    row = rows.row(run.id)
    assert canceled == (row.status == "canceled")
    assert canceled or row.gmt_cancel_requested is not None


def test_a_replay_of_one_shard_of_a_fire_is_the_next_run_of_that_shard(rows: Scenario) -> None:
    rows.worker()
    task, at = rows.task(overlap_policy="allow"), rows.past()
    instance = rows.ended(task=task)
    rows.sql(
        "UPDATE schedule_instance SET fire_key = 'shard-2', schedule_datetime = :at WHERE id = :id",
        at=at.strftime("%Y-%m-%d %H:%M:%S.%f"),
        id=instance,
    )
    again = replay(rows, instance)
    Assigner(rows.database, Settings.load()).step()
    row = rows.row(again)
    assert (row.fire_key, row.run_number, row.status) == ("shard-2", 1, "assigned")
