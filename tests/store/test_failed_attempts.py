"""What is kept of the attempts that failed: each one's end, also after the run has succeeded. Bounded."""

import json
from datetime import timedelta
from typing import Any

import pytest

from rota.shared.database.constructs import written
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store import instances, recovery
from rota.shared.store.failed_attempts import ERROR_CHARACTERS, MOST, OUTPUT_CHARACTERS, TRACEBACK_CHARACTERS
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import Run
from rota.shared.store.transitions import canceling
from tests.harness.databases import NO_JSON
from tests.harness.scenario import Scenario, succeeded


def kept(rows: Scenario, run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.row(run.id).failed_attempts
    return found


def recover(rows: Scenario, worker: int) -> int:
    return rows.database.write(lambda c: recovery.recover(c, worker, 100))


def report(run: Run, status: InstanceStatus, due: Any = None, **result: Any) -> Report:
    """A failure of the first node with this result: for good, or to be retried."""
    node = NodeReport(run.nodes[0].id, NodeStatus(status.value), json.dumps(result), run.due_at, run.due_at)
    end = InstanceReport(status, None, "node N failed: no", run.due_at, None, run.failures + 1, due)
    return Report(run.id, run.attempt, [node], end)


def again(rows: Scenario, worker: int, run: Run) -> Run:
    """The run's next attempt, claimed."""
    rows.give(worker, run.id)
    [claimed] = rows.claim(worker, run.id).runs
    return claimed


def failing(rows: Scenario, worker: int, run: Run, **result: Any) -> Run:
    """Let the attempt fail so; returns the next one, on the same worker."""
    assert rows.report(worker, report(run, InstanceStatus.PENDING, rows.start, **result)) == set()
    return again(rows, worker, run)


def test_a_retry_that_succeeds_keeps_how_the_earlier_attempts_failed(rows: Scenario) -> None:
    first, second = rows.worker(), rows.worker()
    run = rows.running(first)
    before = run.due_at.isoformat(" ", "microseconds")
    failure = {"error": "ValueError: no", "type": "ValueError", "traceback": "Traceback\n1"}
    rows.report(first, report(run, InstanceStatus.PENDING, rows.start, **failure))
    run = again(rows, second, run)
    run = failing(rows, second, run, error='it\'s \\ "quoted" ä', exit_code=3, stdout="out")
    assert rows.report(second, succeeded(run)) == set()
    assert rows.status(run.id) == "succeed"
    one, two = kept(rows, run)
    shared = {"node_id": run.nodes[0].id, "reason": "node N failed: no"}
    assert one == shared | {
        "attempt": 1,
        "worker_id": first,
        "gmt_started": before,
        "gmt_completed": before,
        "error": "ValueError: no",
        "type": "ValueError",
        "traceback": "Traceback\n1",
    }
    assert (two["attempt"], two["worker_id"], two["error"]) == (2, second, 'it\'s \\ "quoted" ä')
    assert (two["exit_code"], two["stdout"]) == (3, "out")


def test_the_last_attempt_is_kept_too(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, report(run, InstanceStatus.FAILED, error="no")) == set()
    assert [(end["attempt"], end["error"]) for end in kept(rows, run)] == [(1, "no")]


def test_an_attempt_whose_worker_was_lost_is_kept_with_its_node_its_start_and_its_end(rows: Scenario) -> None:
    worker, other = rows.worker(name="worker-7"), rows.worker()
    run = rows.running(worker)
    began = rows.database.read(lambda c: instances.nodes(c, run.id))[0].gmt_started
    rows.bury(worker)
    before = written(rows.now() - timedelta(seconds=1))
    assert recover(rows, worker) == 1
    run = again(rows, other, run)
    assert rows.report(other, succeeded(run)) == set()
    [end] = kept(rows, run)
    assert str(before) < end.pop("gmt_completed") <= str(written(rows.now() + timedelta(seconds=1)))
    assert end == {
        "attempt": 1,
        "worker_id": worker,
        "node_id": run.nodes[0].id,
        "gmt_started": written(began),
        "reason": "worker 'worker-7' was lost while it ran this; it runs again",
        "error": "worker 'worker-7' was lost while it ran this",
    }


@pytest.mark.parametrize("columns", [{"worker_losses": 2}, {}], ids=["poison", "at most once"])
def test_a_lost_attempt_that_ended_its_run_is_kept_behind_the_others(rows: Scenario, columns: dict[str, int]) -> None:
    worker, task = rows.worker(), rows.task() if columns else rows.task(on_worker_lost="fail")
    run = rows.begun(worker, task, failed_attempts=[{"attempt": 0}], **columns)
    rows.bury(worker)
    assert recover(rows, worker) == 1
    row = rows.row(run.id)
    assert [(end["attempt"], end.get("reason")) for end in kept(rows, run)] == [(0, None), (1, row.reason)]
    assert row.status == "failed"


def test_what_a_live_worker_holds_and_does_not_run_has_failed_with_the_reason(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    assert rows.database.write(lambda c: recovery.disown(c, worker, [(run.id, 1)], "nobody runs it")) == {run.id}
    assert [(end["attempt"], end["worker_id"], end["error"]) for end in kept(rows, run)] == [
        (1, worker, "nobody runs it")
    ]


def test_of_nodes_that_ran_beside_each_other_the_first_is_kept_with_its_own_start(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    first, second = run.nodes
    later = "2026-11-19 12:00:00.000000"
    rows.sql("UPDATE schedule_task_node SET status = 'running', gmt_started = :at WHERE id = :i", at=later, i=second.id)
    rows.sql("UPDATE schedule_task_node SET gmt_started = '2026-11-19 11:00:00.000000' WHERE id = :i", i=first.id)
    rows.bury(worker)
    assert recover(rows, worker) == 1
    [end] = kept(rows, run)
    assert (end["node_id"], end["gmt_started"]) == (first.id, "2026-11-19 11:00:00.000000")


def test_a_lost_run_that_never_began_or_was_canceled_is_no_failed_attempt(rows: Scenario) -> None:
    worker = rows.worker()
    waiting, canceled = rows.running(worker, rows.task(on_worker_lost="fail")), rows.running(worker)
    rows.database.write(lambda c: canceling.request_cancel(c, canceled.id, rows.now(), "by hand"))
    rows.bury(worker)
    assert recover(rows, worker) == 2
    assert [rows.status(run.id) for run in (waiting, canceled)] == ["pending", "canceled"]
    assert [rows.row(run.id).failed_attempts for run in (waiting, canceled)] == [None] * 2


def test_success_cancel_and_hand_back_are_no_failed_attempts(rows: Scenario) -> None:
    worker = rows.worker()
    good, canceled, handed = rows.running(worker), rows.running(worker), rows.running(worker)
    back = InstanceReport(InstanceStatus.PENDING, None, "no room", None, None, due_at=rows.start + timedelta(seconds=5))
    rows.report(
        worker, succeeded(good), report(canceled, InstanceStatus.CANCELED), Report(handed.id, handed.attempt, [], back)
    )
    assert [rows.row(run.id).failed_attempts for run in (good, canceled, handed)] == [None] * 3


def test_the_attempts_that_are_kept_are_bounded_in_number_and_in_bytes(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    texts = {name: name[0] * 30_000 for name in ("error", "traceback", "stdout", "stderr", "type")}
    for _ in range(MOST + 2):
        run = failing(rows, worker, run, **texts, other="x" * 30_000)
    ends = kept(rows, run)
    assert [end["attempt"] for end in ends] == list(range(3, MOST + 3))
    for end in ends:
        assert len(end["error"]) == ERROR_CHARACTERS
        assert len(end["traceback"]) == TRACEBACK_CHARACTERS
        assert len(end["stdout"]) == len(end["stderr"]) == OUTPUT_CHARACTERS
    assert len(json.dumps(ends)) < MOST * 8_000


@pytest.mark.parametrize("odd", ["{}", "5", '"x"', "null", NO_JSON, "[" * 40 + "]" * 40])
def test_what_sql_wrote_there_stops_no_report(rows: Scenario, odd: str) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    rows.sql("UPDATE schedule_instance SET failed_attempts = :odd WHERE id = :id", odd=odd, id=run.id)
    assert rows.report(worker, report(run, InstanceStatus.FAILED, error="no")) == set()
    assert rows.status(run.id) == "failed"
