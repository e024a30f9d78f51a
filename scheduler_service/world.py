"""What the duties place by: the node types there are, and the live workers with their loads."""

import threading
from dataclasses import dataclass

from scheduler_service.placement import Fleet
from shared.clock import boottime
from shared.domain.nodes import Catalog
from shared.store import node_types, workers
from shared.store.database import Database

WORLD_SECONDS = 0.25
"""For how long a look at the world is good enough: loads are counted on meanwhile."""

WORLD_SHARE = 0.05
LONGEST_WORLD_SECONDS = 1.0
"""What part of the time looking may take, for it counts all that is assigned: a look that took long is good for longer,
but not for ever, for it also takes as long as the database is away."""


@dataclass(frozen=True, slots=True)
class World:
    """The node types, and the workers as they are being filled."""

    catalog: Catalog
    fleet: Fleet


class Worlds:
    """The world as all duties of a scheduler see it and fill it, read again when it is too old.

    A worker that died since is still given work, which the reaper takes back: as if it had died a moment later.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen: World | None = None
        self._good_until = 0.0

    def current(self) -> World:
        """The world, with what was given since it was read."""
        with self._lock:
            if self._seen is None or boottime() > self._good_until:
                began = boottime()
                self._seen = self._database.read(lambda c: World(node_types.catalog(c), Fleet(workers.fleet(c))))
                now = boottime()
                self._good_until = now + min(max(WORLD_SECONDS, (now - began) / WORLD_SHARE), LONGEST_WORLD_SECONDS)
            return self._seen

    def seconds_good(self) -> float:
        """How long until ``current`` reads the world again."""
        with self._lock:
            return max(0.0, self._good_until - boottime())
