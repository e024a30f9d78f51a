"""A connection that one thread keeps while its transactions follow each other at once.

Python needs about as long to take a connection from SQLAlchemy's pool and to give it back as to write a short
transaction. And the pool gives out its connections in turn, so the thread of each one on the server falls asleep again
and again (docs/decisions/0057-handing-a-turn-on.md).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

KEPT_SECONDS = 1.0
"""After so long the pool has the connection back for a moment. It may have learnt that the server ended it."""


class KeptConnection:
    """Begins transactions as an engine does, on one connection. For one thread.

    kept = KeptConnection(engine, clock.monotonic)
    with kept.begin() as connection: ...
    kept.give_back()   # when no transaction follows: the server ends a connection that is idle
    """

    def __init__(self, engine: Engine, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._monotonic = monotonic
        self._connection: Connection | None = None
        self._until = 0.0

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction, which is committed at the end of the block, or rolled back if that raises."""
        now = self._monotonic()
        if now >= self._until:
            self.give_back()
        if self._connection is None:
            self._connection, self._until = self._engine.connect(), now + KEPT_SECONDS
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Give the connection back to the pool, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
