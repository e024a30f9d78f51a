"""The order in which the instances of one task take their turns, where they wait for each other.

While such an instance is pending or assigned, its ``turn_key`` is its task's id; otherwise it is NULL. So an index
finds which of them are the oldest, whichever workers they are assigned to (docs/decisions/0026-what-waits.md).
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select

from rota.shared.database.constructs import bound, json_rows, read_by, written
from rota.shared.domain.states import PLANNED_ORIGINS, InstanceStatus, OverlapPolicy
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance

Place = tuple[str, int]
"""The place of an instance in its task's order: its time as the database writes it, and its id."""

_waiting = schedule_instance.alias("waiting")
_asked = json_rows("asked", task="id")


def waits_in_turn(policy: str | None, max_instances: int | None) -> bool:
    """Whether the fires of a task may wait for each other: then their ``turn_key`` is set when they are written."""
    if policy == OverlapPolicy.ALLOW:
        return max_instances is not None
    return policy in (OverlapPolicy.QUEUE, OverlapPolicy.REPLACE)


def place(moment: datetime, instance_id: int) -> Place:
    """The place of an instance with this time (naive UTC)."""
    return (written(moment) or "", instance_id)


def _one_of_each(found: Select[Any], *order: ColumnElement[Any]) -> Select[Any]:
    """For each task asked for, the first instance of ``found`` that waits, in this order.

    ``order`` begins with the column of the task. Without it MySQL reads and sorts all instances that wait.
    """
    indexed = read_by(found, _waiting, "ix_schedule_instance_turn")
    one = indexed.where(_waiting.c.turn_key == _asked.c.task).order_by(*order).limit(1).correlate(_asked)
    return select(_asked.c.task, one.scalar_subquery())


_last = _one_of_each(
    select(func.json_array(_waiting.c.due_at, _waiting.c.id))
    .where(_waiting.c.due_at.is_not(None))  # SQL inserted it just now: the assigner has not adopted it yet
    .offset(bindparam("before")),
    _waiting.c.turn_key,
    _waiting.c.due_at,
    _waiting.c.id,
)
_newest = _one_of_each(
    select(func.json_array(_waiting.c.schedule_datetime, _waiting.c.id)).where(
        _waiting.c.due_at <= bindparam("now"),
        _waiting.c.origin.in_([origin.value for origin in PLANNED_ORIGINS]),
        _waiting.c.attempt == 0,
    ),
    _waiting.c.turn_key.desc(),
    _waiting.c.due_at.desc(),
    _waiting.c.id.desc(),
)


def last_in_turn(connection: Connection, free: Mapping[int, int]) -> dict[int, Place]:
    """The last of the oldest waiting instances of each task, as many as it has ``free`` slots (at least one), by task.

    Instances up to that place may be claimed. A task that is left out has no more instances that wait than free slots.
    """
    tasks: dict[int, list[int]] = {}
    for task, number in free.items():
        tasks.setdefault(number, []).append(task)
    places: dict[int, Place] = {}
    for number, some in tasks.items():
        places |= _places(connection, _last, some, before=number - 1)
    return places


def newest_fires(connection: Connection, task_ids: Collection[int], now: datetime) -> dict[int, Place]:
    """The place of the newest new fire of each task that waits and is due (``now``: naive UTC), by nominal time."""
    return _places(connection, _newest, task_ids, now=now) if task_ids else {}


_assigned_before = (
    read_by(select(_waiting.c.schedule_worker_node_id), _waiting, "ix_schedule_instance_turn")
    .where(
        _waiting.c.turn_key == bindparam("task"),
        _waiting.c.status == InstanceStatus.ASSIGNED.value,
        _waiting.c.due_at <= bindparam("moment"),
    )
    .order_by(_waiting.c.due_at.desc(), _waiting.c.id.desc())
    .limit(1)
)
_runs = read_by(
    select(_waiting.c.schedule_worker_node_id).where(_waiting.c.overlap_key == bindparam("key")),
    _waiting,
    "uq_schedule_instance_overlap_key",
)


def worker_before(connection: Connection, task_id: int, moment: datetime) -> int | None:
    """The worker with the last turn of a task, of those assigned, up to a moment (naive UTC), or else with its run."""
    values = {"task": task_id, "moment": moment}
    worker: int | None = connection.scalar(_assigned_before, values)
    return worker or connection.scalar(_runs, {"key": task_id * OVERLAP_SLOTS})


def _places(
    connection: Connection, statement: Select[Any], task_ids: Collection[int], **values: Any
) -> dict[int, Place]:
    rows = connection.execute(statement, {"rows": bound((task,) for task in sorted(task_ids)), **values})
    return {task: _read(text) for task, text in rows if text is not None}


def _read(text: str) -> Place:
    moment, instance_id = json.loads(text)
    return (moment, instance_id)
