"""Nodes that run always: the rows while they run, and how another worker goes on with them."""

from datetime import timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.deadlines import Deadlines
from rota.shared.control import instances as control
from rota.shared.control.actor import Actor
from rota.shared.domain import lingering
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.settings import Settings
from rota.shared.store import node_types, recovery, reports
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import Run
from rota.shared.store.transitions import canceling
from rota.worker_service.running import always
from rota.worker_service.running.ordering import Orders
from tests.harness.scenario import NODE_TYPES, Scenario

WHY = "node REPORT_EXTRACT failed: no"
ANN = Actor("ann", "cli")
ALWAYS = frozenset({"REPORT_SEND"})
FAILED = '{"error":"no"}'


def failed_in_first(run: Run) -> Report:
    """A report that the first node of two has failed for good, and that the second runs all the same."""
    first, second = run.nodes
    at = run.due_at
    nodes = [NodeReport(first.id, NodeStatus.FAILED, FAILED, at, at, 1), NodeReport(second.id, NodeStatus.RUNNING)]
    nodes[1].gmt_started = at
    return Report(run.id, run.attempt, nodes, InstanceReport(InstanceStatus.RUNNING, None, WHY, at, None, fails=True))


def cleaned(run: Run) -> Report:
    """A report that the second node has succeeded, and that the run has failed in the first."""
    first, second = run.nodes
    at = run.due_at
    nodes = [
        NodeReport(first.id, NodeStatus.FAILED, FAILED, at, at, 1),
        NodeReport(second.id, NodeStatus.SUCCEED, "1", at, at),
    ]
    end = InstanceReport(InstanceStatus.FAILED, FAILED, WHY, at, at, run.failures + 1, fails=False)
    return Report(run.id, run.attempt, nodes, end)


def test_the_run_goes_on_with_the_reason_of_its_failure_and_then_has_failed(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    for _ in range(2):  # as where the answer to the first commit was lost
        assert rows.report(worker, failed_in_first(run)) == set()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("running", ["failed", "running"])
    assert (rows.row(run.id).reason, rows.row(run.id).gmt_completed, rows.broken()) == (WHY, None, {})
    noted = rows.row(run.id).failed_attempts
    assert rows.report(worker, cleaned(run)) == set()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("failed", ["failed", "succeed"])
    row = rows.row(run.id)
    assert (row.reason, row.failures, row.execution_result) == (WHY, 1, {"error": "no"})
    [attempt] = row.failed_attempts
    assert (attempt["node_id"], attempt["reason"]) == (run.nodes[0].id, WHY)
    assert row.failed_attempts == noted
    assert rows.broken() == {}


def test_the_failed_attempt_is_the_one_that_failed_and_not_the_one_that_cleaned_up(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.report(worker, failed_in_first(run))
    rows.bury(worker)
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    again = go_on(rows, run)
    assert rows.report(rows.row(run.id).schedule_worker_node_id, cleaned(again)) == set()
    row = rows.row(run.id)
    noted = [(one["attempt"], one["worker_id"], one["reason"]) for one in row.failed_attempts]
    assert (row.status, row.attempt) == ("failed", 2)
    assert noted[0] == (1, worker, WHY)
    assert {attempt for attempt, *_ in noted} == {1}


def test_both_reports_of_a_run_in_one_batch_note_its_failure(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, failed_in_first(run), cleaned(run)) == set()
    [attempt] = rows.row(run.id).failed_attempts
    assert (attempt["attempt"], attempt["reason"]) == (1, WHY)


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "afar"])
def test_when_its_worker_is_lost_another_one_begins_with_what_is_left(rows: Scenario, is_far: bool) -> None:
    rows.is_far = is_far
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


def recover(rows: Scenario, worker: int, run: Run, *, losses: int = 0, cancel: bool = False) -> tuple[str, list[str]]:
    """Its worker dies, and the scheduler decides: the state of the instance, and those of its nodes."""
    if losses:
        rows.sql("UPDATE schedule_instance SET worker_losses = :n WHERE id = :id", n=losses, id=run.id)
    if cancel:
        rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=run.id)
    rows.bury(worker)
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    assert rows.broken() == {}
    return rows.status(run.id), rows.node_statuses(run.id)


