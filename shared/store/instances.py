"""Instances as people see and steer them: list, show, run, replay, cancel."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from shared.domain.errors import NotFound, NotPossible
from shared.domain.jsontext import UnreadableJson
from shared.domain.states import TERMINAL, InstanceStatus, NodeStatus, Origin
from shared.store import overlap
from shared.store.database import Database
from shared.store.dialects import UtcNow
from shared.store.tables import (
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_node,
)

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c
_worker = schedule_worker_node.c

UNSUCCESSFUL = (InstanceStatus.FAILED, InstanceStatus.CANCELED)

_seen = (
    select(schedule_instance, _task.name.label("task_name"), _task.timezone, _worker.name.label("worker_name"))
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .join(schedule_worker_node, _worker.id == _instance.schedule_worker_node_id, isouter=True)
)


def find(connection: Connection, instance_id: int) -> Row[Any]:
    """One instance, with ``task_name``, ``timezone`` and ``worker_name``.

    Raises NotFound.
    """
    row = connection.execute(_seen.where(_instance.id == instance_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no instance {instance_id}; rota instance list shows the newest")
    return row


def nodes(connection: Connection, instance_id: int) -> list[Row[Any]]:
    """The nodes of an instance in order, each with its ``type``."""
    return list(
        connection.execute(
            select(schedule_task_node, _type.type)
            .join_from(schedule_task_node, schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
            .where(_node.schedule_instance_id == instance_id)
            .order_by(_node.sequence)
        )
    )


def listed(
    connection: Connection,
    limit: int,
    *,
    task_id: int | None = None,
    status: str | None = None,
    after_id: int | None = None,
) -> list[Row[Any]]:
    """Instances, the newest first; of one task by ``schedule_datetime``. ``after_id`` keeps only those since."""
    statement = _seen.limit(limit)
    if after_id is not None:
        statement = statement.where(_instance.id > after_id)
    if task_id is None:
        statement = statement.order_by(_instance.id.desc())
    else:  # in the order of its index
        statement = statement.where(_instance.schedule_task_id == task_id).order_by(
            _instance.schedule_datetime.desc(), _instance.fire_key.desc(), _instance.run_number.desc()
        )
    if status in UNSUCCESSFUL:
        statement = statement.where(_instance.unsuccessful == status)
    elif status is not None:
        statement = statement.where(_instance.status == status)
    return list(connection.execute(statement))


def insert_into(database: Database, work: Callable[[Connection], list[int]]) -> list[int]:
    """Run ``work``, which asks for instances, and return their ids; they are there once, whatever answer is lost."""
    return database.insert(schedule_instance, work)


def ask(
    connection: Connection,
    task: Row[Any],
    schedule_datetime: datetime,
    by: str,
    *,
    param: Mapping[str, Any] | None = None,
    origin: Origin = Origin.MANUAL,
) -> int:
    """Insert a run of a task for a nominal time (naive UTC), due at once; returns its id.

    The scheduler gives it its run number under the task's lock, and a worker.
    """
    result = connection.execute(
        insert(schedule_instance).values(
            schedule_task_id=task.id,
            schedule_datetime=schedule_datetime,
            due_at=UtcNow(),
            origin=origin.value,
            priority=task.priority,
            param=param,
            creator=by,
            modifier=by,
        )
    )
    return int(result.lastrowid)


def replay(connection: Connection, instance_id: int, by: str) -> int:
    """Run an ended instance once more: a new instance for the same ``schedule_datetime``; returns its id.

    It gets the old one's param and the next run number; the old one stays as history.
    Raises NotFound, NotPossible.
    """
    row = find(connection, instance_id)
    if InstanceStatus(row.status) not in TERMINAL:
        raise NotPossible(
            f"instance {instance_id} is {row.status}, not ended; cancel it first, or wait until it has ended"
        )
    task = connection.execute(
        select(schedule_task).where(_task.id == row.schedule_task_id, _task.is_deleted == 0)
    ).one_or_none()
    if task is None:
        raise NotPossible(f"instance {instance_id} belongs to a task that was deleted; nothing can run it")
    if isinstance(row.param, UnreadableJson):
        raise NotPossible(f"param of instance {instance_id}: {row.param}")
    return ask(connection, task, row.schedule_datetime, by, param=row.param, origin=Origin.REPLAY)


def cancel(connection: Connection, instance_id: int, by: str, reason: str = "canceled by hand") -> bool:
    """Cancel an instance: True if it is canceled now, False if its worker was asked to stop it.

    Raises NotFound, or NotPossible for one that has ended.
    """
    # Locked: else a run that is to be retried just now is not waiting when looked at first, nor running then.
    locked = select(_instance.status).where(_instance.id == instance_id).with_for_update()
    status = connection.scalar(locked) or find(connection, instance_id).status
    if status in TERMINAL:
        raise NotPossible(f"instance {instance_id} has ended already: {status}")
    if status == InstanceStatus.RUNNING:
        overlap.request_cancel(connection, [instance_id], reason)
        return False
    connection.execute(
        update(schedule_instance)
        .where(_instance.id == instance_id)
        .values(
            status=InstanceStatus.CANCELED.value,
            reason=reason,
            gmt_completed=UtcNow(),
            gmt_modified=UtcNow(),
            modifier=by,
        )
    )
    connection.execute(
        update(schedule_task_node)
        .where(_node.schedule_instance_id == instance_id, _node.status == NodeStatus.PENDING.value)
        .values(status=NodeStatus.CANCELED.value)
    )
    return True


def newest_id(connection: Connection) -> int:
    """The greatest id there is; 0 if there is none."""
    return connection.scalar(select(func.max(_instance.id))) or 0


def live_ids(connection: Connection, limit: int) -> list[int]:
    """Ids of instances that have not ended, at most ``limit``."""
    live = [s.value for s in InstanceStatus if s not in TERMINAL]
    return list(connection.scalars(select(_instance.id).where(_instance.status.in_(live)).limit(limit)))


def ended_since(
    connection: Connection, after_id: int, watched: Collection[int], limit: int
) -> tuple[dict[int, str], list[Row[Any]]]:
    """The states of the ``watched`` instances and of the first ``limit`` after ``after_id``; those that ended, whole.

    It goes by the primary key alone, so that following costs what happens and not what exists: who follows watches
    what has not ended yet, and the ids left out by those it saw, which may still be committed.
    """
    fresh = select(_instance.id, _instance.status).where(_instance.id > after_id).order_by(_instance.id).limit(limit)
    known = select(_instance.id, _instance.status).where(_instance.id.in_(sorted(watched)))
    states: dict[int, str] = {row.id: row.status for row in connection.execute(fresh)}
    if watched:
        states |= {row.id: row.status for row in connection.execute(known)}
    ended = sorted(i for i, status in states.items() if InstanceStatus(status) in TERMINAL)
    if not ended:
        return states, []
    rows = connection.execute(_seen.where(_instance.id.in_(ended)).order_by(_instance.gmt_completed, _instance.id))
    return states, list(rows)
