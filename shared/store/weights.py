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


def largest(connection: Connection) -> dict[str | None, int]:
    """How many threads the largest pool of each name has, and how many slots the largest worker has (None).

    The newest ``WORKERS_READ`` workers that have a row count, dead ones too. Where there is none, it is empty.
    """
    found: dict[str | None, int] = {}
    for capacity, worker_pools in read_before(connection, _sizes, {}):
        for pool, size in [(None, capacity), *sizes_in(worker_pools).items()]:
            found[pool] = max(size, found.get(pool, 0))
    return found


def require(connection: Connection, weight: int, pool: str | None) -> None:
    """Raises TooHeavy for a weight that no registered worker can hold. Where none is registered, any weight passes."""
    if weight > 1 and weight > (most := largest(connection).get(pool, weight)):
        raise TooHeavy(too_heavy(weight, most, pool))


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