def go_on(rows: Scenario, run: Run) -> Run:
    heir = rows.worker()
    rows.give(heir, run.id)
    [again] = rows.claim(heir, run.id).runs
    assert rows.broken() == {}
    return again


@pytest.mark.parametrize(
    ("fields", "losses", "said"),
    [({"on_worker_lost": "fail"}, 0, "on_worker_lost = fail"), ({}, 2, "poison")],
    ids=["at most once", "poison"],
)
def test_what_fails_with_its_worker_is_cleaned_up_by_another(
    rows: Scenario, fields: dict[str, str], losses: int, said: str
) -> None:
    declare_always(rows)
    worker = rows.worker("lost")
    run = rows.begun(worker, rows.task(**fields))
    assert recover(rows, worker, run, losses=losses) == ("pending", ["failed", "pending"])
    row = rows.row(run.id)
    assert (row.lost_by, row.gmt_started, row.gmt_completed) == ("lost", None, None)
    again = go_on(rows, run)
    assert rows.node_statuses(run.id) == ["failed", "running"]
    end = always.end_of(again, ALWAYS)
    assert end is not None
    assert said in str(end.reason)
    assert str(end.reason).startswith("node REPORT_EXTRACT failed: worker 'lost' was lost while it ran this")


def test_what_was_to_be_canceled_and_lost_its_worker_is_cleaned_up_by_another(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker("lost")
    run = rows.running(worker)
    assert recover(rows, worker, run, cancel=True) == ("pending", ["canceled", "pending"])
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    assert (end.status, end.reason) == ("canceled", "canceled; worker 'lost' was lost while it ran this")


def beside(rows: Scenario, run: Run) -> None:
    """The first of three nodes waits, and the second one runs beside it."""
    first, last = run.nodes
    rows.sql("UPDATE schedule_task_node SET sequence = 3 WHERE id = :id", id=last.id)
    rows.sql(
        "INSERT INTO schedule_task_node (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id,"
        " sequence, status, gmt_started) SELECT schedule_instance_id, instance_gmt_create, schedule_task_node_type_id,"
        " 2, 'running', gmt_started FROM schedule_task_node WHERE id = :id",
        id=first.id,
    )
    rows.sql("UPDATE schedule_task_node SET status = 'pending', gmt_started = NULL WHERE id = :id", id=first.id)


@pytest.mark.parametrize(("policy", "cancel"), [("fail", False), ("fail", True), ("retry", True)])
def test_what_waits_before_the_node_that_ran_is_canceled_with_it(rows: Scenario, policy: str, cancel: bool) -> None:
    """Else another worker would take the run for one that SQL has revived, and run again what had run."""
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost=policy))
    beside(rows, run)
    ended = "canceled" if cancel else "failed"
    assert recover(rows, worker, run, cancel=cancel) == ("pending", ["canceled", ended, "pending"])
    end = always.end_of(Orders({}, ALWAYS).sorted(go_on(rows, run)), ALWAYS)
    assert end is not None
    assert (end.status, [node.type for node in end.left]) == (ended, ["REPORT_SEND"])


def test_a_marked_node_before_the_node_that_ran_is_left_to_another_worker(rows: Scenario) -> None:
    declare_first_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    beside(rows, run)
    rows.sql("UPDATE schedule_task_node SET schedule_task_node_type_id = (SELECT id FROM schedule_task_node_type"
             " WHERE type = 'REPORT_SEND') WHERE schedule_instance_id = :id AND sequence = 2", id=run.id)  # fmt: skip
    assert recover(rows, worker, run) == ("pending", ["pending", "failed", "canceled"])


def test_what_is_overdue_ends_with_what_waits_before_the_node_that_runs(rows: Scenario) -> None:
    declare_always(rows)
    run = rows.running(rows.worker("hangs"), rows.task(run_timeout_seconds=60))
    beside(rows, run)
    overdue(rows, run)
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["canceled", "failed", "pending"])


