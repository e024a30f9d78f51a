"""A run that has ended, but whose thread still runs, keeps its task's overlap slot."""

from functools import partial

import pytest

from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.strays import Strays
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import strays, workers
from rota.shared.store.transitions import keeping
from rota.worker_service.rows import WorkerRows
from tests.harness.scenario import Scenario, ended, failed_while_its_thread_runs


def free(rows: Scenario, *instances: int) -> None:
    rows.database.write(partial(keeping.free, instance_ids=instances))


@pytest.mark.parametrize("policy", ["skip", "queue", "replace"])
def test_nothing_of_a_task_runs_beside_a_thread_whose_run_has_ended(rows: Scenario, policy: str) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy=policy)
    first = rows.running(worker, task, at=rows.past())
    assert rows.report(worker, failed_while_its_thread_runs(first)) == set()
    assert rows.status(first.id) == "failed"
    later = rows.by_sql(task)
    rows.sql("UPDATE schedule_instance SET due_at = schedule_datetime, run_number = 7 WHERE id = :id", id=later)
    rows.give(worker, later)
    assert rows.claim(worker, later).runs == []
    assert rows.status(later) == "assigned"
    free(rows, first.id)
    assert [run.id for run in rows.claim(worker, later).runs] == [later]
    assert rows.sql("SELECT COUNT(*) FROM schedule_kept_slot")[0][0] == 0


