"""The rows that tell what became of a fire: each read by an index, and no more than a few of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from rota.shared.database.constructs import by_index
from rota.shared.domain.states import Origin
from rota.shared.domain.steering import MOST_PASSED_OVER, WAITS
from rota.shared.domain.times import is_time
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance, schedule_worker_beat
from rota.shared.store.workers import LIVES, SILENT

_instance = schedule_instance.c
_beat = schedule_worker_beat.c

LOOKED_AT = 10
"""So many rows are read where there may be many."""

NEWEST = MOST_PASSED_OVER + LOOKED_AT
"""So many of the newest fires are looked at for one that was set to another time, and passed over others."""

_FIRE = "uq_schedule_instance_fire"


def newest_time(connection: Connection, task_id: int, now: datetime) -> datetime | None:
    """The time of the newest instance of a task that is not after a moment (naive UTC)."""
    own = select(_instance.schedule_datetime).where(
        _instance.schedule_task_id == task_id, _instance.schedule_datetime <= now
    )
    found = by_index(own, schedule_instance, _FIRE).order_by(_instance.schedule_datetime.desc()).limit(1)
    moment: datetime | None = connection.scalar(found)
    return moment


def next_written(connection: Connection, task_id: int, now: datetime) -> datetime | None:
    """When the next fire is due that the plan or a person has written already, if that is after a moment (naive UTC).

    A fire that was set to another time may have passed by its own time.
    """
    own = select(_instance.due_at, _instance.status, _instance.attempt, _instance.origin).where(
        _instance.schedule_task_id == task_id
    )
    found = by_index(own, schedule_instance, _FIRE).order_by(_instance.schedule_datetime.desc()).limit(NEWEST)
    waiting = [row.due_at for row in connection.execute(found) if row.status in WAITS and _is_fire(row)]
    return min((due for due in waiting if is_time(due) and due > now), default=None)


def next_asked_for(connection: Connection, task_id: int) -> tuple[int, datetime] | None:
    """The instance for which a handler has asked (``RunAgain``) and that waits, and when it is due; None if none does.

    Of several it is the next. It is looked for among the newest.
    """
    own = select(_instance.id, _instance.due_at, _instance.schedule_datetime, _instance.status, _instance.follows_id)
    found = by_index(own.where(_instance.schedule_task_id == task_id), schedule_instance, _FIRE)
    rows = connection.execute(found.order_by(_instance.schedule_datetime.desc()).limit(NEWEST))
    asked = [row for row in rows if row.follows_id is not None and row.status in WAITS]
    dues = [(row.due_at or row.schedule_datetime, row.id) for row in asked]
    due, number = min((one for one in dues if is_time(one[0])), default=(None, 0))
    return None if due is None else (number, due)


def _is_fire(row: Row[Any]) -> bool:
    """Whether an instance is a fire of the plan that has not begun."""
    return (row.origin, row.attempt) == (Origin.CRON, 0)


def holders(connection: Connection, task_id: int) -> Sequence[int]:
    """The instances that hold overlap slots of a task: those that run."""
    first = task_id * OVERLAP_SLOTS
    held = select(_instance.id).where(_instance.overlap_key.between(first, first + OVERLAP_SLOTS - 1))
    found = by_index(held, schedule_instance, "uq_schedule_instance_overlap_key").order_by(_instance.overlap_key)
    return connection.scalars(found.limit(LOOKED_AT)).all()


def live_workers(connection: Connection, runs: Sequence[Row[Any]]) -> set[int]:
    """The workers of these instances that live and are not silent."""
    ids = sorted({row.schedule_worker_node_id for row in runs if row.schedule_worker_node_id is not None})
    if not ids:
        return set()
    beats = select(_beat.schedule_worker_node_id).where(_beat.schedule_worker_node_id.in_(ids), LIVES, ~SILENT)
    return set(connection.scalars(beats))