def test_a_run_without_such_nodes_ends_with_its_worker(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert recover(rows, worker, run, cancel=True) == ("canceled", ["failed", "canceled"])


@pytest.mark.parametrize(
    ("fields", "losses", "becomes"),
    [({}, 0, ("pending", ["failed", "pending"])), ({}, 2, ("canceled", ["failed", "failed"])),
     ({"on_worker_lost": "fail"}, 0, ("canceled", ["failed", "failed"]))],
)  # fmt: skip
def test_a_cancel_of_what_is_cleaned_up_ends_it_only_if_its_worker_is_lost_and_it_may_not_run_again(
    rows: Scenario, fields: dict[str, str], losses: int, becomes: tuple[str, list[str]]
) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(**fields))
    rows.report(worker, failed_in_first(run))
    assert recover(rows, worker, run, losses=losses, cancel=True) == becomes


def test_a_late_worker_that_was_given_up_changes_nothing_of_the_cleanup(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    recover(rows, worker, run)
    assert rows.report(worker, failed_in_first(run)) == {run.id}
    assert rows.node_statuses(run.id) == ["failed", "pending"]


def waits_for_a_retry(rows: Scenario, days: int = 0) -> Run:
    worker = rows.worker()
    run = rows.running(worker)
    first = run.nodes[0]
    failed = NodeReport(first.id, NodeStatus.PENDING, FAILED, run.due_at, run.due_at, 1)
    end = InstanceReport(InstanceStatus.PENDING, None, "retry", None, None, 1, run.due_at + timedelta(days=days))
    assert rows.report(worker, Report(run.id, run.attempt, [failed], end)) == set()
    return run


@pytest.mark.parametrize("given", [False, True])
def test_what_is_canceled_while_it_waits_for_a_retry_is_cleaned_up_at_once(rows: Scenario, given: bool) -> None:
    declare_always(rows)
    run = waits_for_a_retry(rows, days=9)
    if given:
        rows.give(rows.worker(), run.id)
    told = control.cancel(rows.database, ANN, [run.id])
    assert told == [{"id": run.id, "canceled": False, "asked": False}]
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["canceled", "pending"])
    assert rows.row(run.id).due_at <= rows.now()
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    assert (end.status, end.reason) == ("canceled", "canceled by hand")


def test_canceled_once_more_it_ends_at_once(rows: Scenario) -> None:
    declare_always(rows)
    run = waits_for_a_retry(rows)
    control.cancel(rows.database, ANN, [run.id])
    assert control.cancel(rows.database, ANN, [run.id]) == [{"id": run.id, "canceled": True, "asked": False}]
    assert (rows.status(run.id), rows.node_statuses(run.id), rows.broken()) == ("canceled", ["canceled"] * 2, {})


def test_what_never_began_or_has_no_such_node_is_canceled_at_once(rows: Scenario) -> None:
    before = waits_for_a_retry(rows)
    assert control.cancel(rows.database, ANN, [before.id]) == [{"id": before.id, "canceled": True, "asked": False}]
    declare_always(rows)
    new = rows.assigned(rows.worker())
    assert control.cancel(rows.database, ANN, [new]) == [{"id": new, "canceled": True, "asked": False}]


def asked_to_cancel(rows: Scenario, run: Run) -> None:
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=run.id)


def test_a_cancel_that_its_worker_did_not_carry_out_is_by_the_next_claim(rows: Scenario) -> None:
    """The run was handed back by a worker that stopped, or its node had just failed and is to be retried."""
    declare_always(rows)
    run, worker = waits_for_a_retry(rows), rows.worker()
    asked_to_cancel(rows, run)
    rows.give(worker, run.id)
    assert rows.claim(worker, run.id).runs == []
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["canceled", "pending"])
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    assert end.status == "canceled"


