"""Plans: which tasks are due, how a plan moves on, and what becomes of fires that an old plan put ahead."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from rota.shared.domain.jsontext import UnreadableJson
from rota.shared.domain.planning import PlanInputs, PlannedTask
from rota.shared.store import assignments, instances, plans, tasks, unclaimed
from rota.shared.store.plans import Advance
from rota.shared.store.tables import PLAN_INPUTS
from tests.harness import leases
from tests.harness.scenario import Scenario

MINUTE = timedelta(minutes=1)
LEASE = 2.0


def due(rows: Scenario, now: datetime, limit: int = 100) -> list[int]:
    return rows.database.read(lambda c: plans.due(c, now, now + timedelta(seconds=5), limit, LEASE)).ids


def read(rows: Scenario, *task_ids: int) -> list[PlannedTask]:
    """The tasks as a scheduler reads them under its leases."""
    rows.database.write(lambda c: leases.acquire(c, "token", task_ids, LEASE))
    return rows.database.read(lambda c: plans.locked(c, "token", task_ids))


def advance(rows: Scenario, *advances: Advance) -> None:
    """Move plans on, and give their leases back, as a scheduler does."""

    def write(connection: Connection) -> None:
        leases.release(connection, "token", [a.task.id for a in advances])
        plans.advance(connection, advances)

    rows.database.write(write)


def drop_ahead(rows: Scenario, now: datetime, *task_ids: int) -> None:
    rows.database.write(lambda c: unclaimed.drop(c, unclaimed.ahead(c, task_ids, now)))


def test_a_task_is_due_from_its_next_fire_less_the_lookahead(rows: Scenario) -> None:
    now = rows.start
    past, soon = rows.planned_task(now - MINUTE), rows.planned_task(now + timedelta(seconds=5))
    rows.planned_task(now + timedelta(seconds=5, microseconds=1))
    assert due(rows, now) == [past, soon]


def test_a_task_that_is_off_is_due_only_when_its_fire_has_passed(rows: Scenario) -> None:
    now = rows.start
    passed = rows.planned_task(now, status="off")
    rows.planned_task(now + timedelta(seconds=1), status="off")
    assert due(rows, now) == [passed]


def test_the_earliest_are_due_first_and_no_more_than_the_limit(rows: Scenario) -> None:
    now = rows.start
    by_time = [rows.planned_task(now - MINUTE * n) for n in range(5)][::-1]
    assert due(rows, now, limit=3) == by_time[:3]


def test_new_plans_have_a_share_of_each_batch_while_more_fires_are_due_than_it_takes(rows: Scenario) -> None:
    by_time = [rows.planned_task(rows.start - MINUTE * n) for n in range(10)][::-1]
    stale = [rows.task() for _ in range(5)]
    assert due(rows, rows.start, limit=8) == by_time[:6] + stale[:2]
    assert due(rows, rows.start, limit=12) == by_time[:9] + stale[:3]
    assert due(rows, rows.start, limit=20) == by_time + stale


@pytest.mark.parametrize("kind", ["on", "off", "stale"])
def test_what_another_has_leased_is_left_to_it_until_its_lease_is_back_or_expired(rows: Scenario, kind: str) -> None:
    leased, free = [rows.task(), rows.task()] if kind == "stale" else [rows.planned_task(status=kind) for _ in range(2)]
    rows.database.write(lambda c: leases.acquire(c, "other", [leased, free], LEASE))
    rows.database.write(lambda c: leases.release(c, "other", [free]))
    assert due(rows, rows.start) == [free]
    rows.sql("UPDATE schedule_task_lock SET locked_at = '2020-01-01 00:00:00.000000'")
    assert due(rows, rows.start) == [leased, free]


def test_what_is_leased_takes_no_place_among_those_due(rows: Scenario) -> None:
    first, second, third = (rows.planned_task(rows.start - MINUTE * n) for n in (3, 2, 1))
    rows.database.write(lambda c: leases.acquire(c, "other", [first], LEASE))
    assert due(rows, rows.start, limit=2) == [second, third]


def test_a_task_is_read_with_its_terms(rows: Scenario) -> None:
    fields: dict[str, Any] = {
        "timezone": "Asia/Shanghai",
        "priority": 2,
        "required_labels": {"zone": 'a "b" \\ ü'},
        "overlap_policy": "allow",
        "max_instances": 3,
        "misfire_grace_seconds": 77,
        "starts_at": rows.start,
        "ends_at": rows.start + timedelta(days=1, microseconds=250_000),
    }
    task = rows.planned_task(rows.start + MINUTE, name="daily", param={"text": "ü"}, **fields)
    [planned] = read(rows, task)
    assert (planned.id, planned.name, planned.next_fire_at) == (task, "daily", rows.start + MINUTE)
    assert json.loads(planned.param or "") == {"text": "ü"}
    window = {name: fields[name] for name in ("starts_at", "ends_at")}
    inputs = PlanInputs("cron", "* * * * *", timezone="Asia/Shanghai", **window)
    terms = planned.terms
    assert (terms.status, terms.type, terms.inputs, terms.gmt_create) == ("on", "REPORT", inputs, None)
    assert (terms.is_stale, terms.is_deleted, terms.was_planned) == (False, False, True)
    assert (terms.misfire_policy, terms.misfire_grace_seconds) == ("fire_once", 77)
    assert {name: getattr(terms, name) for name in fields if hasattr(terms, name)} == {
        name: value for name, value in fields.items() if hasattr(terms, name)
    }


def test_a_task_never_planned_is_read_with_its_creation(rows: Scenario) -> None:
    [planned] = read(rows, rows.task())
    assert (planned.next_fire_at, planned.param, planned.terms.required_labels) == (None, None, {})
    assert planned.terms.gmt_create is not None
    assert abs(planned.terms.gmt_create - rows.now()) < MINUTE


def test_tasks_that_have_them_alike_share_their_terms(rows: Scenario) -> None:
    alike, also, other = rows.planned_task(), rows.planned_task(), rows.planned_task(priority=1)
    terms = {task.id: task.terms for task in read(rows, alike, also, other)}
    assert terms[alike] is terms[also]
    assert terms[other] is not terms[alike]


def test_a_task_that_sql_inserted_is_due(rows: Scenario) -> None:
    rows.sql("INSERT INTO schedule_task (name, type, cron) VALUES ('by-sql', 'REPORT', '0 3 * * *')")
    [task] = due(rows, rows.start)
    [planned] = read(rows, task)
    assert planned.terms.is_stale
    assert not planned.terms.was_planned


def test_a_changed_cron_makes_the_plan_stale(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1))
    assert due(rows, rows.start) == []
    rows.sql("UPDATE schedule_task SET cron = '0 3 * * *' WHERE id = :task", task=task)
    assert due(rows, rows.start) == [task]
    [planned] = read(rows, task)
    assert planned.terms.is_stale
    assert planned.terms.was_planned


def test_an_edit_that_does_not_touch_the_plan_leaves_it_as_it_is(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1))
    rows.sql("UPDATE schedule_task SET param = '{}', priority = 1, retries = 3 WHERE id = :task", task=task)
    assert due(rows, rows.start) == []


def test_a_task_that_is_turned_off_is_seen_once_and_keeps_its_plan(rows: Scenario) -> None:
    tomorrow = rows.start + timedelta(days=1)
    task = rows.planned_task(tomorrow)
    for status in ("off", "on"):
        rows.sql("UPDATE schedule_task SET status = :status WHERE id = :task", status=status, task=task)
        assert due(rows, rows.start) == [task]
        [planned] = read(rows, task)
        assert (planned.terms.status, planned.terms.is_stale, planned.terms.needs_replan) == (status, True, False)
        advance(rows, Advance(planned, tomorrow))
        assert due(rows, rows.start) == []


def test_a_task_that_is_set_aside_stays_so_when_it_is_turned_off_and_on(rows: Scenario) -> None:
    task = rows.task()
    [planned] = read(rows, task)
    advance(rows, Advance(planned, None, error="no such zone"))
    for status in ("off", "on"):
        rows.sql("UPDATE schedule_task SET status = :status WHERE id = :task", status=status, task=task)
        [planned] = read(rows, task)
        advance(rows, Advance(planned, None))
        assert rows.task_row(task).plan_error == "no such zone"


def test_a_deleted_task_is_seen_once_and_planned_anew_when_it_is_there_again(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1), name="gone")
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "gone"), "test"))
    assert due(rows, rows.start) == [task]
    [planned] = read(rows, task)
    assert planned.terms.is_deleted
    advance(rows, Advance(planned, None))
    assert due(rows, rows.start) == []
    rows.sql("UPDATE schedule_task SET is_deleted = 0 WHERE id = :task", task=task)
    assert due(rows, rows.start) == [task]
    [planned] = read(rows, task)
    assert (planned.terms.is_deleted, planned.terms.needs_replan, planned.terms.was_planned) == (False, True, True)


def test_a_task_deleted_and_there_again_between_two_ticks_keeps_its_plan(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1))
    for deleted in (1, 0):
        rows.sql("UPDATE schedule_task SET is_deleted = :deleted WHERE id = :task", deleted=deleted, task=task)
    assert due(rows, rows.start) == []


def test_edits_of_many_tasks_delay_no_fire(rows: Scenario) -> None:
    for _ in range(3):
        rows.task()
    fires = rows.planned_task(rows.start)
    assert due(rows, rows.start, limit=2)[0] == fires


@pytest.mark.parametrize("text", ["", "x", "3", "[]", '["on"]', "{}", '["on", 0, []]', "[" * 100_000])
def test_a_plan_whose_inputs_cannot_be_read_is_made_anew(rows: Scenario, text: str) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1))
    rows.sql("UPDATE schedule_task SET planned_inputs = :text WHERE id = :task", text=text, task=task)
    [planned] = read(rows, task)
    assert planned.terms.needs_replan


@pytest.mark.mariadb_only("its JSON takes no number beyond a double")
def test_inputs_that_cannot_be_read_spoil_their_own_task_alone(rows: Scenario) -> None:
    healthy, odd = rows.planned_task(), rows.planned_task()
    rows.sql(
        "UPDATE schedule_task SET trigger_spec = :spec WHERE id = :task", spec='{"n": ' + "9" * 5000 + "}", task=odd
    )
    terms = {task.id: task.terms for task in read(rows, healthy, odd)}
    assert not terms[healthy].is_stale
    assert isinstance(terms[odd].inputs.trigger_spec, UnreadableJson)


def test_tasks_are_read_again_only_under_their_leases(rows: Scenario) -> None:
    mine, theirs = rows.task(), rows.task()
    rows.database.write(lambda c: leases.acquire(c, "mine", [mine], 2))
    rows.database.write(lambda c: leases.acquire(c, "theirs", [theirs], 2))
    found = rows.database.read(lambda c: plans.locked(c, "mine", [mine, theirs]))
    assert [task.id for task in found] == [mine]


def test_a_plan_moves_on_and_counts_what_did_not_run(rows: Scenario) -> None:
    task = rows.planned_task(rows.start)
    for times in (1, 2):
        [planned] = read(rows, task)
        advance(rows, Advance(planned, rows.start + MINUTE * times, misfires=2, held_back=3))
        row = rows.task_row(task)
        assert (row.next_fire_at, row.misfires, row.fires_held_back) == (
            rows.start + MINUTE * times,
            2 * times,
            3 * times,
        )
        assert row.plan_stale is None


def test_a_plan_that_was_moved_meanwhile_is_not_moved_again(rows: Scenario) -> None:
    task = rows.planned_task(rows.start)
    [planned] = read(rows, task)
    advance(rows, Advance(planned, rows.start + MINUTE, misfires=1))
    advance(rows, Advance(planned, rows.start + 2 * MINUTE, misfires=1))
    row = rows.task_row(task)
    assert (row.next_fire_at, row.misfires) == (rows.start + MINUTE, 1)


def test_a_first_plan_is_made_only_once(rows: Scenario) -> None:
    task = rows.task()
    [planned] = read(rows, task)
    assert planned.next_fire_at is None
    advance(rows, Advance(planned, rows.start))
    advance(rows, Advance(planned, rows.start + MINUTE))
    assert rows.task_row(task).next_fire_at == rows.start


def test_plans_of_a_batch_move_each_on_its_own(rows: Scenario) -> None:
    moved, overtaken = rows.planned_task(rows.start), rows.planned_task(rows.start)
    first, second = sorted(read(rows, moved, overtaken), key=lambda task: task.id)
    rows.sql("UPDATE schedule_task SET next_fire_at = NULL WHERE id = :task", task=overtaken)
    advance(rows, Advance(first, rows.start + MINUTE), Advance(second, rows.start + MINUTE))
    assert rows.task_row(moved).next_fire_at == rows.start + MINUTE
    assert rows.task_row(overtaken).next_fire_at is None


def test_an_edit_between_read_and_write_leaves_the_plan_stale(rows: Scenario) -> None:
    task = rows.planned_task(rows.start)
    [planned] = read(rows, task)
    rows.sql("UPDATE schedule_task SET cron = '0 3 * * *' WHERE id = :task", task=task)
    advance(rows, Advance(planned, rows.start + MINUTE))
    row = rows.task_row(task)
    assert row.next_fire_at == rows.start + MINUTE
    assert row.plan_stale == 1
    assert due(rows, rows.start) == [task]


def test_a_task_set_aside_is_not_due_until_it_is_edited(rows: Scenario) -> None:
    task = rows.task(name="poisonous")
    [planned] = read(rows, task)
    advance(rows, Advance(planned, None, error="no such zone"))
    assert rows.task_row(task).plan_error == "no such zone"
    assert due(rows, rows.start) == []
    rows.sql("UPDATE schedule_task SET timezone = 'Asia/Shanghai' WHERE id = :task", task=task)
    assert due(rows, rows.start) == [task]
    [planned] = read(rows, task)
    advance(rows, Advance(planned, rows.start))
    assert rows.task_row(task).plan_error is None


def test_every_input_of_a_plan_is_compared(rows: Scenario) -> None:
    changes: dict[str, Any] = {
        "trigger_kind": "manual",
        "cron": "1 * * * *",
        "cron_seconds": 1,
        "timezone": "Asia/Shanghai",
        "starts_at": "2026-01-01 00:00:00.000000",
        "ends_at": "2036-01-01 00:00:00.000000",
        "trigger_spec": '{"seconds": 30}',
        "status": "off",
        "is_deleted": 1,
    }
    assert set(changes) == set(PLAN_INPUTS)
    for column, value in changes.items():
        task = rows.planned_task(rows.start + timedelta(days=1))
        rows.sql(f"UPDATE schedule_task SET {column} = :value WHERE id = :task", value=value, task=task)
        assert due(rows, rows.start) == [task], column
        [planned] = read(rows, task)
        advance(rows, Advance(planned, None))
        assert due(rows, rows.start) == [], column


def test_what_an_old_plan_put_ahead_is_deleted_with_its_nodes(rows: Scenario) -> None:
    task, worker, ahead = rows.task(), rows.worker(), rows.start + timedelta(days=1)
    pending, assigned = rows.pending(task, ahead), rows.assigned(worker, task, ahead + MINUTE)
    drop_ahead(rows, rows.start, task)
    assert rows.statuses() == {}
    assert rows.sql("SELECT * FROM schedule_task_node") == []
    assert pending != assigned


def test_what_was_claimed_passed_or_asked_for_by_somebody_is_not_dropped(rows: Scenario) -> None:
    task, other, worker = rows.task(name="mine", overlap_policy="allow"), rows.task(), rows.worker()
    later = rows.start + timedelta(days=1)
    row = rows.database.read(lambda c: tasks.find(c, "mine"))
    passed = rows.pending(task, rows.start)
    of_another = rows.pending(other, later)
    retried = rows.pending(task, later, attempt=1)
    running = rows.running(worker, task, later + MINUTE).id
    by_sql = rows.by_sql(task, later + 2 * MINUTE)
    asked = rows.database.write(lambda c: instances.ask(c, row, later + 3 * MINUTE, "test"))
    replayed = rows.pending(task, later + 4 * MINUTE, run_number=1, origin="replay")
    drop_ahead(rows, rows.start, task)
    assert set(rows.statuses()) == {passed, of_another, retried, running, by_sql, asked, replayed}


def test_what_is_dropped_is_lost_to_its_worker(rows: Scenario) -> None:
    task, worker = rows.task(), rows.worker()
    ahead = rows.assigned(worker, task, rows.start + MINUTE)
    drop_ahead(rows, rows.start, task)
    claim = rows.claim(worker, ahead)
    assert (claim.runs, claim.waiting) == ([], [])
    assert rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 10)) == 0
