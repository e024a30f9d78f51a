"""The database: one engine per process, sessions as Rota needs them, and whole transactions that are retried.

A transaction that met a deadlock, a lock wait, a conflict at commit or a lost connection is run again from its
beginning, with jitter. So every transaction in this package is written to be run twice: its writes are guarded, and
what a lost commit may have done already is found again by key.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import pymysql
from pymysql.constants import FIELD_TYPE, SERVER_STATUS
from pymysql.converters import conversions
from sqlalchemy import Connection, Engine, Table, create_engine, event, select
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from shared.clock import DatabaseClock, boottime
from shared.domain.errors import DatabaseProblem
from shared.domain.jsontext import json_value
from shared.store.dialects import Listed, RowsFirst, RowsFirstOnSQLite, UtcNow, stored_time, write_listed

T = TypeVar("T")

DEADLOCK, LOCK_WAIT, CHANGED_SINCE_READ, TOO_LARGE = 1213, 1205, 1020, 1153
CONNECTION_LOST = frozenset({0, 1053, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
"""0 is PyMySQL's own for a connection that is closed; 1927 and 4031: killed, or closed while idle."""

REFUSALS = frozenset({1048, 1062, 1153, 1264, 1265, 1292, 1364, 1366, 1406, 3140, 3819, 4025})
"""Codes that name the data, whatever class the driver gives them: too long, out of range, no JSON, a failed CHECK."""

LOCK_WAIT_SECONDS = 2
IDLE_IN_TRANSACTION_SECONDS = 3
"""A process that is frozen inside a transaction frees its locks after this (MariaDB; MySQL: ``wait_timeout``)."""

IDLE_SECONDS = 10
"""``wait_timeout``: below the liveness limit, so that a frozen process holds no lock longer than it is alive."""

LONGEST_IDS = 1024 * 1024
"""Bytes of ids in one text: three times 10,000 of 20 digits are less (MySQL's own limit is 1,024)."""

FIRST_RETRY_SECONDS = 0.02
PING_AFTER_SECONDS = 5.0
"""A connection that was idle for longer is tried before it is used; one that was lost before that is met by a retry."""


class Database:
    """An engine, the database's clock, and the two ways to use them: ``read`` and ``write``.

    database = Database("mysql://rota:…@db/rota")
    tasks = database.read(lambda connection: connection.execute(...).all())
    database.close()
    """

    def __init__(self, url: str, *, call_timeout: float = 10, retry_seconds: float = 5) -> None:
        self.url = normalised(url)
        self.engine = _engine(self.url, call_timeout)
        self._writer = self.engine.execution_options(rota_write=True)
        self._retry_seconds = retry_seconds
        self.clock = DatabaseClock(lambda: self.read(database_time))

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded default, for one machine."""
        return self.engine.dialect.name == "sqlite"

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only reads; retried whole.

        On MariaDB and MySQL without a transaction: under READ COMMITTED each statement sees its own moment anyway, and
        a lone SELECT costs one round trip.
        """
        return self._run(self.engine, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction and commit; retried whole.

        Raises DatabaseProblem when the database stays away, and whatever ``work`` raises.
        """
        return self._run(self._writer, work)

    def write_one(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which is one statement and may be run twice: on MariaDB and MySQL it commits itself."""
        return self._run(self._writer if self.is_sqlite else self.engine, work)

    def insert(self, table: Table, work: Callable[[Connection], list[int]]) -> list[int]:
        """Run ``work``, which inserts rows into ``table`` that no key tells apart, and return their ids.

        When the answer to the commit is lost, the ids of the first attempt tell whether it was done: ids never come
        again. So what somebody asked for by hand is there once.

            database.insert(schedule_instance, lambda c: [instances.ask(c, task, moment, "ann")])
        """
        made: list[int] = []

        def once(connection: Connection) -> list[int]:
            if made and connection.scalar(select(table.c.id).where(table.c.id == made[0])) is not None:
                return list(made)
            made[:] = work(connection)
            return list(made)

        return self.write(once)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        try:
            return _once(engine, work)
        except DBAPIError as error:
            if not is_transient(error):
                raise
        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            wait=wait_random_exponential(multiplier=FIRST_RETRY_SECONDS, max=1),
            stop=stop_after_delay(self._retry_seconds),
        )
        try:
            time.sleep(random.uniform(0, FIRST_RETRY_SECONDS))  # noqa: S311 - so that those who met part
            done: T = retrying(_once, engine, work)
        except RetryError as error:
            cause = error.last_attempt.exception()
            raise DatabaseProblem(f"{shown(self.url)}: {sentence(cause)}") from cause
        return done


def _once(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def database_time(connection: Connection) -> datetime:
    """The database's clock, naive UTC."""
    moment: Any = connection.execute(select(UtcNow())).scalar_one()
    return moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)


