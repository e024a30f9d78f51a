"""Following instances as they end: each once, none missed, whatever the order of ids and ends."""

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, update

from rota.shared.control import following
from rota.shared.control.following import Follower
from rota.shared.database.transactions import Database
from rota.shared.store.tables import schedule_instance
from tests.harness.statements import explained

NOON = datetime.fromisoformat("2026-11-21 12:00:00")
RUNNING = {"status": "running", "schedule_worker_node_id": 1, "run_number": 0, "due_at": NOON}
PENDING = {"status": "pending", "schedule_worker_node_id": None}


def add(connection: Connection, **values: Any) -> int:
    statement = insert(schedule_instance).values(schedule_task_id=1, schedule_datetime=NOON, **values)
    return int(connection.execute(statement).lastrowid)


def made(database: Database, **values: Any) -> int:
    return database.write(lambda connection: add(connection, **values))


def end(database: Database, *ids: int) -> None:
    ended = update(schedule_instance).where(schedule_instance.c.id.in_(ids)).values(status="succeed")
    database.write(lambda connection: connection.execute(ended))


def ended(follower: Follower) -> list[int]:
    return [instance["id"] for instance in follower.ended()]


def test_what_had_ended_before_is_not_shown_and_what_had_not_is(database: Database) -> None:
    made(database, status="succeed")
    running = made(database, **RUNNING)
    follower = Follower(database)
    assert ended(follower) == []
    end(database, running)
    assert ended(follower) == [running]


def test_each_is_shown_once_when_it_ends_in_whatever_order(database: Database) -> None:
    follower = Follower(database)
    first, second, third = (made(database) for _ in range(3))
    assert ended(follower) == []
    end(database, third)
    assert ended(follower) == [third]
    end(database, first)
    assert ended(follower) == [first]
    end(database, second)
    assert ended(follower) == [second]
    assert ended(follower) == []


def test_what_is_made_and_ends_between_two_looks_is_shown(database: Database) -> None:
    follower = Follower(database)
    assert ended(follower) == []
    quick = [made(database, status=status) for status in ("succeed", "failed", "canceled")]
    assert ended(follower) == quick


def test_a_smaller_id_that_is_committed_later_is_shown(mariadb_database: Database) -> None:
    follower = Follower(mariadb_database)
    with mariadb_database.engine.execution_options(rota_write=True).begin() as slow:
        small = add(slow, status="succeed")
        great = made(mariadb_database, status="succeed")
        assert great > small
        assert ended(follower) == [great]
    assert ended(follower) == [small]


def test_an_id_that_never_comes_is_given_up(mariadb_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "GIVE_UP_SECONDS", 0.0)
    follower = Follower(mariadb_database)
    with mariadb_database.engine.execution_options(rota_write=True).connect() as burning:
        add(burning)
        burning.rollback()
    great = made(mariadb_database, status="succeed")
    assert ended(follower) == [great]
    assert follower.watched == 1
    assert ended(follower) == []
    assert follower.watched == 0


def test_one_that_is_deleted_is_watched_no_more(database: Database) -> None:
    follower = Follower(database)
    made(database)
    follower.ended()
    assert follower.watched == 1
    database.write(lambda connection: connection.execute(delete(schedule_instance)))
    follower.ended()
    assert follower.watched == 0


def test_more_than_a_batch_comes_in_several_looks_and_none_is_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BATCH", 3)
    follower = Follower(database)
    ids = [made(database) for _ in range(8)]
    for _ in range(3):
        assert ended(follower) == []
    end(database, *ids)
    looks = [ended(follower) for _ in range(4)]
    assert sorted(i for look in looks for i in look) == ids
    assert max(map(len, looks)) <= 3


def test_a_retried_instance_is_shown_at_its_end_only(database: Database) -> None:
    follower = Follower(database)
    retried = made(database, **RUNNING)
    assert ended(follower) == []
    database.write(lambda connection: connection.execute(update(schedule_instance).values(**PENDING)))
    assert ended(follower) == []
    end(database, retried)
    assert ended(follower) == [retried]


def test_a_look_reads_by_the_primary_key(mariadb_database: Database) -> None:
    for _ in range(200):
        made(mariadb_database, status="succeed")
    follower = Follower(mariadb_database)
    made(mariadb_database, status="succeed")
    with explained(mariadb_database.engine) as statements:
        assert len(ended(follower)) == 1
    assert sum(statement.rows_read for statement in statements) <= 20, "\n".join(map(str, statements))
