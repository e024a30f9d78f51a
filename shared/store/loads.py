"""The workers to which instances may be given, and how many each of them holds.

What a worker holds is counted up to a limit, by the index alone. So it costs the same whether a worker has a thousand
instances in its queue or a hundred thousand (docs/decisions/0032-bounded-counts.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, bindparam, case, cast, exists, func, literal_column, select

from rota.shared.database.constructs import among, read_by
from rota.shared.domain.jsontext import object_in, texts_in
from rota.shared.domain.pools import queue_of, sizes_in
from rota.shared.domain.states import InstanceStatus, WorkerState
from rota.shared.store.node_types import read_versions
from rota.shared.store.pools import OWN_SLOTS, PoolLoad
from rota.shared.store.tables import (
    schedule_instance,
    schedule_pool_place,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.workers import LIVES, OF_ITS_WORKER, SILENT

_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

COUNTED = 2_000
"""So many assigned instances of each worker are counted, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker to which the scheduler may give instances; ``load`` is how many it holds, assigned or running."""

    id: int
    name: str
    capacity: int
    """How many slots no abandoned thread takes: 0 if it can run nothing until a thread returns."""

    prefetch: int
    load: int
    labels: Mapping[str, str]
    node_types: frozenset[str]
    said: int = 0
    """How many of its slots were taken when it beat last; abandoned threads, which no rows show, are among them."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """The version that it carries of each task type."""

    running: int = 0
    """How many of its load are running."""

    aside: int = 0
    """How much of its load waits for its turn behind others of its tasks, and takes no slot before long."""

    holds_more: bool = False
    """It holds more than was counted: ``load`` is the least that it may be."""

    wake_address: object = None
    """Where it listens for wake-ups, as its row says; None: nowhere."""

    pools: Mapping[str, int] = field(default_factory=dict)
    """Its pools of threads, each with its size. What they hold is a part of ``load``, until ``beside`` takes it off."""

    has_places: bool = False
    """Whether it holds instances with rows in ``schedule_pool_place``. ``load`` counts each as one slot; ``beside``
    corrects that."""

    @property
    def room(self) -> int:
        """How many instances it may hold: its capacity bounds what runs, and the prefetch what waits in its queue."""
        return self.capacity + self.prefetch

    def counted(self, assigned: int | None, most: int) -> "LiveWorker":
        """This worker, with so many instances assigned; None: more than ``most``."""
        load = self.running + (most + 1 if assigned is None else assigned)
        return replace(self, load=load, holds_more=assigned is None)

    def beside(self, held: Mapping[str, PoolLoad]) -> "LiveWorker":
        """The worker's own slots alone: without what its pools hold, and with all slots of each instance."""
        own = held.get(OWN_SLOTS, PoolLoad())
        load = max(0, self.load - sum(one.held for one in held.values())) + own.load
        running = max(0, self.running - sum(one.running for one in held.values())) + own.taken
        return replace(self, load=load, running=running)

    def in_pool(self, pool: str, holds: PoolLoad) -> "LiveWorker":
        """One of its pools, as if it were a worker of its own."""
        size = self.pools[pool]
        queue = queue_of(size, self.capacity, self.prefetch)
        own = replace(self, capacity=size, prefetch=queue, load=holds.load, running=holds.taken)
        return replace(own, said=0, aside=0, holds_more=False)

    @property
    def runs_more(self) -> bool:
        """Whether a slot of it was free when it was read, whatever waits in its queue until later."""
        return max(self.running, self.said) < self.capacity

    @property
    def free_slots(self) -> int:
        """How many slots its load leaves free. A worker with a free slot most likely begins an instance at once."""
        return 0 if self.holds_more else max(self.capacity - self.load, 0)


def _of_worker(what: Any, status: InstanceStatus) -> Any:
    """A SELECT of the instances that the worker of the outer statement holds in this state, by the index alone."""
    held = schedule_instance.alias(f"is_{status.value}")
    chosen = select(what).where(held.c.status == status.value, held.c.schedule_worker_node_id == _worker.id)
    return read_by(chosen, held, "ix_schedule_instance_work").correlate(schedule_worker_node)


_one_more = _of_worker(literal_column("1"), InstanceStatus.ASSIGNED).limit(1).offset(bindparam("counted"))
_assigned: ColumnElement[Any] = case(
    (_one_more.scalar_subquery().is_(None), _of_worker(func.count(), InstanceStatus.ASSIGNED).scalar_subquery())
)
"""How many instances are assigned to a worker; NULL for more than ``counted``. Then no more than those are read."""


def _whole(column: Any) -> Any:
    """A number also where SQL wrote a text, which SQLite keeps as it is."""
    return cast(column, Integer).label(column.name)


_has_places = exists(
    read_by(
        select(literal_column("1")).where(schedule_pool_place.c.schedule_worker_node_id == _worker.id),
        schedule_pool_place,
        "ix_schedule_pool_place_worker",
    ).correlate(schedule_worker_node)
)
_fleet = (
    select(
        _worker.id, _worker.name, _whole(_worker.capacity), _whole(_worker.prefetch), _worker.labels,
        _worker.node_types, _worker.type_versions, _worker.wake_address, _worker.pools,
        _whole(_beat.busy), _whole(_beat.abandoned),
        _assigned.label("assigned"),
        _of_worker(func.count(), InstanceStatus.RUNNING).scalar_subquery().label("running"),
        _has_places.label("has_places"),
    )
    .join_from(schedule_worker_node, schedule_worker_beat, OF_ITS_WORKER)
    .where(
        _worker.state == WorkerState.LIVE.value, _worker.gmt_blocked.is_(None), LIVES, ~SILENT,
        _worker.capacity > literal_column("0"),
    )
)  # fmt: skip


def fleet(connection: Connection, counted: int = COUNTED) -> list[LiveWorker]:
    """The workers to which the scheduler may give instances: live, with a capacity, not blocked.

    Of the instances assigned to each at most ``counted`` are counted. One that has more ``holds_more``.
    """
    return [
        LiveWorker(
            id=row.id,
            name=row.name,
            capacity=max(0, row.capacity - row.abandoned),
            prefetch=row.prefetch,
            load=row.running,
            labels=object_in(row.labels),
            node_types=frozenset(texts_in(row.node_types)),
            said=row.busy,
            versions=read_versions(row.type_versions),
            running=row.running,
            wake_address=row.wake_address,
            pools=sizes_in(row.pools),
            has_places=bool(row.has_places),
        ).counted(row.assigned, counted)
        for row in connection.execute(_fleet, {"counted": counted})
    ]


_assigned_to = select(_worker.id, _assigned).where(among(_worker.id))


def assigned_to(connection: Connection, worker_ids: Collection[int], counted: int) -> dict[int, int | None]:
    """How many instances are assigned to each of these workers, by worker id; None for more than ``counted``."""
    values = {"ids": sorted(worker_ids), "counted": counted}
    return dict(connection.execute(_assigned_to, values).all())
