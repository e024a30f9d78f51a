"""Giving pending instances to workers: in order, page by page, with a run number of their own; and taking back."""

import random
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, insert

from rota.shared.store import assignments, instances, run_numbers, tasks
from rota.shared.store.pending import Cursor, Pending
from rota.shared.store.tables import schedule_instance
from rota.shared.store.transitions import canceling, giving
from tests.harness import leases
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.together import together

SECOND = timedelta(seconds=1)


def pending(rows: Scenario, horizon: datetime | None = None, limit: int = 100) -> list[Pending]:
    return rows.database.read(lambda c: assignments.pending(c, horizon or rows.start, limit))


def look(rows: Scenario) -> tuple[bool, bool]:
    return rows.database.read(lambda c: assignments.look(c, rows.start))[:2]


def adopt(rows: Scenario, limit: int = 100) -> int:
    ids = rows.database.read(lambda c: assignments.orphans(c, limit))
    rows.database.write(lambda c: giving.adopt(c, ids))
    return len(ids)


def give(rows: Scenario, worker: int, *instance_ids: int, number: int | None = None) -> None:
    given = [(instance, worker, number, None) for instance in instance_ids]
    rows.database.write(lambda c: giving.give(c, given))


def assign(connection: Connection, worker: int, horizon: datetime) -> None:
    """What an assigner does with a page: number under the tasks' locks, then give."""
    page = assignments.pending(connection, horizon, 1_000)
    token = f"worker-{worker}-{random.random()}"
    held = leases.acquire(connection, token, {p.task_id for p in page}, 0.5)
    mine = [p for p in page if p.task_id in held]
    numbers = run_numbers.last_of(connection, {p.fire for p in mine if p.run_number is None})
    given = []
    for p in mine:
        number = p.run_number
        if number is None:
            number = numbers[p.fire] = numbers.get(p.fire, 0) + 1
        given.append((p.id, worker, number, None))
    giving.give(connection, given)
    leases.release(connection, token, held)


# What is pending


def test_rows_that_sql_inserted_are_due_at_their_nominal_time(rows: Scenario) -> None:
    task = rows.task()
    inserted = [rows.by_sql(task, rows.start - SECOND * n) for n in range(3)]
    assert pending(rows) == []
    assert look(rows) == (False, True)
    assert list(rows.database.read(lambda c: assignments.orphans(c, 2))) == inserted[:2]
    assert adopt(rows, limit=2) == 2
    assert adopt(rows, limit=2) == 1
    assert adopt(rows, limit=2) == 0
    assert list(rows.database.read(lambda c: assignments.orphans(c, 2))) == []
    assert [p.id for p in pending(rows)] == inserted[::-1]
    assert rows.row(inserted[1]).due_at == rows.start - SECOND


def test_what_is_pending_and_due_is_found_and_nothing_else(rows: Scenario) -> None:
    worker = rows.worker()
    rows.assigned(worker)
    rows.running(worker)
    rows.ended(worker=worker)
    rows.pending(due_at=rows.start + SECOND)
    assert look(rows) == (False, False)
    due = rows.pending(due_at=rows.start)
    assert look(rows) == (True, False)
    assert [p.id for p in pending(rows)] == [due]


def test_a_pending_instance_comes_with_what_places_it(rows: Scenario) -> None:
    task = rows.task(param={"region": "eu"}, required_labels={"zone": "a"})
    at = rows.past()
    rows.pending(task, at, lost_by="worker-7", reason="it was lost", param={"region": "us"})
    [found] = pending(rows)
    assert (found.task_id, found.schedule_datetime, found.due_at) == (task, at, at)
    assert (found.run_number, found.fire_key, found.priority) == (0, "", 5)
    assert (found.has_own_param, found.may_list_nodes) == (True, False)
    in_mysqls_own_form = 21
    assert found.param_size == (in_mysqls_own_form if rows.on_mysql else len('{"region": "us"}'))
    assert (found.task_type, found.task_deleted, found.required_labels) == ("REPORT", 0, {"zone": "a"})
    assert (found.lost_by, found.reason) == ("worker-7", "it was lost")


def test_instances_of_deleted_and_of_unknown_tasks_are_found_so_that_they_can_be_refused(rows: Scenario) -> None:
    task = rows.task(name="gone")
    rows.pending(task)
    rows.by_sql(4_711)
    adopt(rows)
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "gone"), "test"))
    found = {p.task_id: (p.task_type, p.task_deleted) for p in pending(rows)}
    assert found == {task: ("REPORT", 1), 4_711: (None, None)}


