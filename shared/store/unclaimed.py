"""The fires of a task that no worker has claimed: an edit of the task may drop or cancel them.

They are read before the transaction that writes. That one looks again, and leaves alone what a worker has claimed
meanwhile. New fires cannot come meanwhile: the scheduler that writes has leased the task.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, or_, select

from rota.shared.database.constructs import among, by_index, found_by, unindexed
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


_is_of_scheduler = _instance.creator == "scheduler"


def is_put_ahead(status: ColumnElement[Any]) -> ColumnElement[bool]:
    """The condition for a fire that a scheduler has written and no worker has claimed.

    ``status``: the column, or ``unindexed`` of it. What a person has put there, as a fire that was set by hand, stays
    when its task is edited.
    """
    return and_(_is_unclaimed(status), _is_of_scheduler)


def unclaimed(task_ids: Collection[int], when: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition for the fires of these tasks that no worker has claimed yet."""
    return and_(_instance.schedule_task_id.in_(sorted(task_ids)), when, _is_unclaimed(_instance.status))


def ahead(connection: Connection, task_ids: Collection[int], now: datetime) -> list[int]:
    """What the plans of these tasks have materialized for times after ``now`` (naive UTC), and nobody has claimed."""
    return sorted(instance_id for _, instance_id, _ in fires_ahead(connection, task_ids, now))


def recalled(connection: Connection, last_fires: Mapping[int, datetime], now: datetime) -> list[int]:
    """The last fires of these tasks (naive UTC, not after ``now``) that jitter makes due later, and nobody has claimed.

    Jitter makes no fire due after the next one, so only the last can be due still.
    """
    moments = sorted(set(last_fires.values()))
    waits = and_(_instance.schedule_datetime.in_(moments), _instance.due_at > now, _is_of_scheduler)
    return sorted(instance_id for (instance_id,) in _read(connection, last_fires, waits, _instance.id))


def passed(connection: Connection, task_ids: Collection[int], since: datetime, now: datetime) -> list[int]:
    """The fires of these tasks that were due between the two times (naive UTC) and wait for their claim.

    A fire that jitter makes due later is none of them.
    """
    was_due = and_(_instance.schedule_datetime.between(since, now), _instance.due_at <= now)
    return sorted(instance_id for (instance_id,) in _read(connection, task_ids, was_due, _instance.id))


def fires_ahead(connection: Connection, task_ids: Collection[int], moment: datetime) -> list[tuple[int, int, Any]]:
    """The fires that ``ahead`` finds: (task id, instance id, schedule_datetime)."""
    columns = (_instance.schedule_task_id, _instance.id, _instance.schedule_datetime)
    later = and_(_instance.schedule_datetime > moment, _is_of_scheduler)
    return _read(connection, task_ids, later, *columns)


def _read(
    connection: Connection, task_ids: Collection[int], when: ColumnElement[bool], *columns: ColumnElement[Any]
) -> list[Any]:
    if not task_ids:
        return []
    found = by_index(select(*columns).where(unclaimed(task_ids, when)), schedule_instance, "uq_schedule_instance_fire")
    return [tuple(row) for row in read_before(connection, found, {})]


_drop = found_by(delete(schedule_instance).where(among(_instance.id), _is_unclaimed(unindexed(_instance.status))))
_drop_nodes = found_by(
    delete(schedule_task_node).where(
        among(_node.schedule_instance_id),
        ~exists(by_index(select(_instance.id).where(_instance.id == _node.schedule_instance_id), schedule_instance)),
    ),
    "uq_schedule_task_node_order",
)


def drop(connection: Connection, instance_ids: Collection[int]) -> None:
    """Delete those of these fires that no worker has claimed still, with their nodes."""
    if instance_ids:
        execute_later(connection, _drop, {"ids": sorted(instance_ids)})
        execute_later(connection, _drop_nodes, {"ids": sorted(instance_ids)})
