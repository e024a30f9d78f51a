"""A connection that a thread keeps while its transactions follow each other at once."""

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from rota.shared.database.kept import KEPT_SECONDS, KeptConnection
from rota.shared.database.transactions import Database
from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.scenario import Scenario

pytestmark = pytest.mark.every_database


class Kept:
    """A kept connection of a database, a time that the test sets, and how often the pool had a connection back."""

    def __init__(self, database: Database) -> None:
        self.time, self.given_back = 100.0, 0
        self.database = database
        self.connection = KeptConnection(database.engine.execution_options(rota_write=True), lambda: self.time)
        event.listen(database.engine, "checkin", self._count)

    def _count(self, *_: Any) -> None:
        self.given_back += 1

    def write(self, statement: str) -> None:
        self.database.write_undisturbed(lambda c: c.execute(text(statement)), self.connection)


@pytest.fixture
def kept(rows: Scenario) -> Kept:
    return Kept(rows.database)


def test_the_pool_has_it_back_when_it_was_kept_for_long_and_when_it_is_given_back(kept: Kept) -> None:
    for _ in range(3):
        kept.write("UPDATE schedule_task SET priority = 3")
    assert kept.given_back == 0
    kept.time += KEPT_SECONDS
    kept.write("UPDATE schedule_task SET priority = 3")
    assert kept.given_back == 1
    for _ in range(2):
        kept.connection.give_back()
    assert kept.given_back == 2


def test_the_pool_has_it_back_while_no_transaction_waits_for_a_lock(rows: Scenario, kept: Kept) -> None:
    kept.write("UPDATE schedule_task SET priority = 3")
    rows.database.wariness.met()
    kept.write("UPDATE schedule_task SET priority = 4")
    assert kept.given_back == 1


def test_each_transaction_is_committed(rows: Scenario, kept: Kept) -> None:
    task = rows.task()
    for priority in (3, 4):
        kept.write(f"UPDATE schedule_task SET priority = {priority} WHERE id = {task}")
        assert rows.task_row(task).priority == priority


def test_an_error_of_the_work_rolls_back_and_gives_it_back(rows: Scenario, kept: Kept) -> None:
    task = rows.task()
    kept.write(f"UPDATE schedule_task SET priority = 3 WHERE id = {task}")

    def fail(connection: Connection) -> None:
        connection.execute(text(f"UPDATE schedule_task SET priority = 4 WHERE id = {task}"))
        raise LookupError("of the work")

    before = kept.given_back
    with pytest.raises(LookupError, match="of the work"):
        rows.database.write_undisturbed(fail, kept.connection)
    assert kept.given_back == before + 1
    assert rows.task_row(task).priority == 3
    kept.write(f"UPDATE schedule_task SET priority = 5 WHERE id = {task}")
    assert rows.task_row(task).priority == 5


def test_one_that_the_server_has_ended_is_replaced(mariadb_rows: Scenario, mariadb_server: MariaDBServer) -> None:
    kept = KeptConnection(mariadb_rows.database.engine, lambda: 0.0)
    seen: list[int] = []

    def note(connection: Connection) -> bool:
        seen.append(int(connection.execute(text("SELECT CONNECTION_ID()")).scalar_one()))
        return True

    assert mariadb_rows.database.write_undisturbed(note, kept)
    run_sql(mariadb_server.admin_url(), f"KILL {seen[0]}")
    assert mariadb_rows.database.write_undisturbed(note, kept) is None
    assert mariadb_rows.database.write_undisturbed(note, kept)
    assert len(set(seen)) == 2


@pytest.mark.parametrize(("hosts", "keeps"), [("db", True), ("a,b:3307,c", False)])
def test_with_several_hosts_none_is_kept(hosts: str, keeps: bool) -> None:
    """The pool must see each commit: the next transaction may be on a host that has not got it yet."""
    with closing(Database(f"mysql://rota@{hosts}/rota")) as database:
        assert (database.kept() is not None) == keeps
