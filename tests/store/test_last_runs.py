"""The last run of each task, told without reading its history."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from rota.shared.control import tasks
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import fires, last_runs
from rota.shared.store.fires import Fire
from tests.harness.scenario import Scenario, ended

MINUTE = timedelta(minutes=1)


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


def run(rows: Scenario, task: int, minutes_ago: int, status: str = "succeed") -> int:
    """An instance of a task that has ended so."""
    worker = rows.worker()
    run = rows.running(worker, task, rows.start - minutes_ago * MINUTE)
    assert rows.report(worker, ended(run, InstanceStatus(status))) == set()
    return run.id


def last(rows: Scenario, *task_ids: int) -> dict[int, tuple[int, str]]:
    found = rows.database.read(lambda c: last_runs.of_tasks(c, task_ids))
    return {task: (row.id, row.status) for task, row in found.items()}


def test_it_is_the_newest_that_has_begun_or_ended_and_none_that_waits(rows: Scenario) -> None:
    task, other, never = rows.task(), rows.task(), rows.task()
    run(rows, task, 30, "failed")
    newest = run(rows, task, 20)
    rows.pending(task, rows.start - 10 * MINUTE)
    rows.assigned(rows.worker(), task, rows.start - 5 * MINUTE)
    running = rows.running(rows.worker(), other, rows.start - MINUTE)
    rows.pending(never, rows.start)
    assert last(rows, task, other, never) == {task: (newest, "succeed"), other: (running.id, "running")}
    assert last(rows) == {}


def backlog(rows: Scenario, task: int, number: int) -> None:
    fired = [Fire(task, rows.start - at * MINUTE, 5, None, None, ()) for at in range(number)]
    rows.database.write(lambda c: fires.materialize(c, fired))


def test_a_long_backlog_is_not_read(rows: Scenario) -> None:
    short, long, busy = rows.task(), rows.task(), rows.task(overlap_policy="queue")
    done = run(rows, short, 3000)
    run(rows, long, 3000)
    for task, number in ((short, 199), (long, 2000), (busy, 2000)):
        backlog(rows, task, number)
    running = rows.running(rows.worker(), busy, rows.start - 3000 * MINUTE)
    assert last(rows, short, long, busy) == {short: (done, "succeed"), busy: (running.id, "running")}


def test_no_more_is_read_than_is_looked_at(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task_ids = [rows.task(), rows.task()]  # MySQL does not sort for one alone
    for task in task_ids:
        backlog(rows, task, 3000)

    def look(connection: Connection) -> int:
        def counted() -> int:
            found = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
            return sum(int(row[1]) for row in found)

        before = counted()
        assert last_runs.of_tasks(connection, task_ids) == {}
        return counted() - before

    assert rows.database.read(look) < 2 * 4 * last_runs.FIRES_LOOKED_AT


def test_the_list_tells_the_last_run_its_status_and_its_error(rows: Scenario) -> None:
    failed, never = rows.task("a-failed", retries=0), rows.task("b-never")
    number = run(rows, failed, 20, "failed")
    rows.sql("UPDATE schedule_instance SET reason = 'the disk is full' WHERE id = :id", id=number)
    first, second = tasks.listed(rows.database, 10)
    assert (first["last_run"]["id"], first["last_run"]["status"]) == (number, "failed")
    assert first["last_run"]["error"] == "the disk is full"
    assert second["last_run"] is None
    assert tasks.show(rows.database, "a-failed")["last_run"] == first["last_run"]
    assert never is not None
