"""How a worker finds the instances that are assigned to it."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, select

from rota.shared.database.constructs import among, by_index, joined_ids, read_by, split_ids
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store.pools import OF_ITS_PLACE
from rota.shared.store.tables import PRIORITIES, schedule_instance, schedule_pool_place

_instance = schedule_instance.c
_place = schedule_pool_place.c

Assigned = tuple[int, datetime, int]
"""A row as the poll reads it: id, due_at (naive UTC), priority."""

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


def _by_moments(assigned: Select[Any]) -> Select[Any]:
    polled = assigned.subquery("polled")
    moment = (polled.c.priority, polled.c.due_at)
    return select(joined_ids(polled.c.id), *moment).group_by(*moment).order_by(*moment)


_poll = _by_moments(_assigned)
_of_these_pools = and_(OF_ITS_PLACE, among(_place.pool, "pools"))
_poll_beside = _by_moments(
    read_by(
        _assigned.outerjoin_from(schedule_instance, schedule_pool_place, _of_these_pools).where(
            _place.schedule_instance_id.is_(None)
        ),
        schedule_pool_place,
    )
)
"""It is an outer join, not NOT EXISTS: of that, MariaDB makes a temporary table of all places."""

_poll_pool = _by_moments(
    by_index(
        _assigned.join_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE).where(
            _place.schedule_worker_node_id == bindparam("worker"), _place.pool == bindparam("pool")
        ),
        schedule_pool_place,
        "ix_schedule_pool_place_worker",
    )
)


def poll(connection: Connection, worker_id: int, horizon: datetime, limit: int) -> list[Assigned]:
    """The worker's assigned instances due by ``horizon`` (naive UTC): (id, due_at, priority), at most ``limit``.

    They come by priority and due time. Those whose due time SQL has spoiled are left out; the scheduler cancels them.
    """
    values = {"worker": worker_id, "horizon": horizon, "limit": limit}
    return _rows(connection.execute(_poll, values))


def poll_beside(
    connection: Connection, worker_id: int, horizon: datetime, limit: int, pools: Collection[str]
) -> list[Assigned]:
    """The same, without those that the worker was given for these pools."""
    values = {"worker": worker_id, "horizon": horizon, "limit": limit, "pools": sorted(pools)}
    return _rows(connection.execute(_poll_beside, values))


def poll_pool(connection: Connection, worker_id: int, horizon: datetime, limit: int, pool: str) -> list[Assigned]:
    """The same, but only those that the worker was given for this pool."""
    values = {"worker": worker_id, "horizon": horizon, "limit": limit, "pool": pool}
    return _rows(connection.execute(_poll_pool, values))


def _rows(polled: Iterable[Any]) -> list[Assigned]:
    return [
        (instance_id, due_at, priority)
        for ids, priority, due_at in polled
        if is_time(due_at)
        for instance_id in split_ids(ids)
    ]
