"""Tasks of kinds that this scheduler does not know: it leaves them to newer schedulers."""

import logging
from datetime import timedelta

from rota.scheduler_service.notices import Notices
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import UnknownKind
from rota.shared.domain.planning import PlannedTask
from rota.shared.domain.releases import own_version
from rota.shared.store import kinds, locks

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""How often a scheduler that leaves tasks alone looks whether somebody plans them, and how overdue they must be."""


class UnknownKinds:
    """What a scheduler does about tasks of kinds that it does not know.

    A newer Rota may run beside this one, and know more kinds. From the first such task on, this scheduler looks for
    tasks of the kinds that it knows alone: it neither leases the others nor sets them aside.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kinds: set[tuple[str, str]] = set()
        self._leased: list[int] = []
        self._notices = Notices("kinds")

    @property
    def are_left(self) -> bool:
        """Whether there are kinds that this scheduler does not know: it is to look for tasks of the others alone."""
        return bool(self._kinds)

    def leaves(self, task: PlannedTask, error: UnknownKind) -> bool:
        """Whether a task is left to a newer scheduler. If not, SQL has written the word past the checks."""
        kind = (error.column, error.word)
        if kind not in self._kinds:
            if not self._database.read(lambda c: kinds.takes(c, *kind)):
                return False
            self._kinds.add(kind)
            log.info("tasks with %s %r, such as %r, are left to newer schedulers: %s", *kind, task.name, error)
        self._leased.append(task.id)
        return True

    def give_back(self, token: str) -> None:
        """Give back the leases of the tasks of this batch that are left, or the others would wait for their end."""
        if self._leased:
            leased, self._leased = self._leased, []
            self._database.write(lambda c: locks.drop(c, token, leased))

    def step(self) -> float:
        """Say of which kinds there are tasks that no scheduler plans. Returns the seconds to rest."""
        if self.are_left:
            since = self._database.clock.now() - timedelta(seconds=LOOK_SECONDS)
            neglected = self._database.read(lambda c: kinds.neglected(c, since))
            self._notices.complain(_complaint(column, word) for column, word in neglected)
            self._notices.looked_at_all()
        return LOOK_SECONDS


def _complaint(column: str, word: str) -> str:
    return (
        f"tasks with {column} {word!r} do not fire: this Rota {own_version()} does not know it, and no scheduler that "
        "does is at work; start a scheduler of the Rota that migrated the database"
    )