def test_of_a_task_that_may_run_twice_at_once_one_slot_is_kept(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow", max_instances=2)
    first = rows.running(worker, task)
    rows.report(worker, failed_while_its_thread_runs(first))
    second, third = rows.assigned(worker, task), rows.assigned(worker, task)
    assert len(rows.claim(worker, second, third).runs) == 1


def test_a_task_without_a_limit_keeps_nothing(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    rows.report(worker, failed_while_its_thread_runs(rows.running(worker, task)))
    assert rows.sql("SELECT COUNT(*) FROM schedule_kept_slot")[0][0] == 0


def test_a_limit_has_its_slot_back_when_the_thread_of_a_run_that_timed_out_returns(rows: Scenario) -> None:
    rows.sql("INSERT INTO schedule_limit (name, max_running) VALUES ('warehouse', 1)")
    worker, other = rows.worker(), rows.worker()
    one, two = rows.tasks(2, overlap_policy="allow", limit_name="warehouse")
    first = rows.running(worker, one)
    rows.report(worker, failed_while_its_thread_runs(first))
    waiting = rows.assigned(other, two)
    [left] = rows.claim(other, waiting).waiting
    assert (left.id, left.limit_name) == (waiting, "warehouse")
    free(rows, first.id)
    assert [run.id for run in rows.claim(other, waiting).runs] == [waiting]


def test_a_report_that_is_written_twice_keeps_one_slot(rows: Scenario) -> None:
    worker, run = (worker := rows.worker()), rows.running(worker)
    assert rows.report(worker, failed_while_its_thread_runs(run)) == set()
    rows.report(worker, failed_while_its_thread_runs(run))
    assert rows.sql("SELECT COUNT(*) FROM schedule_kept_slot")[0][0] == 1


def test_the_slots_that_a_dead_workers_threads_kept_are_freed(rows: Scenario) -> None:
    dead, live = rows.worker(), rows.worker()
    mine, theirs = rows.running(dead), rows.running(live)
    for worker, run in ((dead, mine), (live, theirs)):
        rows.report(worker, failed_while_its_thread_runs(run))
    reaper = Reaper(rows.database, Settings.load(), "test")
    reaper.step()
    assert rows.sql("SELECT COUNT(*) FROM schedule_kept_slot")[0][0] == 2
    rows.bury(dead)
    reaper.step()
    kept = rows.sql("SELECT id FROM schedule_instance WHERE slot_kept = 1")
    assert [row[0] for row in kept] == [theirs.id]
    assert rows.sql("SELECT schedule_instance_id FROM schedule_kept_slot")[0][0] == theirs.id


@pytest.mark.parametrize("status", ["failed", "canceled", "succeed"])
@pytest.mark.parametrize("lost", ["slot_kept was written by SQL", "its row was lost"])
def test_a_slot_that_is_kept_for_no_thread_is_freed(rows: Scenario, status: str, lost: str) -> None:
    worker, task = rows.worker(), rows.task()
    run, theirs = rows.running(worker, task), rows.running(worker)
    rows.report(worker, failed_while_its_thread_runs(theirs))
    if lost == "its row was lost":
        rows.report(worker, failed_while_its_thread_runs(run))
        rows.sql("DELETE FROM schedule_kept_slot WHERE schedule_instance_id = :id", id=run.id)
    else:
        rows.report(worker, ended(run, InstanceStatus.FAILED))
        rows.sql("UPDATE schedule_instance SET slot_kept = 1 WHERE id = :id", id=run.id)
    rows.sql("UPDATE schedule_instance SET status = :status WHERE id = :id", id=run.id, status=status)
    assert rows.claim(worker, rows.assigned(worker, task)).runs == []
    Strays(rows.database, 15).step()
    later = rows.assigned(worker, task)
    assert [run.id for run in rows.claim(worker, later).runs] == [later]
    assert [row[0] for row in rows.sql("SELECT id FROM schedule_instance WHERE slot_kept = 1")] == [theirs.id]


def test_a_run_that_ends_meanwhile_keeps_the_slot_that_its_thread_needs(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.sql("UPDATE schedule_instance SET slot_kept = 1 WHERE id = :id", id=run.id)
    rows.report(worker, failed_while_its_thread_runs(run))
    rows.database.write(partial(strays.free_slots, instance_ids=[run.id]))
    assert rows.row(run.id).slot_kept == 1


def test_a_worker_frees_no_slot_that_is_kept_for_anothers_thread(rows: Scenario) -> None:
    a, b = rows.worker(), rows.worker()
    run = rows.running(b)
    rows.report(b, failed_while_its_thread_runs(run))
    WorkerRows(rows.database, a).free_slots([run.id])
    assert rows.sql("SELECT schedule_worker_node_id FROM schedule_kept_slot")[0][0] == b
    assert rows.sql("SELECT slot_kept FROM schedule_instance WHERE id = :id", id=run.id)[0][0] == 1
    WorkerRows(rows.database, b).free_slots([run.id])
    assert rows.sql("SELECT COUNT(*) FROM schedule_kept_slot")[0][0] == 0
    assert rows.sql("SELECT slot_kept FROM schedule_instance WHERE id = :id", id=run.id)[0][0] == 0


def test_a_kept_slot_that_an_instance_of_the_same_id_left_behind_gives_way(rows: Scenario) -> None:
    gone, worker = rows.worker(), rows.worker()
    run = rows.running(worker)
    rows.sql(
        "INSERT INTO schedule_kept_slot (schedule_instance_id, schedule_worker_node_id) VALUES (:id, :worker)",
        id=run.id,
        worker=gone,
    )
    assert rows.report(worker, failed_while_its_thread_runs(run)) == set()
    kept = rows.sql("SELECT schedule_instance_id, schedule_worker_node_id FROM schedule_kept_slot")
    assert [tuple(row) for row in kept] == [(run.id, worker)]


def test_what_a_worker_still_ran_when_it_stopped_is_no_loss(rows: Scenario) -> None:
    stopped = rows.worker("stopped")
    run = rows.running(stopped, worker_losses=2)
    rows.database.write(partial(workers.leave, worker_id=stopped))
    reaper = Reaper(rows.database, Settings.load(), "test")
    reaper.step()
    assert rows.status(run.id) == "running", "its process may still run it"
    rows.database.write(partial(workers.bury, worker_ids=[stopped], reason="its process is gone", by="test"))
    reaper.step()
    row = rows.row(run.id)
    assert (row.status, row.worker_losses) == ("pending", 2)
    assert row.reason == "worker 'stopped' stopped while it ran this; it runs again"
