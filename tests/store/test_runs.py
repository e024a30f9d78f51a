"""The claim: only what is assigned to me, only while its task allows it, and never two runs in one overlap slot."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import database_time
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import overlap, polling, recovery, reports, runs, tasks
from rota.shared.store.tables import OVERLAP_SLOTS
from rota.shared.store.transitions import canceling
from tests.harness import claims
from tests.harness.databases import TAKES_JSON_ALONE, MariaDBServer
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.together import impatient, together, uncommitted, wait_for_lock_wait

MINUTE = timedelta(minutes=1)


class Crash(Exception):
    """The process ends here, before its commit."""


@pytest.fixture(autouse=True, params=["nearby", "from afar"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once for each way to claim."""
    monkeypatch.setattr(Scenario, "is_far", request.param == "from afar")


def switch_off(rows: Scenario, task: int) -> None:
    rows.sql("UPDATE schedule_task SET status = 'off' WHERE id = :task", task=task)


def poll(rows: Scenario, worker: int, horizon: datetime, limit: int = 100) -> list[int]:
    return [
        instance
        for instance, _, _ in rows.database.read(lambda c: polling.poll(c, polling.Queue(worker), horizon, limit)).rows
    ]


def waiting(claim: runs.Claim) -> list[int]:
    return [instance for instance, *_ in claim.waiting]


def ran(claim: runs.Claim) -> list[int]:
    return [run.id for run in claim.runs]


# Polling


def test_a_poll_finds_my_assigned_instances_by_priority_and_due_time(rows: Scenario) -> None:
    me, other, now = rows.worker(), rows.worker(), rows.start
    late = rows.assigned(me, due_at=now, priority=9)
    second = rows.assigned(me, due_at=now - MINUTE)
    first = rows.assigned(me, due_at=now - 2 * MINUTE)
    urgent = rows.assigned(me, due_at=now, priority=0)
    rows.assigned(me, due_at=now + MINUTE)
    rows.assigned(other)
    rows.running(me)
    rows.pending()
    assert poll(rows, me, now) == [urgent, first, second, late]
    assert poll(rows, me, now, limit=2) == [urgent, first]


# Claiming


def test_a_claim_starts_the_instance_and_its_first_node_and_brings_all_that_is_needed(rows: Scenario) -> None:
    task = rows.task(name="daily", timezone="Asia/Shanghai", timeout_seconds=60, on_worker_lost="fail")
    rows.sql("UPDATE schedule_task SET retries = 3")
    worker, at = rows.worker(), rows.past()
    instance = rows.assigned(worker, task, at, param={"region": "eu"})
    [run] = rows.claim(worker, instance).runs
    assert (run.id, run.attempt, run.task_id, run.task_name, run.timezone) == (
        instance,
        1,
        task,
        "daily",
        "Asia/Shanghai",
    )
    assert (run.schedule_datetime, run.due_at, run.run_number, run.origin) == (at, at, 0, "cron")
    assert (run.param, run.failures, run.retry, run.timeout_seconds) == (
        {"region": "eu"},
        0,
        RetryPolicy(retries=3),
        60,
    )
    assert run.on_worker_lost == "fail"
    assert [(n.type, n.category, n.sequence) for n in run.nodes] == [
        ("REPORT_EXTRACT", "REPORT", 1),
        ("REPORT_SEND", "REPORT", 2),
    ]
    row = rows.row(instance)
    assert (row.status, row.attempt) == ("running", 1)
    assert rows.start - MINUTE < row.gmt_started <= rows.database.read(database_time)
    assert rows.node_statuses(instance) == ["running", "pending"]


def test_a_claim_brings_how_the_task_is_retried(rows: Scenario) -> None:
    fields: dict[str, Any] = {
        "retries": 3, "retry_delay_seconds": 5, "retry_backoff": "fixed", "max_retry_delay_seconds": 60,
        "retry_jitter_percent": 20, "on_retry": "restart",
    }  # fmt: skip
    worker = rows.worker()
    run = rows.running(worker, rows.task(**fields, retry_on=[OSError], never_retry=[TimeoutError]))
    named = RetryPolicy(**fields, retry_on=("OSError",), never_retry=("TimeoutError",))
    assert (run.retry, rows.running(worker).retry) == (named, RetryPolicy())


