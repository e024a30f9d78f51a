"""Assignments that their workers did not start in time: where they may be, and how the scheduler takes them back.

What a worker was given is a queue for each priority, which it starts in the order in which they are due. What is due
first may have been assigned a moment ago, and what waits behind it long ago. So a queue is looked through page by page:
each look goes on where the one before ended, and none reads a long queue to its end.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, literal_column, or_, select

from rota.shared.database.constructs import bound, json_rows, read_by
from rota.shared.database.later import read_before
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.domain.weights import MOST_WEIGHT
from rota.shared.store import pools
from rota.shared.store.assignments import free_assigned
from rota.shared.store.pools import ONE_SLOT
from rota.shared.store.tables import PRIORITIES, schedule_instance
from rota.shared.store.transitions import giving

_instance = schedule_instance.c


class Queue(NamedTuple):
    """What a worker was given of one priority, and has not claimed."""

    worker: int
    priority: int


Place = tuple[datetime, int] | None
"""The last instance of a queue that a look has read: (due_at, id)."""

FRONT: Place = None
"""The place before the first instance of every queue, whatever date SQL wrote into that."""


OWN_SLOTS_ARE_FREE: Mapping[str | None, int] = MappingProxyType({None: MOST_WEIGHT})
_queue = json_rows("queue", worker="id", priority="int")


def _of_queue(what: Any, worker: Any, priority: Any) -> Any:
    """A SELECT of a queue. What SQL wrote without a time is left out."""
    chosen = select(what).where(
        _instance.status == InstanceStatus.ASSIGNED.value,
        _instance.schedule_worker_node_id == worker,
        _instance.priority == priority,
        _instance.due_at.is_not(None),
    )
    return read_by(chosen, schedule_instance, "ix_schedule_instance_work")


_first_due = (
    _of_queue(_instance.due_at, _queue.c.worker, _queue.c.priority)
    .order_by(_instance.schedule_worker_node_id, _instance.priority, _instance.due_at)
    .limit(literal_column("1"))
)
"""The order begins with the worker and the priority. Without them MySQL reads and sorts the whole queue. The order does
not name the status: if it did, MariaDB would sort."""
_late_queues = select(_queue.c.worker, _queue.c.priority).where(
    _first_due.correlate(_queue).scalar_subquery() < bindparam("cutoff")
)
_front = (
    _of_queue(_instance.id, bindparam("worker"), bindparam("priority"))
    .add_columns(_instance.due_at, _instance.gmt_assigned)
    .where(_instance.due_at < bindparam("cutoff"))
    .order_by(_instance.due_at, _instance.id)
    .limit(bindparam("limit"))
)
_next_page = _front.where(
    or_(
        _instance.due_at > bindparam("due_at"),
        and_(_instance.due_at == bindparam("due_at"), _instance.id > bindparam("last")),
    )
)


def late_queues(connection: Connection, workers: Collection[int], cutoff: datetime) -> list[Queue]:
    """The queues of these workers in which something was due before ``cutoff`` (naive UTC)."""
    if not workers:
        return []
    queues = bound((worker, priority) for worker in sorted(workers) for priority in PRIORITIES)
    found = read_before(connection, _late_queues, {"rows": queues, "cutoff": cutoff})
    return sorted(Queue(*row) for row in found)


def overdue(
    connection: Connection, queue: Queue, cutoff: datetime, limit: int, after: Place = FRONT
) -> tuple[list[int], Place]:
    """Look at the next ``limit`` instances of a queue that were due before ``cutoff`` (naive UTC).

    Returns the ids of those that were assigned before ``cutoff``, too, and the place after which to look next: the
    front, when this look came to the end.
    """
    values = {**queue._asdict(), "cutoff": cutoff, "limit": limit}
    if after is None:
        rows = read_before(connection, _front, values).all()
    else:
        rows = read_before(connection, _next_page, {**values, "due_at": after[0], "last": after[1]}).all()
    found = sorted(i for i, _, assigned in rows if is_time(assigned) and assigned < cutoff)
    goes_on = len(rows) == limit and is_time(rows[-1].due_at)
    return found, (rows[-1].due_at, rows[-1].id) if goes_on else FRONT


def take_back(
    connection: Connection,
    queue: Queue,
    cutoff: datetime,
    limit: int,
    after: Place = FRONT,
    *,
    avoid: str | None = None,
    free: Mapping[str | None, int] = OWN_SLOTS_ARE_FREE,
) -> tuple[int, Place]:
    """Put what is ``overdue`` back to pending, but for rows that somebody has locked; returns how many, and the place.

    ``avoid``: the name of a worker that they are given to again only if there is no other. ``free``: the most slots
    that another worker has free, by pool (None: its own slots). What takes more stays where it is.
    """
    found, place = overdue(connection, queue, cutoff, limit, after)
    takes = pools.places(connection, found) if found else {}
    found = [i for i in found if _has_room(takes.get(i, ONE_SLOT), free)]
    ids = free_assigned(connection, found)
    if ids:
        giving.take_back_unstarted(connection, ids, cutoff, avoid)
    return len(ids), place


def _has_room(takes: pools.Place, free: Mapping[str | None, int]) -> bool:
    return takes.weight <= free.get(takes.pool, 0)
