"""One process migrates at a time, and a process that dies while it migrates blocks nobody.

**SQLite**: the whole migration is one ``BEGIN IMMEDIATE`` transaction, its DDL included.

**MySQL and MariaDB**: DDL commits by itself, so the lock lives on a connection of its own, which holds the one row of
``rota_migration_lock`` by SELECT … FOR UPDATE until the migration is over. The server lets go of it when that
connection ends, however the process died; no lease has to run out.

A Galera cluster does not know GET_LOCK or LOCK TABLES, and keeps row locks on one node only. So the lock is economy, as
elsewhere in Rota, and truth lies in what every node agrees on: DDL, which Galera puts into one order, and the key of
``rota_schema_version``. Two processes that migrate through two nodes meet as "table exists", "duplicate key" or a
conflict at commit. Each is a race (``is_race``): the loser begins again, reads what is there and does what is left,
because every step leaves out what it finds done (migrations/steps.py).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from alembic.util import CommandError
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from shared.domain.errors import DatabaseProblem
from shared.store.database import CHANGED_SINCE_READ, DEADLOCK, LOCK_WAIT, code, sentence
from shared.store.problems import named

CONNECT_SECONDS = 10
TURN_SECONDS = 600
"""How long a process waits for another that migrates."""

STATEMENT_SECONDS = 4 * 3600
"""Limit for one statement: an ALTER of a long history takes what it takes."""

METADATA_LOCK_SECONDS = 60
"""How long DDL waits for open transactions on its table: whoever comes after it waits behind it."""

LOCK_TABLE = "rota_migration_lock"
_CREATE_LOCK = (
    f"CREATE TABLE IF NOT EXISTS {LOCK_TABLE} (id SMALLINT NOT NULL PRIMARY KEY)"
    " ENGINE=InnoDB COMMENT='its row is locked by the process that migrates'"
)

DUPLICATE_ROW, IN_ANOTHERS_DDL = 1062, 1684
THERE_ALREADY, GONE_ALREADY = frozenset({1050, 1060, 1061, 1826}), frozenset({1051, 1091})
CONNECTION_LOST = frozenset({0, 2006, 2013})  # not those of a server that cannot be reached: that is told at once


def is_race(error: BaseException) -> bool:
    """Whether another process was faster, or the connection broke: begin again and do what is left."""
    if isinstance(error, DBAPIError):
        races = {
            DEADLOCK,
            DUPLICATE_ROW,
            IN_ANOTHERS_DDL,
            CHANGED_SINCE_READ,
            *THERE_ALREADY,
            *GONE_ALREADY,
            *CONNECTION_LOST,
        }
        return code(error) in races
    return isinstance(error, CommandError)  # the revision's row is not as this process had read it


def migration_engine(url: URL) -> Engine:
    """An engine whose statements may take as long as DDL takes, unlike those of ``Database``."""
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": TURN_SECONDS})
        event.listen(engine, "connect", _no_implicit_begin)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
        connect_args={
            "charset": "utf8mb4",
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": STATEMENT_SECONDS,
            "write_timeout": STATEMENT_SECONDS,
        },
    )
    event.listen(engine, "connect", _prepare)
    return engine


@contextmanager
def exclusive(engine: Engine) -> Iterator[Connection]:
    """A connection on which to migrate, while no other process migrates this database.

    Raises DatabaseProblem when another has not ended within ``TURN_SECONDS``.
    """
    with ExitStack() as until_migrated:
        try:
            connection = _take_turn(engine, until_migrated)
        except DBAPIError as error:
            if code(error) == LOCK_WAIT or "database is locked" in sentence(error):
                raise DatabaseProblem(
                    f"{named(engine.url)}: another process has been migrating or writing for {TURN_SECONDS} s; "
                    "wait for it, or end it, and run rota migrate again"
                ) from error
            raise
        yield connection


def _take_turn(engine: Engine, until_migrated: ExitStack) -> Connection:
    if engine.dialect.name == "sqlite":
        return until_migrated.enter_context(engine.execution_options(rota_write=True).begin())
    holder = until_migrated.enter_context(engine.connect())
    _make_lock(holder)
    holder.exec_driver_sql(f"SELECT id FROM {LOCK_TABLE} WHERE id = 1 FOR UPDATE")
    return until_migrated.enter_context(engine.connect())


def _make_lock(holder: Connection) -> None:
    """The lock's table and its row, each committed at once: to hold them would make two processes a deadlock."""
    if not inspect(holder).has_table(LOCK_TABLE):
        holder.exec_driver_sql(_CREATE_LOCK)
    holder.exec_driver_sql(f"INSERT IGNORE INTO {LOCK_TABLE} (id) VALUES (1)")
    holder.commit()


def _no_implicit_begin(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("rota_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _prepare(connection: Any, record: Any) -> None:
    """A server may end sessions that idle for long, in a transaction or not: not the one that holds the lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET time_zone = '+00:00', wait_timeout = {STATEMENT_SECONDS},"
            f" innodb_lock_wait_timeout = {TURN_SECONDS}, lock_wait_timeout = {METADATA_LOCK_SECONDS}"
        )
        if "mariadb" in connection.get_server_info().lower():
            cursor.execute("SET idle_transaction_timeout = 0")
