"""What a worker gives back, gives up, frees and skips: one row that somebody has locked holds up no other.

The locks are those of a console that was left open in a transaction. SQLite has no locks of rows.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import pytest

from rota.shared.store.runs import Run
from rota.worker_service.rows import WorkerRows
from tests.harness.databases import MariaDBServer
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, ended, failed_while_its_thread_runs, stepped, succeeded
from tests.harness.together import impatient, locked, wait_for_lock_wait


def held(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.id, run.attempt) for run in runs]


def statuses(rows: Scenario, runs: list[Run]) -> list[str]:
    return [rows.status(run.id) for run in runs]


def locked_run(rows: Scenario, run: Run) -> AbstractContextManager[None]:
    return locked(rows.database, "schedule_instance", "id = :id", id=run.id)


@pytest.mark.parametrize("unstarted", [True, False])
def test_of_runs_that_are_handed_back_the_locked_one_alone_stays(mariadb_rows: Scenario, unstarted: bool) -> None:
    worker = mariadb_rows.worker()
    runs = [mariadb_rows.running(worker) for _ in range(3)]
    mine = WorkerRows(mariadb_rows.database, worker)
    with locked_run(mariadb_rows, runs[1]):
        assert mine.hand_back(held(runs), "it has no slot", unstarted=unstarted) == 2
        assert statuses(mariadb_rows, runs) == ["pending", "running", "pending"]
    assert mine.hand_back(held(runs), "it has no slot", unstarted=unstarted) == 1
    assert statuses(mariadb_rows, runs) == ["pending"] * 3


@pytest.mark.parametrize("lost", [0, 3])
def test_runs_are_handed_back_beside_a_lost_one_and_a_locked_one(mariadb_rows: Scenario, lost: int) -> None:
    worker = mariadb_rows.worker()
    runs = [mariadb_rows.running(worker) for _ in range(4)]
    mariadb_rows.sql("UPDATE schedule_instance SET attempt = 7 WHERE id = :id", id=runs[lost].id)
    with locked_run(mariadb_rows, runs[1]):
        assert WorkerRows(mariadb_rows.database, worker).hand_back(held(runs), "it has no slot") == 2
    stay = {runs[lost].id, runs[1].id}
    assert {run.id for run in runs if mariadb_rows.status(run.id) == "running"} == stay


def test_a_worker_that_stops_waits_for_the_lock_on_what_it_hands_back(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    worker = mariadb_rows.worker()
    runs = [mariadb_rows.running(worker) for _ in range(3)]
    mariadb_rows.database.wariness.met()  # so that only the last try waits
    hand_back = partial(
        WorkerRows(mariadb_rows.database, worker).hand_back, held(runs), "its worker stopped", waits=True
    )
    with ThreadPoolExecutor(1) as pool:
        with locked_run(mariadb_rows, runs[0]), locked_run(mariadb_rows, runs[1]):
            done = pool.submit(hand_back)
            wait_until(lambda: statuses(mariadb_rows, runs) == ["running", "running", "pending"], what="the free one")
            wait_for_lock_wait(mariadb_server, done)
        assert done.result(30) == 3
    assert statuses(mariadb_rows, runs) == ["pending"] * 3


def test_of_strangers_the_locked_ones_alone_are_not_given_up(mariadb_rows: Scenario) -> None:
    worker = mariadb_rows.worker()
    once = [mariadb_rows.begun(worker, mariadb_rows.task(on_worker_lost="fail")) for _ in range(2)]
    again = [mariadb_rows.running(worker) for _ in range(2)]
    runs = [once[0], again[0], once[1], again[1]]
    mine = WorkerRows(mariadb_rows.database, worker)
    with locked_run(mariadb_rows, once[0]), locked_run(mariadb_rows, again[1]):
        assert mine.disown(held(runs), "its worker did not run it") == (1, 1)
        assert statuses(mariadb_rows, runs) == ["running", "pending", "failed", "running"]
    left = [once[0], again[1]]
    assert mine.disown(held(left), "its worker did not run it") == (1, 1)
    assert statuses(mariadb_rows, left) == ["failed", "pending"]


def test_of_slots_that_threads_have_kept_the_locked_one_alone_is_not_freed(mariadb_rows: Scenario) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    runs = [rows.running(worker) for _ in range(3)]
    for run in runs:
        rows.report(worker, failed_while_its_thread_runs(run))
    mine = WorkerRows(rows.database, worker)
    kept = "SELECT schedule_instance_id FROM schedule_kept_slot"
    assert len(rows.sql(kept)) == 3
    with locked_run(rows, runs[1]):
        assert list(mine.free_slots({run.id for run in runs})) == [runs[1].id]
        assert rows.sql(kept) == [(runs[1].id,)]
    assert list(mine.free_slots([runs[1].id])) == []
    assert rows.sql(kept) == []


def test_an_instance_that_is_locked_is_skipped_later(mariadb_rows: Scenario) -> None:
    worker = mariadb_rows.worker()
    instance = mariadb_rows.assigned(worker)
    mine = WorkerRows(mariadb_rows.database, worker)
    with locked(mariadb_rows.database, "schedule_instance", "id = :id", id=instance):
        assert not mine.skip(instance, "the database refuses its claim")
        assert mariadb_rows.status(instance) == "assigned"
    assert mine.skip(instance, "the database refuses its claim")
    assert mariadb_rows.status(instance) == "canceled"


def test_of_the_last_reports_those_of_a_locked_run_alone_are_not_written(mariadb_rows: Scenario) -> None:
    worker = mariadb_rows.worker()
    runs = [mariadb_rows.running(worker) for _ in range(3)]
    mariadb_rows.sql("UPDATE schedule_instance SET attempt = 7 WHERE id = :id", id=runs[2].id)
    last = [report for run in runs for report in (stepped(run), succeeded(run))]
    with locked_run(mariadb_rows, runs[1]), impatient(mariadb_rows.database) as database:
        assert WorkerRows(database, worker).report_last(last) == ({runs[2].id}, {runs[1].id})
    assert statuses(mariadb_rows, runs) == ["succeed", "running", "running"]


def test_a_worker_that_stops_waits_for_the_lock_on_what_it_reports(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    worker = mariadb_rows.worker()
    runs = [mariadb_rows.running(worker) for _ in range(3)]
    mariadb_rows.database.wariness.met()  # so that only the last try waits
    report = partial(WorkerRows(mariadb_rows.database, worker).report_last, [ended(run) for run in runs])
    with ThreadPoolExecutor(1) as pool:
        with locked_run(mariadb_rows, runs[0]):
            done = pool.submit(report)
            wait_until(lambda: statuses(mariadb_rows, runs) == ["running", "succeed", "succeed"], what="the free ones")
            wait_for_lock_wait(mariadb_server, done)
        assert done.result(30) == (set(), set())
    assert statuses(mariadb_rows, runs) == ["succeed"] * 3
