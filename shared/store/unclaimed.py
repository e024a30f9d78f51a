"""The fires of a task that no worker has claimed: an edit of the task may drop or cancel them.

They are read before the transaction that writes. That one looks again, and leaves alone what a worker has claimed
meanwhile. New fires cannot come meanwhile: the scheduler that writes has leased the task.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, or_, select

from rota.shared.database.constructs import among, by_index, unindexed
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.states import InstanceStatus, Origin
from rota.shared.store.tables import schedule_instance, schedule_task_node

_instance = schedule_instance.c
_node = schedule_task_node.c


def _is_unclaimed(status: ColumnElement[Any]) -> ColumnElement[bool]:
    return and_(
        _instance.run_number == 0,
        _instance.origin == Origin.CRON.value,
        _instance.attempt == 0,
        or_(status == InstanceStatus.PENDING.value, status == InstanceStatus.ASSIGNED.value),
    )


def unclaimed(task_ids: Collection[int], when: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition for the fires of these tasks that no worker has claimed yet."""
    return and_(_instance.schedule_task_id.in_(sorted(task_ids)), when, _is_unclaimed(_instance.status))


def ahead(connection: Connection, task_ids: Collection[int], now: datetime) -> list[int]:
    """What the plans of these tasks have materialized for times after ``now`` (naive UTC), and nobody has claimed."""
    return _found(connection, task_ids, _instance.schedule_datetime > now)


def passed(connection: Connection, task_ids: Collection[int], since: datetime, now: datetime) -> list[int]:
    """The fires of these tasks that were due between the two times (naive UTC) and wait for their claim."""
    return _found(connection, task_ids, _instance.schedule_datetime.between(since, now))


def _found(connection: Connection, task_ids: Collection[int], when: ColumnElement[bool]) -> list[int]:
    if not task_ids:
        return []
    fires = select(_instance.id).where(unclaimed(task_ids, when))
    return sorted(
        read_before(connection, by_index(fires, schedule_instance, "uq_schedule_instance_fire"), {}).scalars()
    )


_drop = delete(schedule_instance).where(among(_instance.id), _is_unclaimed(unindexed(_instance.status)))
_drop_nodes = delete(schedule_task_node).where(
    among(_node.schedule_instance_id),
    ~exists(by_index(select(_instance.id).where(_instance.id == _node.schedule_instance_id), schedule_instance)),
)


def drop(connection: Connection, instance_ids: Collection[int]) -> None:
    """Delete those of these fires that no worker has claimed still, with their nodes."""
    if instance_ids:
        execute_later(connection, _drop, {"ids": sorted(instance_ids)})
        execute_later(connection, _drop_nodes, {"ids": sorted(instance_ids)})
