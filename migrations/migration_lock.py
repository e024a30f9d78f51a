"""The migration lock: one process migrates at a time, and a process that dies while it migrates blocks no other.

The kind of lock depends on the database (``Backend.take_turn``). The lock only saves work; a migration is correct
without it, because every step leaves out what it finds done (migrations/steps.py). A process that loses a race
(``is_race``) begins again, reads the schema anew, and runs only the missing steps.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from alembic.util import CommandError
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from rota.shared.database.backends import backend_of
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem

TURN_SECONDS = 600
"""How long a process waits for another process that migrates."""

STATEMENT_SECONDS = 4 * 3600
"""The limit for one statement. It is long, because an ALTER of a table with a long history may take hours."""


def is_race(url: URL, error: BaseException) -> bool:
    """Whether another process made the same step first, or the connection broke: then the migration begins again."""
    if isinstance(error, DBAPIError):
        return backend_of(url).is_race(error)
    return isinstance(error, CommandError)  # another process has changed the revision that this one had read


def migration_engine(url: URL) -> Engine:
    """An engine whose statements may take hours, as DDL may. Those of a ``Database`` may not."""
    return backend_of(url).migration_engine(url, TURN_SECONDS, STATEMENT_SECONDS)


@contextmanager
def exclusive(engine: Engine) -> Iterator[Connection]:
    """A connection on which to migrate; inside the block no other process migrates this database.

    Raises DatabaseProblem if another process still migrates, or writes, after ``TURN_SECONDS``.
    """
    backend = backend_of(engine.url)
    with ExitStack() as until_migrated:
        try:
            connection = backend.take_turn(engine, until_migrated)
        except DBAPIError as error:
            if backend.is_turn_refused(error):
                raise DatabaseProblem(
                    f"{named(engine.url)}: another process has been migrating or writing for {TURN_SECONDS} s; "
                    "wait for it, or end it, and run rota migrate again"
                ) from error
            raise
        yield connection
