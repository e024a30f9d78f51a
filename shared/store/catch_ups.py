"""The missed fires that are still to run, under ``fire_all``: a row for each stretch of a task."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, delete, exists, insert, literal_column, select, update

from rota.shared.database.constructs import UtcNow, among, bound, by_index, found_by, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.catching_up import CatchUp, CaughtUp
from rota.shared.domain.planning import Missed, PlannedTask
from rota.shared.store import plans
from rota.shared.store.tables import is_paused, schedule_catch_up, schedule_instance, schedule_task

_catch_up = schedule_catch_up.c
_instance = schedule_instance.c
_task = schedule_task.c

STRETCHES_LOOKED_AT = 10
"""So many stretches that end at or after a moment are looked at."""

_rows = json_rows("missed", task="id", first="time", last="time", inputs="json")
_columns = {
    "schedule_task_id": _rows.c.task,
    "next_fire": _rows.c.first,
    "last_fire": _rows.c.last,
    "plan_inputs": _rows.c.inputs,
    "creator": literal_column("'scheduler'"),
    "modifier": literal_column("'scheduler'"),
}
_begin = ignore_conflicts(insert(schedule_catch_up)).from_select(
    list(_columns), select(*_columns.values()), include_defaults=False
)


def begin(connection: Connection, missed: Iterable[tuple[PlannedTask, Missed]]) -> None:
    """Leave the missed fires of tasks to the catch-up. A stretch that is there already stays as it is."""
    rows = [(task.id, one.first, one.last, task.terms.inputs_text) for task, one in missed]
    if rows:
        execute_later(connection, _begin, {"rows": bound(sorted(rows))})


@dataclass(frozen=True, slots=True)
class Page:
    """Some stretches, in the order of their ids: those of which more may be written now, and the last id seen."""

    ready: Sequence[CatchUp]
    last_id: int
    is_last: bool


_waits = exists(
    by_index(
        select(literal_column("1")).where(
            _instance.schedule_task_id == _catch_up.schedule_task_id,
            _instance.schedule_datetime == _catch_up.written_fire,
            _instance.fire_key == literal_column("''"),
            _instance.run_number == literal_column("0"),
            _instance.status.in_(["pending", "assigned"]),
            _instance.attempt == 0,  # a retry has begun before
        ),
        schedule_instance,
        "uq_schedule_instance_fire",
    )
)
_page = (
    select(
        _catch_up.id,
        _catch_up.schedule_task_id,
        _catch_up.next_fire,
        _catch_up.last_fire,
        _catch_up.fires_left,
        _catch_up.gmt_create,
        _catch_up.plan_inputs,
        _task.misfire_window_seconds,
        _task.misfire_cap,
        case((_waits, literal_column("1")), else_=literal_column("0")).label("waits"),
    )
    .join_from(schedule_catch_up, schedule_task, _task.id == _catch_up.schedule_task_id)
    .where(_catch_up.id > bindparam("after"), ~is_paused)
    .order_by(_catch_up.id)
    .limit(bindparam("limit"))
)


def page(connection: Connection, after_id: int, limit: int) -> Page:
    """At most ``limit`` stretches after this id. Those wait whose fire that was written last has not begun yet.

    While all scheduling is paused there is none.
    """
    rows = connection.execute(_page, {"after": after_id, "limit": limit}).all()
    ready = [_read(row) for row in rows if not row.waits]
    return Page(ready, rows[-1].id if rows else 0, len(rows) < limit)


def _read(row: Any) -> CatchUp:
    return CatchUp(
        row.id, row.schedule_task_id, row.next_fire, row.last_fire, row.fires_left, row.gmt_create,
        plans.inputs_in(row.plan_inputs), row.misfire_window_seconds, row.misfire_cap,
    )  # fmt: skip


_unmoved = select(_catch_up.id, _catch_up.next_fire).where(among(_catch_up.id))


def not_moved(connection: Connection, stretches: Iterable[CatchUp]) -> set[int]:
    """The ids of those of these stretches that are as they were read. The caller holds the leases of their tasks."""
    read = {one.id: one.next_fire for one in stretches}
    rows = read_before(connection, _unmoved, {"ids": sorted(read)})
    return {stretch_id for stretch_id, next_fire in rows if read[stretch_id] == next_fire}


_moved = json_rows("moved", id="id", old="time", next="time", remaining="int", written="time")
_move = (
    update(schedule_catch_up)
    .where(_catch_up.id == _moved.c.id, _catch_up.next_fire == _moved.c.old)
    .values(
        next_fire=_moved.c.next, fires_left=_moved.c.remaining, written_fire=_moved.c.written, gmt_modified=UtcNow()
    )
)
_end = found_by(delete(schedule_catch_up).where(among(_catch_up.id)))
_counted = json_rows("counted", task="id", misfires="int", held_back="int")
_count = (
    update(schedule_task)
    .where(_task.id == _counted.c.task)
    .values(misfires=_task.misfires + _counted.c.misfires, fires_held_back=_task.fires_held_back + _counted.c.held_back)
)


def advance(connection: Connection, steps: Iterable[tuple[CatchUp, CaughtUp]]) -> None:
    """Move stretches on, and delete those that are over. The caller holds the leases of their tasks."""
    left = [(m.id, m.next_fire, c.next_fire, c.fires_left, c.fires[-1]) for m, c in steps if c.fires_left]
    over = [m.id for m, c in steps if not c.fires_left]
    if left:
        execute_later(connection, _move, {"rows": bound(sorted(left))})
    if over:
        execute_later(connection, _end, {"ids": sorted(over)})


def count(connection: Connection, numbers: Iterable[tuple[int, int, int]]) -> None:
    """Add what is not run to the counters of tasks: (task id, misfires, fires held back)."""
    if rows := sorted(numbers):
        execute_later(connection, _count, {"rows": bound(rows)})


def of_task(connection: Connection, task_id: int) -> list[Row[Any]]:
    """The stretches of a task that are still to run, the oldest first."""
    own = and_(_catch_up.schedule_task_id == task_id, _catch_up.is_deleted == 0)
    return list(connection.execute(select(schedule_catch_up).where(own).order_by(_catch_up.last_fire)))


def covering(connection: Connection, task_id: int, moment: datetime) -> list[Row[Any]]:
    """The stretches of a task that are still to run and in which a moment (naive UTC) lies."""
    later = select(schedule_catch_up).where(_catch_up.schedule_task_id == task_id, _catch_up.last_fire >= moment)
    rows = connection.execute(later.order_by(_catch_up.last_fire).limit(STRETCHES_LOOKED_AT))
    return [row for row in rows if row.is_deleted == 0 and row.next_fire <= moment]
