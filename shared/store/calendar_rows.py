"""Calendars as people edit them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, String, cast, insert, select, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.constructs import UtcNow
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.errors import NameTaken, NotFound
from rota.shared.domain.sentences import close_to
from rota.shared.store.calendars import NAMED, days_text, known_names
from rota.shared.store.tables import schedule_calendar, schedule_calendar_use, schedule_task

_calendar = schedule_calendar.c
_use = schedule_calendar_use.c
_task = schedule_task.c

_modified = cast(_calendar.gmt_modified, String)
_as_read = select(schedule_calendar, _modified.label("modified"), days_text)


def find(connection: Connection, name: str) -> Row[Any]:
    """The live calendar of that name.

    Raises NotFound.
    """
    row: Row[Any] | None = read_before(connection, _as_read.where(_calendar.live_name == name), {}).one_or_none()
    if row is None:
        near = close_to(name, known_names(connection))
        raise NotFound(f"no calendar is named {name!r}{near}; rota calendar list shows them")
    return row


def listed(connection: Connection, limit: int) -> list[Row[Any]]:
    """At most ``limit`` live calendars, by name."""
    live = _as_read.where(_calendar.live_name.is_not(None)).order_by(_calendar.live_name).limit(limit)
    return list(read_before(connection, live, {}))


def add(connection: Connection, name: str, columns: Mapping[str, Any], by: str) -> int:
    """Insert a calendar; returns its id.

    Raises NameTaken.
    """
    try:
        row = insert(schedule_calendar).values(**columns, name=name, creator=by, modifier=by)
        return int(connection.execute(row).lastrowid)
    except IntegrityError as error:
        raise NameTaken(f"a calendar named {name!r} exists already; change it with rota calendar set") from error


def change(connection: Connection, row: Row[Any], columns: Mapping[str, Any], by: str) -> None:
    """Set columns of a calendar that was read. The transaction raises Unexpected if it was changed since."""
    same = (_calendar.id == row.id, _calendar.is_deleted == 0, _modified == row.modified)
    statement = update(schedule_calendar).where(*same).values(**columns, modifier=by, gmt_modified=UtcNow())
    execute_later(connection, statement, {}, expected=1)


def users(connection: Connection, name: str, limit: int) -> list[str]:
    """The names of live tasks that use a calendar, at most ``limit``."""
    named = (
        select(_task.live_name)
        .join_from(schedule_calendar_use, schedule_task, _task.id == _use.schedule_task_id)
        .where(_use.calendar == name, _task.live_name.is_not(None), _use.calendar == NAMED)
        .order_by(_task.live_name)
        .limit(limit)
    )
    return list(read_before(connection, named, {}).scalars())
