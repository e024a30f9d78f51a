"""SQLite, the default database, for one machine: its sessions and its errors."""

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Engine,
    Integer,
    NullPool,
    SmallInteger,
    String,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from rota.shared.clock import Clock
from rota.shared.database import sqlite_migration
from rota.shared.database.backend import (
    Backend,
    Check,
    Checks,
    ErrorKind,
    Limits,
    is_of_data,
    range_name,
    value_of,
    version_check,
)
from rota.shared.database.constructs import (
    ListType,
    UtcTimeType,
    written,
)
from rota.shared.database.servers import Servers
from rota.shared.database.sqlite_constructs import AsJson, RowsFirst, Time, WholeNumber
from rota.shared.domain.jsontext import json_value
from rota.shared.domain.times import EARLIEST, LATEST

if TYPE_CHECKING:
    from rota.shared.database.transactions import Database

OLDEST = (3, 38, 0)
"""The oldest version with the features that Rota's statements use, such as json_each."""

TIME_FORM = (
    # Only days that exist: one 02-30 in the table would make every read of a tick fail.
    "strftime('%Y-%m-%d %H:%M:%S', substr({0}, 1, 19), '+0 days') || '.' IS substr({0}, 1, 20)"
    " AND substr({0}, 21) GLOB '[0-9][0-9][0-9][0-9][0-9][0-9]'"
)
"""SQLite stores a time as text. It must have one written form, because ``T02:00`` and ``02:00:00`` would be two
fires."""

WHOLE_NUMBERS: tuple[tuple[type[Integer], int, int], ...] = (
    (SmallInteger, -(2**15), 2**15 - 1),
    (BigInteger, 0, 2**63 - 1),
    (Integer, -(2**31), 2**31 - 1),
)
"""What the integer types of other databases hold."""


DISK_TROUBLE = ("database or disk is full", "disk I/O error")


class SQLite(Backend):
    """SQLite in WAL mode."""

    commits_lone_statements = False
    has_own_clock = False
    has_transactional_ddl, script_head = True, sqlite_migration.SCRIPT_HEAD
    table_options: Mapping[str, Any] = {"sqlite_autoincrement": True}
    """AUTOINCREMENT: without it SQLite would give the id of a deleted row again. But a worker's id is its epoch, and
    other ids name a history."""

    def with_driver(self, url: URL) -> URL:
        """The URL as it is, with Python's own driver."""
        return url

    def engine(self, url: URL, limits: Limits, servers: Servers) -> Engine:
        """An engine with a connection for each thread.

        A transaction that may write takes the write lock at its beginning (BEGIN IMMEDIATE). Otherwise SQLite may
        refuse the lock when the transaction comes to its first write.
        """
        engine = create_engine(
            url,
            hide_parameters=True,
            json_deserializer=json_value,
            connect_args={"timeout": limits.call, "check_same_thread": False},
        )
        engine.dialect.statement_compiler = RowsFirst
        own_types = {ListType: AsJson, UtcTimeType: Time, Integer: WholeNumber}
        engine.dialect.colspecs = {**engine.dialect.colspecs, **own_types}
        event.listen(engine, "do_connect", _make_private)
        event.listen(engine, "do_connect", _connect)
        event.listen(engine, "begin", _begin)
        return engine

    def least_lock_wait(self, engine: Engine) -> float:
        """0: there are no locks of rows."""
        return 0

    def follow(self, engine: Engine, clock: Clock) -> None:
        """Give each connection another ``strftime``, which takes 'now' from the clock: SQLite has no such setting."""
        event.listen(engine, "connect", lambda connection, _: _override_strftime(connection, clock))

    def file(self, url: URL) -> Path | None:
        """The database's file, also where it is given as a URI; None if it is in memory."""
        name = url.database or ""
        path = unquote(urlsplit(name).path) if name.startswith("file:") else name
        return Path(path) if path and not path.startswith(":memory:") else None

    def qualified(self, url: URL, table: str) -> str:
        """The table alone: another program has opened the same file."""
        return table

    def mark_of(self, connection: Any) -> str:
        """That of Python's own driver; a wrapper, such as Django's, takes the one that it takes for every database."""
        return "?" if isinstance(connection, sqlite3.Connection) else "%s"

    def kind_of(self, error: DBAPIError) -> ErrorKind:
        """By SQLite's text; its codes say no more."""
        if _is_locked(error):
            return ErrorKind.CONFLICT
        if error.connection_invalidated or any(said in str(error.orig) for said in DISK_TROUBLE):
            return ErrorKind.OUTAGE
        return ErrorKind.REFUSAL if is_of_data(error) else ErrorKind.OTHER

    def advice(self, url: URL, error: BaseException, said: str) -> str | None:
        """The advice for SQLite's error text; its codes say no more."""
        if "not a database" in said:
            return "give Rota the path of a file that is new, or that is its own"
        if "readonly" in said and {"immutable", "mode"} & set(url.query):
            return "the URL says that Rota may only read; leave out mode and immutable for what writes"
        if "readonly" in said or "unable to open" in said:
            return "let this user read the file; what writes must write to the file and to its folder, too"
        return None

    def column_checks(self, column: Column[Any]) -> list[CheckConstraint]:
        """The checks that types are on other databases: SQLite takes any value in any column."""
        name = column.name
        checks: dict[str, str] = {}
        if isinstance(column.type, UtcTimeType):
            checks[f"{name}_form"] = TIME_FORM.format(name)
            checks[range_name(column)] = f"{name} BETWEEN '{written(EARLIEST)}' AND '{written(LATEST)}'"
        elif isinstance(column.type, JSON):  # one bad row would make every read fail
            checks[f"{name}_json"] = f"json_valid({name})"
        elif isinstance(column.type, Integer):
            least, most = next(limits for kind, *limits in WHOLE_NUMBERS if isinstance(column.type, kind))
            is_whole = f"typeof({name}) = 'integer'"
            checks[f"{name}_is_a_whole_number"] = f"{is_whole} AND {name} BETWEEN {least} AND {most}"
        elif isinstance(column.type, String):
            checks[f"{name}_is_text"] = f"typeof({name}) = 'text'"
        return [
            CheckConstraint(text(f"{name} IS NULL OR {condition}"), name=check).ddl_if(dialect="sqlite")
            for check, condition in checks.items()
        ]

    def essential_checks(self, database: "Database", tables: Collection[str]) -> Checks:
        """None: nothing between Rota and SQLite can change a session's settings."""
        return {}

    def advisory_checks(self, database: "Database") -> Checks:
        """None: SQLite has no settings but those that Rota makes."""
        return {}

    def check_version(self, database: "Database") -> Check:
        """The version of the SQLite library that Python uses."""
        return version_check(database, "SQLite", OLDEST, str(value_of(database, "SELECT sqlite_version()")))

    def why_read_only(self, database: "Database") -> list[str]:
        """None: SQLite has no such settings. Whether the file may be written shows at the first write."""
        return []

    def migration_engine(self, url: URL, turn_seconds: float, statement_seconds: float) -> Engine:
        """An engine that waits ``turn_seconds`` for the lock of the file. Statements have no time limit."""
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": turn_seconds})
        event.listen(engine, "do_connect", _make_private)
        event.listen(engine, "connect", _no_implicit_begin)
        event.listen(engine, "begin", _begin)
        return engine

    words_added = staticmethod(sqlite_migration.words_added)

    def take_turn(self, engine: Engine, until_migrated: ExitStack) -> Connection:
        """Begin the transaction of the whole migration, DDL included; its write lock is the migration lock."""
        return until_migrated.enter_context(engine.execution_options(rota_write=True).begin())

    def is_turn_refused(self, error: DBAPIError) -> bool:
        """Whether another process is writing."""
        return _is_locked(error)

    def is_race(self, error: DBAPIError) -> bool:
        """False: no other process can migrate during this transaction."""
        return False


