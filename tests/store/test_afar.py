"""Claiming from afar wins what the claim nearby would win, leaves to it what it cannot decide, and never wins more."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.shared.clock import RESOLUTION
from rota.shared.store import afar, assignments
from rota.shared.store.overlap import SkipCandidate, Waiting
from rota.shared.store.runs import NO_SKIP_CANDIDATES, Claim
from rota.shared.store.transitions import canceling
from rota.worker_service.rows import FAR_SECONDS, WorkerRows
from tests.harness.scenario import Scenario
from tests.harness.together import together, uncommitted

HOUR = timedelta(hours=1)
SOON = timedelta(minutes=1)
RACES = 5


def claim(
    rows: Scenario,
    worker: int,
    *ids: int,
    now: datetime | None = None,
    skip_candidates: dict[int, SkipCandidate] | None = None,
) -> tuple[Claim, set[int]]:
    return afar.claim(
        rows.database,
        worker,
        ids,
        now or rows.now(),
        rows.types,
        skip_candidates=skip_candidates or NO_SKIP_CANDIDATES,
        ahead=HOUR,
    )


def ran(one: Claim) -> list[int]:
    return [run.id for run in one.runs]


def nodes(rows: Scenario, instance: int) -> list[tuple[str, bool]]:
    """The status of each node, and whether it has a time of its start."""
    found = rows.sql(
        "SELECT status, gmt_started FROM schedule_task_node WHERE schedule_instance_id = :id ORDER BY sequence",
        id=instance,
    )
    return [(row.status, row.gmt_started is not None) for row in found]


UNTOUCHED = [("pending", False), ("pending", False)]


def in_between(rows: Scenario, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let ``work`` be done between the read and the write of each claim."""
    write = rows.database.write_undisturbed

    def work_and_write(transaction: Callable[[Connection], Any]) -> Any:
        work()
        return write(transaction)

    monkeypatch.setattr(rows.database, "write_undisturbed", work_and_write)


