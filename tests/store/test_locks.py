"""Leases on tasks: who gets what, and that nobody waits for a scheduler that stands still."""

import random
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from tests.harness import leases
from tests.harness.scenario import Scenario
from tests.harness.together import impatient, together, uncommitted

LEASE = 2.0


class Crash(Exception):
    """The process ends here, before its commit."""


def acquire(rows: Scenario, token: str, *tasks: int) -> set[int]:
    return rows.database.write(lambda c: leases.acquire(c, token, tasks, LEASE))


def release(rows: Scenario, token: str, *tasks: int) -> set[int]:
    return rows.database.write(lambda c: leases.release(c, token, tasks))


def expire(rows: Scenario, *tasks: int) -> None:
    taken = (rows.now() - timedelta(seconds=10 * LEASE)).strftime("%Y-%m-%d %H:%M:%S.%f")
    for task in tasks:
        rows.sql(
            "UPDATE schedule_task_lock SET locked_at = :taken WHERE schedule_task_id = :task", taken=taken, task=task
        )


def test_missing_lock_rows_are_inserted_on_sight(rows: Scenario) -> None:
    tasks = {rows.task(), rows.task()}
    assert rows.sql("SELECT * FROM schedule_task_lock") == []
    assert acquire(rows, "a", *tasks) == tasks
    found = rows.sql("SELECT schedule_task_id, locked_by, is_locked FROM schedule_task_lock ORDER BY 1")
    assert [tuple(row) for row in found] == [(task, "a", 1) for task in sorted(tasks)]


def test_acquiring_and_releasing_nothing_is_nothing(rows: Scenario) -> None:
    assert acquire(rows, "a") == set()
    assert release(rows, "a") == set()


def test_only_what_is_free_or_expired_is_taken(rows: Scenario) -> None:
    free, held, expired, missing = rows.task(), rows.task(), rows.task(), rows.task()
    acquire(rows, "a", free)
    release(rows, "a", free)
    acquire(rows, "b", held, expired)
    expire(rows, expired)
    assert acquire(rows, "c", free, held, expired, missing) == {free, expired, missing}


def test_a_lease_is_not_taken_before_it_expires(rows: Scenario) -> None:
    task = rows.task()
    assert acquire(rows, "a", task) == {task}
    assert acquire(rows, "b", task) == set()


def test_leasing_again_after_a_lost_commit_finds_its_own(rows: Scenario) -> None:
    mine, theirs = rows.task(), rows.task()
    acquire(rows, "b", theirs)
    assert acquire(rows, "a", mine, theirs) == {mine}
    assert acquire(rows, "a", mine, theirs) == {mine}


def test_a_released_lease_is_free_at_once(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "a", task)
    assert release(rows, "a", task) == {task}
    assert acquire(rows, "b", task) == {task}


def test_a_release_tells_who_leased_it_last(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "a", task)
    release(rows, "a", task)
    [lock] = rows.sql("SELECT locked_by, is_locked FROM schedule_task_lock")
    assert tuple(lock) == ("a", 0)


def test_a_release_leaves_out_what_was_taken_over(rows: Scenario) -> None:
    kept, lost = rows.task(), rows.task()
    acquire(rows, "slow", kept, lost)
    expire(rows, lost)
    assert acquire(rows, "quick", lost) == {lost}
    assert release(rows, "slow", kept, lost) == {kept}
    assert release(rows, "quick", lost) == {lost}


def test_a_release_leaves_alone_what_was_taken_over(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "slow", task)
    expire(rows, task)
    acquire(rows, "quick", task)
    assert release(rows, "slow", task) == set()
    assert acquire(rows, "third", task) == set()
    assert release(rows, "quick", task) == {task}


def test_an_expired_lease_that_nobody_took_over_still_is_its_own_unless_it_was_taken_too_long_ago(
    rows: Scenario,
) -> None:
    task, other = rows.task(), rows.task()
    acquire(rows, "slow", task, other)
    expire(rows, task, other)
    assert rows.database.write(lambda c: leases.release(c, "slow", [task], within_seconds=19)) == set()
    assert rows.database.write(lambda c: leases.release(c, "slow", [task, other], within_seconds=40)) == {task, other}


def test_a_release_run_again_after_a_lost_commit_says_the_same(rows: Scenario) -> None:
    kept, lost = rows.task(), rows.task()
    acquire(rows, "a", kept, lost)
    expire(rows, lost)
    acquire(rows, "b", lost)
    assert release(rows, "a", kept, lost) == {kept}
    assert release(rows, "a", kept, lost) == {kept}


@pytest.mark.parametrize("still_leased", [True, False])
def test_a_release_run_again_leaves_out_what_another_leased_since(rows: Scenario, still_leased: bool) -> None:
    task = rows.task()
    acquire(rows, "a", task)
    release(rows, "a", task)
    acquire(rows, "b", task)
    if not still_leased:
        release(rows, "b", task)
    assert release(rows, "a", task) == set()


def test_a_frozen_holder_does_not_make_others_wait(mariadb_rows: Scenario) -> None:
    frozen, other, missing = mariadb_rows.task(), mariadb_rows.task(), mariadb_rows.task()
    acquire(mariadb_rows, "frozen", frozen)
    expire(mariadb_rows, frozen)
    acquire(mariadb_rows, "before", other)
    release(mariadb_rows, "before", other)
    with (
        uncommitted(mariadb_rows.database, lambda c: leases.release(c, "frozen", [frozen])) as released,
        impatient(mariadb_rows.database) as database,
    ):
        assert released == {frozen}
        got = database.write(lambda c: leases.acquire(c, "quick", [frozen, other, missing], LEASE))
        assert got == {other, missing}


def test_a_scheduler_frozen_while_it_acquires_does_not_make_others_wait(mariadb_rows: Scenario) -> None:
    first, second = mariadb_rows.task(), mariadb_rows.task()
    acquire(mariadb_rows, "before", first, second)
    release(mariadb_rows, "before", first, second)
    with (
        uncommitted(mariadb_rows.database, lambda c: leases.acquire(c, "frozen", [first], LEASE)),
        impatient(mariadb_rows.database) as database,
    ):
        assert database.write(lambda c: leases.acquire(c, "quick", [first, second], LEASE)) == {second}


@pytest.mark.parametrize("again", [False, True], ids=["", "again"])
def test_what_is_being_released_cannot_be_taken_over_before_the_commit(mariadb_rows: Scenario, again: bool) -> None:
    task = mariadb_rows.task()
    acquire(mariadb_rows, "slow", task)
    expire(mariadb_rows, task)
    if again:
        release(mariadb_rows, "slow", task)
    with uncommitted(mariadb_rows.database, lambda c: leases.release(c, "slow", [task])) as released:
        assert released == {task}
        assert acquire(mariadb_rows, "quick", task) == set()
    assert acquire(mariadb_rows, "quick", task) == {task}


def test_a_release_rolled_back_leaves_the_lease(rows: Scenario) -> None:
    task = rows.task()
    acquire(rows, "a", task)

    def crash(connection: Connection) -> None:
        assert leases.release(connection, "a", [task]) == {task}
        raise Crash

    with pytest.raises(Crash):
        rows.database.write(crash)
    assert acquire(rows, "b", task) == set()


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
        assert release(rows, token, *tasks) == some
