"""What both duties place by: the node types there are, and the live workers with their loads."""

from dataclasses import dataclass

from scheduler_service.placement import Fleet
from shared.clock import boottime
from shared.domain.nodes import Catalog
from shared.store import node_types, workers
from shared.store.database import Database

WORLD_SECONDS = 0.25
"""For how long a look at the world is good enough: a batch takes less, and loads are counted on meanwhile."""


@dataclass(frozen=True, slots=True)
class World:
    """The node types, and the workers as they are being filled."""

    catalog: Catalog
    fleet: Fleet


class Worlds:
    """The world as one duty sees it, read again when it is older than ``WORLD_SECONDS``.

    A worker that died since is still given work, which the reaper takes back: as if it had died a moment later.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: World | None = None
        self._read_at = 0.0

    def current(self) -> World:
        """The world, with what was given since it was read."""
        if self._seen is None or boottime() - self._read_at > WORLD_SECONDS:
            self._read_at = boottime()
            self._seen = self._database.read(lambda c: World(node_types.catalog(c), Fleet(workers.fleet(c))))
        return self._seen
