"""Nodes that run always: the rows while they run, and how another worker goes on with them."""

from datetime import timedelta

import pytest

from rota.scheduler_service.duties.deadlines import Deadlines
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.settings import Settings
from rota.shared.store import node_types, recovery
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import Run
from tests.harness.scenario import NODE_TYPES, Scenario

WHY = "node REPORT_EXTRACT failed: no"
FAILED = '{"error":"no"}'


class AfarScenario(Scenario):
    is_far = True


@pytest.fixture(params=[Scenario, AfarScenario])
def rows(database: Database, request: pytest.FixtureRequest) -> Scenario:
    """Claimed with and without reading before."""
    made: Scenario = request.param(database)
    return made


def failed_in_first(run: Run) -> Report:
    """A report that the first node of two has failed for good, and that the second runs all the same."""
    first, second = run.nodes
    at = run.due_at
    nodes = [NodeReport(first.id, NodeStatus.FAILED, FAILED, at, at, 1), NodeReport(second.id, NodeStatus.RUNNING)]
    nodes[1].gmt_started = at
    return Report(run.id, run.attempt, nodes, InstanceReport(InstanceStatus.RUNNING, None, WHY, at, None))


def cleaned(run: Run) -> Report:
    """A report that the second node has succeeded, and that the run has failed in the first."""
    first, second = run.nodes
    at = run.due_at
    nodes = [
        NodeReport(first.id, NodeStatus.FAILED, FAILED, at, at, 1),
        NodeReport(second.id, NodeStatus.SUCCEED, "1", at, at),
    ]
    end = InstanceReport(InstanceStatus.FAILED, FAILED, WHY, at, at, run.failures + 1)
    return Report(run.id, run.attempt, nodes, end)


def test_the_run_goes_on_with_the_reason_of_its_failure_and_then_has_failed(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    for _ in range(2):  # as where the answer to the first commit was lost
        assert rows.report(worker, failed_in_first(run)) == set()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("running", ["failed", "running"])
    assert (rows.row(run.id).reason, rows.row(run.id).gmt_completed, rows.broken()) == (WHY, None, {})
    assert rows.report(worker, cleaned(run)) == set()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("failed", ["failed", "succeed"])
    row = rows.row(run.id)
    assert (row.reason, row.failures, row.execution_result) == (WHY, 1, {"error": "no"})
    [attempt] = row.failed_attempts
    assert (attempt["node_id"], attempt["reason"]) == (run.nodes[0].id, WHY)
    assert rows.broken() == {}


def test_when_its_worker_is_lost_another_one_begins_with_what_is_left(rows: Scenario) -> None:
    worker, heir = rows.worker(), rows.worker()
    run = rows.running(worker)
    rows.report(worker, failed_in_first(run))
    rows.bury(worker)
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["failed", "pending"])
    rows.give(heir, run.id)
    [again] = rows.claim(heir, run.id).runs
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("running", ["failed", "running"])
    assert (again.nodes[0].status, again.nodes[0].result) == ("failed", {"error": "no"})
    assert rows.broken() == {}


def test_what_sql_has_revived_begins_at_the_node_that_failed(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.report(worker, cleaned(run))
    rows.sql(
        "UPDATE schedule_instance SET status = 'pending', schedule_worker_node_id = NULL, gmt_completed = NULL"
        " WHERE id = :id",
        id=run.id,
    )
    rows.give(worker, run.id)
    rows.claim(worker, run.id)
    assert rows.node_statuses(run.id) == ["running", "succeed"]


def declare_always(rows: Scenario) -> None:
    extract, send = (node_types.NodeTypeDeclaration(name, "REPORT", at) for at, name in enumerate(NODE_TYPES, 1))
    send = node_types.NodeTypeDeclaration(send.type, "REPORT", 2, {"always": True})
    rows.database.write(lambda c: node_types.register(c, [extract, send], "test"))


@pytest.mark.parametrize("always", [False, True])
def test_the_scheduler_ends_no_overdue_run_while_a_node_runs_that_runs_always(rows: Scenario, always: bool) -> None:
    if always:
        declare_always(rows)
    worker = rows.worker()
    run = rows.running(worker, rows.task(run_timeout_seconds=60))
    rows.report(worker, failed_in_first(run))
    at = rows.now() - timedelta(seconds=3600)
    rows.sql("UPDATE schedule_instance SET gmt_started = :at WHERE id = :i", i=run.id, at=f"{at:%F %T.%f}")
    rows.sql(
        "INSERT INTO schedule_deadline (schedule_instance_id, run_timeout_seconds, check_at)"
        " VALUES (:id, 60, '2026-01-01 00:00:00.000000')",
        id=run.id,
    )
    duty = Deadlines(rows.database, Settings.load(overdue_seconds=30))
    duty._wait_until = float("-inf")
    duty.step()
    assert rows.status(run.id) == ("running" if always else "failed")
