"""Reports: fenced by worker, attempt and status; what is lost changes nothing, and what has ended stays ended."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row

from rota.shared.database.later import Unexpected
from rota.shared.domain.states import TERMINAL, InstanceStatus, NodeStatus
from rota.shared.store import assignments, instances, recovery, reports
from rota.shared.store.reports import NodeReport, Report
from rota.shared.store.runs import Run
from rota.shared.store.transitions import giving
from rota.worker_service.running import endings
from tests.harness.claims import claim
from tests.harness.databases import MariaDBServer
from tests.harness.scenario import Scenario, ended, stepped, succeeded, to_retry
from tests.harness.together import impatient, together, uncommitted, wait_for_lock_wait

SECOND = timedelta(seconds=1)


def everything(rows: Scenario, run: Run) -> tuple[Row[Any], list[Row[Any]]]:
    return rows.row(run.id), rows.database.read(lambda c: instances.nodes(c, run.id))


def test_a_step_is_written_and_the_instance_runs_on(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, stepped(run)) == set()
    row, (first, second) = everything(rows, run)
    assert (row.status, row.attempt, row.gmt_completed) == ("running", 1, None)
    assert (first.status, first.execution_result) == ("succeed", {"rows": 42})
    assert (first.gmt_started, first.gmt_completed) == (run.due_at, run.due_at + SECOND)
    assert (second.status, second.gmt_started, second.gmt_completed) == ("running", run.due_at + SECOND, None)


def test_a_plain_success_is_written_with_its_result_and_its_times(rows: Scenario) -> None:
    worker = rows.worker()
    run, other = rows.running(worker), rows.running(worker)
    report = succeeded(run, '{"rows":42}')
    assert report.is_plain_success
    assert report.instance is not None
    started, completed = run.due_at + SECOND, run.due_at + 2 * SECOND
    instance = replace(report.instance, gmt_started=started, gmt_completed=completed)
    before = everything(rows, other)
    rows.sql("UPDATE schedule_instance SET reason = 'an earlier one' WHERE id = :id", id=run.id)
    node = replace(report.nodes[0], gmt_started=started, gmt_completed=completed)
    assert rows.report(worker, stepped(run), replace(report, nodes=[node], instance=None)) == set()
    assert rows.report(worker, replace(report, nodes=[node], instance=instance)) == set()
    row, (first, second) = everything(rows, run)
    assert (row.status, row.execution_result, row.reason, row.failures) == ("succeed", {"rows": 42}, None, 0)
    assert (row.gmt_started, row.gmt_completed) == (started, completed)
    assert (row.schedule_worker_node_id, row.modifier, row.attempt) == (worker, "worker", 1)
    assert (first.status, second.status, second.execution_result) == ("succeed", "succeed", {"rows": 42})
    assert (second.gmt_started, second.gmt_completed) == (started, completed)
    assert everything(rows, other) == before


def test_of_several_reports_of_one_run_in_a_batch_the_later_ones_count(rows: Scenario) -> None:
    worker = rows.worker()
    run, other = rows.running(worker), rows.running(worker)
    first, second = run.nodes
    begins = Report(run.id, run.attempt, [NodeReport(second.id, NodeStatus.RUNNING, gmt_started=run.due_at)])
    done = [NodeReport(second.id, NodeStatus.SUCCEED, "2", run.due_at, run.due_at)]
    last = succeeded(run, "1")
    end = replace(last, nodes=[replace(last.nodes[0], id=first.id, result="1")])
    batch = [begins, stepped(other), Report(run.id, run.attempt, done), end]
    assert rows.database.write(lambda c: reports.report(c, worker, batch, at_once=True)) == set()
    row, nodes = everything(rows, run)
    assert (row.status, row.execution_result) == ("succeed", 1)
    assert [(node.status, node.execution_result) for node in nodes] == [("succeed", 1), ("succeed", 2)]
    assert rows.node_statuses(other.id) == ["succeed", "running"]


def test_what_runs_beside_a_node_whose_result_is_refused_is_canceled_and_the_run_keeps_its_slot(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    first, second = run.nodes
    begins = NodeReport(second.id, NodeStatus.RUNNING, gmt_started=run.due_at)
    done = NodeReport(first.id, NodeStatus.SUCCEED, "1", run.due_at, run.due_at)
    rows.report(worker, Report(run.id, run.attempt, [begins]))
    refused = endings.refused(Report(run.id, run.attempt, [done], beside=(second.id,)), "too large")
    assert rows.report(worker, refused) == set()
    row, nodes = everything(rows, run)
    assert (row.status, row.slot_kept, row.reason) == ("failed", 1, "the result could not be stored: too large")
    assert [(node.status, node.failures) for node in nodes] == [("failed", 0), ("canceled", 0)]
    assert rows.broken() == {}


def test_what_is_no_plain_success_is_not_taken_for_one(rows: Scenario) -> None:
    run = rows.running(rows.worker())
    plain = succeeded(run)
    assert plain.instance is not None
    others = [
        ended(run),
        stepped(run),
        to_retry(run, rows.start),
        replace(plain, instance=None),
        replace(plain, instance=replace(plain.instance, status=InstanceStatus.FAILED)),
        replace(plain, nodes=[]),
    ]
    assert [report.is_plain_success for report in (plain, *others)] == [True] + [False] * len(others)


def test_what_is_no_plain_step_is_not_taken_for_one(rows: Scenario) -> None:
    run = rows.running(rows.worker())
    plain = stepped(run)
    done, following = plain.nodes
    others = [
        succeeded(run),
        ended(run),
        to_retry(run, rows.start),
        replace(plain, nodes=[done]),
        replace(plain, nodes=[replace(done, failures=1), following]),
        replace(plain, nodes=[done, replace(following, status=NodeStatus.CANCELED)]),
    ]
    assert [report.is_plain_step for report in (plain, *others)] == [True] + [False] * len(others)


def test_steps_of_many_are_written_each_to_its_own_but_for_those_that_were_lost(rows: Scenario) -> None:
    worker = rows.worker()
    lost, *started = (rows.running(worker) for _ in range(5))
    rows.report(worker, ended(lost, InstanceStatus.CANCELED))
    batch = []
    for number, run in enumerate([lost, *reversed(started)]):
        done, following = stepped(run).nodes
        began = run.due_at + number * SECOND
        nodes = [replace(done, result=str(run.id), gmt_completed=began), replace(following, gmt_started=began)]
        batch.append(Report(run.id, run.attempt, nodes))
    assert rows.report(worker, *batch) == {lost.id}
    assert rows.node_statuses(lost.id) == ["canceled", "canceled"]
    for number, run in enumerate(reversed(started), start=1):
        row, (first, second) = everything(rows, run)
        assert (row.status, first.execution_result, second.execution_result) == ("running", run.id, None)
        assert first.gmt_completed == second.gmt_started == run.due_at + number * SECOND


def test_of_two_attempts_of_one_run_that_are_reported_at_once_nothing_is_written(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    batch = [stepped(run), stepped(replace(run, attempt=run.attempt + 1))]
    with pytest.raises(Unexpected):
        rows.database.write(lambda c: reports.report(c, worker, batch, at_once=True))
    assert rows.node_statuses(run.id) == ["running", "pending"]


def test_plain_successes_and_others_go_together(rows: Scenario) -> None:
    worker = rows.worker()
    plain, failed, going, lost, lost_too = (rows.running(worker) for _ in range(5))
    for run in (lost, lost_too):
        rows.report(worker, ended(run, InstanceStatus.CANCELED))
    batch = [succeeded(lost), ended(failed, InstanceStatus.FAILED), succeeded(plain), ended(lost_too), stepped(going)]
    assert rows.report(worker, *batch) == {lost.id, lost_too.id}
    statuses = [rows.status(run.id) for run in (plain, failed, going, lost, lost_too)]
    assert statuses == ["succeed", "failed", "running", "canceled", "canceled"]
    assert rows.node_statuses(lost.id) == ["canceled", "canceled"]


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_end_is_written_with_its_result(rows: Scenario, status: InstanceStatus) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    report = ended(run, status, '{"rows":42}')
    assert report.instance is not None
    report = replace(report, instance=replace(report.instance, reason="so it ended"))
    assert rows.report(worker, report) == set()
    row, nodes = everything(rows, run)
    assert (row.status, row.execution_result, row.reason) == (status, {"rows": 42}, "so it ended")
    assert (row.gmt_completed, row.schedule_worker_node_id, row.modifier) == (run.due_at, worker, "worker")
    assert {node.status for node in nodes} == {status}


def test_a_retry_is_pending_again_without_its_worker_and_later(rows: Scenario) -> None:
    worker, later = rows.worker(), rows.start + 60 * SECOND
    run = rows.running(worker)
    assert rows.report(worker, to_retry(run, later, "it failed once")) == set()
    row, _ = everything(rows, run)
    assert (row.status, row.schedule_worker_node_id, row.due_at, row.failures) == ("pending", None, later, 1)
    assert (row.attempt, row.reason, row.schedule_datetime) == (1, "it failed once", run.schedule_datetime)
    assert rows.node_statuses(run.id) == ["succeed", "pending"]


def test_results_of_many_are_written_each_to_its_own(rows: Scenario) -> None:
    worker = rows.worker()
    started = [rows.running(worker) for _ in range(5)]
    assert rows.report(worker, *(ended(run, result=str(run.id)) for run in reversed(started))) == set()
    for run in started:
        row, nodes = everything(rows, run)
        assert [row.execution_result, *(node.execution_result for node in nodes)] == [run.id] * 3


def test_the_last_word_about_a_node_is_the_one_that_stays(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, stepped(run), ended(run, result="43")) == set()
    assert rows.status(run.id) == "succeed"
    assert rows.node_statuses(run.id) == ["succeed", "succeed"]


def test_a_report_written_again_after_a_lost_commit_changes_nothing_more(rows: Scenario) -> None:
    worker = rows.worker()
    run, other = rows.running(worker), rows.running(worker)
    for batch in ([stepped(run), ended(other)], [ended(run)]):
        first = rows.report(worker, *batch)
        before = everything(rows, run), everything(rows, other)
        again = rows.report(worker, *batch)
        assert (everything(rows, run), everything(rows, other)) == before
        assert first == set()
        assert again == {r.instance_id for r in batch if r.instance is not None}


def test_plain_successes_written_again_after_a_lost_commit_are_ours_and_stay_as_they_are(rows: Scenario) -> None:
    worker = rows.worker()
    started = [rows.running(worker) for _ in range(3)]
    batch = [succeeded(run, str(run.id)) for run in started]
    assert rows.report(worker, *batch) == set()
    before = [instances_and_nodes(rows, run) for run in started]
    assert rows.report(worker, *batch) == set()
    assert [instances_and_nodes(rows, run) for run in started] == before


def instances_and_nodes(rows: Scenario, run: Run) -> tuple[dict[str, Any], list[Row[Any]]]:
    """Everything but when it was written."""
    row, nodes = everything(rows, run)
    return {name: value for name, value in row._mapping.items() if name != "gmt_modified"}, nodes


# The fence


def by_another_worker(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    return rows.worker(), run.attempt


def by_an_earlier_attempt(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    return worker, run.attempt - 1


def by_a_later_attempt(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    return worker, run.attempt + 1


def after_its_end(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    rows.report(worker, ended(run, InstanceStatus.FAILED))
    return worker, run.attempt


def after_it_was_recovered(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    rows.bury(worker)
    assert rows.database.write(lambda c: recovery.recover(c, worker, 10)) == 1
    return worker, run.attempt


def after_it_was_recovered_and_given_to_me_again(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    rows.give(worker, run.id)
    return worker, run.attempt


def after_it_was_recovered_and_claimed_by_me_again(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    rows.give(worker, run.id)
    [again] = rows.claim(worker, run.id).runs
    assert again.attempt == run.attempt + 1
    return worker, run.attempt


def after_it_was_recovered_and_claimed_by_another(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    other = rows.worker()
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    rows.give(other, run.id)
    rows.claim(other, run.id)
    return worker, run.attempt


def after_i_gave_it_back(rows: Scenario, worker: int, run: Run) -> tuple[int, int]:
    fence = [(run.id, run.attempt)]
    assert rows.database.write(lambda c: reports.hand_back(c, worker, fence, "it drains")) == 1
    return worker, run.attempt


TooLate = Callable[[Scenario, int, Run], tuple[int, int]]
"""What happens before the report: (who reports, of which attempt)."""

Form = Callable[[Run], Report]
LATE: list[TooLate] = [
    by_another_worker,
    by_an_earlier_attempt,
    by_a_later_attempt,
    after_its_end,
    after_it_was_recovered,
    after_it_was_recovered_and_given_to_me_again,
    after_it_was_recovered_and_claimed_by_me_again,
    after_it_was_recovered_and_claimed_by_another,
    after_i_gave_it_back,
]


@pytest.mark.parametrize("form", [ended, succeeded])
@pytest.mark.parametrize("late", LATE, ids=lambda late: late.__name__)
def test_a_report_changes_neither_instance_nor_nodes(rows: Scenario, late: TooLate, form: Form) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    reporter, attempt = late(rows, worker, run)
    report = replace(form(run), attempt=attempt)
    before = everything(rows, run)
    assert rows.report(reporter, report) == {run.id}
    assert rows.report(reporter, replace(report, instance=None)) == {run.id}
    assert everything(rows, run) == before


@pytest.mark.parametrize("form", [ended, succeeded])
def test_of_a_mixed_batch_what_is_ours_is_written_and_what_is_lost_is_named(rows: Scenario, form: Form) -> None:
    worker = rows.worker()
    started = [rows.running(worker) for _ in range(6)]
    lost, ours = started[::2], started[1::2]
    for run in lost:
        rows.report(worker, ended(run, InstanceStatus.CANCELED))
    before = [everything(rows, run) for run in lost]
    unknown = Report(999_999, 1, [])
    assert rows.report(worker, *(form(run) for run in started), unknown) == {999_999, *(run.id for run in lost)}
    assert [everything(rows, run) for run in lost] == before
    assert {rows.status(run.id) for run in ours} == {"succeed"}


@pytest.mark.parametrize("form", [ended, succeeded])
def test_a_late_report_and_the_recovery_at_once_leave_one_of_both(rows: Scenario, form: Form) -> None:
    for _ in range(10):
        worker = rows.worker()
        run = rows.running(worker)
        rows.bury(worker)
        lost, recovered = together(
            partial(rows.report, worker, form(run)),
            partial(rows.database.write, partial(recovery.recover, worker_id=worker, limit=10)),
        )
        row, nodes = everything(rows, run)
        statuses = [node.status for node in nodes]
        if row.status == "succeed":
            assert (lost, statuses[-1]) == (set(), "succeed")
        else:
            assert (lost, recovered) == ({run.id}, 1)
            assert (row.status, statuses, row.worker_losses) == ("pending", ["pending", "pending"], 1)


@pytest.mark.parametrize("form", [ended, succeeded])
def test_a_report_that_meets_a_recovery_not_committed_yet_waits_for_it_and_is_lost(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer, form: Form
) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    run = rows.running(worker)
    with ThreadPoolExecutor(1) as pool:
        with uncommitted(rows.database, lambda c: recovery.recover(c, worker, 10)):
            report = pool.submit(rows.report, worker, form(run))
            wait_for_lock_wait(mariadb_server, report)
        assert report.result() == {run.id}
    assert rows.status(run.id) == "pending"
    assert rows.node_statuses(run.id) == ["pending", "pending"]


@pytest.mark.parametrize("form", [ended, succeeded])
def test_a_frozen_worker_holds_up_nobody_elses_reports(mariadb_rows: Scenario, form: Form) -> None:
    """Neither in a small table nor in a large one does a report touch rows that are not in its batch."""
    rows = mariadb_rows
    frozen, other = rows.worker(), rows.worker()
    stuck, mine, next_one = rows.running(frozen), rows.running(other), rows.assigned(other)
    with (
        uncommitted(rows.database, lambda c: reports.report(c, frozen, [form(stuck)])) as lost,
        impatient(rows.database) as database,
    ):
        assert lost == set()
        assert database.write(lambda c: reports.report(c, other, [form(mine)])) == set()
        claimed = claim(database, other, [next_one], rows.types)
        assert [r.id for r in claimed.runs] == [next_one]
        pending = rows.pending()
        database.write(lambda c: giving.give(c, [(pending, other, 0, None)]))
        assert database.write(lambda c: assignments.take_back_assigned(c, other, 10)) == 1


@pytest.mark.parametrize("form", [ended, succeeded])
def test_of_one_worker_a_report_that_stands_holds_up_no_other(mariadb_rows: Scenario, form: Form) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    stuck, mine = rows.running(worker), rows.running(worker)
    with (
        uncommitted(rows.database, lambda c: reports.report(c, worker, [form(stuck)])),
        impatient(rows.database) as database,
    ):
        assert database.write(lambda c: reports.report(c, worker, [form(mine)])) == set()


# Handing back


def test_what_is_handed_back_is_pending_again_and_costs_no_failure(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.report(worker, stepped(run))
    fences = [(run.id, run.attempt)]
    assert rows.database.write(lambda c: reports.hand_back(c, worker, fences, "its worker drains")) == 1
    row, _ = everything(rows, run)
    assert (row.status, row.schedule_worker_node_id, row.reason) == ("pending", None, "its worker drains")
    assert (row.failures, row.worker_losses, row.due_at) == (0, 0, run.due_at)
    assert rows.node_statuses(run.id) == ["succeed", "pending"]


def test_only_what_is_held_under_its_attempt_is_handed_back(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    mine, again, theirs, done = (rows.running(w) for w in (worker, worker, other, worker))
    rows.report(worker, ended(done))
    fences = [(mine.id, 1), (again.id, 2), (theirs.id, 1), (done.id, 1)]
    assert rows.database.write(lambda c: reports.hand_back(c, worker, fences, "test")) == 1
    assert [rows.status(run.id) for run in (mine, again, theirs, done)] == ["pending", "running", "running", "succeed"]
    assert rows.node_statuses(again.id) == ["running", "pending"]


def test_the_size_of_a_report_grows_with_its_results(rows: Scenario) -> None:
    run = rows.running(rows.worker())
    assert ended(run, result="x" * 1_000).size > 1_000 + ended(run, result="x").size


def test_a_large_result_is_kept_as_it_is(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.report(worker, ended(run, result='"' + "ü\\n" * 200_000 + '"'))
    row, nodes = everything(rows, run)
    assert row.execution_result == "ü\n" * 200_000
    assert nodes[0].execution_result == "ü\n" * 200_000


def test_failures_are_counted_for_each_node_and_stay_with_it(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    first, second = run.nodes
    failed = replace(to_retry(run, rows.start), nodes=[NodeReport(first.id, NodeStatus.PENDING, "1", failures=2)])
    assert rows.report(worker, failed) == set()
    rows.give(worker, run.id)
    [again] = rows.claim(worker, run.id).runs
    assert [node.failures for node in again.nodes] == [2, 0]
    done = [
        NodeReport(first.id, NodeStatus.SUCCEED, "1", run.due_at, run.due_at),
        NodeReport(second.id, NodeStatus.RUNNING, gmt_started=run.due_at),
    ]
    assert rows.report(worker, reports.Report(run.id, again.attempt, done)) == set()
    kept = rows.sql("SELECT failures FROM schedule_task_node ORDER BY sequence")
    assert [failures for (failures,) in kept] == [2, 0]


def test_a_retry_of_a_run_that_somebody_has_canceled_meanwhile_waits_for_no_delay(rows: Scenario) -> None:
    """The next claim cancels it, or leaves it to a worker for its nodes that run always."""
    worker, heir = rows.worker(), rows.worker()
    run, other = rows.running(worker, rows.task(retries=3)), rows.running(worker, rows.task(retries=3))
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = gmt_create WHERE id = :id", id=run.id)
    later = rows.start + timedelta(hours=1)
    assert rows.report(worker, to_retry(run, later), to_retry(other, later)) == set()
    assert (rows.row(run.id).status, rows.row(other.id).due_at) == ("pending", later)
    assert rows.row(run.id).due_at <= rows.now()
    rows.give(heir, run.id)
    assert rows.claim(heir, run.id).runs == []
    assert rows.status(run.id) == "canceled"
