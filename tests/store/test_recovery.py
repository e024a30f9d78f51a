"""Recovery: what becomes of the instances of a worker that died."""

from datetime import timedelta
from functools import partial

from rota.shared.domain.states import NodeStatus
from rota.shared.store import assignments, instances, recovery, workers
from rota.shared.store.reports import NodeReport, Report
from rota.shared.store.transitions import canceling
from rota.worker_service.running import endings
from tests.harness.scenario import Scenario
from tests.harness.together import together

MINUTE = timedelta(minutes=1)


def recover(rows: Scenario, worker: int, limit: int = 100) -> int:
    return rows.database.write(lambda c: recovery.recover(c, worker, limit))


def take_back(rows: Scenario, worker: int) -> int:
    return rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 100))


def test_what_a_dead_worker_ran_runs_again_elsewhere(rows: Scenario) -> None:
    worker = rows.worker(name="worker-7")
    run = rows.running(worker)
    rows.bury(worker)
    assert recover(rows, worker) == 1
    row = rows.row(run.id)
    assert (row.status, row.schedule_worker_node_id, row.gmt_assigned, row.gmt_started) == ("pending", None, None, None)
    assert (row.attempt, row.failures, row.worker_losses, row.lost_by) == (1, 0, 1, "worker-7")
    assert row.reason == "worker 'worker-7' was lost while it ran this; it runs again"
    assert (row.due_at, row.gmt_completed, row.execution_result) == (run.due_at, None, None)
    assert rows.node_statuses(run.id) == ["pending", "pending"]


