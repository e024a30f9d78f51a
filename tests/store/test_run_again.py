"""Runs that a handler asks for: written once with the report of its end, or not at all."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.control import instances, tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.states import InstanceStatus, TaskStatus
from rota.shared.settings import Settings
from rota.shared.store import recovery, reports
from rota.shared.store.reports import Report
from rota.shared.store.runs import Run
from tests.harness.scenario import Scenario, ended, succeeded

ANN = Actor("ann", "cli")


def asking(run: Run, at: datetime, result: str = "42") -> Report:
    """The report of a run whose handler wants to run again at this time."""
    report = succeeded(run, result)
    assert report.instance is not None
    report.instance.again = at
    return report


def asked_for(rows: Scenario, run: Run) -> Any:
    found = rows.sql("SELECT id FROM schedule_instance WHERE follows_id = :id", id=run.id)
    return [rows.row(one.id) for one in found]


@pytest.mark.parametrize("at_once", [True, False])
def test_one_more_run_is_there_with_the_end_for_that_time_with_the_same_param(rows: Scenario, at_once: bool) -> None:
    worker, at = rows.worker(), rows.start + timedelta(hours=3)
    run = rows.running(worker, rows.task(priority=3), param={"order": 5}, priority=9)
    plain, failing = rows.running(worker), rows.running(worker)
    batch = [asking(run, at), succeeded(plain), ended(failing, InstanceStatus.FAILED)]
    assert rows.database.write(lambda c: reports.report(c, worker, batch, at_once=at_once)) == set()
    [one] = asked_for(rows, run)
    assert (one.schedule_datetime, one.due_at, one.status, one.origin) == (at, at, "pending", "manual")
    assert (one.param, one.priority, one.fire_key, one.run_number) == ({"order": 5}, 3, f"after-{run.id}", 0)
    first = rows.row(run.id)
    assert (first.status, first.run_again_at, first.execution_result) == ("succeed", at, 42)
    assert len(rows.statuses()) == 4


def test_a_report_that_is_written_twice_asks_once(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    report = asking(run, rows.start + timedelta(hours=1))
    for _ in range(2):
        rows.report(worker, report)
    assert len(asked_for(rows, run)) == 1


def test_a_run_that_its_worker_has_lost_asks_for_nothing_and_its_next_attempt_asks_once(rows: Scenario) -> None:
    worker, other, at = rows.worker(), rows.worker(), rows.start + timedelta(hours=1)
    run = rows.running(worker)
    rows.bury(worker)
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    assert rows.report(worker, asking(run, at)) == {run.id}
    assert asked_for(rows, run) == []
    rows.give(other, run.id)
    [again] = rows.claim(other, run.id).runs
    assert rows.report(other, asking(again, at)) == set()
    assert rows.report(worker, asking(run, at + timedelta(hours=1))) == {run.id}
    assert len(asked_for(rows, run)) == 1


def test_the_run_asked_for_goes_to_a_worker_and_may_ask_again(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    for _ in range(3):
        assert rows.report(worker, asking(run, rows.past())) == set()
        [following] = asked_for(rows, run)
        Assigner(rows.database, Settings.load()).step()
        assert rows.status(following.id) == "assigned"
        [run] = rows.claim(worker, following.id).runs
    assert rows.report(worker, succeeded(run)) == set()
    assert asked_for(rows, run) == []


def test_it_runs_while_its_task_is_off_and_not_when_that_is_deleted(rows: Scenario) -> None:
    worker = rows.worker()
    off, deleted = rows.task("off"), rows.task("deleted")
    runs = [rows.running(worker, task) for task in (off, deleted)]
    rows.report(worker, *(asking(run, rows.past()) for run in runs))
    tasks.switch(rows.database, ANN, ["off"], TaskStatus.OFF)
    tasks.remove(rows.database, ANN, "deleted")
    Assigner(rows.database, Settings.load()).step()
    [[one], [other]] = [asked_for(rows, run) for run in runs]
    assert (one.status, other.status, other.reason) == ("assigned", "canceled", "its task was deleted")
    assert len(rows.claim(worker, one.id).runs) == 1


def test_both_runs_tell_of_each_other(rows: Scenario) -> None:
    worker, at = rows.worker(), rows.start + timedelta(hours=1)
    run, plain = rows.running(worker), rows.running(worker)
    rows.report(worker, asking(run, at), succeeded(plain))
    [following] = asked_for(rows, run)
    shown = instances.show(rows.database, run.id)
    assert (shown["run_again_at"], shown["run_again_id"]) == (at.isoformat() + "Z", following.id)
    assert instances.show(rows.database, following.id)["follows_id"] == run.id
    assert instances.show(rows.database, plain.id)["run_again_id"] is None
    rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=following.id)
    assert instances.show(rows.database, run.id)["run_again_id"] is None
