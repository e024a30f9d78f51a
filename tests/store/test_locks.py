"""Leases on tasks: who gets what, and that nobody waits for a scheduler that stands still."""

import random

import pytest

from shared.store import locks
from tests.store.scenario import Scenario
from tests.store.together import impatient, together, uncommitted

LEASE = 2.0


def acquire(rows: Scenario, token: str, *tasks: int) -> set[int]:
    return rows.database.write(lambda c: locks.acquire(c, token, tasks, LEASE))


def hold(rows: Scenario, token: str, *tasks: int) -> set[int]:
    return rows.database.write(lambda c: locks.hold(c, token, tasks))


def release(rows: Scenario, token: str, *tasks: int) -> None:
    rows.database.write(lambda c: locks.release(c, token, tasks))


def expire(rows: Scenario, *tasks: int) -> None:
    for task in tasks:
        rows.sql(
            "UPDATE schedule_task_lock SET locked_at = '2020-01-01 00:00:00.000000' WHERE schedule_task_id = :task",
            task=task,
        )


def test_missing_lock_rows_are_inserted_on_sight(rows: Scenario) -> None:
    tasks = {rows.task(), rows.task()}
    assert rows.sql("SELECT * FROM schedule_task_lock") == []
    assert acquire(rows, "a", *tasks) == tasks
    found = rows.sql("SELECT schedule_task_id, locked_by, is_locked FROM schedule_task_lock ORDER BY 1")
    assert [tuple(row) for row in found] == [(task, "a", 1) for task in sorted(tasks)]


def test_acquiring_nothing_leases_nothing(rows: Scenario) -> None:
    assert acquire(rows, "a") == set()


def test_only_what_is_free_or_expired_is_taken(rows: Scenario) -> None:
    free, held, expired, missing = rows.task(), rows.task(), rows.task(), rows.task()
    acquire(rows, "a", free)
    release(rows, "a", free)
    acquire(rows, "b", held, expired)
    expire(rows, expired)
    assert acquire(rows, "c", free, held, expired, missing) == {free, expired, missing}


def test_a_lease_is_not_taken_before_it_expires_even_by_its_own_token(rows: Scenario) -> None:
    task = rows.task()
    assert acquire(rows, "a", task) == {task}
    assert acquire(rows, "b", task) == set()


def test_a_released_lease_is_free_at_once(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "a", task)
    release(rows, "a", task)
    assert acquire(rows, "b", task) == {task}


def test_hold_drops_what_was_taken_over(rows: Scenario) -> None:
    kept, lost = rows.task(), rows.task()
    acquire(rows, "slow", kept, lost)
    expire(rows, lost)
    assert acquire(rows, "quick", lost) == {lost}
    assert hold(rows, "slow", kept, lost) == {kept}
    assert hold(rows, "quick", lost) == {lost}


def test_a_release_leaves_alone_what_was_taken_over(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "slow", task)
    expire(rows, task)
    acquire(rows, "quick", task)
    release(rows, "slow", task)
    assert acquire(rows, "third", task) == set()
    assert hold(rows, "quick", task) == {task}


def test_what_was_released_is_held_no_more(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "a", task)
    release(rows, "a", task)
    assert hold(rows, "a", task) == set()


def test_a_frozen_holder_does_not_make_others_wait(mariadb_rows: Scenario) -> None:
    frozen, other, missing = mariadb_rows.task(), mariadb_rows.task(), mariadb_rows.task()
    acquire(mariadb_rows, "frozen", frozen)
    expire(mariadb_rows, frozen)
    acquire(mariadb_rows, "before", other)
    release(mariadb_rows, "before", other)
    with (
        uncommitted(mariadb_rows.database, lambda c: locks.hold(c, "frozen", [frozen])) as held,
        impatient(mariadb_rows.database) as database,
    ):
        assert held == {frozen}
        got = database.write(lambda c: locks.acquire(c, "quick", [frozen, other, missing], LEASE))
        assert got == {other, missing}


def test_a_scheduler_frozen_while_it_acquires_does_not_make_others_wait(mariadb_rows: Scenario) -> None:
    first, second = mariadb_rows.task(), mariadb_rows.task()
    acquire(mariadb_rows, "before", first, second)
    release(mariadb_rows, "before", first, second)
    with (
        uncommitted(mariadb_rows.database, lambda c: locks.acquire(c, "frozen", [first], LEASE)),
        impatient(mariadb_rows.database) as database,
    ):
        assert database.write(lambda c: locks.acquire(c, "quick", [first, second], LEASE)) == {second}


def test_what_is_held_cannot_be_taken_over_before_the_commit(mariadb_rows: Scenario) -> None:
    task = mariadb_rows.task()
    acquire(mariadb_rows, "slow", task)
    expire(mariadb_rows, task)
    with uncommitted(mariadb_rows.database, lambda c: locks.hold(c, "slow", [task])):
        assert acquire(mariadb_rows, "quick", task) == set()
    assert acquire(mariadb_rows, "quick", task) == {task}


@pytest.mark.parametrize("known", [True, False], ids=["known", "missing"])
def test_of_several_schedulers_each_task_is_leased_by_one(rows: Scenario, known: bool) -> None:
    tasks = rows.tasks(100)
    if known:
        acquire(rows, "before", *tasks)
        release(rows, "before", *tasks)
    tokens = ["a", "b", "c", "d"]
    got = together(*(lambda t=token: acquire(rows, t, *random.sample(tasks, len(tasks))) for token in tokens))
    assert sorted(task for some in got for task in some) == sorted(tasks)
    for token, some in zip(tokens, got, strict=True):
        assert hold(rows, token, *tasks) == some
