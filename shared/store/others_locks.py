"""What others have locked: the tasks of a batch that can be written without waiting for somebody else's transaction.

It may be an operator's edit that is not committed, or a process that is frozen. One such row must not hold up a batch.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, select

from rota.shared.database.constructs import among, by_index, joined_ids, split_ids
from rota.shared.database.later import read_before
from rota.shared.domain.times import EARLIEST
from rota.shared.store.tables import schedule_instance, schedule_task, schedule_task_node
from rota.shared.store.unclaimed import unclaimed

_task = schedule_task.c
_instance = schedule_instance.c
_node = schedule_task_node.c

_free = by_index(
    select(joined_ids(_task.id)).where(among(_task.id)).with_for_update(skip_locked=True),
    schedule_task,
)


def not_locked(
    connection: Connection, task_ids: Collection[int], edited: Collection[int] = (), since: datetime = EARLIEST
) -> set[int]:
    """Those of these tasks that nobody else has locked.

    Of the ``edited`` tasks also the fires from ``since`` on (naive UTC) that no worker has claimed, and their nodes,
    must not be locked.
    """
    free = set(split_ids(read_before(connection, _free, {"ids": sorted(task_ids)}).scalar()))
    changing = free.intersection(edited)
    if not changing:
        return free
    fires = (
        select(_instance.schedule_task_id, _instance.id, _node.id)
        .outerjoin_from(schedule_instance, schedule_task_node, _node.schedule_instance_id == _instance.id)
        .where(unclaimed(changing, _instance.schedule_datetime >= since))
    )
    by_fire = by_index(fires, schedule_instance, "uq_schedule_instance_fire")
    every = set(map(tuple, read_before(connection, by_fire, {})))
    got = set(map(tuple, read_before(connection, by_fire.with_for_update(skip_locked=True), {})))
    return free - {task_id for task_id, *_ in every - got}
