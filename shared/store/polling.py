"""How a worker finds the instances that are assigned to it."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from rota.shared.database.constructs import joined_ids, split_ids
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store.tables import PRIORITIES, schedule_instance

_instance = schedule_instance.c

_polled = (
    select(_instance.id, _instance.due_at, _instance.priority)
    .where(
        _instance.status == InstanceStatus.ASSIGNED.value,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.priority.in_(PRIORITIES),
        _instance.due_at <= bindparam("horizon"),
    )
    .order_by(_instance.priority, _instance.due_at)
    .limit(bindparam("limit"))
).subquery("polled")
_moment = (_polled.c.priority, _polled.c.due_at)
_poll = select(joined_ids(_polled.c.id), *_moment).group_by(*_moment).order_by(*_moment)


def poll(connection: Connection, worker_id: int, horizon: datetime, limit: int) -> list[tuple[int, datetime, int]]:
    """The worker's assigned instances due by ``horizon`` (naive UTC): (id, due_at, priority), at most ``limit``.

    They come by priority and due time. Those whose due time SQL has spoiled are left out; the scheduler cancels them.
    """
    values = {"worker": worker_id, "horizon": horizon, "limit": limit}
    return [
        (instance_id, due_at, priority)
        for ids, priority, due_at in connection.execute(_poll, values)
        if is_time(due_at)
        for instance_id in split_ids(ids)
    ]
