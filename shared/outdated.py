"""Whether the database still takes this Rota: a running process asks now and then, since a migration may raise it."""

import logging
from collections.abc import Callable

from rota.shared.database.checks import stated_oldest_version, takes_this_rota
from rota.shared.database.transactions import Database
from rota.shared.database.urls import named

log = logging.getLogger(__name__)

EXIT_OUTDATED = 3
"""The exit code of a process that stops because it is too old, as of one that does not start on such a database."""


class Outdated:
    """Stops a process that is too old for the schema, by calling ``stop`` once. The log says why.

    outdated = Outdated(database, stop)
    outdated.look()
    """

    def __init__(self, database: Database, stop: Callable[[], None]) -> None:
        self._database = database
        self._stop = stop
        self._told = False

    def look(self) -> None:
        """Ask the database once, by one statement."""
        check = takes_this_rota(named(self._database.url), self._database.read(stated_oldest_version))
        if check.ok is False and not self._told:
            self._told = True
            log.error("this process stops, since it is too old: %s", check)
            self._stop()
