"""Statements that need not be sent at once: on a server they travel with the next one, or with the COMMIT. What their
transaction must know is read before it begins."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, text

T = TypeVar("T")

LATER = "rota_later"
"""The execution option of a statement that need not be sent before the next one: a ``Later``."""

KEEPER = "rota_keeper"
"""The execution option by which an engine has a ``Keeps``."""

BEFORE = "rota_before"
"""The execution option of a statement that is executed before the transaction begins."""


Keeps = Callable[[Connection, Executable, Mapping[str, Any], "Later"], bool]
"""Gives the text of a statement to the driver's connection, which keeps it for the next packet. Returns False if it has
not: then SQLAlchemy is to execute the statement."""


class Unexpected(Exception):
    """A statement changed another number of rows than its transaction relies on. Nothing of that is committed."""


class Later:
    """The result of a statement that need not be sent at once. ``rows`` is known when the transaction is committed."""

    rows = 0
    """How many rows the statement changed."""

    waits = False
    """Whether the database's driver has kept the statement. If it has not, the statement was executed."""

    def __init__(self, expected: int | None = None) -> None:
        self.expected = expected

    def tell(self, rows: int) -> None:
        """Say how many rows the statement changed. Raises Unexpected if it should have been another number."""
        self.rows = rows
        if self.expected is not None and rows != self.expected:
            raise Unexpected(f"{rows} rows instead of {self.expected}")


def execute_later(
    connection: Connection, statement: Executable, values: Mapping[str, Any], *, expected: int | None = None
) -> Later:
    """Execute a write of which no later statement of the transaction needs the result.

    It may be sent with the next statement, or with the commit. If the database refuses it, that one raises the error.
    If it changes another number of rows than ``expected``, that one raises Unexpected; the server then executes no
    later statement, and nothing is committed. So a transaction of guarded writes is one packet.

        counted = execute_later(connection, update(task).values(priority=1), {})
    """
    later = Later(expected)
    keeps: Keeps | None = connection.get_execution_options().get(KEEPER)
    if keeps is not None and keeps(connection, statement, values, later):
        later.waits = True
        return later
    result = connection.execute(statement, values, execution_options={LATER: later})
    if not later.waits:
        later.tell(result.rowcount)
    return later


def read_before(connection: Connection, statement: Executable, values: Mapping[str, Any]) -> Any:
    """Execute a read before this transaction begins, as long as the transaction has executed nothing else. Returns
    SQLAlchemy's result.

    On a server nothing stays locked behind it. A read with SKIP LOCKED so tells which rows nobody else has locked. What
    was read may change before the transaction: its writes are guarded, or say how many rows they expect. Where the
    transaction has begun, as on SQLite, the read is a part of it.

        ids = read_before(connection, pending, {}).scalars().all()
        execute_later(connection, cancel_if_pending, {"ids": ids})
    """
    return connection.execute(statement, values, execution_options={BEFORE: True})


def then_read(write: Callable[[Connection], object], read: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """The work of a transaction that writes ``later`` only, commits, and then reads: all of it is one packet.

    database.write(then_read(lambda c: locks.take(c, token, ids, 2), lambda c: locks.held(c, token, ids)))
    """

    def work(connection: Connection) -> T:
        write(connection)
        execute_later(connection, text("COMMIT"), {})
        return read(connection)

    return work
