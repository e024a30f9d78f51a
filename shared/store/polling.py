"""How a worker finds the instances that are assigned to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, exists, func, literal_column, select

from rota.shared.database.constructs import among, by_index, joined_ids, read_by, split_ids
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.domain.weights import weight_in
from rota.shared.store.pools import OF_ITS_PLACE, OWN_SLOTS
from rota.shared.store.tables import PRIORITIES, schedule_instance, schedule_pool_place

_instance = schedule_instance.c
_place = schedule_pool_place.c
_PLACES = "ix_schedule_pool_place_worker"

Assigned = tuple[int, datetime, int]
"""A row as the poll reads it: id, due_at (naive UTC), priority."""


NO_WEIGHTS: Mapping[int, int] = MappingProxyType({})


class Polled(NamedTuple):
    """What a poll has read."""

    rows: Sequence[Assigned]
    weights: Mapping[int, int] = NO_WEIGHTS
    """The weights of the instances that take several slots, by id."""


class Lane(Enum):
    """Which of the instances assigned to a worker are meant."""

    ALL = "all"
    BESIDE_POOLS = "beside its pools"
    POOL = "a pool"


@dataclass(frozen=True, slots=True)
class Queue:
    """The instances assigned to a worker, for its own slots or for one of its pools.

    Queue(3); Queue(3, pools=("images",)); Queue(3, pool="images")
    """

    worker: int
    pool: str | None = None
    pools: tuple[str, ...] = ()
    """The pools of the worker, whose instances its own slots leave alone."""

    @property
    def lane(self) -> Lane:
        """Which of the worker's instances are in this queue."""
        if self.pool is not None:
            return Lane.POOL
        return Lane.BESIDE_POOLS if self.pools else Lane.ALL

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the statements of ``QUEUED`` that say which queue is meant."""
        if self.pool is not None:
            return {"worker": self.worker, "pool": self.pool}
        return {"worker": self.worker, "pools": sorted(self.pools)} if self.pools else {"worker": self.worker}

    @property
    def places(self) -> dict[str, Any]:
        """The parameters that say where the places of its instances are."""
        return {"worker": self.worker, "place": self.pool or OWN_SLOTS}


_assigned = (
    select(_instance.id, _instance.due_at, _instance.priority)
    .where(
        _instance.status == InstanceStatus.ASSIGNED.value,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.priority.in_(PRIORITIES),
        _instance.due_at <= bindparam("horizon"),
    )
    .order_by(_instance.priority, _instance.due_at)
    .limit(bindparam("limit"))
)


_heavy_places = and_(
    _place.schedule_worker_node_id == bindparam("worker"),
    _place.pool == bindparam("place"),
    _place.weight > literal_column("1"),
)
_any_heavy = exists(read_by(select(literal_column("1")).where(_heavy_places), schedule_pool_place, _PLACES))
_heavy = by_index(
    select(_place.schedule_instance_id, _place.weight)
    .join_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE)
    .where(_heavy_places, _instance.status == InstanceStatus.ASSIGNED.value),
    schedule_pool_place,
    _PLACES,
)


def _by_moments(lane: Lane, assigned: Select[Any]) -> Select[Any]:
    in_pool = lane is Lane.POOL
    polled = (assigned.add_columns(_place.weight) if in_pool else assigned).subquery("polled")
    any_heavy: Any = func.max(polled.c.weight) > literal_column("1") if in_pool else _any_heavy
    moment = (polled.c.priority, polled.c.due_at)
    return select(joined_ids(polled.c.id), *moment, any_heavy.label("any_heavy")).group_by(*moment).order_by(*moment)


_of_these_pools = and_(OF_ITS_PLACE, among(_place.pool, "pools"))
# It is an outer join, not NOT EXISTS: of that, MariaDB makes a temporary table of all places.
_beside_pools = read_by(
    _assigned.outerjoin_from(schedule_instance, schedule_pool_place, _of_these_pools).where(
        _place.schedule_instance_id.is_(None)
    ),
    schedule_pool_place,
)
_of_pool = by_index(
    _assigned.join_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE).where(
        _place.schedule_worker_node_id == bindparam("worker"), _place.pool == bindparam("pool")
    ),
    schedule_pool_place,
    _PLACES,
)
QUEUED: dict[Lane, Select[Any]] = {Lane.ALL: _assigned, Lane.BESIDE_POOLS: _beside_pools, Lane.POOL: _of_pool}
"""Of each lane, ``limit`` instances due by ``horizon``: id, due_at, priority; by priority and due time."""

_polls = {lane: _by_moments(lane, queued) for lane, queued in QUEUED.items()}


def poll(connection: Connection, queue: Queue, horizon: datetime, limit: int) -> Polled:
    """The instances of a queue that are due by ``horizon`` (naive UTC), at most ``limit``.

    They come by priority and due time. Those whose due time SQL has spoiled are left out; the scheduler cancels them.
    """
    values = {**queue.values, **queue.places, "horizon": horizon, "limit": limit}
    found = connection.execute(_polls[queue.lane], values).all()
    weights = _weights(connection, queue) if any(row.any_heavy for row in found) else NO_WEIGHTS
    return Polled(_rows(found), weights)


def _weights(connection: Connection, queue: Queue) -> dict[int, int]:
    return {i: weight_in(weight) for i, weight in connection.execute(_heavy, queue.places)}


def _rows(polled: Iterable[Any]) -> list[Assigned]:
    return [
        (instance_id, due_at, priority)
        for ids, priority, due_at, _ in polled
        if is_time(due_at)
        for instance_id in split_ids(ids)
    ]
