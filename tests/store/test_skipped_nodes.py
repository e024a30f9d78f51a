"""Nodes that are skipped, since a handler has ended the run early: how they are written, shown and replayed."""

import pytest

from rota.shared.control import instances, replays
from rota.shared.control.actor import Actor
from rota.shared.control.replays import Again
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import Run
from tests.harness.scenario import Scenario

ANN = Actor("ann", "cli")


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


def ended_early(run: Run) -> Report:
    """A report that the first node of two has succeeded, and has ended the run."""
    first, second = run.nodes
    at = run.due_at
    nodes = [NodeReport(first.id, NodeStatus.SUCCEED, '{"new":0}', at, at), NodeReport(second.id, NodeStatus.SKIPPED)]
    return Report(
        run.id, run.attempt, nodes, InstanceReport(InstanceStatus.SUCCEED, '{"new":0}', None, at, at, run.failures)
    )


def test_an_early_end_is_written_once_with_the_nodes_that_it_skips(rows: Scenario) -> None:
    worker = rows.worker()
    run, other = rows.running(worker), rows.running(worker)
    report = ended_early(run)
    assert rows.report(worker, report) == set()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("succeed", ["succeed", "skipped"])
    assert rows.row(run.id).execution_result == {"new": 0}
    assert rows.report(worker, report) == {run.id}, "written twice, it finds the run ended"
    assert (rows.node_statuses(run.id), rows.status(other.id)) == (["succeed", "skipped"], "running")
    assert rows.broken() == {}
    shown = instances.show(rows.database, run.id)
    assert [(node["status"], node["gmt_started"] is None) for node in shown["nodes"]] == [
        ("succeed", False),
        ("skipped", True),
    ]


def test_a_worker_that_has_lost_the_run_skips_nothing(rows: Scenario) -> None:
    worker, heir = rows.worker(), rows.worker()
    run = rows.running(worker)
    rows.bury(worker)
    rows.sql(
        "UPDATE schedule_instance SET schedule_worker_node_id = :heir, attempt = attempt + 1 WHERE id = :id",
        heir=heir,
        id=run.id,
    )
    assert rows.report(worker, ended_early(run)) == {run.id}
    assert "skipped" not in rows.node_statuses(run.id)


def test_a_replay_runs_the_skipped_nodes_and_cannot_begin_behind_one(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.sql(
        "INSERT INTO schedule_task_node"
        " (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, status)"
        " SELECT schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, 3, 'skipped'"
        " FROM schedule_task_node WHERE schedule_instance_id = :id AND sequence = 2",
        id=run.id,
    )
    rows.report(worker, ended_early(run))
    with pytest.raises(NotPossible, match="is skipped and left no result"):
        replays.replay(rows.database, ANN, [run.id], again=Again(from_node="3"))
    [again] = replays.replay(rows.database, ANN, [run.id], again=Again(from_node="2"))
    assert rows.node_statuses(again["id"]) == ["succeed", "pending", "pending"]