@pytest.mark.parametrize(
    ("edit", "policy"),
    [
        pytest.param("retry_on = '{not json'", RetryPolicy(), marks=TAKES_JSON_ALONE),
        ("retry_on = '5'", RetryPolicy()),
        ("never_retry = '[[1], \"OSError\", null]'", RetryPolicy(never_retry=("OSError",))),
        (f"never_retry = '{'[' * 40}{']' * 40}'", RetryPolicy(never_retry=())),
        ("retry_jitter_percent = 32767", RetryPolicy(retry_jitter_percent=100)),
        ("retry_jitter_percent = -5", RetryPolicy()),
        ("retry_on = '[]'", RetryPolicy(retry_on=())),
    ],
)
def test_what_sql_has_spoiled_of_it_spoils_no_claim(rows: Scenario, edit: str, policy: RetryPolicy) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    rows.sql(f"UPDATE schedule_task SET {edit} WHERE id = :task", task=task)  # past the checks
    spoiled, other = rows.assigned(worker, task), rows.assigned(worker)
    claimed = {run.id: run.retry for run in rows.claim(worker, spoiled, other).runs}
    assert claimed == {spoiled: policy, other: RetryPolicy()}


def test_what_is_handed_back_uses_up_no_retry(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker, rows.task(retries=1))
    fence = [(run.id, run.attempt)]
    assert rows.database.write(lambda c: reports.hand_back(c, worker, fence, "the worker stops")) == 1
    rows.give(worker, run.id)
    [again] = rows.claim(worker, run.id).runs
    assert (again.attempt, again.failures, [node.failures for node in again.nodes]) == (2, 0, [0, 0])


def test_a_run_claimed_ahead_counts_from_its_due_time(rows: Scenario) -> None:
    worker, due = rows.worker(), rows.start + timedelta(hours=1)
    run = rows.running(worker, at=due)
    assert rows.row(run.id).gmt_started == due


def test_only_what_is_assigned_to_me_is_claimed(rows: Scenario) -> None:
    me, other = rows.worker(), rows.worker()
    mine = rows.assigned(me)
    others = [rows.assigned(other), rows.pending(), rows.running(other).id, rows.ended(worker=me), 999_999]
    before = rows.statuses()
    claim = rows.claim(me, mine, *others)
    assert ran(claim) == [mine]
    assert waiting(claim) == []
    assert rows.statuses() == before | {mine: "running"}


def test_the_attempt_grows_at_every_claim(rows: Scenario) -> None:
    workers = [rows.worker(), rows.worker()]
    instance = rows.pending()
    for attempt in (1, 2, 3, 4):
        worker = workers[attempt % 2]
        rows.give(worker, instance)
        [run] = rows.claim(worker, instance).runs
        assert run.attempt == attempt
        rows.report(worker, to_retry(run, rows.start))


def test_a_retry_finds_the_results_of_the_nodes_that_succeeded(rows: Scenario) -> None:
    worker = rows.worker()
    first = rows.running(worker)
    rows.report(worker, to_retry(first, rows.start))
    rows.give(worker, first.id)
    [run] = rows.claim(worker, first.id).runs
    assert run.failures == 1
    assert [(node.status == "succeed", node.result) for node in run.nodes] == [(True, 1), (False, None)]
    assert rows.node_statuses(run.id) == ["succeed", "running"]


