"""MariaDB and MySQL, used through PyMySQL: their sessions, the meaning of their errors, and the other members of
``Backend``."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import CheckConstraint, Column, Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DataError, DBAPIError, InvalidatePoolError

from rota.shared.clock import EPOCH, Clock, HostTimer
from rota.shared.database import mysql_checks, mysql_migration
from rota.shared.database.backend import Backend, Check, Checks, ErrorKind, Limits, is_of_data, range_name
from rota.shared.database.constructs import Listed, UtcTimeType, stored_time, written
from rota.shared.database.later import BEFORE, KEEPER, LATER, Later
from rota.shared.database.mysql_connection import connect, send_together
from rota.shared.database.mysql_constructs import compile_for, write_listed
from rota.shared.database.mysql_hosts import DOUBT, Hosts, timed_out
from rota.shared.database.mysql_prepared import Keeper, driver_of, is_listened_to
from rota.shared.database.mysql_session import MYSQLS_SHORTEST_WAIT_SECONDS, SETTING_REFUSED, prepare
from rota.shared.database.questions import KEEPS_ANSWERS
from rota.shared.database.servers import Servers
from rota.shared.database.urls import addresses, has_several_hosts
from rota.shared.database.words import WordType
from rota.shared.domain.jsontext import json_value
from rota.shared.domain.times import EARLIEST, LATEST

if TYPE_CHECKING:
    from rota.shared.database.transactions import Database

DEADLOCK, LOCK_WAIT, CHANGED_SINCE_READ, TOO_LARGE = 1213, 1205, 1020, 1153
INTERRUPTED = frozenset({1317, 1969, 3024})
"""The server cut the statement: by KILL QUERY, or by its own limit of time."""

NO_CERTIFICATE = frozenset({1180, 1467, 3100, 3101})
"""A cluster refused the commit, or could give no id for now."""

CONFLICTS = frozenset({DEADLOCK, CHANGED_SINCE_READ, *INTERRUPTED, *NO_CERTIFICATE})
CONNECTION_LOST = frozenset({0, 1053, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
"""0 is PyMySQL's own code for a closed connection. 1927 and 4031: the server killed the connection, or closed it
because it was idle."""

FULL = frozenset({1040, 1203, 1226, 3032})
"""The server takes no more connections, of anybody or of this account. 3032: MySQL is in its offline mode."""

READ_ONLY = frozenset({1290, 1792, 1836})
NOT_THE_PRIMARY = frozenset({1047, *READ_ONLY})
"""The server takes no writes: it is a replica since a failover, or a node of Galera's that is not ready. The connection
is given up, because another may lead to the primary."""

OUTAGES = CONNECTION_LOST | FULL | NOT_THE_PRIMARY
REFUSALS = frozenset(
    {1048, 1062, 1153, 1264, 1265, 1292, 1364, 1366, 1406, 1441, 1690, 3140, 3141, 3150, 3157, 3158, 3819, 4025}
)
"""Codes by which the server refuses data: too long, out of range, no JSON, a failed CHECK. PyMySQL gives these errors
various classes."""

NO_DATABASE, NOT_FOR_THIS_USER, ACCESS_DENIED = 1049, 1044, frozenset({1045, 1698})
COMMAND_DENIED = frozenset({1142, 1143, 1227})
LOGS_STATEMENTS = 1665
RIGHTS_TO_RUN = ("SELECT", "INSERT", "UPDATE", "DELETE")
RIGHTS_TO_MIGRATE = (*RIGHTS_TO_RUN, "CREATE", "ALTER", "DROP", "INDEX")
UNREACHABLE = frozenset({2002, 2003, 2005})

DUPLICATE_ROW, IN_ANOTHERS_DDL = 1062, 1684
THERE_ALREADY, GONE_ALREADY = frozenset({1050, 1060, 1061, 1826}), frozenset({1051, 1091})
BROKEN = frozenset({0, 2006, 2013})
"""Codes of a connection that was lost. Those of an unreachable server are not among them, because a person who migrates
must see these at once."""

RACES = frozenset(
    {DEADLOCK, DUPLICATE_ROW, IN_ANOTHERS_DDL, CHANGED_SINCE_READ, *THERE_ALREADY, *GONE_ALREADY, *BROKEN}
)

PING_AFTER_SECONDS = 5.0
"""A connection that was idle for longer is pinged before it is used. One that breaks earlier is met by a retry."""


class MySQL(Backend):
    """MariaDB and MySQL."""

    commits_lone_statements = True
    has_own_clock = True
    has_transactional_ddl = False
    script_head = ""
    table_options: Mapping[str, Any] = {
        "mysql_engine": "InnoDB",
        "mysql_charset": "utf8mb4",
        "mysql_collate": "utf8mb4_bin",
        "mariadb_engine": "InnoDB",
        "mariadb_charset": "utf8mb4",
        "mariadb_collate": "utf8mb4_bin",
    }

    def with_driver(self, url: URL) -> URL:
        """The URL with PyMySQL as its driver, for mysql:// and mariadb://."""
        return url.set(drivername="mysql+pymysql")

    def engine(self, url: URL, limits: Limits, servers: Servers) -> Engine:
        """A pool of READ COMMITTED sessions: each statement has its own snapshot, so a read needs no BEGIN."""
        return _engine(url, limits, servers)

    def least_lock_wait(self, engine: Engine) -> float:
        """A second on MySQL."""
        dialect: Any = engine.dialect
        return 0 if dialect.is_mariadb else MYSQLS_SHORTEST_WAIT_SECONDS

    def follow(self, engine: Engine, clock: Clock) -> None:
        """Set the session's ``timestamp`` to the clock's time before a transaction or a read begins."""

        def set_timestamp(connection: Connection) -> None:
            seconds = (clock.now() - EPOCH).total_seconds()
            connection.exec_driver_sql(f"SET timestamp = {seconds:.6f}", execution_options={BEFORE: True})

        event.listen(engine, "begin", set_timestamp)

    def file(self, url: URL) -> Path | None:
        """None: the database is on a server."""
        return None

    def qualified(self, url: URL, table: str) -> str:
        """With the database: another program's connection may use another one of the same server."""
        return f"`{str(url.database).replace('`', '``')}`.{table}"

    def mark_of(self, connection: Any) -> str:
        """The drivers have the same."""
        return "%s"

    def kind_of(self, error: DBAPIError) -> ErrorKind:
        """By the error's number; the number says more than the class."""
        number = code(error)
        if number in CONFLICTS:
            return ErrorKind.CONFLICT
        if number == LOCK_WAIT:
            return ErrorKind.LOCKED
        if number in OUTAGES or error.connection_invalidated:
            return ErrorKind.OUTAGE
        return ErrorKind.REFUSAL if number in REFUSALS or is_of_data(error) else ErrorKind.OTHER

    def advice(self, url: URL, error: BaseException, said: str) -> str | None:
        """The advice for the error's code."""
        return _advice(url, said).get(code(error))

    def column_checks(self, column: Column[Any]) -> list[CheckConstraint]:
        """For a time its range, without zero days and months; for an enum, not the '' that a session without strict
        mode writes in place of an unknown word. The types see to the rest."""
        name = column.name
        checks: list[CheckConstraint] = []
        if isinstance(column.type, UtcTimeType):
            in_range = f"{name} BETWEEN '{written(EARLIEST)}' AND '{written(LATEST)}'"
            no_zeros = f"DAYOFMONTH({name}) > 0 AND MONTH({name}) > 0"
            checks = [CheckConstraint(f"{in_range} AND {no_zeros}", name=range_name(column))]
        elif isinstance(column.type, WordType):
            checks = [CheckConstraint(f"{name} <> ''", name=f"{name}_is_known")]
        return [check.ddl_if(dialect="mysql") for check in checks]

    def essential_checks(self, database: "Database", tables: Collection[str]) -> Checks:
        """The storage engine of the tables, and the isolation level and time zone of Rota's sessions."""
        return mysql_checks.essential(database, tables)

    def advisory_checks(self, database: "Database") -> Checks:
        """Settings of the server."""
        return mysql_checks.advisory(database)

    def check_version(self, database: "Database") -> Check:
        """The version of MariaDB, MySQL or TiDB."""
        return mysql_checks.check_version(database)

    def why_read_only(self, database: "Database") -> list[str]:
        """The settings that make the server read-only, as a replica is."""
        return mysql_checks.why_read_only(database)

    def migration_engine(self, url: URL, turn_seconds: float, statement_seconds: float) -> Engine:
        """An engine whose sessions have these limits."""
        return mysql_migration.migration_engine(url, turn_seconds, statement_seconds)

    def words_added(
        self, table: str, column: str, words: tuple[Sequence[str], Sequence[str]], rest: str
    ) -> Sequence[str]:
        """Append to the enum. MySQL rebuilds a table of whose column a stored one is made; MariaDB must not."""
        after = ", ".join(f"'{word}'" for word in words[1])
        return [f"ALTER TABLE {table} MODIFY {column} ENUM({after}) {rest} /*M!, ALGORITHM=INSTANT*/"]

    def take_turn(self, engine: Engine, until_migrated: ExitStack) -> Connection:
        """Take the migration lock, which is a row lock."""
        return mysql_migration.take_turn(engine, until_migrated)

    def is_turn_refused(self, error: DBAPIError) -> bool:
        """Whether the wait for the row lock has timed out."""
        return code(error) == LOCK_WAIT

    def is_race(self, error: DBAPIError) -> bool:
        """Whether the error's code is one of ``RACES``."""
        return code(error) in RACES


