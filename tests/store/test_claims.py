"""A claim takes one packet, and a second part where more must be known: what each wins, and what waits."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from rota.shared.database.constructs import written
from rota.shared.database.transactions import Database, database_time
from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.store import assignments
from rota.shared.store.claims import Claims
from rota.shared.store.overlap import SkipCandidate, Waiting
from rota.shared.store.runs import NO_SKIP_CANDIDATES, Claim
from rota.shared.store.transitions import canceling
from tests.harness.scenario import Scenario, succeeded
from tests.harness.together import locked, together, uncommitted

HOUR = timedelta(hours=1)
SOON = timedelta(minutes=1)
RACES = 5


@pytest.fixture(autouse=True, params=["nearby", "from afar"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once for each way to claim."""
    monkeypatch.setattr(Scenario, "is_far", request.param == "from afar")


def claims(
    rows: Scenario,
    worker: int,
    *ids: int,
    now: datetime | None = None,
    skip_candidates: Mapping[int, SkipCandidate] = NO_SKIP_CANDIDATES,
) -> list[Claim]:
    asked = Claims(rows.database, worker, rows.types, HOUR, from_afar=rows.is_far)
    return list(asked.claim(ids, now or rows.now(), skip_candidates))


def ran(*some: Claim) -> list[int]:
    return [run.id for one in some for run in one.runs]


def nodes(rows: Scenario, instance: int) -> list[tuple[str, bool]]:
    """The status of each node, and whether it has a time of its start."""
    found = rows.sql(
        "SELECT status, gmt_started FROM schedule_task_node WHERE schedule_instance_id = :id ORDER BY sequence",
        id=instance,
    )
    return [(row.status, row.gmt_started is not None) for row in found]


UNTOUCHED = [("pending", False), ("pending", False)]


# What it wins


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_a_claim_starts_instances_and_their_first_nodes(rows: Scenario, policy: str) -> None:
    worker = rows.worker()
    ids = [rows.assigned(worker, rows.task(overlap_policy=policy)) for _ in range(3)]
    [claimed] = claims(rows, worker, *ids)
    assert (ran(claimed), claimed.waiting) == (ids, [])
    assert claimed.time is not None
    assert [run.attempt for run in claimed.runs] == [1, 1, 1]
    for instance in ids:
        row = rows.row(instance)
        assert (row.status, row.attempt) == ("running", 1)
        assert rows.start <= row.gmt_started <= rows.database.read(database_time)
        assert nodes(rows, instance) == [("running", True), ("pending", False)]
    assert rows.broken() == {}


@pytest.mark.parametrize(
    ("written", "sequences"),
    [
        ("UPDATE schedule_task_node SET sequence = sequence + 4 WHERE schedule_instance_id = :id", [5, 6]),
        ("UPDATE schedule_task_node SET sequence = 0 WHERE schedule_instance_id = :id AND sequence = 1", [0, 2]),
        ("DELETE FROM schedule_task_node WHERE schedule_instance_id = :id", []),
    ],
)
def test_a_claim_brings_the_nodes_that_there_are_whatever_numbers_sql_has_given_them(
    rows: Scenario, written: str, sequences: list[int]
) -> None:
    worker = rows.worker()
    ids = [rows.assigned(worker) for _ in range(3)]
    rows.sql(written, id=ids[1])
    [claimed] = claims(rows, worker, *ids)
    found = {run.id: [node.sequence for node in run.nodes] for run in claimed.runs}
    assert found == {ids[0]: [1, 2], ids[1]: sequences, ids[2]: [1, 2]}