def test_a_claim_whose_commit_had_no_answer_finds_its_rows(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    [before] = rows.claim(worker, instance).runs
    [again] = rows.claim(worker, instance).runs
    assert (again.id, again.attempt) == (before.id, before.attempt)
    assert [node.id for node in again.nodes] == [node.id for node in before.nodes]
    assert rows.row(instance).attempt == 1


# What the task says


def test_a_fire_of_a_task_that_is_off_is_canceled_with_the_reason(rows: Scenario) -> None:
    task, worker = rows.task(), rows.worker()
    instance = rows.assigned(worker, task)
    switch_off(rows, task)
    claim = rows.claim(worker, instance)
    assert (claim.runs, claim.waiting) == ([], [])
    row = rows.row(instance)
    assert (row.status, row.attempt, row.reason) == ("canceled", 0, "its task was off when it was due")
    assert row.gmt_completed is not None
    assert rows.node_statuses(instance) == ["canceled", "canceled"]


def test_an_instance_of_a_deleted_task_is_canceled_with_the_reason_whatever_asked_for_it(rows: Scenario) -> None:
    task, worker = rows.task(name="gone"), rows.worker()
    assigned = [rows.assigned(worker, task, origin=origin) for origin in ("cron", "manual", "replay", "sql")]
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "gone"), "test"))
    claim = rows.claim(worker, *assigned)
    assert (claim.runs, claim.waiting) == ([], [])
    assert {(rows.status(i), rows.row(i).reason) for i in assigned} == {("canceled", "its task was deleted")}


@pytest.mark.parametrize("origin", ["manual", "replay", "sql"])
def test_what_somebody_asked_for_runs_though_the_task_is_off(rows: Scenario, origin: str) -> None:
    task, worker = rows.task(), rows.worker()
    instance = rows.assigned(worker, task, origin=origin)
    switch_off(rows, task)
    assert ran(rows.claim(worker, instance)) == [instance]


def test_of_a_batch_only_the_instances_of_the_task_that_is_off_are_canceled(rows: Scenario) -> None:
    off, on, worker = rows.task(), rows.task(), rows.worker()
    canceled, run = rows.assigned(worker, off), rows.assigned(worker, on)
    switch_off(rows, off)
    assert ran(rows.claim(worker, canceled, run)) == [run]
    assert rows.status(canceled) == "canceled"


def test_a_run_goes_on_when_its_task_is_turned_off(rows: Scenario) -> None:
    task, worker = rows.task(), rows.worker()
    run = rows.running(worker, task)
    switch_off(rows, task)
    assert rows.report(worker, ended(run)) == set()
    assert rows.status(run.id) == "succeed"


def test_a_claim_cancels_an_assigned_instance_whose_task_was_deleted_by_sql(rows: Scenario) -> None:
    task, worker = rows.task(), rows.worker()
    alone, beside = rows.assigned(worker, task), rows.assigned(worker)
    rows.sql("DELETE FROM schedule_task WHERE id = :id", id=task)
    claim = rows.claim(worker, alone, beside)
    assert ([run.id for run in claim.runs], claim.waiting) == ([beside], [])
    assert (rows.status(alone), rows.node_statuses(alone)) == ("canceled", ["canceled"] * 2)
    assert rows.row(alone).reason == f"there is no task {task}"