MYSQL = MySQL()


def code(error: BaseException | None) -> int | None:
    """The error's number, from the server or from PyMySQL; None if it has none."""
    original = getattr(error, "orig", error)
    arguments = getattr(original, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _advice(url: URL, said: str) -> dict[int | None, str]:
    create = f"CREATE DATABASE `{url.database}` CHARACTER SET utf8mb4"
    rights = RIGHTS_TO_RUN if said.partition(" ")[0] in RIGHTS_TO_RUN else RIGHTS_TO_MIGRATE
    grant = f"GRANT {', '.join(rights)} ON `{url.database}`.* TO '{url.username}'@'%'"
    return {
        NO_DATABASE: f"create it: {create}",
        NOT_FOR_THIS_USER: f"it may not exist ({create}), or the user may not use it ({grant})",
        **dict.fromkeys(ACCESS_DENIED, "check the user and the password in the URL"),
        **dict.fromkeys(COMMAND_DENIED, f"as an administrator: {grant}"),
        **dict.fromkeys(READ_ONLY, "Rota writes: give it the URL of the primary, not of a replica"),
        SETTING_REFUSED: "let the server take it from this user, or connect past the proxy that refuses it",
        LOGS_STATEMENTS: "SET GLOBAL binlog_format = ROW, and in the server's configuration",
        **dict.fromkeys(UNREACHABLE, _unreachable(url)),
    }


def _unreachable(url: URL) -> str:
    if has_several_hosts(url):
        return f"Rota needs one of {', '.join(map(str, addresses(url)))} to answer and to take writes"
    return f"no server answers at {url.host or 'localhost'}:{url.port or 3306}"


def _engine(url: URL, limits: Limits, servers: Servers) -> Engine:
    engine = create_engine(
        url,
        hide_parameters=True,  # errors are logged, and the parameters hold params and results of tasks
        json_deserializer=json_value,
        execution_options={KEEPER: Keeper(), KEEPS_ANSWERS: True},
        pool_size=10,  # a process has five threads that use it at most, in turn: no connection stays idle for long
        max_overflow=0,
        connect_args={
            "charset": "utf8mb4",
            "connect_timeout": limits.connect,
            "read_timeout": limits.connect,
            "write_timeout": limits.connect,
            "autocommit": True,
            "conv": {**conversions, FIELD_TYPE.DATETIME: stored_time, Listed: write_listed},
        },
    )
    compile_for(engine)
    send_together(engine)
    if has_several_hosts(url):
        Hosts(url, limits.connect, servers).follow(engine)
    else:
        event.listen(engine, "do_connect", connect)
    waits = limits.waits_for_locks
    event.listen(engine, "connect", lambda connection, record: prepare(connection, record, servers, waits=waits))
    event.listen(engine, "connect", lambda connection, record: connection.limit(limits.call, limits.call))
    event.listen(engine, "begin", _begin)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", _ping_if_idle)
    event.listen(engine, "handle_error", _leave)
    event.listen(engine, "handle_error", _refuse_oversized)
    return engine


def _begin(connection: Connection) -> None:
    driver = driver_of(connection)
    driver.is_told = is_listened_to(connection)
    if not connection.get_execution_options().get("rota_write"):
        return
    if driver.is_told:
        connection.exec_driver_sql("BEGIN", execution_options={LATER: Later()})
    else:
        driver.later("BEGIN", Later())


def _note_use(connection: Any, record: Any) -> None:
    record.info["used"] = HostTimer().monotonic()


def _ping_if_idle(connection: Any, record: Any, proxy: Any) -> None:
    now = HostTimer().monotonic()
    if now - record.info.get("used", now) > PING_AFTER_SECONDS:
        try:
            connection.ping(reconnect=False)
        except pymysql.err.Error as error:
            _doubt_host(record.info, error)
            raise InvalidatePoolError from error


def _leave(context: ExceptionContext) -> None:
    """Give up the connection to a server that is not the primary any more."""
    if code(context.original_exception) in NOT_THE_PRIMARY:
        context.is_disconnect = True
    if context.connection is not None and not context.connection.invalidated:
        _doubt_host(context.connection.info, context.original_exception)


def _doubt_host(info: Mapping[Any, Any], error: BaseException) -> None:
    """Let the next connection go to another host of the URL, if this one is not the primary or does not answer."""
    if DOUBT in info and (code(error) in NOT_THE_PRIMARY or timed_out(error)):
        info[DOUBT](str(error.args[-1]))


def _refuse_oversized(context: ExceptionContext) -> None:
    """Turn the lost connection after a statement that is too long into a DataError.

    The server closes the connection on a statement longer than ``max_allowed_packet``, at every attempt, whether it
    could say so before or not. So this is no outage, but a refusal of the data, and a retry would not help.
    """
    connection, executing = context.connection, context.execution_context
    lost = code(context.original_exception) in {*CONNECTION_LOST, TOO_LARGE}
    if not lost or connection is None or executing is None or not isinstance(context.parameters, dict):
        return
    limit = connection.info["max_allowed_packet"]
    length = len(executing.cursor.mogrify(context.statement, context.parameters).encode())
    if length >= limit:
        connection.invalidate()  # a ROLLBACK on it would fail as in an outage
        said = f"a statement of {length:,} bytes is more than the server's max_allowed_packet of {limit:,}"
        raise DataError(context.statement, None, pymysql.err.DataError(TOO_LARGE, said)) from None