def test_instances_of_one_task_that_allows_overlap_are_won_together(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    ids = [rows.assigned(worker, task) for _ in range(3)]
    assert ran(*claims(rows, worker, *ids)) == ids


def test_a_run_that_may_run_at_most_once_has_not_begun_when_it_is_claimed(rows: Scenario) -> None:
    worker = rows.worker()
    once = rows.assigned(worker, rows.task(on_worker_lost="fail"))
    often = rows.assigned(worker, rows.task())
    assert ran(*claims(rows, worker, once, often)) == [once, often]
    assert nodes(rows, once) == [("running", False), ("pending", False)]
    assert nodes(rows, often) == [("running", True), ("pending", False)]


def test_a_run_that_begins_again_begins_at_its_first_node_that_has_not_succeeded(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    rows.sql(
        "UPDATE schedule_task_node SET status = 'succeed' WHERE schedule_instance_id = :id AND sequence = 1",
        id=instance,
    )
    rows.sql("UPDATE schedule_instance SET attempt = 3 WHERE id = :id", id=instance)
    [claimed] = claims(rows, worker, instance)
    second = "running" if rows.is_far else "pending"  # as it is read before the claim, or after it
    assert [(run.attempt, [node.status for node in run.nodes]) for run in claimed.runs] == [(4, ["succeed", second])]


@pytest.mark.parametrize(
    "fields",
    [{"overlap_policy": "queue"}, {"overlap_policy": "replace"}, {"overlap_policy": "allow", "max_instances": 2}],
    ids=["queue", "replace", "max_instances"],
)
def test_instances_whose_slot_depends_on_others_are_won_after_the_others(rows: Scenario, fields: Any) -> None:
    worker = rows.worker()
    instance, plain = rows.assigned(worker, rows.task(**fields)), rows.assigned(worker)
    first, second = claims(rows, worker, instance, plain)
    assert (ran(first), ran(second)) == ([plain], [instance])
    assert nodes(rows, instance) == [("running", True), ("pending", False)]


# What waits


def test_an_instance_whose_slot_is_taken_waits(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task()
    holder = rows.running(worker, task)
    due = rows.start + SOON
    instance = rows.assigned(worker, task, due)
    [claimed] = claims(rows, worker, instance)
    assert (claimed.runs, claimed.waiting) == ([], [Waiting(instance, due)])
    claimed, held_up = claims(rows, worker, instance, now=due)
    assert (claimed.runs, claimed.waiting, held_up.runs) == ([], [], [])
    assert held_up.waiting == [Waiting(instance, due, holder.id, is_holder_free=True)]
    assert nodes(rows, instance) == UNTOUCHED


def test_what_is_due_too_far_ahead_waits(rows: Scenario) -> None:
    worker, due = rows.worker(), rows.start + 2 * HOUR
    instance = rows.assigned(worker, at=due)
    [claimed] = claims(rows, worker, instance, now=due)
    assert (claimed.runs, claimed.waiting) == ([], [Waiting(instance, due)])
    assert rows.status(instance) == "assigned"


def test_of_two_instances_of_a_task_that_skips_one_is_won_and_the_other_waits_for_it(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task()
    first, second = rows.assigned(worker, task), rows.assigned(worker, task)
    claimed, held_up = claims(rows, worker, first, second)
    assert (ran(claimed), claimed.waiting, ran(held_up)) == ([first], [], [])
    assert [(one.id, one.holder_id, one.is_holder_free) for one in held_up.waiting] == [(second, first, True)]
    assert rows.statuses() == {first: "running", second: "assigned"}


def test_a_fire_is_skipped_when_the_run_in_its_way_has_had_time_to_report(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task()
    holder = rows.running(worker, task)
    due = rows.now() + timedelta(seconds=1)
    late = rows.assigned(worker, task, due)
    for until, status in ((due + HOUR, "assigned"), (due, "canceled")):
        claims(rows, worker, late, now=due + SOON, skip_candidates={late: SkipCandidate(holder.id, until)})
        assert rows.status(late) == status
    assert rows.row(late).reason == f"overlap: instance {holder.id} still ran when this instance was due"
    assert rows.broken() == {}


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("past", [{"priority": CATCH_UP_PRIORITY}, {"origin": "replay"}, {"origin": "backfill"}])
def test_a_fire_is_not_skipped_for_a_run_of_its_tasks_past(
    rows: Scenario, past: dict[str, Any], has_ended: bool
) -> None:
    worker, task = rows.worker(), rows.task()
    caught_up = rows.running(worker, task, **past)
    due = rows.now() + timedelta(seconds=1)
    fire = rows.assigned(worker, task, due)
    if has_ended:
        end = written(due + timedelta(seconds=2))
        rows.report(worker, succeeded(caught_up))
        rows.sql("UPDATE schedule_instance SET gmt_completed = :end WHERE id = :id", end=end, id=caught_up.id)
    claims(rows, worker, fire, now=due + SOON, skip_candidates={fire: SkipCandidate(caught_up.id, due)})
    assert rows.status(fire) != "canceled"


def test_a_task_of_the_last_priority_skips_its_fires_all_the_same(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(priority=CATCH_UP_PRIORITY)
    holder = rows.running(worker, task, priority=CATCH_UP_PRIORITY)
    due = rows.now() + timedelta(seconds=1)
    fire = rows.assigned(worker, task, due)
    claims(rows, worker, fire, now=due + SOON, skip_candidates={fire: SkipCandidate(holder.id, due)})
    assert rows.status(fire) == "canceled"


# What nobody wants


@pytest.mark.parametrize("edit", ["status = 'off'", "is_deleted = 1"])
def test_nothing_starts_of_a_task_that_is_off_or_deleted(rows: Scenario, edit: str) -> None:
    worker, task = rows.worker(), rows.task()
    instance, other = rows.assigned(worker, task), rows.assigned(worker)
    rows.sql(f"UPDATE schedule_task SET {edit} WHERE id = :task", task=task)
    assert ran(*claims(rows, worker, instance, other)) == [other]
    assert rows.status(instance) == "canceled"
    assert rows.broken() == {}


def take_back(worker: int, connection: Connection) -> None:
    assert assignments.take_back_assigned(connection, worker_id=worker, limit=10) == 1


@pytest.mark.parametrize("act", ["request", "cancel", "take back"])
def test_an_instance_that_was_canceled_or_taken_back_since_the_poll_is_not_won(rows: Scenario, act: str) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    request = "UPDATE schedule_instance SET gmt_cancel_requested = '2026-01-01 00:00:00.000000' WHERE id = :id"
    works: dict[str, Callable[[Connection], object]] = {
        "request": lambda c: c.execute(text(request), {"id": instance}).rowcount,
        "cancel": lambda c: canceling.cancel(c, instance, "no more", "test"),
        "take back": partial(take_back, worker),
    }
    rows.database.write(works[act])
    found = claims(rows, worker, instance)
    assert (ran(*found), [one for claim in found for one in claim.waiting]) == ([], [])
    row = rows.row(instance)
    assert (row.status != "running", row.attempt, row.gmt_started) == (True, 0, None)
    assert "running" not in rows.node_statuses(instance)
    assert rows.broken() == {}


def test_what_sql_has_written_instead_of_a_time_is_not_started(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    for column in ("schedule_datetime", "due_at"):
        instance, other = rows.assigned(worker), rows.assigned(worker)
        rows.sql(f"SET SESSION sql_mode = ''; UPDATE schedule_instance SET {column} = 0 WHERE id = {instance}")
        assert ran(*claims(rows, worker, instance, other)) == [other]
        assert rows.status(instance) == "assigned"


# Answers that are lost, rows that are locked, and others


def test_a_claim_whose_answer_was_lost_is_found_by_the_next_one(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    ids = [rows.assigned(worker) for _ in range(2)]
    write = rows.database.write

    def write_and_lose(transaction: Callable[[Connection], Any], *_: Any) -> None:
        write(transaction)

    with monkeypatch.context() as patched:
        patched.setattr(rows.database, "write_unless_locked", write_and_lose)
        found = claims(rows, worker, *ids)
    assert [(run.id, run.attempt) for claim in found for run in claim.runs] == [(i, 1) for i in ids]


def test_a_row_that_somebody_has_locked_waits_and_the_others_are_won(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    held, free = rows.assigned(worker), rows.assigned(worker)
    with locked(rows.database, "schedule_instance", "id = :id", id=held):
        found = claims(rows, worker, held, free)
        assert ran(*found) == [free]
        assert [one.id for claim in found for one in claim.waiting] == [held]
    assert ran(*claims(rows, worker, held)) == [held]


def test_a_row_that_somebody_has_locked_makes_no_other_late(mariadb_rows: Scenario) -> None:
    """Whichever is locked, the others are claimed before they are due."""
    rows, worker = mariadb_rows, mariadb_rows.worker()
    for number in range(3):
        ids = [rows.assigned(worker, at=rows.start + SOON) for _ in range(3)]
        with locked(rows.database, "schedule_instance", "id = :id", id=ids[number]):
            found = claims(rows, worker, *ids)
        assert ran(*found) == [i for i in ids if i != ids[number]]


def test_an_instance_that_was_taken_back_makes_no_other_late(rows: Scenario) -> None:
    """Whichever it is, the others are claimed before they are due."""
    worker = rows.worker()
    for number in range(3):
        ids = [rows.assigned(worker, at=rows.start + SOON) for _ in range(3)]
        rows.sql(
            "UPDATE schedule_instance SET status = 'pending', schedule_worker_node_id = NULL, gmt_assigned = NULL"
            " WHERE id = :id",
            id=ids[number],
        )
        assert ran(*claims(rows, worker, *ids)) == [i for i in ids if i != ids[number]]


def test_a_run_that_another_worker_had_since_it_was_read_has_its_own_attempt(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be frozen between the read and the write. With an old attempt its reports would count as lost."""
    worker = rows.worker()
    instance, other = rows.assigned(worker), rows.assigned(worker)
    write = rows.database.write_unless_locked

    def come_late(transaction: Callable[[Connection], Any], *_: Any) -> Any:
        rows.sql("UPDATE schedule_instance SET attempt = 1 WHERE id = :id AND attempt = 0", id=instance)
        return write(transaction)

    monkeypatch.setattr(rows.database, "write_unless_locked", come_late)
    claimed = {run.id: run.attempt for one in claims(rows, worker, instance, other) for run in one.runs}
    assert claimed == {instance: 2, other: 1}
    assert (rows.row(instance).attempt, rows.row(other).attempt) == (2, 1)
    assert rows.broken() == {}


def test_a_claim_that_fails_for_its_data_raises(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)

    def refuse(database: Database, transaction: object, *_: Any) -> None:
        with database.engine.begin() as connection:
            connection.execute(text("SELECT no_such_column FROM schedule_task"))

    monkeypatch.setattr(Database, "write_unless_locked", refuse)
    with pytest.raises(DBAPIError):
        claims(rows, worker, instance)


def test_two_workers_never_win_one_slot(rows: Scenario) -> None:
    for _ in range(RACES):
        task = rows.task()
        workers = [rows.worker(), rows.worker()]
        ids = [rows.assigned(worker, task) for worker in workers]
        results = together(*[partial(claims, rows, w, i) for w, i in zip(workers, ids, strict=True)])
        won = [instance for found in results for instance in ran(*found)]
        assert [i for i in ids if rows.status(i) == "running"] == won
        assert len(won) == 1
        assert rows.broken() == {}


def limited(rows: Scenario, worker: int, limit: str) -> int:
    return rows.assigned(worker, rows.task(limit_name=limit, overlap_policy="allow"))


@pytest.mark.parametrize("kind", ["max_running", "starts_per_minute"])
def test_a_lock_on_one_limit_holds_up_what_waits_for_it_alone(mariadb_rows: Scenario, kind: str) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    rows.sql(f"INSERT INTO schedule_limit (name, {kind}) VALUES ('mine', 5), ('other', 5)")
    stuck, *free = limited(rows, worker, "mine"), limited(rows, worker, "other"), limited(rows, worker, "other")
    alone = rows.assigned(worker, rows.task(overlap_policy="allow", max_instances=2))
    with locked(rows.database, "schedule_limit", "name = 'mine'"):
        assert ran(*claims(rows, worker, stuck, *free, alone)) == sorted([*free, alone])
    assert ran(*claims(rows, worker, stuck)) == [stuck]
    assert rows.broken() == {}


def test_a_lock_on_one_slot_of_a_limit_leaves_the_others(mariadb_rows: Scenario) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    rows.sql("INSERT INTO schedule_limit (name, max_running) VALUES ('mine', 3)")
    rows.sql("INSERT INTO schedule_limit_slot (limit_name, slot) VALUES ('mine', 0), ('mine', 1), ('mine', 2)")
    wanted = [limited(rows, worker, "mine") for _ in range(3)]
    with locked(rows.database, "schedule_limit_slot", "slot = 1"):
        assert len(ran(*claims(rows, worker, *wanted))) == 2
    assert len(ran(*claims(rows, worker, *(i for i in wanted if rows.status(i) == "assigned")))) == 1
    assert rows.broken() == {}


def test_a_lock_on_a_fire_that_is_to_be_skipped_keeps_no_other_from_starting(mariadb_rows: Scenario) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    skipped = rows.assigned(worker, rows.task())
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = gmt_create WHERE id = :id", id=skipped)
    wanted = rows.assigned(worker, rows.task(overlap_policy="queue"))
    with locked(rows.database, "schedule_instance", "id = :id", id=skipped):
        found = claims(rows, worker, skipped, wanted)
        assert ran(*found) == [wanted]
        assert [one.id for claim in found for one in claim.waiting] == [skipped]
    claims(rows, worker, skipped)
    assert rows.status(skipped) == "canceled"


@pytest.mark.parametrize("kind", ["max_running", "starts_per_minute"])
def test_a_claim_whose_answer_was_lost_takes_no_more_of_its_limit(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It may have been committed. A second one would take another slot for the same run, or note a second start."""
    worker = rows.worker()
    rows.sql(f"INSERT INTO schedule_limit (name, {kind}) VALUES ('mine', 2)")
    first, second = limited(rows, worker, "mine"), limited(rows, worker, "mine")
    with monkeypatch.context() as patched:
        patched.setattr(rows.database, "write_unless_locked", lambda work, *_: (rows.database.write(work), None)[1])
        assert ran(*claims(rows, worker, first)) == [first]
    assert ran(*claims(rows, worker, second)) == [second]


def test_a_slot_that_another_session_is_taking_holds_up_its_task_alone(mariadb_rows: Scenario) -> None:
    """Such a session is another worker that is frozen in its claim, or a console."""
    rows = mariadb_rows
    worker, one, other = rows.worker(), rows.task(), rows.task()
    takes, stuck = rows.assigned(worker, one), rows.assigned(worker, one)
    free = [rows.assigned(worker, other), rows.assigned(worker, rows.task(overlap_policy="allow"))]
    take = text("UPDATE schedule_instance SET status = 'running', overlap_slot = 0 WHERE id = :id")
    with uncommitted(rows.database, lambda c: c.execute(take, {"id": takes}).rowcount):
        assert ran(*claims(rows, worker, stuck, *free)) == free
        assert rows.status(stuck) == "assigned"
