"""Pools: which ones workers have, and the places of what workers were given for them.

An instance that a worker is given for a pool gets a row of ``schedule_pool_place`` in the transaction that gives it; so
does one that takes several of the worker's own slots. The row says the pool and the weight that its task had then, and
is of that time: it counts as long as the instance has its ``gmt_assigned``. So what a pool holds is counted by its rows
alone, and whoever gives an instance anew need not know of the row before. Instances of other tasks have no row.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, literal_column, or_, select

from rota.shared.database.constructs import among, bound, by_index, found_by, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.pools import sizes_in, unknown_pool
from rota.shared.domain.states import InstanceStatus, TaskStatus
from rota.shared.domain.weights import weight_in
from rota.shared.store.tables import schedule_instance, schedule_pool_place, schedule_task, schedule_worker_node

_place = schedule_pool_place.c
_instance = schedule_instance.c
_task = schedule_task.c
_worker = schedule_worker_node.c
ASSIGNED, RUNNING = InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value

OF_ITS_PLACE = and_(_place.schedule_instance_id == _instance.id, _place.gmt_assigned == _instance.gmt_assigned)
"""The condition that a row of ``schedule_pool_place`` counts for an instance."""

WORKERS_READ = 1_000
"""Of so many workers, the newest, the pools are known."""


OWN_SLOTS = ""
"""The pool of a place in a worker's own slots."""


class Place(NamedTuple):
    """Where an instance runs."""

    pool: str | None = None
    """None: in the worker's own slots."""

    weight: int = 1
    """How many of the pool's threads it takes, or of the slots."""


ONE_SLOT = Place()
"""The place that has no row."""


class PoolLoad(NamedTuple):
    """What a pool of a worker holds, or the worker's own slots of what takes several."""

    assigned: int = 0
    running: int = 0
    assigned_more: int = 0
    """How many threads or slots these take beyond one for each."""

    running_more: int = 0

    @property
    def held(self) -> int:
        """How many instances it holds, whether they run or wait."""
        return self.assigned + self.running

    @property
    def taken(self) -> int:
        """How many threads or slots those take that run."""
        return self.running + self.running_more

    @property
    def more(self) -> int:
        """How many threads or slots all of them take beyond one for each."""
        return self.assigned_more + self.running_more

    @property
    def load(self) -> int:
        """How many threads or slots all of them take, when they run."""
        return self.held + self.more


_scheduler: Any = literal_column("'scheduler'")
_given = json_rows("given", id="id", pool="str", weight="int")
_forget = found_by(delete(schedule_pool_place).where(among(_place.schedule_instance_id)))
_note = ignore_conflicts(insert(schedule_pool_place)).from_select(
    ["schedule_instance_id", "schedule_worker_node_id", "pool", "weight", "gmt_assigned", "creator", "modifier"],
    by_index(
        select(
            _instance.id,
            _instance.schedule_worker_node_id,
            _given.c.pool,
            _given.c.weight,
            _instance.gmt_assigned,
            _scheduler,
            _scheduler,
        )
        .select_from(_given)
        .join(schedule_instance, and_(_instance.id == _given.c.id, _instance.gmt_assigned.is_not(None))),
        schedule_instance,
    ),
    include_defaults=False,
)


def note(connection: Connection, given: Mapping[int, Place]) -> None:
    """Note the places of instances that this transaction has given to workers. Those with one slot need none."""
    rows = [(i, place.pool or OWN_SLOTS, place.weight) for i, place in sorted(given.items()) if place != ONE_SLOT]
    if rows:
        execute_later(connection, _forget, {"ids": [row[0] for row in rows]})
        execute_later(connection, _note, {"rows": bound(rows)})


