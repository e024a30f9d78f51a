"""Calendars: read for a plan, edited by commands; and which tasks were planned with which edition of which calendar.

A plan is made with the calendar as it is when the plan is made. The row of use then has the calendar's edition. So an
edit of a calendar, by whomever, is found by an index: the rows of use with another edition. That holds also for a plan
that a scheduler made from the calendar before the edit and wrote after it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    type_coerce,
    union_all,
    update,
)

from rota.shared.database.constructs import (
    LongText,
    UtcNow,
    among,
    bound,
    found_by,
    ignore_conflicts,
    json_rows,
    read_by,
)
from rota.shared.database.json_lists import TextAt
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.calendars.definition import DAY_COLUMNS, read_calendar
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.sentences import close_to
from rota.shared.domain.task import TRIGGER_FIELDS
from rota.shared.store.tables import schedule_calendar, schedule_calendar_use, schedule_task

_calendar = schedule_calendar.c
_use = schedule_calendar_use.c
_task = schedule_task.c

OF_PLAN = frozenset({*TRIGGER_FIELDS, "cron_seconds", "timezone", "calendar", "calendar_days", "starts_at", "ends_at"})
"""The fields that say when the task fires."""

days_text = func.json_array(
    *(func.trim(type_coerce(_calendar[name], String)) for name in DAY_COLUMNS), type_=String()
).label("days_text")
"""The ``DAY_COLUMNS`` of a calendar as one text. TRIM makes strings of JSON, which Python may be unable to read."""

NAMED = TextAt(_task.trigger_spec, literal_column("'$.calendar'"))
"""The name of the calendar that a task uses; NULL if it uses none."""

text_of_task = select(days_text).where(_calendar.live_name == NAMED).scalar_subquery()
"""The ``days_text`` of the calendar that a task names; NULL if there is none."""

_texts = select(_calendar.live_name, days_text).where(among(_calendar.live_name, "names"))
_editions = select(_use.schedule_task_id, _use.calendar, _use.edition).where(among(_use.schedule_task_id))


def texts(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """The ``days_text`` of those of these calendars that there are, by their names."""
    return dict(map(tuple, read_before(connection, _texts, {"names": sorted(set(names))})))


def editions(connection: Connection, task_ids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """With which calendar, and which edition of it, these tasks were planned."""
    ids = sorted(task_ids)
    rows = connection.execute(_editions, {"ids": ids}).all() if ids else []
    return {task_id: (calendar, edition) for task_id, calendar, edition in rows}


_names = select(_calendar.live_name).where(_calendar.live_name.is_not(None)).order_by(_calendar.live_name).limit(1000)
_with_now = select(days_text, UtcNow().label("now")).where(_calendar.live_name == bindparam("name"))


def known_names(connection: Connection) -> list[str]:
    """The names of the calendars that there are."""
    return list(read_before(connection, _names, {}).scalars())


def checked(connection: Connection, inputs: PlanInputs) -> PlanInputs:
    """The inputs of a plan with the calendar that they name.

    Raises InvalidInput if there is no such calendar, or if no fire to come is on its days.
    """
    name = inputs.calendar_name
    if name is None:
        return inputs
    row = read_before(connection, _with_now, {"name": name}).one_or_none()
    if row is None:
        near = close_to(name, known_names(connection))
        raise InvalidInput(f"there is no calendar {name!r}{near}; rota calendar list shows those there are")
    found = inputs.on({name: read_calendar(name, row.days_text)})
    if found.next_after(row.now) is None and inputs.without_calendar().next_after(row.now) is not None:
        raise InvalidInput(f"the task would never fire: {found.describe()}; no time is both")
    return found


_rows = json_rows("used", task="id", calendar="str", edition="str")
_add_use = ignore_conflicts(insert(schedule_calendar_use)).from_select(
    ["schedule_task_id", "calendar", "edition", "creator", "modifier"],
    select(_rows.c.task, _rows.c.calendar, _rows.c.edition, *[literal_column("'scheduler'")] * 2),
    include_defaults=False,
)
_set_use = (
    update(schedule_calendar_use)
    .where(_use.schedule_task_id == _rows.c.task)
    .values(calendar=_rows.c.calendar, edition=_rows.c.edition, gmt_modified=UtcNow())
    .with_hint("uq_schedule_calendar_use_task")
)


def use(connection: Connection, uses: Iterable[tuple[int, str, str]]) -> None:
    """Record with which edition of which calendar tasks are planned: (task id, calendar, edition)."""
    if rows := sorted(uses):
        execute_later(connection, _add_use, {"rows": bound(rows)})
        execute_later(connection, _set_use, {"rows": bound(rows)})


def use_by(connection: Connection, task_id: int, inputs: PlanInputs) -> None:
    """Record that a task, which was added or edited, uses its calendar and is not planned with it yet."""
    if inputs.calendar_name is not None:
        use(connection, [(task_id, inputs.calendar_name, "")])


@dataclass(frozen=True, slots=True)
class Page:
    """Some calendars in the order of their ids: the texts of their days by their names, and the last id."""

    texts: Mapping[str, str]
    last_id: int
    is_last: bool


_page = (
    select(_calendar.id, _calendar.live_name, days_text)
    .where(_calendar.id > bindparam("after"))
    .order_by(_calendar.id)
    .limit(bindparam("limit"))
)


def page(connection: Connection, after_id: int, limit: int) -> Page:
    """At most ``limit`` calendars after this id."""
    rows = connection.execute(_page, {"after": after_id, "limit": limit}).all()
    live = {name: text for _, name, text in rows if name is not None}
    return Page(live, rows[-1].id if rows else 0, len(rows) < limit)


def _planned_otherwise(side: ColumnElement[bool]) -> Any:
    found = (
        select(_use.schedule_task_id.label("task"), NAMED.label("named"))
        .outerjoin_from(schedule_calendar_use, schedule_task, _task.id == _use.schedule_task_id)
        .where(_use.calendar == bindparam("calendar"), side, _task.plan_stale.is_(None))
        .limit(bindparam("limit"))
    )
    side_by_index = read_by(found, schedule_calendar_use, "ix_schedule_calendar_use_edition").subquery()
    return select(side_by_index.c.task, side_by_index.c.named)


_outdated = union_all(
    _planned_otherwise(_use.edition < bindparam("edition")), _planned_otherwise(_use.edition > bindparam("edition"))
)


def outdated(connection: Connection, calendar: str, edition: str, limit: int) -> tuple[list[int], list[int]]:
    """Tasks that were planned with another edition of a calendar and that nobody looks at yet, some of them.

    Returns the ids of those that use it, and of those that do not use it any more, or are gone.
    """
    values = {"calendar": calendar, "edition": edition, "limit": limit}
    rows = connection.execute(_outdated, values).all()
    return [task for task, named in rows if named == calendar], [task for task, named in rows if named != calendar]


_mark = (
    update(schedule_task)
    .where(among(_task.id), _task.plan_stale.is_(None))
    .values(planned_inputs=literal_column("' '", LongText).concat(_task.planned_inputs))
)
_forget = found_by(
    delete(schedule_calendar_use).where(
        among(_use.schedule_task_id), _use.calendar == bindparam("calendar"), _use.edition != bindparam("edition")
    ),
    "uq_schedule_calendar_use_task",
)


def mark(connection: Connection, task_ids: Collection[int]) -> None:
    """Have schedulers look at the plans of these tasks.

    A text of inputs means the same with a blank before it. (With one behind it MariaDB takes both texts as equal.)
    """
    execute_later(connection, _mark, {"ids": sorted(task_ids)})


def forget(connection: Connection, task_ids: Collection[int], calendar: str, edition: str) -> None:
    """Delete the rows of use of tasks that do not use a calendar any more."""
    values = {"ids": sorted(task_ids), "calendar": calendar, "edition": edition}
    execute_later(connection, _forget, values)
