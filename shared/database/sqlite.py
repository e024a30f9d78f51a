"""SQLite, the default database, for one machine: its sessions, its errors, and how constructs are compiled for it."""

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
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
from sqlalchemy.dialects.sqlite import DATETIME
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

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
    BigIdType,
    JsonRows,
    ListedValues,
    ListType,
    OrIgnore,
    SecondsBefore,
    UtcNow,
    UtcTimeType,
    columns_of,
    stored_time,
    unindexed,
    written,
)
from rota.shared.database.json_lists import Appended
from rota.shared.database.servers import Servers
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
        engine.dialect.colspecs = {**engine.dialect.colspecs, ListType: _AsJson, UtcTimeType: _Time}
        event.listen(engine, "do_connect", _make_private)
        event.listen(engine, "do_connect", _connect)
        event.listen(engine, "begin", _begin)
        return engine

    def follow(self, engine: Engine, clock: Clock) -> None:
        """Give each connection another ``strftime``, which takes 'now' from the clock: SQLite has no such setting."""
        event.listen(engine, "connect", lambda connection, _: _override_strftime(connection, clock))

    def file(self, url: URL) -> Path | None:
        """The database's file, also where it is given as a URI; None if it is in memory."""
        name = url.database or ""
        path = unquote(urlsplit(name).path) if name.startswith("file:") else name
        return Path(path) if path and not path.startswith(":memory:") else None

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


# How constructs are compiled

_TIME = "%Y-%m-%d %H:%M:%f000"


@compiles(BigIdType, "sqlite")
def _big_id(element: Any, compiler: Any, **kw: Any) -> str:
    return "INTEGER"


@compiles(UtcNow, "sqlite")
def _utc_now(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(strftime('{_TIME}', 'now'))"


@compiles(SecondsBefore, "sqlite")
def _seconds_before(element: Any, compiler: Any, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('{_TIME}', {moment}, (-1 * {seconds}) || ' seconds')"


@compiles(JsonRows, "sqlite")
def _json_each(element: Any, compiler: Any, **kw: Any) -> str:
    rows = compiler.process(next(iter(element.clauses)), **kw)
    columns = ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name, _ in columns_of(element))
    return f"(SELECT {columns} FROM json_each({rows}))"


@compiles(Appended, "sqlite")
def _json_insert(element: Any, compiler: Any, **kw: Any) -> str:
    listed, item, most = (compiler.process(clause, **kw) for clause in element.clauses)
    shortened = f"CASE WHEN json_array_length({listed}) >= {most} THEN json_remove({listed}, '$[0]') ELSE {listed} END"
    return f"json_insert(coalesce(CASE WHEN json_valid({listed}) THEN {shortened} END, '[]'), '$[#]', json({item}))"


@compiles(ListedValues, "sqlite")
def _json_list(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(next(iter(element.clauses)), **kw)}))"


@compiles(OrIgnore, "sqlite")
def _or_ignore(element: Any, compiler: Any, **kw: Any) -> str:
    return "OR IGNORE"


@compiles(unindexed, "sqlite")
def _unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class _AsJson(ListType):
    def bind_processor(self, dialect: Any) -> Callable[[Any], str]:
        return lambda values: json.dumps(list(values))


class _Time(DATETIME):
    """A text that is no time stays text, as on MariaDB, so that one row fails and not its whole batch."""

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        return lambda value: stored_time(value) if isinstance(value, str) else value


class RowsFirst(SQLiteCompiler):
    """Updates by ``json_rows``: SQLite reads the rows of the parameter first, then finds each by its primary key.

    Without NOT INDEXED it would read all rows of a status, and the whole parameter again for each of them.
    """

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        table = self.process(from_table, asfrom=True, iscrud=True, **kw)
        by_primary_key = extra_froms and not update_stmt._hints  # noqa: SLF001
        return f"{table} NOT INDEXED" if by_primary_key else table  # it still finds rows by the primary key