def test_nodes_that_succeeded_stay_so_and_the_one_that_ran_starts_anew(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    run = rows.running(worker)
    first, second = run.nodes
    step = [
        NodeReport(first.id, NodeStatus.SUCCEED, "1", run.due_at, run.due_at),
        NodeReport(second.id, NodeStatus.RUNNING),
    ]
    rows.report(worker, Report(run.id, run.attempt, step))
    recover(rows, worker)
    assert rows.node_statuses(run.id) == ["succeed", "pending"]
    rows.give(other, run.id)
    [again] = rows.claim(other, run.id).runs
    assert again.attempt == 2
    assert [(node.status, node.result) for node in again.nodes] == [("succeed", 1), ("pending", None)]


def test_what_was_only_assigned_goes_back_without_a_loss(rows: Scenario) -> None:
    worker = rows.worker()
    assigned, run = rows.assigned(worker), rows.running(worker)
    assert (take_back(rows, worker), recover(rows, worker)) == (1, 1)
    row = rows.row(assigned)
    assert (row.status, row.worker_losses, row.lost_by, row.attempt) == ("pending", 0, None, 0)
    assert rows.row(run.id).worker_losses == 1


def test_at_most_once_means_that_a_lost_run_fails(rows: Scenario) -> None:
    task, worker = rows.task(on_worker_lost="fail"), rows.worker(name="worker-7")
    run = rows.begun(worker, task)
    rows.bury(worker)
    recover(rows, worker)
    row = rows.row(run.id)
    assert (row.status, row.worker_losses, row.schedule_worker_node_id) == ("failed", 1, worker)
    assert row.reason == "worker 'worker-7' was lost while it ran this; its task says on_worker_lost = fail"
    assert row.execution_result == {"error": row.reason}
    assert row.gmt_completed is not None
    assert row.gmt_started is not None
    assert rows.node_statuses(run.id) == ["failed", "canceled"]
    ends = rows.database.read(lambda c: [node.gmt_completed for node in instances.nodes(c, run.id)])
    assert (ends[0] is not None, ends[1]) == (True, None)


def test_what_may_run_at_most_once_and_never_began_runs_on_another_worker(rows: Scenario) -> None:
    task, worker, other = rows.task(on_worker_lost="fail"), rows.worker(name="worker-7"), rows.worker()
    run = rows.running(worker, task)
    rows.bury(worker)
    assert recover(rows, worker) == 1
    row = rows.row(run.id)
    assert (row.status, row.schedule_worker_node_id, row.gmt_started) == ("pending", None, None)
    assert (row.worker_losses, row.lost_by) == (0, "worker-7"), "what never began cannot have killed it"
    assert row.reason == "worker 'worker-7' was lost before it began this; another worker runs it"
    assert rows.node_statuses(run.id) == ["pending", "pending"]
    rows.give(other, run.id)
    [again] = rows.claim(other, run.id).runs
    assert again.attempt == 2
    assert rows.broken() == {}


def test_what_never_began_is_never_poison(rows: Scenario) -> None:
    instance = rows.running(rows.worker(), rows.task(on_worker_lost="fail")).id
    for _ in range(4):
        assert recover(rows, rows.row(instance).schedule_worker_node_id) == 1
        assert rows.status(instance) == "pending"
        another = rows.worker()
        rows.give(another, instance)
        assert len(rows.claim(another, instance).runs) == 1


def test_a_run_that_was_given_to_another_worker_cannot_begin(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker, rows.task(on_worker_lost="fail"))
    recover(rows, worker)
    assert rows.report(worker, endings.begun(run, run.nodes[0], rows.now())) == {run.id}
    assert rows.row(run.id).gmt_started is None
    assert rows.node_statuses(run.id) == ["pending", "pending"]


def test_a_claim_that_is_repeated_does_not_take_back_that_a_run_has_begun(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    assert len(rows.claim(worker, run.id).runs) == 1, "as after a commit whose answer was lost"
    recover(rows, worker)
    assert rows.status(run.id) == "failed"


def test_that_a_run_begins_keeps_the_reason_of_a_request_to_cancel_it(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker, rows.task(on_worker_lost="fail"))
    rows.database.write(lambda c: canceling.request_cancel(c, run.id, rows.now(), "by hand"))
    assert rows.report(worker, endings.begun(run, run.nodes[0], rows.now())) == set()
    assert (rows.status(run.id), rows.row(run.id).reason) == ("running", "by hand")


def test_a_run_that_begins_while_its_worker_is_given_up_runs_once(mariadb_rows: Scenario) -> None:
    """Whichever comes first: it begins and then fails, or runs elsewhere and does not begin."""
    rows = mariadb_rows
    for _ in range(10):
        worker = rows.worker()
        run = rows.running(worker, rows.task(on_worker_lost="fail"))
        lost, _ = together(
            partial(rows.report, worker, endings.begun(run, run.nodes[0], rows.now())), partial(recover, rows, worker)
        )
        recover(rows, worker)  # the first passes over a row that the report has locked
        assert rows.status(run.id) == ("pending" if lost else "failed")


def test_a_worker_that_was_killed_for_one_run_counts_a_loss_for_that_one_alone(rows: Scenario) -> None:
    worker = rows.worker()
    culprit, innocent, almost_poison = (rows.running(worker, worker_losses=losses).id for losses in (0, 0, 2))
    rows.bury(worker, culprits=[culprit])
    assert recover(rows, worker) == 3
    found = [(rows.status(i), rows.row(i).worker_losses) for i in (culprit, innocent, almost_poison)]
    assert found == [("pending", 1), ("pending", 0), ("pending", 2)]


def test_a_worker_that_was_killed_while_it_stopped_says_so_and_counts_a_loss(rows: Scenario) -> None:
    worker = rows.worker()
    culprit, innocent = (rows.running(worker).id for _ in range(2))
    rows.database.write(lambda c: workers.leave(c, worker))
    rows.bury(worker, culprits=[culprit])
    [row] = rows.sql("SELECT state, reason FROM schedule_worker_node")
    assert tuple(row) == ("dead", "test")
    assert recover(rows, worker) == 2
    assert [rows.row(i).worker_losses for i in (culprit, innocent)] == [1, 0]


def test_three_losses_are_poison(rows: Scenario) -> None:
    instance = rows.running(rows.worker()).id
    for loss in (1, 2, 3):
        worker = rows.row(instance).schedule_worker_node_id
        assert recover(rows, worker) == 1
        if loss < 3:
            assert rows.status(instance) == "pending"
            another = rows.worker()
            rows.give(another, instance)
            [run] = rows.claim(another, instance).runs
            assert run.attempt == loss + 1
    row = rows.row(instance)
    assert (row.status, row.worker_losses, row.failures) == ("failed", 3, 0)
    assert "poison" in row.reason


def test_what_was_to_be_canceled_is_canceled_and_not_run_again(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.database.write(lambda c: canceling.request_cancel(c, run.id, rows.now(), "by hand"))
    recover(rows, worker)
    row = rows.row(run.id)
    assert (row.status, row.gmt_completed is not None) == ("canceled", True)
    assert row.reason == "by hand; worker 'worker-1' was lost while it ran this"


def test_a_run_of_a_task_that_was_deleted_from_the_table_is_recovered_too(rows: Scenario) -> None:
    task, worker = rows.task(), rows.worker()
    run = rows.running(worker, task)
    rows.sql("DELETE FROM schedule_task WHERE id = :task", task=task)
    assert recover(rows, worker) == 1
    assert rows.status(run.id) == "pending"


def test_others_are_left_alone(rows: Scenario) -> None:
    dead, other = rows.worker(), rows.worker()
    theirs, done, pending = rows.running(other).id, rows.ended(worker=dead), rows.pending()
    before = [rows.row(i) for i in (theirs, done, pending)]
    assert recover(rows, dead) == 0
    assert [rows.row(i) for i in (theirs, done, pending)] == before


def test_recovery_goes_in_batches(rows: Scenario) -> None:
    worker = rows.worker()
    started = [rows.running(worker).id for _ in range(5)]
    assert [recover(rows, worker, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert {rows.status(i) for i in started} == {"pending"}


def test_policies_of_a_batch_are_each_of_its_task(rows: Scenario) -> None:
    worker = rows.worker()
    failing = [rows.begun(worker, rows.task(on_worker_lost="fail")).id for _ in range(2)]
    retrying = [rows.running(worker).id for _ in range(2)]
    poisonous = rows.running(worker, worker_losses=2).id
    assert recover(rows, worker) == 5
    assert [rows.status(i) for i in failing] == ["failed", "failed"]
    assert [rows.status(i) for i in retrying] == ["pending", "pending"]
    assert rows.status(poisonous) == "failed"


def test_schedulers_that_recover_at_once_count_one_loss(rows: Scenario) -> None:
    for _ in range(5):
        worker = rows.worker()
        started = [rows.running(worker).id for _ in range(3)]
        together(*[partial(recover, rows, worker)] * 3)
        assert [rows.row(i).worker_losses for i in started] == [1, 1, 1]
        assert {rows.status(i) for i in started} == {"pending"}