SQLITE = SQLite()


def _is_locked(error: DBAPIError) -> bool:
    return "database is locked" in str(error.orig)


def _make_private(dialect: Any, record: Any, arguments: list[Any], options: Any) -> None:
    """Make a file that is not there yet, for this user alone: params may hold secrets. SQLite's other files follow it.

    A file that is there is not opened: to close it would end all locks that this process has on it.
    """
    file = str(arguments[0])
    if file != ":memory:" and not file.startswith("file:"):
        with suppress(OSError):  # it is there, or SQLite says what is wrong
            os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))


def _no_implicit_begin(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin says


def _connect(dialect: Any, record: Any, arguments: Sequence[str], options: Mapping[str, Any]) -> sqlite3.Connection:
    """A connection to the file. A process that may only read the file gets one that only reads.

    To read a file in WAL mode SQLite makes two files beside it. Where it may not, and nobody else has made them, nobody
    uses the database: then it can be read as a file that does not change (docs/decisions/0042-who-only-reads.md).
    """
    (file,) = arguments
    connection = dialect.connect(file, **options)
    try:
        return _prepared(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        is_idle = "uri" not in options and not Path(f"{file}-wal").exists()
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DIRECTORY or not is_idle:
            raise
    return _prepared(dialect.connect(f"{Path(file).as_uri()}?immutable=1", uri=True, **options))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.isolation_level = None  # transactions begin where _begin says
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY:  # the mode stays as it is in the file
            raise
    # Checks are for what people write. Rota must be able to end a row that was written past them, as on MariaDB.
    for pragma in ("synchronous = FULL", "ignore_check_constraints = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("rota_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _override_strftime(connection: Any, clock: Clock) -> None:
    own = sqlite3.connect(":memory:", check_same_thread=False)

    def strftime(form: str, moment: Any, *modifiers: str) -> Any:
        time_text = written(clock.now()) if moment == "now" else moment
        marks = ", ".join("?" * (2 + len(modifiers)))
        return own.execute(f"SELECT strftime({marks})", (form, time_text, *modifiers)).fetchone()[0]

    connection.create_function("strftime", -1, strftime, deterministic=True)
