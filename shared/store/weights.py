"""Weights of tasks: which are beyond every worker, and which ones no live worker can hold."""

from typing import Any, NamedTuple

from sqlalchemy import Connection, func, literal_column, select

from rota.shared.database.later import read_before
from rota.shared.domain.errors import TooHeavy
from rota.shared.domain.pools import sizes_in
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.weights import too_heavy, weight_in
from rota.shared.store.pools import WORKERS_READ
from rota.shared.store.tables import schedule_task, schedule_worker_node

_task = schedule_task.c
_worker = schedule_worker_node.c

_sizes = select(_worker.capacity, _worker.pools).order_by(_worker.id.desc()).limit(WORKERS_READ)


def most(connection: Connection, pool: str | None = None) -> int | None:
    """How many slots the largest worker has that has a row, a dead one too, or how many threads its pool has.

    None: there is no such worker.
    """
    sizes = read_before(connection, _sizes, {}).all()
    if pool is None:
        return max((capacity for capacity, _ in sizes), default=None)
    return max((size for _, pools in sizes if (size := sizes_in(pools).get(pool)) is not None), default=None)


def require(connection: Connection, weight: int, pool: str | None) -> None:
    """Raises TooHeavy for a weight that no registered worker can hold. Where none is registered, nobody knows."""
    if weight > 1 and (largest := most(connection, pool)) is not None and weight > largest:
        raise TooHeavy(too_heavy(weight, largest, pool))


class Heavy(NamedTuple):
    """Tasks that are on, and of which a run takes the same number of slots, or threads of the same pool."""

    pool: str | None
    weight: int
    first: str
    """The first of them by name."""

    number: int


_heavy: Any = (
    select(_task.pool, _task.weight, func.min(_task.live_name), func.count())
    .where(_task.weight > literal_column("1"), _task.live_name.is_not(None), _task.status == TaskStatus.ON.value)
    .group_by(_task.pool, _task.weight)
    .order_by(_task.pool, _task.weight)
)


def heavy(connection: Connection) -> list[Heavy]:
    """The tasks that take several slots and are on, by pool and weight."""
    rows = connection.execute(_heavy)
    return [Heavy(pool, weight, first, number) for pool, weight, first, number in rows if weight == weight_in(weight)]
