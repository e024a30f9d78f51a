"""The snapshot that duties place by: the registered node types, and the live workers with their loads."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from rota.scheduler_service.floods import Floods
from rota.scheduler_service.long_queues import LongQueues, counted
from rota.scheduler_service.placement import Fleet, Needs, needs_of
from rota.shared.database.transactions import Database
from rota.shared.domain.nodes import Catalog, PlannedNode
from rota.shared.store import loads, node_types, pools
from rota.shared.store.loads import LiveWorker
from rota.shared.store.node_types import Version
from rota.shared.store.pools import PoolLoad

SNAPSHOT_SECONDS = 0.25
"""For how long a snapshot of the fleet is good enough: what is given meanwhile is counted."""

SNAPSHOT_SHARE = 0.05
LONGEST_SNAPSHOT_SECONDS = 1.0
"""The share of the time that reading may take. A snapshot that took long to read is good for longer; but not for ever,
since reading also takes as long as the database is away."""

LISTS_SECONDS = 60.0
"""A version never changes, but SQL may have spoiled its list when it was read. So it is read again after this."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The registered node types, and the live workers with their versions and with what was given to them since."""

    catalog: Catalog
    fleet: Fleet
    pools: Mapping[str, Fleet] = field(default_factory=dict)
    """Of each pool the workers that have it, with their threads and their loads of that pool alone."""

    more: Mapping[int, int] = field(default_factory=dict)
    """How many slots and threads the instances of a worker take beyond one for each, by worker id, when it was read."""

    def of_pool(self, pool: str | None) -> Fleet:
        """The workers for what runs in a pool; None: in their own slots."""
        if pool is None or self.fleet.is_empty:
            return self.fleet
        found = self.pools.get(pool)
        return Fleet((), pool=pool, floods=self.fleet.floods) if found is None else found

    def has_room(self, *, can_wait: bool = False, floods: bool = False) -> bool:
        """Whether any worker may be given one more, for its own slots or for a pool (``Fleet.has_room``)."""
        return any(fleet.has_room(can_wait=can_wait, floods=floods) for fleet in (self.fleet, *self.pools.values()))

    def load_of(self, worker_id: int) -> int | None:
        """How many instances a worker holds with all of its pools (``Fleet.load_of``)."""
        if self.fleet.load_of(worker_id) is None:
            return None
        fleets = (self.fleet, *self.pools.values())
        slots = sum(fleet.load_of(worker_id) or 0 for fleet in fleets)
        return slots - self.more.get(worker_id, 0) - sum(fleet.more_given(worker_id) for fleet in fleets)

    def wanted(
        self, task_type: str, listed: Sequence[PlannedNode] | None, labels: Mapping[str, str], weight: int = 1
    ) -> tuple[Sequence[PlannedNode] | None, Needs]:
        """The nodes that a param lists (None: none), as they are given; and what the instance needs of a worker.

        Raises InvalidInput for bad labels, and UnknownType for a type that nobody has registered.
        """
        if listed is None:
            self.catalog.lists_of(task_type)
            return None, needs_of((), labels, task_type, weight)
        return listed, needs_of(listed, labels, weight=weight)


class FleetCache:
    """The snapshot that all duties of a scheduler place by and fill, read again when it is too old.

    A worker that died since then is still given work. The reaper takes that back, as if the worker had died a moment
    later.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = database.clock
        self._lock = threading.Lock()
        self._lists: dict[Version, list[str]] = {}
        """What the versions in the last snapshot mean."""

        self._lists_good_until = 0.0
        self._queues = LongQueues(database.clock)
        self._floods: dict[str | None, Floods] = {}
        """By pool; None: in the workers' own slots."""

        self._counted = loads.COUNTED

        self.aside: Callable[[], Mapping[int, int]] = dict
        """How many slots those take that each worker was given ahead of their turns, by worker id."""

        self._seen: FleetSnapshot | None = None
        self._good_until = 0.0

    def current(self) -> FleetSnapshot:
        """The snapshot, with what was given since it was read."""
        with self._lock:
            if self._seen is None or self._clock.monotonic() > self._good_until:
                began = self._clock.monotonic()
                self._seen = self._database.read(self._read)
                now = self._clock.monotonic()
                lasts = max(SNAPSHOT_SECONDS, (now - began) / SNAPSHOT_SHARE)
                self._good_until = now + min(lasts, LONGEST_SNAPSHOT_SECONDS)
            return self._seen

    def seconds_good(self) -> float:
        """How long until ``current`` reads the fleet again."""
        with self._lock:
            return max(0.0, self._good_until - self._clock.monotonic())

    def _known(self, worker_id: int) -> int | None:
        return None if self._seen is None else self._seen.load_of(worker_id)

    def _read(self, connection: Connection) -> FleetSnapshot:
        catalog = Catalog(node_types.registered(connection))
        live = self._queues.estimated(connection, loads.fleet(connection, self._counted), self._known)
        self._counted = counted(len(live))
        carried = {version for worker in live for version in worker.versions.items()}
        if self._clock.monotonic() > self._lists_good_until:
            self._lists, self._lists_good_until = {}, self._clock.monotonic() + LISTS_SECONDS
        known = {version: types for version, types in self._lists.items() if version in carried}
        self._lists = known | node_types.lists(connection, carried - known.keys())
        planned = {version: catalog.planned(types) for version, types in self._lists.items()}
        carried_lists = {version: nodes for version, nodes in planned.items() if nodes}
        held = pools.held(connection, [worker.id for worker in live if worker.has_places])
        beside = [worker.beside(held[worker.id]) if worker.id in held else worker for worker in live]
        aside = self.aside()
        beside = [replace(one, aside=min(aside[one.id], one.load)) if one.id in aside else one for one in beside]
        of_pools = {
            pool: Fleet(workers, carried_lists, pool=pool, floods=self._floods_of(pool))
            for pool, workers in _by_pool(live, held).items()
        }
        more = {worker: sum(one.more for one in of_worker.values()) for worker, of_worker in held.items()}
        return FleetSnapshot(catalog, Fleet(beside, carried_lists, floods=self._floods_of(None)), of_pools, more)

    def _floods_of(self, pool: str | None) -> Floods:
        return self._floods.setdefault(pool, Floods(self._clock))


def _by_pool(live: Sequence[LiveWorker], held: Mapping[int, Mapping[str, PoolLoad]]) -> dict[str, list[LiveWorker]]:
    having: dict[str, list[LiveWorker]] = {}
    for worker in live:
        for pool in worker.pools:
            holds = held.get(worker.id, {}).get(pool, PoolLoad())
            having.setdefault(pool, []).append(worker.in_pool(pool, holds))
    return having
