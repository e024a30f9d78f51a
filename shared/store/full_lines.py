"""Lines that are full: of a task with ``max_waiting`` so many fires wait for their turn at most.

Only new fires of the plan count, and only these are canceled: no missed fire that is caught up, no replay, no run of a
backfill, nothing that somebody asked for, and nothing that has begun before.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, bindparam, or_, select

from rota.shared.database.constructs import bound, by_index, json_rows, read_by
from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.domain.states import PLANNED_ORIGINS, TaskStatus
from rota.shared.domain.times import EARLIEST, is_time
from rota.shared.store import overlap, taken_slots
from rota.shared.store.tables import schedule_instance, schedule_task

MOST_TASKS = 1_000
NEWEST = 2_000
MOST_FIRES = 20_000
"""At a time so many tasks are looked at, so many instances of each line, the newest, and so many fires in all."""

_task = schedule_task.c
_waiting = schedule_instance.alias("waiting")


def _in_line(*columns: ColumnElement[object]) -> Select[tuple[object, ...]]:
    """The instances that are due and wait for their turn, of one task."""
    line = read_by(select(*columns), _waiting, "ix_schedule_instance_turn")
    due: Select[tuple[object, ...]] = line.where(_waiting.c.turn_key == _task.id, _waiting.c.due_at <= bindparam("due"))
    return due.correlate(schedule_task)


_begins = (
    _in_line(_waiting.c.due_at)
    .order_by(_waiting.c.turn_key.desc(), _waiting.c.due_at.desc())
    .limit(1)
    .offset(bindparam("newest"))
    .scalar_subquery()
)
_bounded = (
    read_by(
        select(
            _task.id,
            _task.max_waiting,
            _task.overlap_policy,
            _task.max_instances,
            _task.priority,
            _begins.label("begins"),
        ),
        schedule_task,
        "ix_schedule_task_max_waiting",
    )
    .where(
        _task.max_waiting.is_not(None),
        _task.is_deleted == 0,
        _task.status == TaskStatus.ON.value,
        _task.id > bindparam("after"),
        _in_line(_waiting.c.id).limit(1).scalar_subquery().is_not(None),  # of EXISTS a server may make a join
    )
    .order_by(_task.id)
    .limit(bindparam("most"))
)
_lines = json_rows("lines", task="id", priority="int", begins="time")
_fires = (
    by_index(
        select(_waiting.c.turn_key.label("task"), _waiting.c.id).join_from(
            _lines, _waiting, _waiting.c.turn_key == _lines.c.task
        ),
        _waiting,
        "ix_schedule_instance_turn",
    )
    .where(
        _waiting.c.due_at <= bindparam("due"),
        _waiting.c.due_at >= _lines.c.begins,
        _waiting.c.origin.in_([origin.value for origin in PLANNED_ORIGINS]),
        _waiting.c.attempt == 0,
        or_(_waiting.c.priority != CATCH_UP_PRIORITY, _lines.c.priority == CATCH_UP_PRIORITY),
    )
    .order_by(_waiting.c.turn_key, _waiting.c.due_at, _waiting.c.id)
    .limit(bindparam("most"))
)


class Line(NamedTuple):
    """The line of a task: how many may wait in it, and how many may run at once."""

    max_waiting: int
    slots: int


class Surplus(NamedTuple):
    """The fires without a place, each with why it is canceled, and after which task the next look is to go on."""

    reasons: dict[int, str]
    after: int
    """0: no task is left, so it begins anew."""


def without_a_place(connection: Connection, due: datetime, after: int = 0) -> Surplus:
    """The fires that are due (naive UTC) and for which the line of their task has no place: the newest ones.

    It looks at the tasks with an id above ``after``. What a free slot of the task can take does not wait.
    """
    lines: dict[int, Line] = {}
    asked = []
    found = connection.execute(_bounded, {"due": due, "after": after, "newest": NEWEST, "most": MOST_TASKS}).all()
    for row in found:
        slots = overlap.slots_waited_for(row.overlap_policy, row.max_instances)
        if slots is not None and isinstance(row.max_waiting, int):  # SQL may have left it under any policy
            lines[row.id] = Line(row.max_waiting, slots)
            asked.append((row.id, row.priority, row.begins if is_time(row.begins) else EARLIEST))
    last = found[-1].id if len(found) >= MOST_TASKS else 0
    if not lines:
        return Surplus({}, last)
    places = _places(connection, lines)  # first: what is claimed between the two must not count twice
    fires = connection.execute(_fires, {"rows": bound(asked), "due": due, "most": MOST_FIRES}).all()
    if len(fires) >= MOST_FIRES:  # the last line may be cut off
        last = max((task for task in lines if task < fires[-1].task), default=after)
        fires = [fire for fire in fires if fire.task <= last] or fires
    reasons = {
        fire.id: overlap.no_place(lines[task].max_waiting)
        for task, line in groupby(fires, attrgetter("task"))
        for fire in list(line)[places[task] :]
    }
    return Surplus(reasons, last)


def _places(connection: Connection, lines: Mapping[int, Line]) -> dict[int, int]:
    """How many fires of each task may be due and not begun."""
    taken = taken_slots.of(connection, lines)
    return {task: one.max_waiting + max(0, one.slots - len(taken.get(task, ()))) for task, one in lines.items()}