def refuse_writes(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(transaction: Callable[[Connection], Any]) -> Any:
        raise AssertionError("the claim wrote")

    monkeypatch.setattr(rows.database, "write_undisturbed", write)


# What it wins


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_a_claim_from_afar_starts_instances_and_their_first_nodes(rows: Scenario, policy: str) -> None:
    worker = rows.worker()
    ids = [rows.assigned(worker, rows.task(overlap_policy=policy)) for _ in range(3)]
    claimed, left = claim(rows, worker, *ids)
    assert (ran(claimed), claimed.waiting, left) == (ids, [], set())
    assert claimed.time is not None
    assert [run.attempt for run in claimed.runs] == [1, 1, 1]
    for instance in ids:
        row = rows.row(instance)
        assert (row.status, row.attempt) == ("running", 1)
        assert rows.start <= row.gmt_started <= rows.now() + RESOLUTION
        assert nodes(rows, instance) == [("running", True), ("pending", False)]
    assert rows.broken() == {}


def test_a_claim_from_afar_brings_what_a_claim_nearby_brings(rows: Scenario) -> None:
    worker = rows.worker()
    task = rows.task(name="daily", timezone="Asia/Shanghai", timeout_seconds=60)
    instance = rows.assigned(worker, task, param={"region": "eu"})
    claimed, _ = claim(rows, worker, instance)
    (here,), (there,) = claimed.runs, rows.claim(worker, instance).runs
    assert replace(here, nodes=()) == replace(there, nodes=())
    assert [node.id for node in here.nodes] == [node.id for node in there.nodes]


def test_instances_of_one_task_that_allows_overlap_are_won_together(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    ids = [rows.assigned(worker, task) for _ in range(3)]
    claimed, left = claim(rows, worker, *ids)
    assert (ran(claimed), left) == (ids, set())


def test_a_run_that_may_run_at_most_once_has_not_begun_when_it_is_claimed(rows: Scenario) -> None:
    worker = rows.worker()
    once = rows.assigned(worker, rows.task(on_worker_lost="fail"))
    often = rows.assigned(worker, rows.task())
    claimed, left = claim(rows, worker, once, often)
    assert (ran(claimed), left) == ([once, often], set())
    assert nodes(rows, once) == [("running", False), ("pending", False)]
    assert nodes(rows, often) == [("running", True), ("pending", False)]


# What waits


def test_an_instance_whose_slot_is_taken_waits_without_a_write(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, task = rows.worker(), rows.task()
    holder = rows.running(worker, task)
    due = rows.start + SOON
    instance = rows.assigned(worker, task, due)
    refuse_writes(rows, monkeypatch)
    claimed, left = claim(rows, worker, instance)
    assert (claimed.runs, claimed.waiting, left) == ([], [Waiting(instance, due)], set())
    claimed, left = claim(rows, worker, instance, now=due)
    assert (claimed.runs, claimed.waiting, left) == ([], [Waiting(instance, due, holder.id)], set())


def test_what_is_due_too_far_ahead_waits_without_a_write(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, due = rows.worker(), rows.start + 2 * HOUR
    instance = rows.assigned(worker, at=due)
    refuse_writes(rows, monkeypatch)
    claimed, left = claim(rows, worker, instance, now=due)
    assert (claimed.runs, claimed.waiting, left) == ([], [Waiting(instance, due)], set())


# What it leaves


def test_of_two_instances_of_a_task_that_skips_one_is_tried(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task()
    first, second = rows.assigned(worker, task), rows.assigned(worker, task)
    claimed, left = claim(rows, worker, first, second)
    assert (ran(claimed), left) == ([first], {second})
    assert rows.statuses() == {first: "running", second: "assigned"}


@pytest.mark.parametrize(
    "fields",
    [{"overlap_policy": "queue"}, {"overlap_policy": "replace"}, {"overlap_policy": "allow", "max_instances": 2}],
    ids=["queue", "replace", "max_instances"],
)
def test_instances_whose_slot_depends_on_others_are_left(rows: Scenario, fields: dict[str, Any]) -> None:
    worker = rows.worker()
    instance, plain = rows.assigned(worker, rows.task(**fields)), rows.assigned(worker)
    claimed, left = claim(rows, worker, instance, plain)
    assert (ran(claimed), left) == ([plain], {instance})
    assert rows.status(instance) == "assigned"


@pytest.mark.parametrize("edit", ["status = 'off'", "is_deleted = 1"])
def test_instances_of_a_task_that_is_off_or_deleted_are_left(rows: Scenario, edit: str) -> None:
    worker, task = rows.worker(), rows.task()
    instance = rows.assigned(worker, task)
    rows.sql(f"UPDATE schedule_task SET {edit} WHERE id = :task", task=task)
    claimed, left = claim(rows, worker, instance)
    assert (claimed.runs, claimed.waiting, left) == ([], [], {instance})
    assert (rows.status(instance), nodes(rows, instance)) == ("assigned", UNTOUCHED)


def test_what_may_be_skipped_is_left(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task()
    holder = rows.running(worker, task)
    instance = rows.assigned(worker, task)
    candidates = {instance: SkipCandidate(holder.id, rows.now())}
    claimed, left = claim(rows, worker, instance, skip_candidates=candidates)
    assert (claimed.runs, claimed.waiting, left) == ([], [], {instance})


def test_a_run_whose_claim_had_no_answer_is_left_and_found_nearby(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    claimed, left = claim(rows, worker, run.id)
    assert (claimed.runs, left) == ([], {run.id})
    assert [(found.id, found.attempt) for found in rows.claim(worker, run.id).runs] == [(run.id, 1)]


def test_a_commit_whose_answer_is_lost_leaves_all_and_a_claim_nearby_finds_them(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    ids = [rows.assigned(worker) for _ in range(2)]
    write = rows.database.write

    def write_and_lose(transaction: Callable[[Connection], Any]) -> None:
        write(transaction)

    monkeypatch.setattr(rows.database, "write_undisturbed", write_and_lose)
    claimed, left = claim(rows, worker, *ids)
    assert (claimed.runs, left) == ([], set(ids))
    assert [(run.id, run.attempt) for run in rows.claim(worker, *ids).runs] == [(i, 1) for i in ids]


# What happens between the read and the write


@pytest.mark.parametrize("edit", ["status = 'off'", "is_deleted = 1"])
def test_nothing_starts_after_its_task_was_turned_off(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    worker, task = rows.worker(), rows.task()
    instance, other = rows.assigned(worker, task), rows.assigned(worker)
    statement = f"UPDATE schedule_task SET {edit} WHERE id = :task"
    in_between(rows, monkeypatch, lambda: rows.sql(statement, task=task))
    claimed, left = claim(rows, worker, instance, other)
    assert (ran(claimed), left) == ([other], {instance})
    assert (rows.status(instance), nodes(rows, instance)) == ("assigned", UNTOUCHED)


def take_back(worker: int, connection: Connection) -> None:
    assert assignments.take_back_assigned(connection, worker_id=worker, limit=10) == 1


@pytest.mark.parametrize("act", ["request", "cancel", "take back"])
def test_an_instance_that_was_canceled_or_taken_back_meanwhile_is_not_won(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    request = "UPDATE schedule_instance SET gmt_cancel_requested = '2026-01-01 00:00:00.000000' WHERE id = :id"
    works: dict[str, Callable[[Connection], object]] = {
        "request": lambda c: c.execute(text(request), {"id": instance}).rowcount,
        "cancel": lambda c: canceling.cancel(c, instance, "no more", "test"),
        "take back": partial(take_back, worker),
    }
    in_between(rows, monkeypatch, lambda: rows.database.write(works[act]))
    claimed, left = claim(rows, worker, instance)
    assert (claimed.runs, left) == ([], {instance})
    row = rows.row(instance)
    assert (row.status != "running", row.attempt, row.gmt_started) == (True, 0, None)
    assert "running" not in rows.node_statuses(instance)
    assert rows.broken() == {}


def test_an_instance_whose_slot_another_took_meanwhile_is_not_won(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, other, task = rows.worker(), rows.worker(), rows.task()
    due = rows.start + SOON
    mine, its = rows.assigned(me, task, due), rows.assigned(other, task)
    plain = rows.assigned(me)
    in_between(rows, monkeypatch, lambda: rows.claim(other, its))
    claimed, left = claim(rows, me, mine, plain)
    assert (ran(claimed), claimed.waiting, left) == ([plain], [Waiting(mine, due)], set())
    assert rows.statuses() == {mine: "assigned", its: "running", plain: "running"}
    assert nodes(rows, mine) == UNTOUCHED


def test_two_workers_never_win_one_slot(rows: Scenario) -> None:
    for _ in range(RACES):
        task = rows.task()
        workers = [rows.worker(), rows.worker()]
        ids = [rows.assigned(worker, task) for worker in workers]
        results = together(*[partial(claim, rows, w, i) for w, i in zip(workers, ids, strict=True)])
        won = [instance for claimed, _ in results for instance in ran(claimed)]
        assert [i for i in ids if rows.status(i) == "running"] == won
        assert len(won) == 1
        assert rows.broken() == {}


def test_a_row_that_somebody_has_locked_leaves_all(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    locked, free = rows.assigned(worker), rows.assigned(worker)
    lock = text("SELECT id FROM schedule_instance WHERE id = :id FOR UPDATE")
    with uncommitted(rows.database, lambda c: c.execute(lock, {"id": locked}).all()):
        claimed, left = claim(rows, worker, locked, free)
        assert (claimed.runs, claimed.waiting, left) == ([], [], {locked, free})
        assert rows.statuses() == {locked: "assigned", free: "assigned"}
    claimed, left = claim(rows, worker, locked, free)
    assert (ran(claimed), left) == ([locked, free], set())


# The worker's verb


@pytest.mark.parametrize(("round_trip", "times"), [(FAR_SECONDS, 1), (FAR_SECONDS / 2, 0)])
def test_a_worker_claims_from_afar_by_its_round_trip_and_nearby_what_that_leaves(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, round_trip: float, times: int
) -> None:
    worker = rows.worker()
    plain, queued = rows.assigned(worker), rows.assigned(worker, rows.task(overlap_policy="queue"))
    calls: list[int] = []
    in_between(rows, monkeypatch, lambda: calls.append(1))
    monkeypatch.setattr(rows.database.clock, "round_trip", lambda: round_trip)
    claimed = WorkerRows(rows.database, worker).claim([plain, queued], rows.now())
    assert (sorted(ran(claimed)), claimed.waiting, len(calls)) == ([plain, queued], [], times)
