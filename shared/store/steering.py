"""Steering: a person skips the next fire of a task, or sets it to another time.

The row of the fire says it, by the key that makes each fire happen once: a fire that is skipped is there, canceled; one
that was set waits there until its ``due_at``. So no scheduler writes it again: neither the plan at its time, nor one
that was made anew after an edit, nor one that comes back after an outage.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, insert, literal_column, select, update

from rota.shared.database.constructs import (
    UtcNow,
    UtcTime,
    among,
    bound,
    by_index,
    ignore_conflicts,
    json_rows,
    read_by,
)
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.states import InstanceStatus, Origin
from rota.shared.domain.steering import Written
from rota.shared.domain.times import is_time
from rota.shared.store import turns, unclaimed
from rota.shared.store.tables import schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c

NEWEST = 500
"""So many fires of a task are looked at, those for the latest times."""

_fires = (
    read_by(
        select(
            _instance.schedule_task_id,
            _instance.id,
            _instance.schedule_datetime,
            _instance.due_at,
            _instance.status,
            _instance.attempt,
            _instance.reason,
            _instance.creator,
        ).where(_instance.run_number == 0, _instance.fire_key == ""),
        schedule_instance,
        "uq_schedule_instance_fire",
    )
    .order_by(_instance.schedule_datetime.desc())
    .limit(bindparam("limit"))
)
_of_task = _fires.where(_instance.schedule_task_id == bindparam("task"))
_of_tasks = _fires.where(among(_instance.schedule_task_id), _instance.schedule_datetime > bindparam("moment"))


WrittenFires = dict[datetime, Written]
"""The fires of a task that have an instance, by their own time (naive UTC)."""


def newest(connection: Connection, task_id: int) -> WrittenFires:
    """The fires of a task that have an instance, those for the latest times."""
    rows = read_before(connection, _of_task, {"task": task_id, "limit": NEWEST})
    return {moment: fire for _, moment, fire in _read(rows)}


def ahead(connection: Connection, task_ids: Collection[int], moment: datetime) -> dict[int, WrittenFires]:
    """The fires of these tasks for times after a moment (naive UTC) that have an instance, by task id."""
    found: dict[int, WrittenFires] = {}
    if task_ids:
        values = {"ids": sorted(task_ids), "moment": moment, "limit": NEWEST * 10}
        for task_id, fire_time, fire in _read(connection.execute(_of_tasks, values)):
            found.setdefault(task_id, {})[fire_time] = fire
    return found


def _read(rows: Iterable[Row[Any]]) -> Iterator[tuple[int, datetime, Written]]:
    """The fires in these rows, but for those whose times SQL has spoiled."""
    for row in rows:
        if is_time(row.schedule_datetime) and is_time(row.due_at):
            fire = Written(row.id, row.due_at, row.status, row.attempt, row.creator, row.reason)
            yield row.schedule_task_id, row.schedule_datetime, fire


_missed = json_rows("missed", task="id", since="time")
_written = by_index(
    select(_instance.schedule_task_id, _instance.schedule_datetime)
    .select_from(_missed)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _missed.c.task,
            _instance.schedule_datetime >= _missed.c.since,
            _instance.schedule_datetime <= bindparam("until", type_=UtcTime),
        ),
    )
    .where(_instance.run_number == 0, _instance.fire_key == ""),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def put_among(
    connection: Connection, missed: Mapping[int, datetime], until: datetime
) -> dict[int, frozenset[datetime]]:
    """The fires that have an instance though no scheduler has written them yet, by task id.

    ``missed``: the first fire that no scheduler has written, by task id. ``until``: the last that matters (naive UTC).
    """
    found: dict[int, set[datetime]] = {}
    values = {"rows": bound(sorted(missed.items())), "until": until}
    for task_id, moment in connection.execute(_written, values):
        found.setdefault(task_id, set()).add(moment)
    return {task_id: frozenset(moments) for task_id, moments in found.items()}


_put = json_rows("put", moment="time", due="time", canceled="int", reason="str")
_is_skipped = _put.c.canceled == literal_column("1")
_columns = {
    "schedule_task_id": bindparam("task", type_=_instance.schedule_task_id.type),
    "schedule_datetime": _put.c.moment,
    "due_at": _put.c.due,
    "status": case(
        (_is_skipped, literal_column(f"'{InstanceStatus.CANCELED.value}'")),
        else_=literal_column(f"'{InstanceStatus.PENDING.value}'"),
    ),
    "gmt_completed": case((_is_skipped, UtcNow())),
    "run_number": literal_column("0"),
    "origin": literal_column(f"'{Origin.CRON.value}'"),
    "priority": bindparam("priority", type_=_instance.priority.type),
    "overlap_slot": bindparam("slot", type_=_instance.overlap_slot.type),
    "reason": _put.c.reason,
    "creator": bindparam("by", type_=_instance.creator.type),
    "modifier": bindparam("by", type_=_instance.modifier.type),
}
_insert = ignore_conflicts(insert(schedule_instance)).from_select(
    list(_columns), select(*_columns.values()), include_defaults=False
)
_go_on = (
    update(schedule_task)
    .where(_task.id == bindparam("task"), _task.next_fire_at.between(bindparam("first"), bindparam("last")))
    .where(_task.plan_stale.is_(None))
    .values(next_fire_at=bindparam("next"))
)


@dataclass(frozen=True, slots=True)
class Steered:
    """What becomes of a fire: when it runs instead (naive UTC; None: it is skipped), and the reason.

    ``instance``: the one that the fire has already; no worker may have claimed it.
    """

    due_at: datetime | None
    reason: str
    instance: int | None = None


def put(
    connection: Connection, task: Row[Any], fires: Mapping[datetime, Steered], following: datetime | None, by: str
) -> None:
    """Write what becomes of fires of a task that was read. ``following``: the next fire of the plan after them.

    The transaction raises Unexpected if one of them has begun, or was written meanwhile.
    """
    unclaimed.drop(connection, [one.instance for one in fires.values() if one.instance is not None])
    values = [
        (moment, one.due_at or moment, int(one.due_at is None), one.reason) for moment, one in sorted(fires.items())
    ]
    in_turn = turns.waits_in_turn(task.overlap_policy, task.max_instances)
    whole = {"task": task.id, "priority": task.priority, "slot": 0 if in_turn else None, "by": by}
    execute_later(connection, _insert, {"rows": bound(values), **whole}, expected=len(fires))
    span = {"task": task.id, "first": min(fires), "last": max(fires), "next": following}
    execute_later(connection, _go_on, span)