def test_a_cancel_that_was_carried_out_before_holds_up_no_claim_of_what_is_left(rows: Scenario) -> None:
    declare_always(rows)
    first, second = rows.worker(), rows.worker()
    run = rows.running(first)
    asked_to_cancel(rows, run)
    canceled = [NodeReport(run.nodes[0].id, NodeStatus.CANCELED), NodeReport(run.nodes[1].id, NodeStatus.RUNNING)]
    said = InstanceReport(InstanceStatus.RUNNING, None, "canceled", run.due_at, None)
    assert rows.report(first, Report(run.id, run.attempt, canceled, said)) == set()
    rows.database.write(lambda c: reports.hand_back(c, first, [(run.id, run.attempt)], "its worker stopped"))
    rows.give(second, run.id)
    assert rows.claim(second, run.id).runs == []
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("assigned", ["canceled", "pending"])
    [again] = rows.claim(second, run.id).runs
    assert again.nodes[0].status == "canceled"
    assert rows.broken() == {}


def test_a_claim_skips_what_is_canceled_and_has_nothing_to_clean_up(rows: Scenario) -> None:
    run, worker = waits_for_a_retry(rows), rows.worker()
    asked_to_cancel(rows, run)
    rows.give(worker, run.id)
    assert rows.claim(worker, run.id).runs == []
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("canceled", ["canceled"] * 2)


@pytest.mark.parametrize("declared", [False, True])
def test_the_scheduler_ends_no_overdue_run_while_a_node_runs_that_runs_always(rows: Scenario, declared: bool) -> None:
    if declared:
        declare_always(rows)
    worker = rows.worker()
    run = rows.running(worker, rows.task(run_timeout_seconds=60))
    rows.report(worker, failed_in_first(run))
    overdue(rows, run)
    assert rows.status(run.id) == ("running" if declared else "failed")


@pytest.mark.parametrize("cancel", [False, True])
def test_what_the_scheduler_ends_as_overdue_is_cleaned_up_by_another_worker(rows: Scenario, cancel: bool) -> None:
    declare_always(rows)
    run = rows.running(rows.worker("hangs"), rows.task(run_timeout_seconds=60))
    if cancel:
        rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=run.id)
    overdue(rows, run)
    state = "canceled" if cancel else "failed"
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", [state, "pending"])
    assert rows.row(run.id).lost_by == "hangs"
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    assert end.status == state
    noted = rows.row(run.id).failed_attempts or []
    assert [(one["attempt"], one["node_id"]) for one in noted] == [(1, run.nodes[0].id)] * (not cancel)


def overdue(rows: Scenario, run: Run) -> None:
    """The run is long over its limit, and the scheduler looks at it."""
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


# A cancel, and a marked node that was to run in a run that went well


def declare_first_always(rows: Scenario) -> None:
    first = node_types.NodeTypeDeclaration("REPORT_EXTRACT", "REPORT", 1, {"always": True})
    rows.database.write(lambda c: node_types.register(c, [first], "test"))


FIRST = frozenset({"REPORT_EXTRACT"})


def at_the_second(rows: Scenario, **fields: Any) -> tuple[int, Run]:
    """A worker, and its run of which the first node has succeeded and the second runs."""
    worker = rows.worker("lost")
    run = rows.begun(worker, rows.task(**fields)) if fields else rows.running(worker, rows.task())
    first, second = run.nodes
    done = NodeReport(first.id, NodeStatus.SUCCEED, "1", run.due_at, run.due_at)
    following = NodeReport(second.id, NodeStatus.RUNNING, gmt_started=run.due_at)
    assert rows.report(worker, Report(run.id, run.attempt, [done, following])) == set()
    return worker, run


def canceled_by_hand(rows: Scenario, run: Run) -> dict[str, Any]:
    [told] = control.cancel(rows.database, ANN, [run.id])
    return told


