"""Connections of callers: an INSERT of Rota's as a part of a transaction that is not Rota's."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.engine import URL

from rota.shared.database.backend import Backend
from rota.shared.domain.errors import InvalidInput

ASYNC = ("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession")
SESSION = ("sqlalchemy.orm", "Session", "scoped_session")
AFTER_COMMIT = "rota_after_commit"
"""Where the ``info`` of a session keeps what is to be called after its next commit."""


@dataclass(frozen=True, slots=True)
class Insert:
    """One row for a table of Rota's, in the database of ``url``; the values are what any driver takes.

    insert = Insert(backend, url, "schedule_request", ("type", "number"), ("REPORT", "product-42"))
    """

    backend: Backend
    url: URL
    table: str
    columns: Sequence[str]
    values: Sequence[Any]

    def sql(self, marks: Sequence[str], escaped: Mapping[str, str]) -> str:
        """The statement, with a mark for each value; in the name of the table what would be a mark is escaped."""
        table = self.backend.qualified(self.url, self.table)
        for character, instead in escaped.items():
            table = table.replace(character, instead)
        return f"INSERT INTO {table} ({', '.join(self.columns)}) VALUES ({', '.join(marks)})"

    def named(self) -> tuple[str, dict[str, Any]]:
        """The statement and its values as SQLAlchemy's ``text`` takes them."""
        sql = self.sql([f":{name}" for name in self.columns], {":": "\\:"})
        return sql, dict(zip(self.columns, self.values, strict=True))


def execute(connection: Any, insert: Insert) -> None:
    """Execute it on a caller's connection, and nothing else there.

    Raises InvalidInput for what is no connection, and what the driver raises.
    """
    if _is_of(connection, *ASYNC):
        raise InvalidInput(f"connection {connection!r:.100}: AsyncClient takes it")
    if _is_of(connection, *SESSION):
        connection = connection.connection()
    if isinstance(connection, Connection):
        sql, values = insert.named()
        connection.execute(text(sql), values)
    elif callable(getattr(connection, "cursor", None)):
        mark = insert.backend.mark_of(getattr(connection, "driver_connection", connection))
        with closing(connection.cursor()) as cursor:
            cursor.execute(
                insert.sql([mark] * len(insert.columns), {"%": "%%"} if mark == "%s" else {}), tuple(insert.values)
            )
    else:
        right = "give a Session or a Connection of SQLAlchemy, or one of the driver or of Django"
        raise InvalidInput(f"connection {connection!r:.100}: {right}")


async def execute_async(connection: Any, insert: Insert) -> None:
    """``execute`` for the connections of an event loop."""
    if not _is_of(connection, *ASYNC):
        raise InvalidInput(f"connection {connection!r:.100}: give an AsyncSession or an AsyncConnection of SQLAlchemy")
    sql, values = insert.named()
    await connection.execute(text(sql), values)


def after_commit(connection: Any, call: Callable[[], object]) -> None:
    """Call it once the caller's transaction is committed, if the connection tells that: a session's, or Django's.

    For a session the same call is made once, however often it was asked for, and after a rollback at the next commit.
    """
    if callable(getattr(connection, "on_commit", None)):
        _after_commit_of_django(connection, call)
        return
    if _is_of(connection, "sqlalchemy.orm", "scoped_session"):
        connection = connection()
    session = getattr(connection, "sync_session", connection)  # of an AsyncSession
    if not _is_of(session, "sqlalchemy.orm", "Session"):
        return
    if AFTER_COMMIT not in session.info:
        session.info[AFTER_COMMIT] = set()
        event.listen(session, "after_commit", _committed)
    session.info[AFTER_COMMIT].add(call)


def _after_commit_of_django(connection: Any, call: Callable[[], object]) -> None:
    """Django knows no commit outside of ``atomic`` if it does not commit by itself: then nothing is called."""
    savepoints = set(getattr(connection, "savepoint_ids", ()))
    if any((one[0], one[1]) == (savepoints, call) for one in getattr(connection, "run_on_commit", ())):
        return
    with suppress(Exception):
        connection.on_commit(call)


def _committed(session: Any) -> None:
    if session.in_nested_transaction():  # the end of a savepoint
        return
    calls = session.info[AFTER_COMMIT]
    while calls:
        calls.pop()()


def _is_of(connection: Any, module: str, *classes: str) -> bool:
    """Whether it is of one of these classes. Who has made one has imported the module, so that nobody else need to."""
    there = sys.modules.get(module)
    return there is not None and isinstance(connection, tuple(getattr(there, name) for name in classes))