_more = _place.weight - literal_column("1")
_held = by_index(
    select(
        _place.schedule_worker_node_id,
        _place.pool,
        func.count(case((_instance.status == ASSIGNED, 1))),
        func.count(case((_instance.status == RUNNING, 1))),
        func.sum(case((_instance.status == ASSIGNED, _more), else_=literal_column("0"))),
        func.sum(case((_instance.status == RUNNING, _more), else_=literal_column("0"))),
    )
    .join_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE)
    .where(among(_place.schedule_worker_node_id, "workers"), _instance.status.in_([ASSIGNED, RUNNING]))
    .group_by(_place.schedule_worker_node_id, _place.pool),
    schedule_pool_place,
    "ix_schedule_pool_place_worker",
)


def held(connection: Connection, worker_ids: Collection[int]) -> dict[int, dict[str, PoolLoad]]:
    """What the pools of these workers hold, by worker id and pool. A pool that holds nothing is not among them.

    The pool ``OWN_SLOTS`` is what takes several of the worker's own slots.
    """
    found: dict[int, dict[str, PoolLoad]] = {}
    if worker_ids:
        for worker, pool, *numbers in connection.execute(_held, {"workers": sorted(worker_ids)}):
            found.setdefault(worker, {})[pool] = PoolLoad(*map(int, numbers))
    return found


_places = by_index(
    select(_place.schedule_instance_id, _place.pool, _place.weight)
    .join_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE)
    .where(among(_place.schedule_instance_id)),
    schedule_pool_place,
)


def places(connection: Connection, instance_ids: Collection[int]) -> dict[int, Place]:
    """The places for which workers have these instances; without those that take one slot of a worker."""
    rows = read_before(connection, _places, {"ids": sorted(instance_ids)})
    return {i: Place(pool or None, weight_in(weight)) for i, pool, weight in rows}


_registered = select(_worker.pools).where(_worker.pools.is_not(None)).order_by(_worker.id.desc()).limit(WORKERS_READ)


def registered(connection: Connection) -> set[str]:
    """The pools of all workers that have a row, dead ones too."""
    return {name for pools in read_before(connection, _registered, {}).scalars() for name in sizes_in(pools)}


_named = (
    select(_task.pool, func.min(_task.live_name), func.count())
    .where(_task.pool.is_not(None), _task.live_name.is_not(None), _task.status == TaskStatus.ON.value)
    .group_by(_task.pool)
    .order_by(_task.pool)
)


def named(connection: Connection) -> dict[str, tuple[str, int]]:
    """The pools that tasks name which are on: the first of these tasks by name, and how many there are."""
    return {pool: (first, number) for pool, first, number in connection.execute(_named)}


def require(connection: Connection, name: str | None) -> None:
    """Raises InvalidInput for a pool that no worker has registered."""
    if name is not None and name not in (known := registered(connection)):
        raise InvalidInput(unknown_pool(name, known))


_without_instance = (
    by_index(
        select(_place.schedule_instance_id)
        .outerjoin_from(schedule_pool_place, schedule_instance, OF_ITS_PLACE)
        .where(or_(_instance.id.is_(None), _instance.status.not_in([ASSIGNED, RUNNING]))),
        schedule_pool_place,
    )
    .order_by(_place.schedule_instance_id)
    .limit(bindparam("rows"))
)
_free = by_index(
    select(_place.schedule_instance_id).where(among(_place.schedule_instance_id)).with_for_update(skip_locked=True),
    schedule_pool_place,
)
_still_without = _without_instance.where(among(_place.schedule_instance_id))


def forget_ended(connection: Connection, limit: int) -> int:
    """Delete at most ``limit`` of the rows that count for no instance any more; returns how many it deleted.

    Somebody may give such an instance anew meanwhile, and replaces its row. So the rows are locked, and looked at once
    more, before they are deleted.
    """
    ids = list(read_before(connection, _without_instance, {"rows": limit}).scalars())
    locked = sorted(connection.execute(_free, {"ids": ids}).scalars()) if ids else []
    ended = list(connection.execute(_still_without, {"ids": locked, "rows": limit}).scalars()) if locked else []
    if ended:
        execute_later(connection, _forget, {"ids": ended})
    return len(ended)