def test_a_cancel_leaves_the_marked_node_that_ran_to_another_worker_and_cancels_the_next(rows: Scenario) -> None:
    declare_first_always(rows)
    worker = rows.worker("lost")
    run = rows.running(worker)
    assert canceled_by_hand(rows, run)["asked"] is True
    assert recover(rows, worker, run) == ("pending", ["pending", "canceled"])
    again = go_on(rows, run)
    assert rows.node_statuses(run.id) == ["running", "canceled"]
    end = always.end_of(again, FIRST)
    assert end is not None
    assert ([one.type for one in end.left], end.status) == (["REPORT_EXTRACT"], "canceled")
    assert end.reason == "canceled by hand; worker 'lost' was lost while it ran this"


def test_where_no_other_node_is_left_to_cancel_the_marked_one_runs_and_the_run_goes_well(rows: Scenario) -> None:
    declare_always(rows)
    worker, run = at_the_second(rows)
    asked_to_cancel(rows, run)
    assert recover(rows, worker, run) == ("pending", ["succeed", "pending"])
    again = go_on(rows, run)
    assert always.end_of(again, ALWAYS) is None
    assert rows.node_statuses(run.id) == ["succeed", "running"]


def test_a_marked_node_that_may_not_run_again_ends_with_its_worker(rows: Scenario) -> None:
    declare_always(rows)
    worker, run = at_the_second(rows, on_worker_lost="fail")
    asked_to_cancel(rows, run)
    assert recover(rows, worker, run) == ("canceled", ["succeed", "failed"])


@pytest.mark.parametrize("by_claim", [False, True])
def test_a_cancel_of_a_run_that_was_handed_back_runs_its_marked_node_and_cancels_the_next(
    rows: Scenario, by_claim: bool
) -> None:
    declare_first_always(rows)
    worker, heir = rows.worker(), rows.worker()
    run = rows.running(worker)
    rows.database.write(lambda c: reports.hand_back(c, worker, [(run.id, run.attempt)], "its worker stopped"))
    if by_claim:
        asked_to_cancel(rows, run)
        rows.give(heir, run.id)
        assert rows.claim(heir, run.id).runs == []
    else:
        assert canceled_by_hand(rows, run) == {"id": run.id, "canceled": False, "asked": False}
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["pending", "canceled"])
    assert canceled_by_hand(rows, run)["canceled"] is True, "the second time it ends"
    assert (rows.status(run.id), rows.node_statuses(run.id), rows.broken()) == ("canceled", ["canceled"] * 2, {})


def test_a_cancel_of_what_was_handed_back_at_its_last_marked_node_lets_it_run(rows: Scenario) -> None:
    declare_always(rows)
    worker, run = at_the_second(rows)
    rows.database.write(lambda c: reports.hand_back(c, worker, [(run.id, run.attempt)], "its worker stopped"))
    for _ in range(2):
        assert canceled_by_hand(rows, run) == {"id": run.id, "canceled": False, "asked": False}
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("pending", ["succeed", "pending"])
    assert always.end_of(go_on(rows, run), ALWAYS) is None


def test_a_marked_node_that_waits_for_a_retry_ends_with_a_cancel(rows: Scenario) -> None:
    declare_always(rows)
    worker, run = at_the_second(rows)
    failed = NodeReport(run.nodes[1].id, NodeStatus.PENDING, FAILED, run.due_at, run.due_at, 1)
    end = InstanceReport(InstanceStatus.PENDING, None, "retry", None, None, 1, run.due_at)
    assert rows.report(worker, Report(run.id, run.attempt, [failed], end)) == set()
    assert canceled_by_hand(rows, run)["canceled"] is True
    assert rows.node_statuses(run.id) == ["succeed", "canceled"]


def test_a_run_that_sql_has_revived_is_canceled_with_its_worker_as_any(rows: Scenario) -> None:
    """Behind its node, which is not marked, another is canceled still."""
    worker = rows.worker()
    run = rows.running(worker)
    rows.sql("UPDATE schedule_task_node SET status = 'canceled' WHERE id = :id", id=run.nodes[1].id)
    assert recover(rows, worker, run, cancel=True) == ("canceled", ["failed", "canceled"])


# At most once