def test_a_deletion_that_is_not_committed_cancels_nothing(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task, worker = rows.task(), rows.worker()
    held_up = rows.assigned(worker, task)

    def delete(connection: Connection) -> None:
        connection.execute(text("DELETE FROM schedule_task WHERE id = :id"), {"id": task})

    with uncommitted(rows.database, delete), impatient(rows.database) as database:
        claim = claims.claim(database, worker, [held_up], rows.types)
        assert [waiting.id for waiting in claim.waiting] == [held_up]
    assert rows.status(held_up) == "assigned"


def test_an_edit_that_is_not_committed_holds_up_its_own_task_alone_and_nobody_waits(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    edited, other, worker = rows.task(name="edited"), rows.task(), rows.worker()
    held_up, free = rows.assigned(worker, edited), rows.assigned(worker, other)

    def edit(connection: Connection) -> None:
        tasks.edit(connection, tasks.find(connection, "edited"), {"priority": 1}, "test")

    with uncommitted(rows.database, edit), impatient(rows.database) as database:
        claim = claims.claim(database, worker, [held_up, free], rows.types)
        assert ran(claim) == [free]
        assert waiting(claim) == [held_up]
    assert ran(rows.claim(worker, held_up)) == [held_up]


def test_nothing_starts_once_off_is_committed(mariadb_rows: Scenario, mariadb_server: MariaDBServer) -> None:
    """``off`` waits for a claim that has looked already; so whoever sees it committed sees all that will run."""
    rows = mariadb_rows
    task, worker = rows.task(), rows.worker()
    instance = rows.assigned(worker, task)
    with ThreadPoolExecutor(1) as pool:
        with uncommitted(rows.database, lambda c: claims.claim_on(c, worker, [instance], rows.types)):
            off = pool.submit(switch_off, rows, task)
            wait_for_lock_wait(mariadb_server, off)
        off.result()
    assert rows.status(instance) == "running"


# Overlap


def overlapping(rows: Scenario, policy: str, **fields: Any) -> tuple[int, int, int, int]:
    """Two workers, each with an instance of one task; both are due now: (a, of a, b, of b)."""
    task = rows.task(overlap_policy=policy, **fields)
    a, b = rows.worker(), rows.worker()
    at = rows.start - MINUTE
    return a, rows.assigned(a, task, at), b, rows.assigned(b, task, at + timedelta(seconds=1), due_at=rows.start)


def started(rows: Scenario, instance: int, at: datetime) -> None:
    rows.sql("UPDATE schedule_instance SET gmt_started = :at WHERE id = :i", i=instance, at=f"{at:%F %T.%f}")


def doubted(rows: Scenario, second: int, first: int) -> dict[int, overlap.SkipCandidate]:
    """What the worker of the second remembers when it has met the first, for a second from now."""
    return {second: overlap.SkipCandidate(first, rows.now() + timedelta(seconds=1))}


def test_a_fire_is_skipped_when_a_run_that_was_under_way_still_goes_on(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "skip")
    assert ran(rows.claim(a, first)) == [first]
    started(rows, first, rows.start - MINUTE)
    due, skip_candidates = rows.row(second).due_at, doubted(rows, second, first)
    until = skip_candidates[second].until
    claim = rows.claim(b, second)
    assert (claim.runs, claim.waiting) == ([], [(second, due, first, None, None, True)]), "it may have ended"
    claim = rows.claim(b, second, now=until - timedelta(milliseconds=1), skip_candidates=skip_candidates)
    assert (claim.runs, claim.waiting) == ([], [(second, due, first, None, None, False)]), "it has its time to report"
    claim = rows.claim(b, second, now=until, skip_candidates=skip_candidates)
    assert (claim.runs, claim.waiting) == ([], [])
    row = rows.row(second)
    assert (row.status, row.reason) == ("canceled", f"overlap: instance {first} still ran when this instance was due")
    assert rows.node_statuses(second) == ["canceled", "canceled"]
    assert rows.status(first) == "running"


@pytest.mark.parametrize(
    ("began", "ended_", "skipped"),
    [(-60_000, -1, False), (-60_000, 1, True), (-1, 1, True), (1, 2, False)],
    ids=["ended before", "ended after", "spans it", "began after"],
)
def test_whether_a_fire_is_skipped_is_told_by_what_ran_when_it_was_due_and_not_by_when_that_was_reported(
    rows: Scenario, began: int, ended_: int, *, skipped: bool
) -> None:
    a, first, b, second = overlapping(rows, "skip")
    [run] = rows.claim(a, first).runs
    report = ended(run)
    assert report.instance is not None
    span = [rows.start + timedelta(milliseconds=moment) for moment in (began, ended_)]
    rows.report(a, replace(report, instance=replace(report.instance, gmt_started=span[0], gmt_completed=span[1])))
    claim = rows.claim(b, second, skip_candidates=doubted(rows, second, first))
    assert (ran(claim), waiting(claim)) == ([] if skipped else [second], [])
    reason = f"overlap: instance {first} still ran when this instance was due" if skipped else None
    row = rows.row(second)
    assert (row.status, row.reason) == ("canceled" if skipped else "running", reason)
    assert rows.node_statuses(second) == (["canceled"] * 2 if skipped else ["running", "pending"])


def test_a_fire_is_not_skipped_for_a_run_that_is_to_be_tried_again(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "skip")
    [run] = rows.claim(a, first).runs
    started(rows, first, rows.start - MINUTE)
    rows.report(a, to_retry(run, rows.start + MINUTE))
    assert ran(rows.claim(b, second, skip_candidates=doubted(rows, second, first))) == [second]


def test_a_fire_is_not_skipped_for_a_run_that_was_handed_back_and_canceled(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "skip")
    [run] = rows.claim(a, first).runs
    rows.database.write(lambda c: reports.hand_back(c, a, [(run.id, run.attempt)], "test"))
    rows.database.write(lambda c: canceling.refuse(c, {first: "test"}))
    row = rows.row(first)
    assert (row.status, row.gmt_started) == ("canceled", None)
    assert row.gmt_completed > rows.row(second).due_at
    assert ran(rows.claim(b, second, skip_candidates=doubted(rows, second, first))) == [second]


def test_a_policy_that_is_changed_while_a_fire_waits_for_a_report_holds_at_once(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "skip")
    [run] = rows.claim(a, first).runs
    started(rows, first, rows.start - MINUTE)
    rows.report(a, ended(run))
    rows.sql("UPDATE schedule_task SET overlap_policy = 'queue'")
    assert ran(rows.claim(b, second, skip_candidates=doubted(rows, second, first))) == [second]


def test_a_fire_that_came_late_together_with_its_predecessor_waits_rather_than_being_skipped(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="skip"), rows.worker()
    first, second = (
        rows.assigned(worker, task, rows.start - 2 * MINUTE),
        rows.assigned(worker, task, rows.start - MINUTE),
    )
    claim = rows.claim(worker, first, second)
    assert ran(claim) == [first]
    assert waiting(claim) == [second]


def test_what_has_begun_before_waits_rather_than_being_skipped(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "skip")
    rows.sql("UPDATE schedule_instance SET attempt = 1 WHERE id = :i", i=second)
    rows.claim(a, first)
    rows.sql("UPDATE schedule_instance SET gmt_started = schedule_datetime WHERE id = :i", i=first)
    assert waiting(rows.claim(b, second)) == [second]
    assert rows.status(second) == "assigned"


@pytest.mark.parametrize("origin", ["manual", "replay", "sql"])
def test_what_somebody_asked_for_waits_rather_than_being_skipped(rows: Scenario, origin: str) -> None:
    a, first, b, second = overlapping(rows, "skip")
    rows.sql("UPDATE schedule_instance SET origin = :o WHERE id = :i", i=second, o=origin)
    rows.claim(a, first)
    rows.sql("UPDATE schedule_instance SET gmt_started = schedule_datetime WHERE id = :i", i=first)
    assert waiting(rows.claim(b, second)) == [second]


def test_one_that_loses_before_it_is_due_waits(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="skip"), rows.worker()
    run = rows.running(worker, task)
    early = rows.assigned(worker, task, rows.start + timedelta(hours=1))
    assert waiting(rows.claim(worker, early)) == [early]
    rows.report(worker, ended(run))
    assert ran(rows.claim(worker, early)) == [early]


def test_a_queued_fire_waits_and_runs_when_its_predecessor_has_ended(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "queue")
    [run] = rows.claim(a, first).runs
    assert waiting(rows.claim(b, second)) == [second]
    rows.report(a, ended(run))
    assert ran(rows.claim(b, second)) == [second]


def test_a_replacing_fire_has_its_predecessor_canceled_and_runs_then(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "replace")
    [run] = rows.claim(a, first, now=rows.start - MINUTE).runs
    assert waiting(rows.claim(b, second)) == [second]
    assert rows.database.read(lambda c: recovery.held(c, a)) == [(first, 1, True)]
    assert rows.row(first).reason == "replaced by its task's next fire"
    asked = rows.row(first).gmt_cancel_requested
    assert waiting(rows.claim(b, second)) == [second]
    assert rows.row(first).gmt_cancel_requested == asked
    rows.report(a, ended(run, InstanceStatus.CANCELED))
    assert ran(rows.claim(b, second)) == [second]


def asked_for(rows: Scenario, instance: int) -> None:
    rows.sql("UPDATE schedule_instance SET origin = 'sql' WHERE id = :i", i=instance)


def begun(rows: Scenario, instance: int) -> None:
    rows.sql("UPDATE schedule_instance SET attempt = 1 WHERE id = :i", i=instance)


def test_a_run_that_somebody_asked_for_is_not_replaced(rows: Scenario) -> None:
    a, first, b, second = overlapping(rows, "replace")
    asked_for(rows, first)
    [run] = rows.claim(a, first, now=rows.start - MINUTE).runs
    assert waiting(rows.claim(b, second)) == [second]
    assert rows.row(first).gmt_cancel_requested is None
    rows.report(a, ended(run))
    assert ran(rows.claim(b, second)) == [second]


@pytest.mark.parametrize("make", [asked_for, begun])
def test_only_a_new_fire_replaces_what_runs_the_rest_waits(
    rows: Scenario, make: Callable[[Scenario, int], None]
) -> None:
    a, first, b, second = overlapping(rows, "replace")
    make(rows, second)
    [run] = rows.claim(a, first).runs
    assert waiting(rows.claim(b, second)) == [second]
    assert rows.database.read(lambda c: recovery.held(c, a)) == [(first, 1, False)]
    rows.report(a, ended(run))
    assert ran(rows.claim(b, second)) == [second]


def test_a_fire_does_not_replace_a_replay_of_its_own_time(rows: Scenario) -> None:
    task, worker, at = rows.task(overlap_policy="replace"), rows.worker(), rows.past()
    replay = rows.assigned(worker, task, at, origin="replay", run_number=1)
    rows.claim(worker, replay)
    fire = rows.by_sql(task, at)
    rows.sql(
        "UPDATE schedule_instance SET origin = 'cron', due_at = schedule_datetime, run_number = 0 WHERE id = :i", i=fire
    )
    rows.give(worker, fire)
    assert waiting(rows.claim(worker, fire)) == [fire]
    assert rows.database.read(lambda c: recovery.held(c, worker)) == [(replay, 1, False)]


def test_any_number_may_run_at_once_where_overlap_is_allowed(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="allow"), rows.worker()
    assigned = [rows.assigned(worker, task) for _ in range(5)]
    assert ran(rows.claim(worker, *assigned)) == assigned
    assert {rows.row(i).overlap_key for i in assigned} == {None}


def test_no_more_than_max_instances_run_at_once(rows: Scenario) -> None:
    task, a, b = rows.task(overlap_policy="allow", max_instances=2), rows.worker(), rows.worker()
    *assigned, other = (rows.assigned(b if n == 1 else a, task, rows.start - n * MINUTE) for n in (5, 4, 2, 1))
    first = rows.claim(a, *assigned)
    assert (ran(first), waiting(first)) == (assigned[:2], assigned[2:])
    assert waiting(rows.claim(b, other)) == [other]
    assert {rows.row(i).overlap_key for i in assigned[:2]} == {task * OVERLAP_SLOTS, task * OVERLAP_SLOTS + 1}
    rows.report(a, ended(first.runs[0]))
    assert ran(rows.claim(a, assigned[2])) == [assigned[2]]
    assert waiting(rows.claim(b, other)) == [other]


def test_a_slot_that_is_taken_costs_the_others_of_the_batch_nothing(rows: Scenario) -> None:
    worker, busy = rows.worker(), rows.task(overlap_policy="queue")
    running = rows.running(worker, busy)
    limited = rows.task(overlap_policy="allow", max_instances=3)
    free = [
        *(rows.assigned(worker, rows.task(overlap_policy="skip")) for _ in range(2)),
        *(rows.assigned(worker, limited) for _ in range(2)),
        rows.assigned(worker, rows.task(overlap_policy="allow")),
    ]
    late = rows.assigned(worker, busy)
    claim = rows.claim(worker, *free[:1], late, *free[1:])
    assert (sorted(ran(claim)), waiting(claim)) == (sorted(free), [late])
    assert [rows.row(i).status for i in (*free, running.id, late)] == ["running"] * 6 + ["assigned"]
    [begun] = rows.sql(
        "SELECT count(*) FROM schedule_task_node WHERE status = 'running' AND schedule_instance_id <> :i", i=running.id
    )
    assert begun[0] == len(free)


def test_a_thousand_slots_cost_a_claim_no_more_than_what_runs(rows: Scenario) -> None:
    worker = rows.worker()
    assigned = [rows.assigned(worker, rows.task(overlap_policy="allow", max_instances=1_000)) for _ in range(3)]
    assert ran(rows.claim(worker, *assigned)) == assigned


def test_instances_of_different_tasks_do_not_overlap(rows: Scenario) -> None:
    worker = rows.worker()
    assigned = [rows.assigned(worker, rows.task(overlap_policy="skip")) for _ in range(3)]
    assert ran(rows.claim(worker, *assigned)) == assigned


@pytest.mark.parametrize("policy", ["skip", "queue"])
def test_of_two_workers_that_claim_one_task_at_once_one_wins(rows: Scenario, policy: str) -> None:
    pairs = [overlapping(rows, policy) for _ in range(5)]
    for a, first, b, second in pairs:
        claims = together(partial(rows.claim, a, first), partial(rows.claim, b, second))
        assert sorted(len(claim.runs) for claim in claims) == [0, 1]
        assert sorted([rows.status(first), rows.status(second)]) == ["assigned", "running"]


@pytest.mark.parametrize("policy", ["queue", "allow"])
def test_a_claim_that_meets_an_older_one_not_committed_yet_does_not_wait_for_it(
    mariadb_rows: Scenario, policy: str
) -> None:
    rows = mariadb_rows
    a, first, b, second = overlapping(rows, policy, max_instances=1 if policy == "allow" else None)
    with uncommitted(rows.database, lambda c: claims.claim_on(c, a, [first], rows.types, slot=0)) as won:
        assert [run.id for run in won] == [first]
        assert waiting(rows.claim(b, second)) == [second], "it comes after the first, whoever runs that"


def test_a_claim_that_meets_one_not_committed_yet_waits_for_it_and_loses(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    a, first, b, second = overlapping(rows, "skip")
    with ThreadPoolExecutor(1) as pool:
        with uncommitted(rows.database, lambda c: claims.claim_on(c, a, [first], rows.types)) as won:
            assert [run.id for run in won] == [first]
            claim = pool.submit(rows.claim, b, second)
            wait_for_lock_wait(mariadb_server, claim)
        assert claim.result().runs == []
    assert rows.status(first) == "running"


def test_a_claim_that_meets_one_rolled_back_wins(mariadb_rows: Scenario, mariadb_server: MariaDBServer) -> None:
    rows = mariadb_rows
    a, first, b, second = overlapping(rows, "skip")
    with ThreadPoolExecutor(1) as pool:
        with (
            contextlib.suppress(Crash),
            uncommitted(rows.database, lambda c: claims.claim_on(c, a, [first], rows.types)),
        ):
            claim = pool.submit(rows.claim, b, second)
            wait_for_lock_wait(mariadb_server, claim)
            raise Crash
        assert ran(claim.result()) == [second]
    assert rows.status(first) == "assigned"


# What a worker holds


def test_a_worker_holds_what_stands_running_under_it(rows: Scenario) -> None:
    me, other = rows.worker(), rows.worker()
    mine, asked = rows.running(me), rows.running(me)
    rows.running(other)
    rows.assigned(me)
    rows.ended(worker=me)
    rows.database.write(lambda c: canceling.request_cancel(c, asked.id, rows.start, "test"))
    with pytest.raises(Unexpected):
        rows.database.write(lambda c: canceling.request_cancel(c, asked.id, rows.start, "again"))
    assert rows.row(asked.id).reason == "test"
    assert sorted(rows.database.read(lambda c: recovery.held(c, me))) == [(mine.id, 1, False), (asked.id, 1, True)]


def test_only_what_runs_is_asked_to_stop(rows: Scenario) -> None:
    worker = rows.worker()
    others = [rows.pending(), rows.assigned(worker), rows.ended(worker=worker)]
    for other in others:
        with pytest.raises(Unexpected):
            rows.database.write(partial(canceling.request_cancel, instance_id=other, now=rows.start, reason="test"))
    assert all(instances_row.gmt_cancel_requested is None for instances_row in map(rows.row, others))


def test_an_instance_canceled_by_hand_before_its_claim_is_not_run(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    rows.database.write(lambda c: canceling.cancel(c, instance, "test", "test"))
    claim = rows.claim(worker, instance)
    assert (claim.runs, claim.waiting) == ([], [])
    assert rows.status(instance) == "canceled"
