"""A database of which listeners use a few connections at most. The others are for the runs, and for the leases."""

import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from rota.shared.database.transactions import Database

T = TypeVar("T")

MOST_CONNECTIONS = 4
"""Of the ten that a process has."""


class Sparing:
    """Runs the work of many threads on ``MOST_CONNECTIONS`` connections at once, as ``Database`` does.

    Sparing(database).read(look)
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.clock = database.clock

    def read(self, work: Callable[[Connection], T]) -> T:
        """As ``Database.read``."""
        with self._room:
            return self._database.read(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """As ``Database.write``."""
        with self._room:
            return self._database.write(work)

    def write_one(self, work: Callable[[Connection], T]) -> T:
        """As ``Database.write_one``."""
        with self._room:
            return self._database.write_one(work)