def test_a_worker_that_is_lost_before_it_begins_to_clean_up_loses_nothing(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    assert recover(rows, worker, run) == ("pending", ["failed", "pending"])
    heir = rows.worker()
    rows.give(heir, run.id)
    [again] = rows.claim(heir, run.id).runs
    assert recover(rows, heir, again) == ("pending", ["failed", "pending"])
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    assert "its task says on_worker_lost = fail" in str(end.reason)


def claimed_and_not_begun(rows: Scenario, run: Run) -> tuple[int, Run]:
    heir = rows.worker()
    rows.give(heir, run.id)
    [again] = rows.claim(heir, run.id).runs
    return heir, again


def claimed_for_the_cancel(rows: Scenario, run: Run) -> tuple[str, list[str]]:
    """The next claim finds that it is to be canceled."""
    worker = rows.worker()
    rows.give(worker, run.id)
    assert rows.claim(worker, run.id).runs == []
    assert (rows.broken(), rows.row(run.id).gmt_cancel_requested) == ({}, None)
    return rows.status(run.id), rows.node_statuses(run.id)


def test_a_cancel_of_a_clean_up_that_its_worker_had_not_begun_loses_nothing(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    recover(rows, worker, run)
    heir, again = claimed_and_not_begun(rows, run)
    canceled_by_hand(rows, run)
    assert recover(rows, heir, again) == ("pending", ["failed", "pending"])
    assert claimed_for_the_cancel(rows, run) == ("assigned", ["failed", "pending"])


def handed_back(rows: Scenario, worker: int, run: Run, at: int) -> None:
    """Its worker stops before it enters the handler of its node ``at``."""
    node = run.nodes[at]
    waiting = InstanceReport(InstanceStatus.PENDING, None, "its worker stopped", None, None, due_at=run.due_at)
    assert rows.report(worker, Report(run.id, run.attempt, [NodeReport(node.id, NodeStatus.PENDING)], waiting)) == set()


def test_a_cancel_of_a_marked_node_that_was_not_begun_leaves_it_to_the_next_worker(rows: Scenario) -> None:
    declare_always(rows)
    worker, run = at_the_second(rows, on_worker_lost="fail")
    handed_back(rows, worker, run, at=1)
    heir, again = claimed_and_not_begun(rows, run)
    canceled_by_hand(rows, run)
    assert recover(rows, heir, again) == ("pending", ["succeed", "pending"])
    assert claimed_for_the_cancel(rows, run) == ("pending", ["succeed", "pending"])
    assert always.end_of(go_on(rows, run), ALWAYS) is None


def test_a_cancel_of_another_node_that_was_not_begun_leaves_the_marked_one(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    handed_back(rows, worker, run, at=0)
    heir, again = claimed_and_not_begun(rows, run)
    canceled_by_hand(rows, run)
    assert recover(rows, heir, again) == ("pending", ["pending", "pending"])
    assert claimed_for_the_cancel(rows, run) == ("pending", ["canceled", "pending"])


def test_a_first_attempt_that_was_canceled_before_it_began_has_nothing_to_clean_up(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.running(worker, rows.task(on_worker_lost="fail"))
    canceled_by_hand(rows, run)
    assert recover(rows, worker, run) == ("canceled", ["failed", "canceled"])


# A handler that lingers


def test_what_has_ended_and_waits_for_its_handler_is_not_run_again_but_cleaned_up(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker("lost")
    run = rows.running(worker, rows.task(retries=3, run_timeout_seconds=60))
    first = run.nodes[0]
    node = NodeReport(first.id, NodeStatus.RUNNING, FAILED, run.due_at)
    said = f"{lingering.END_WAITS}: REPORT_EXTRACT timed out after 5 s"
    waiting = InstanceReport(InstanceStatus.RUNNING, None, said, run.due_at, None, 1)
    assert rows.report(worker, Report(run.id, run.attempt, [node], waiting)) == set()
    overdue(rows, run)
    assert (rows.status(run.id), rows.row(run.id).reason) == ("running", said), "nobody cleans up beside it"
    assert recover(rows, worker, run) == ("pending", ["failed", "pending"])
    end = always.end_of(go_on(rows, run), ALWAYS)
    assert end is not None
    why = "REPORT_EXTRACT timed out after 5 s; worker 'lost' was lost while it ran this"
    assert (end.status, end.reason) == ("failed", why)


def test_nobody_cleans_up_beside_a_handler_that_was_canceled_and_lingers(rows: Scenario) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.running(worker, rows.task(run_timeout_seconds=60))
    canceled_by_hand(rows, run)
    said = f"{lingering.END_WAITS}: canceled by hand"
    node = NodeReport(run.nodes[0].id, NodeStatus.RUNNING)
    waiting = InstanceReport(InstanceStatus.RUNNING, None, said, run.due_at, None)
    assert rows.report(worker, Report(run.id, run.attempt, [node], waiting)) == set()
    assert rows.row(run.id).reason == said
    overdue(rows, run)
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("running", ["running", "pending"])


def test_why_somebody_has_canceled_is_told_to_the_worker(rows: Scenario) -> None:
    worker = rows.worker()
    runs = [rows.running(worker) for _ in range(3)]
    canceled_by_hand(rows, runs[0])
    asked_to_cancel(rows, runs[1])
    asked = [run.id for run in runs]
    assert rows.database.read(lambda c: recovery.why_canceled(c, asked)) == {runs[0].id: "canceled by hand"}


def with_two_marked(rows: Scenario) -> None:
    """The run has a third node, and the last two run always."""
    names = (*NODE_TYPES, "REPORT_TELL")
    declared = [
        node_types.NodeTypeDeclaration(name, "REPORT", at, {"always": at > 1}) for at, name in enumerate(names, 1)
    ]
    rows.database.write(lambda c: node_types.register(c, declared, "test"))
    rows.nodes = rows.database.read(node_types.catalog).planned(names) or []


def test_a_marked_node_that_has_ended_and_lingers_is_not_run_again(rows: Scenario) -> None:
    with_two_marked(rows)
    worker = rows.worker("lost")
    run = rows.running(worker)
    first, second, _ = run.nodes
    nodes = [NodeReport(first.id, NodeStatus.FAILED, FAILED, run.due_at, run.due_at, 1)]
    nodes.append(NodeReport(second.id, NodeStatus.RUNNING, gmt_started=run.due_at))
    for said in (WHY, f"{lingering.END_WAITS}: {WHY}; then node REPORT_SEND failed: it timed out"):
        told = InstanceReport(InstanceStatus.RUNNING, None, said, run.due_at, None)
        assert rows.report(worker, Report(run.id, run.attempt, nodes, told)) == set()
    assert recover(rows, worker, run) == ("pending", ["failed", "failed", "pending"])
    end = always.end_of(go_on(rows, run), frozenset({"REPORT_SEND", "REPORT_TELL"}))
    assert end is not None
    assert ([one.type for one in end.left], end.status) == (["REPORT_TELL"], "failed")
    assert str(end.reason).startswith(WHY)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_cancel_of_what_ends_with_its_handler_does_not_hide_that_it_waits(rows: Scenario, replaced: bool) -> None:
    declare_always(rows)
    worker = rows.worker()
    run = rows.running(worker, rows.task(run_timeout_seconds=60))
    node = NodeReport(run.nodes[0].id, NodeStatus.RUNNING)
    waiting = InstanceReport(InstanceStatus.RUNNING, None, f"{lingering.END_WAITS}: it timed out", run.due_at, None)
    assert rows.report(worker, Report(run.id, run.attempt, [node], waiting)) == set()
    if replaced:
        rows.database.write(lambda c: canceling.request_cancel_of_free(c, [run.id], "canceled by hand"))
    else:
        canceled_by_hand(rows, run)
    assert rows.row(run.id).reason == f"{lingering.END_WAITS}: canceled by hand"
    assert rows.database.read(lambda c: recovery.why_canceled(c, [run.id])) == {run.id: "canceled by hand"}
    overdue(rows, run)
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("running", ["running", "pending"])
