"""Statements that need not be sent at once: on a server they travel with the next one, or with the COMMIT."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Executable

LATER = "rota_later"
"""The execution option of a statement that need not be sent before the next one: a ``Later``."""


class Later:
    """The result of a statement that need not be sent at once. ``rows`` is known when the transaction is committed."""

    rows = 0
    """How many rows the statement changed."""

    waits = False
    """Whether the database's driver has kept the statement. If it has not, the statement was executed."""


def execute_later(connection: Connection, statement: Executable, values: Mapping[str, Any]) -> Later:
    """Execute a write of which no later statement of the transaction needs the result.

    It may be sent with the next statement, or with the commit. If the database refuses it, that one raises the error.

        counted = execute_later(connection, update(task).values(priority=1), {})
    """
    later = Later()
    result = connection.execute(statement, values, execution_options={LATER: later})
    if not later.waits:
        later.rows = result.rowcount
    return later
