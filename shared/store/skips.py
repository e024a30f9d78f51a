"""The fires that were not run and have no instance: a row for each stretch of them, with the reason and their number.

A stretch that goes on, as while a task is off, stays one row.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, literal_column, select, update

from rota.shared.database.constructs import UtcNow, bound, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.planning import Skipped
from rota.shared.store.tables import schedule_skip

_skip = schedule_skip.c

STRETCHES_LOOKED_AT = 10
"""So many stretches that end at or after a moment are looked at: those of several reasons may lie over each other."""

_rows = json_rows("skipped", task="id", reason="str", first="time", last="time", after="time", fires="int")
_continue = (
    update(schedule_skip)
    .where(_skip.schedule_task_id == _rows.c.task, _skip.last_fire == _rows.c.after, _skip.reason == _rows.c.reason)
    .values(last_fire=_rows.c.last, fires=_skip.fires + _rows.c.fires, gmt_modified=UtcNow())
)
_columns = {
    "schedule_task_id": _rows.c.task,
    "reason": _rows.c.reason,
    "first_fire": _rows.c.first,
    "last_fire": _rows.c.last,
    "fires": _rows.c.fires,
    "creator": literal_column("'scheduler'"),
    "modifier": literal_column("'scheduler'"),
}
_begin = ignore_conflicts(insert(schedule_skip)).from_select(
    list(_columns), select(*_columns.values()), include_defaults=False
)


def record(connection: Connection, skipped: Iterable[tuple[int, Skipped]]) -> None:
    """Record fires that are skipped: (task id, fires). One that ends as a recorded stretch does is recorded already."""
    rows = sorted((task_id, s.reason.value, s.first, s.last, s.after, s.number) for task_id, s in skipped)
    if going_on := [row for row in rows if row[4] is not None]:
        execute_later(connection, _continue, {"rows": bound(going_on)})
    if rows:
        execute_later(connection, _begin, {"rows": bound(rows)})


_of_task = select(schedule_skip).where(_skip.is_deleted == 0)


def newest(connection: Connection, task_id: int, limit: int) -> list[Row[Any]]:
    """The newest stretches of a task, the newest first."""
    statement = _of_task.where(_skip.schedule_task_id == task_id).order_by(_skip.last_fire.desc()).limit(limit)
    return list(connection.execute(statement))


def covering(connection: Connection, task_id: int, moment: datetime) -> list[Row[Any]]:
    """The stretches of a task in which a moment (naive UTC) lies."""
    later = _of_task.where(_skip.schedule_task_id == task_id, _skip.last_fire >= moment)
    rows = connection.execute(later.order_by(_skip.last_fire).limit(STRETCHES_LOOKED_AT))
    return [row for row in rows if row.first_fire <= moment]
