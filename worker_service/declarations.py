"""The tasks that an app declares: when its worker starts, and again when a newer version of the app is gone."""

import logging
from collections.abc import Sequence

from rota.shared.control import tasks
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.versions import version_of
from rota.shared.settings import Settings
from rota.shared.store import declarations

log = logging.getLogger(__name__)


class Declarations:
    """Declares an app's tasks. Those that yield to a newer declaration are declared again until they are in force.

    It also watches which versions of apps live workers carry. When one is gone, a canary or a deploy that was rolled
    back, for example, it declares all tasks again: those that the gone version had declared otherwise go back.
    """

    def __init__(self, database: Database, definitions: Sequence[TaskDefinition], by: str, settings: Settings) -> None:
        self._database = database
        self._definitions = definitions
        self._actor = Actor(by, "code")
        self._limit = settings.liveness_seconds
        self._again = settings.heartbeat_seconds
        self._carried: set[str] = set()
        self._yielding: list[TaskDefinition] = []

    @property
    def versions(self) -> dict[str, str]:
        """The version of each task's declaration, by the task's name."""
        return {one.name: version_of(one.declared()) for one in self._definitions}

    def declare(self) -> None:
        """Declare all tasks.

        Raises InvalidInput.
        """
        self._carried = self._read_carried()
        self._declare(self._definitions)
        for one in self._yielding:
            log.warning("worker: task %r: a live worker carries a newer declaration, which stays in force", one.name)

    def look(self) -> float:
        """Declare again what must be; returns the seconds to rest."""
        carried = self._read_carried()
        self._declare(self._definitions if self._carried - carried else self._yielding)
        self._carried = carried
        return self._again if self._yielding else self._limit

    def _declare(self, definitions: Sequence[TaskDefinition]) -> None:
        limit = self._limit
        self._yielding = [
            one for one in definitions if not tasks.declare(self._database, self._actor, one, liveness_seconds=limit)
        ]

    def _read_carried(self) -> set[str]:
        return self._database.read(lambda c: declarations.apps_carried(c, self._limit))