@pytest.mark.parametrize("seed", range(5))
def test_pages_cover_every_row_once_in_the_order_of_priority_and_due_time(rows: Scenario, seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    task = rows.task()
    made = [
        {
            "schedule_task_id": task,
            "schedule_datetime": rows.start - SECOND * n,
            "due_at": rows.start - SECOND * rng.choice([0, 0, 0, 1, 2, rng.randrange(100)]),
            "priority": rng.choice([0, 5, 5, 5, 9, rng.randrange(10)]),
            "run_number": 0,
        }
        for n in range(rng.randrange(1, 200))
    ]
    rows.database.write(lambda c: c.execute(insert(schedule_instance), made).rowcount)
    found: list[Pending] = []
    cursor: Cursor | None = None
    while True:
        limit = rng.choice([1, 2, 7, 50])
        page = rows.database.read(partial(assignments.pending, horizon=rows.start, limit=limit, after=cursor))
        assert len(page) <= limit
        if not page:
            break
        found += page
        assert len(found) <= len(made), "pages repeat rows"
        cursor = page[-1].cursor
    assert len({p.id for p in found}) == len(found) == len(made)
    assert [p.cursor for p in found] == sorted(p.cursor for p in found)


# Run numbers


def test_a_row_that_sql_inserted_for_a_time_that_fired_is_run_one(rows: Scenario) -> None:
    task, worker, at = rows.task(), rows.worker(), rows.past()
    fired, inserted = rows.pending(task, at), rows.by_sql(task, at)
    adopt(rows)
    rows.database.write(lambda c: assign(c, worker, rows.start))
    assert rows.row(fired).run_number == 0
    assert rows.row(inserted).run_number == 1


def test_rows_inserted_again_and_again_never_clash(rows: Scenario) -> None:
    task, worker, at = rows.task(), rows.worker(), rows.past()
    inserted: list[int] = []
    for number in (3, 1, 2):
        inserted += [rows.by_sql(task, at) for _ in range(number)]
        adopt(rows)
        rows.database.write(lambda c: assign(c, worker, rows.start))
    assert [rows.row(i).run_number for i in inserted] == [1, 2, 3, 4, 5, 6]
    assert {rows.status(i) for i in inserted} == {"assigned"}


def test_assigners_that_race_give_each_row_a_number_of_its_own(rows: Scenario) -> None:
    task, times = rows.task(), [rows.past() for _ in range(3)]
    inserted = [rows.by_sql(task, at) for at in times for _ in range(5)]
    adopt(rows)
    workers = [rows.worker() for _ in range(3)]

    def assigner(worker: int) -> None:
        for _ in range(3):
            rows.database.write(lambda c: assign(c, worker, rows.start))

    together(*(lambda w=worker: assigner(w) for worker in workers))
    numbers = sorted((rows.row(i).schedule_datetime, rows.row(i).run_number) for i in inserted)
    assert numbers == sorted((at, number) for at in times for number in range(1, 6))


def test_the_last_run_number_is_of_one_fire_and_of_its_key_alone(rows: Scenario) -> None:
    task, other, at = rows.task(), rows.task(), rows.start
    for of, when, key, number in [
        (task, at, "", 7),
        (task, at, "a", 3),
        (task, at, "A", 4),
        (task, at + SECOND, "", 9),
        (other, at, "", 11),
        (task, at + 2 * SECOND, "", None),
    ]:
        rows.pending(of, at - timedelta(days=1), schedule_datetime=when, fire_key=key, run_number=number)
    fires = {
        (task, at, ""),
        (task, at, "a"),
        (task, at, "A"),
        (task, at + 2 * SECOND, ""),
        (task, at + 3 * SECOND, ""),
    }
    found = rows.database.read(lambda c: run_numbers.last_of(c, fires))
    assert found == {
        (task, at, ""): 7,
        (task, at, "a"): 3,
        (task, at, "A"): 4,
        (task, at + 2 * SECOND, ""): 0,
    }


def test_one_whose_number_is_taken_meanwhile_stays_pending_and_the_others_are_given(rows: Scenario) -> None:
    task, worker, at = rows.task(), rows.worker(), rows.past()
    taken = rows.pending(task, at)
    late, other = rows.by_sql(task, at), rows.by_sql(task)
    adopt(rows)
    rows.database.write(lambda c: giving.give(c, [(late, worker, 0, None), (other, worker, 1, None)]))
    assert rows.status(taken) == "pending"
    assert (rows.status(late), rows.row(late).run_number) == ("pending", None)
    assert (rows.status(other), rows.row(other).run_number) == ("assigned", 1)


# Giving


def test_a_given_instance_is_assigned_and_its_reason_is_over(rows: Scenario) -> None:
    worker, instance = rows.worker(), rows.pending(reason="no worker is live")
    give(rows, worker, instance)
    row = rows.row(instance)
    assert (row.status, row.schedule_worker_node_id, row.reason) == ("assigned", worker, None)
    assert abs(row.gmt_assigned - rows.now()) < timedelta(minutes=1)


def test_a_param_is_pinned_when_given_and_one_that_is_there_stays(rows: Scenario) -> None:
    worker = rows.worker()
    own, without = rows.pending(param={"a": 1}), rows.pending()
    rows.database.write(lambda c: giving.give(c, [(own, worker, 0, '{"a":2}'), (without, worker, 0, '{"a":2}')]))
    assert rows.row(own).param == {"a": 1}
    assert rows.row(without).param == {"a": 2}


def test_only_what_is_pending_is_given_explained_or_refused(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    others = [rows.assigned(worker), rows.running(worker).id, rows.ended("failed", worker)]
    before = [rows.row(i) for i in others]
    give(rows, other, *others)
    rows.database.write(lambda c: giving.explain(c, dict.fromkeys(others, "test")))
    rows.database.write(lambda c: canceling.refuse(c, dict.fromkeys(others, "test")))
    assert [rows.row(i) for i in others] == before


def test_an_instance_given_by_two_at_once_goes_to_one(rows: Scenario) -> None:
    waiting = [rows.pending() for _ in range(20)]
    workers = [rows.worker(), rows.worker()]
    together(*(lambda w=worker: give(rows, w, *waiting) for worker in workers))
    owners = {rows.row(i).schedule_worker_node_id for i in waiting}
    assert {rows.status(i) for i in waiting} == {"assigned"}
    assert owners <= set(workers)


def test_a_refused_instance_is_canceled_with_the_reason(rows: Scenario) -> None:
    refused, explained = rows.pending(), rows.pending()
    rows.database.write(lambda c: canceling.refuse(c, {refused: "there is no task 7"}))
    rows.database.write(lambda c: giving.explain(c, {explained: "no worker is live"}))
    row = rows.row(refused)
    assert (row.status, row.reason, row.modifier) == ("canceled", "there is no task 7", "scheduler")
    assert row.gmt_completed is not None
    assert (rows.status(explained), rows.row(explained).reason) == ("pending", "no worker is live")


# Taking back


def test_all_that_is_assigned_to_a_worker_is_taken_back_in_batches(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    mine = [rows.assigned(worker) for _ in range(3)]
    others = [rows.running(worker).id, rows.assigned(other)]
    taken = [rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 2)) for _ in range(3)]
    assert taken == [2, 1, 0]
    assert {rows.status(i) for i in mine} == {"pending"}
    assert [rows.status(i) for i in others] == ["running", "assigned"]


def test_what_was_taken_back_keeps_its_nodes_and_can_be_given_again(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    instance = rows.assigned(worker)
    rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 10))
    give(rows, other, instance)
    [run] = rows.claim(other, instance).runs
    assert [node.type for node in run.nodes] == ["REPORT_EXTRACT", "REPORT_SEND"]
    assert rows.claim(worker, instance).runs == []


def test_a_retry_is_pending_until_it_is_due(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, to_retry(run, rows.start + 10 * SECOND)) == set()
    assert pending(rows) == []
    assert [p.id for p in pending(rows, rows.start + 10 * SECOND)] == [run.id]


def test_a_replay_gets_the_next_number_and_the_old_param(rows: Scenario) -> None:
    task, worker, at = rows.task(), rows.worker(), rows.past()
    run = rows.running(worker, task, at, param={"region": "eu"})
    rows.report(worker, ended(run))
    replay = rows.database.write(lambda c: instances.replay(c, run.id, "test"))
    rows.database.write(lambda c: assign(c, worker, rows.now() + timedelta(seconds=1)))
    row = rows.row(replay)
    assert (row.status, row.run_number, row.schedule_datetime, row.param) == ("assigned", 1, at, {"region": "eu"})
    assert (row.origin, row.creator) == ("replay", "test")
