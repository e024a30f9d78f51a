"""DDL on tables that others use: it waits for their transactions for a moment only, and tries again.

DDL needs its table for itself for an instant, and waits for every transaction that has read the table, a dump's too.
All later statements on the table wait behind it. So it gives up after a second, lets these pass, and comes back.
"""

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pymysql
from pymysql.constants import ER
from sqlalchemy import Engine, event

from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.times import span

log = logging.getLogger(__name__)

WAIT_SECONDS = 1
"""How long DDL waits for a table, and all later statements on the table behind it. The server takes whole seconds."""

OTHERS_SECONDS = 60
"""How long the other statements of a migration wait for a table that somebody else's DDL has."""

PAUSE_SECONDS = 4.0
"""How long others have the table before the next try."""

PATIENCE_SECONDS = 600.0
"""After so long without the table, ``rota migrate`` ends."""

WORK_SHARE, MOST_SECONDS = 10, 60
"""DDL that has built an index for long and then did not get the table may wait a tenth of that time at the next try, a
minute at most: else it could build the index for ever."""

SHOWN = 3
"""How many of the open transactions are named at most."""

_DDL = re.compile(
    r"\s*(?:ALTER|CREATE|DROP)\s+(?:UNIQUE\s+)?(?:TABLE|INDEX)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(\S+)", re.I
)
_ON_TABLE = re.compile(r"\s+INDEX\s+\S+\s+ON\s+(\S+)", re.I)
_OPEN = (
    "SELECT p.id, p.user, p.host, TIMESTAMPDIFF(SECOND, t.trx_started, NOW())"
    " FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
    " WHERE p.id NOT IN %s ORDER BY t.trx_started LIMIT %s"
)


def wait_briefly(engine: Engine) -> None:
    """Let the engine's DDL wait for other transactions for ``WAIT_SECONDS`` at a time.

    A statement raises DatabaseProblem, which says who uses the table, when ``PATIENCE_SECONDS`` have passed.
    """

    own: set[int] = set()  # who migrates has a second connection, on which a transaction holds the migration lock

    def note(connection: Any, record: Any) -> None:
        own.add(connection.thread_id())

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        table = table_of(statement)
        if table is None:
            return False
        _patiently(cursor, partial(cursor.execute, statement, parameters), table, own)
        return True

    def execute_without(cursor: Any, statement: str, context: Any) -> bool:
        return execute(cursor, statement, None, context)

    event.listen(engine, "connect", note)
    event.listen(engine, "do_execute", execute)
    event.listen(engine, "do_execute_no_params", execute_without)


def table_of(statement: str) -> str | None:
    """The table that this statement is to change; None for one that is no DDL."""
    found = _DDL.match(statement)
    if found is None:
        return None
    return (_ON_TABLE.search(statement) or found)[1].strip("`")


def _patiently(cursor: Any, change: Callable[[], object], table: str, own: set[int]) -> None:
    began, wait = time.monotonic(), WAIT_SECONDS
    while True:
        tried = time.monotonic()
        try:
            cursor.execute(f"SET lock_wait_timeout = {wait}")
            change()
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
                raise
        else:
            cursor.execute(f"SET lock_wait_timeout = {OTHERS_SECONDS}")
            return
        now = time.monotonic()
        used = f"the table {table} is in use by {_users(cursor, own)}"
        if now - began > PATIENCE_SECONDS:
            told = f"{used}; it was not free for {span(PATIENCE_SECONDS)}. End that, and run rota migrate again"
            raise DatabaseProblem(f"{told}: it goes on where it stopped")
        log.warning("migrate: %s; tries again in %g s, others use the table meanwhile", used, PAUSE_SECONDS)
        wait = min(MOST_SECONDS, max(WAIT_SECONDS, int(now - tried) // WORK_SHARE))
        time.sleep(PAUSE_SECONDS)


def _users(cursor: Any, own: set[int]) -> str:
    """Who may use the table: the open transactions of others, the oldest first."""
    try:
        cursor.execute(_OPEN, (sorted(own), SHOWN))
    except pymysql.err.MySQLError:
        return "an open transaction; GRANT PROCESS ON *.* lets rota migrate say whose"
    found = cursor.fetchall()
    if not found:
        return "a transaction or LOCK TABLES of another connection"
    told = (
        f"connection {number} of {user}@{host}, open for {span(age)} (KILL {number} ends it)"
        for number, user, host, age in found
    )
    return "one of the open transactions: " + "; ".join(told)
