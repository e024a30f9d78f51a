"""Migrating while somebody reads the tables: a dump, a report. Statements of others wait for a moment only."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pymysql
import pytest
from sqlalchemy import make_url, text

from rota import migrations
from rota.migrations.migration_lock import migration_engine
from rota.shared.database import mysql_ddl
from rota.shared.database.transactions import normalised
from rota.shared.domain.errors import DatabaseProblem
from tests.harness.databases import MariaDBServer, connect, run_sql
from tests.harness.schemas import statements

SECOND = "-- Running upgrade 0001 -> 0002"


@pytest.fixture
def old(mariadb_url: str) -> str:
    """The URL of a database at the first revision: the next ones change ``schedule_task``."""
    first, found, _ = migrations.sql(mariadb_url).partition(SECOND)
    assert found
    run_sql(mariadb_url, *statements(first))
    return mariadb_url


@pytest.fixture
def reader(old: str) -> Iterator[pymysql.Connection]:
    """A connection that has read ``schedule_task`` in a transaction, which stays open."""
    with closing(connect(old)) as connection, connection.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT COUNT(*) FROM schedule_task")
        yield connection


@pytest.fixture
def administrator(old: str, mariadb_server: MariaDBServer) -> str:
    """The URL of the same database for a user who may see the connections of all."""
    admin = make_url(mariadb_server.admin_url())
    return admin.set(database=make_url(old).database).render_as_string(hide_password=False)


@pytest.fixture
def upgrading(administrator: str, reader: pymysql.Connection) -> Iterator["Future[migrations.Report]"]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(migrations.upgrade, administrator)
        reader.rollback()


def tries(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for m in caplog.messages if m.startswith("migrate: the table schedule_task is in use")]


def test_statements_of_others_wait_for_a_moment_only(
    old: str,
    reader: pymysql.Connection,
    upgrading: "Future[migrations.Report]",
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mysql_ddl, "PAUSE_SECONDS", 0.5)
    asked = threading.Event()
    with closing(connect(old)) as other, other.cursor() as cursor:
        cursor.execute("SET lock_wait_timeout = 5")  # far less than ten tries take
        while len(tries(caplog)) < 3 and not upgrading.done():
            cursor.execute("SELECT COUNT(*) FROM schedule_task")  # an error, if it had to wait for longer
            asked.set()
    assert not upgrading.done(), upgrading.result()
    assert asked.is_set()
    number = reader.thread_id()  # type: ignore[no-untyped-call]
    said = f"is in use by one of the open transactions: connection {number} of "
    assert all(said in told and f"KILL {number} ends it" in told for told in tries(caplog))
    reader.rollback()
    assert upgrading.result(60).after == migrations.head()


def test_it_ends_after_ten_minutes_with_a_sentence_and_goes_on_later(
    old: str, reader: pymysql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_ddl, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(DatabaseProblem, match="the table schedule_task is in use by ") as e:
        migrations.upgrade(old)
    assert str(e.value).endswith("End that, and run rota migrate again: it goes on where it stopped")
    assert migrations.current(old) == "0001"
    reader.rollback()
    assert migrations.upgrade(old).after == migrations.head()


def test_a_percent_sign_of_a_statement_is_kept(mariadb_url: str) -> None:
    engine = migration_engine(normalised(mariadb_url))
    comment = (
        "SELECT column_comment FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't'"
    )
    with closing(engine.connect()) as connection:
        connection.execute(text("CREATE TABLE t (x INT COMMENT '5 % of all')"))
        assert run_sql(mariadb_url, comment) == [("5 % of all",)]
        connection.exec_driver_sql("ALTER TABLE t MODIFY x INT COMMENT '6 %% of all'")  # as the driver wants it
        assert run_sql(mariadb_url, comment) == [("6 % of all",)]
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("ALTER TABLE schedule_task ADD COLUMN x INT", "schedule_task"),
        ("\nCREATE TABLE IF NOT EXISTS rota_lock (id INT)", "rota_lock"),
        ("CREATE UNIQUE INDEX ix ON schedule_skip (id)", "schedule_skip"),
        ("CREATE INDEX `ix` ON `schedule_skip` (id)", "schedule_skip"),
        ("DROP TABLE rota_words", "rota_words"),
        ("UPDATE schedule_task SET name = 'ALTER TABLE x'", None),
        ("SELECT 1", None),
    ],
)
def test_the_table_of_a_statement(statement: str, table: str | None) -> None:
    assert mysql_ddl.table_of(statement) == table