def code(error: BaseException | None) -> int | None:
    """The database's own number for an error, if it has one."""
    original = getattr(error, "orig", error)
    arguments = getattr(original, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def is_transient(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is run again."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or code(error) in {DEADLOCK, LOCK_WAIT, CHANGED_SINCE_READ, *CONNECTION_LOST}:
        return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return "database is locked" in str(error.orig)


def is_refusal(error: DBAPIError) -> bool:
    """Whether the database refuses the data of a statement, so that it is a row's fault; else it is the server's."""
    return isinstance(error, DataError | IntegrityError) or code(error) in REFUSALS


def sentence(error: BaseException | None) -> str:
    """The database's own words, without the statement and its values, which may hold secrets."""
    original = getattr(error, "orig", error)
    arguments = getattr(original, "args", ())
    return str(arguments[-1] if arguments else original)


def normalised(url: str) -> URL:
    """A URL with the driver Rota uses: PyMySQL for mysql:// and mariadb://."""
    parsed = make_url(url)
    return parsed if parsed.get_backend_name() == "sqlite" else parsed.set(drivername="mysql+pymysql")


def shown(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)


def _engine(url: URL, call_timeout: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            hide_parameters=True,
            json_deserializer=json_value,
            connect_args={"timeout": call_timeout, "check_same_thread": False},
        )
        engine.dialect.statement_compiler = RowsFirstOnSQLite
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        hide_parameters=True,  # they hold params and results: errors are logged
        json_deserializer=json_value,
        pool_use_lifo=True,
        pool_size=10,  # a process has five threads that use it at most
        max_overflow=0,
        connect_args={
            "charset": "utf8mb4",
            "connect_timeout": call_timeout,
            "read_timeout": call_timeout,
            "write_timeout": call_timeout,
            "autocommit": True,
            "conv": {**conversions, FIELD_TYPE.DATETIME: stored_time, Listed: write_listed},
        },
    )
    engine.dialect.statement_compiler = RowsFirst
    engine.dialect.do_commit = _commit_if_begun  # type: ignore[method-assign, assignment]
    engine.dialect.do_rollback = _rollback_if_begun  # type: ignore[method-assign, assignment]
    event.listen(engine, "connect", _prepare_mysql)
    event.listen(engine, "begin", _begin_mysql)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", _ping_if_idle)
    event.listen(engine, "handle_error", _refuse_oversized)
    return engine


def _begin_mysql(connection: Connection) -> None:
    if connection.get_execution_options().get("rota_write"):
        connection.exec_driver_sql("BEGIN")


def _commit_if_begun(connection: Any) -> None:
    if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
        connection.commit()


def _rollback_if_begun(connection: Any) -> None:
    if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
        connection.rollback()


def _note_use(connection: Any, record: Any) -> None:
    record.info["used"] = boottime()


def _ping_if_idle(connection: Any, record: Any, proxy: Any) -> None:
    if boottime() - record.info.get("used", boottime()) > PING_AFTER_SECONDS:
        try:
            connection.ping(reconnect=False)
        except pymysql.err.Error as error:
            raise InvalidatePoolError from error


def _prepare_mysql(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(
            "SET time_zone = '+00:00', sql_mode = TRIM(BOTH ',' FROM"
            " REPLACE(CONCAT(',', @@sql_mode, ','), ',NO_BACKSLASH_ESCAPES,', ',')),"
            f" wait_timeout = {IDLE_SECONDS}, innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS},"
            f" group_concat_max_len = {LONGEST_IDS}"
        )
        if "mariadb" in connection.get_server_info().lower():
            # MariaDB makes a join of an IN with 1,000 values or more, and then may read by another index.
            cursor.execute(
                f"SET idle_transaction_timeout = {IDLE_IN_TRANSACTION_SECONDS}, in_predicate_conversion_threshold = 0"
            )
        cursor.execute("SELECT @@max_allowed_packet")
        record.info["max_allowed_packet"] = cursor.fetchone()[0]


def _refuse_oversized(context: ExceptionContext) -> None:
    """The server hangs up on a statement longer than it takes, each time: no outage, but a refusal, and named so."""
    connection, executing = context.connection, context.execution_context
    lost = code(context.original_exception) in CONNECTION_LOST
    if not lost or connection is None or executing is None or not isinstance(context.parameters, dict):
        return
    limit = connection.info["max_allowed_packet"]
    length = len(executing.cursor.mogrify(context.statement, context.parameters).encode())
    if length >= limit:
        said = f"a statement of {length:,} bytes is more than the server's max_allowed_packet of {limit:,}"
        raise DataError(context.statement, None, pymysql.err.DataError(TOO_LARGE, said)) from None


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("rota_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def opened(url: str, *, call_timeout: float = 10) -> Iterator[Database]:
    """A database that is closed at the end of the block."""
    database = Database(url, call_timeout=call_timeout)
    try:
        yield database
    finally:
        database.close()


def connect(url: str) -> Database:
    """A database by its URL."""
    return Database(url)
