"""Calendars: add, edit, refresh, remove, show; and a check that their holidays are known for long enough."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, calendar_document, values_of
from rota.shared.database.backend import Check
from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.defining import Changes, changed, defined, worked_out
from rota.shared.domain.calendars.definition import WEEKDAYS, found_calendar
from rota.shared.domain.errors import InvalidInput, NotPossible
from rota.shared.domain.planning import PlanInputs
from rota.shared.store import calendar_rows, calendars

USERS_SHOWN = 20

LOOKED_AT = 1000
"""The most calendars that are looked at at once."""

WARNED_YEARS = 1
"""``rota doctor`` warns if the holidays of the next so many years are not all known."""

COLUMNS = (
    "country", "subdivision", "weekend", "holidays", "makeup_days", "days_off", "days_on", "first_year", "last_year",
)  # fmt: skip


def add(database: Database, actor: Actor, name: str, changes: Changes, why: str | None = None) -> Document:
    """Add a calendar. Raises InvalidInput, NameTaken.

    add(database, Actor("ann", "cli"), "de", Changes(country="DE-BY", off=["2027-12-24"]))
    """
    columns = defined(name, changes, database.clock.now().year)

    def work(connection: Connection, act: Act) -> Row[Any]:
        calendar_id = calendar_rows.add(connection, name, columns, actor.name)
        new = {column: value for column, value in columns.items() if value is not None}
        audit.on_calendar(connection, act, "calendar.add", (calendar_id, name), old=None, new=new)
        return calendar_rows.find(connection, name)

    return calendar_document(perform(database, actor, why, work))


def edit(database: Database, actor: Actor, name: str, changes: Changes, why: str | None = None) -> Document:
    """Change a calendar. The plans of the tasks that use it are made anew. Raises NotFound, InvalidInput."""
    this_year = database.clock.now().year

    def work(connection: Connection, act: Act) -> Row[Any]:
        row = calendar_rows.find(connection, name)
        new = changed(name, _columns(row), changes, this_year)
        _write(connection, act, "calendar.set", row, new)
        return row

    perform(database, actor, why, work)
    return show(database, name)


def refresh(database: Database, actor: Actor, names: Sequence[str] = (), why: str | None = None) -> list[Document]:
    """Work out the holidays of countries anew, as the installed library knows them; of all calendars, or of these.

    Says of each calendar how many days have ``changed``, and through which year its holidays are known.
    Raises NotFound, or InvalidInput for a calendar of no country.
    """
    this_year = database.clock.now().year

    def work(connection: Connection, act: Act) -> list[Document]:
        rows = [calendar_rows.find(connection, name) for name in sorted(set(names))]
        if not names:
            rows = [row for row in calendar_rows.listed(connection, LOOKED_AT) if row.country is not None]
        return [_refreshed(connection, act, row, this_year) for row in rows]

    return perform(database, actor, why, work)


def _refreshed(connection: Connection, act: Act, row: Row[Any], this_year: int) -> Document:
    if row.country is None:
        raise InvalidInput(f"calendar {row.name!r} is of no country: there is nothing to refresh")
    old = _columns(row)
    new, _ = worked_out(old, this_year)
    _write(connection, act, "calendar.refresh", row, new)
    return {"name": row.name, "changed": _differing(old, new), "last_year": new["last_year"]}


def _columns(row: Row[Any]) -> Document:
    return {column: getattr(row, column) for column in COLUMNS}


def _differing(old: Document, new: Document) -> int:
    """How many dates are no holiday in one of them, or no make-up day."""
    return len({day for day, _ in _days(old) ^ _days(new)})


def _days(columns: Document) -> set[tuple[str, bool]]:
    """The dates that were worked out, each with whether it is a make-up day. SQL may have written anything there."""
    listed = ((columns["holidays"], False), (columns["makeup_days"], True))
    return {(str(day), is_makeup) for days, is_makeup in listed if isinstance(days, dict | list) for day in days}


def _write(connection: Connection, act: Act, action: str, row: Row[Any], columns: Document) -> None:
    """Write those of these columns that differ, if any does."""
    new = {column: value for column, value in columns.items() if getattr(row, column) != value}
    if new:
        calendar_rows.change(connection, row, new, act.actor.name)
        audit.on_calendar(connection, act, action, (row.id, row.name), old=values_of(row, new), new=new)


def remove(database: Database, actor: Actor, name: str, why: str | None = None) -> Document:
    """Mark a calendar as deleted. Raises NotFound, or NotPossible if tasks use it."""

    def work(connection: Connection, act: Act) -> int:
        row = calendar_rows.find(connection, name)
        if using := calendar_rows.users(connection, name, USERS_SHOWN):
            told = ", ".join(using)
            raise NotPossible(f"calendar {name!r} is used by {told}; first give them another, or --no-calendar")
        calendar_rows.change(connection, row, {"is_deleted": 1}, actor.name)
        old, new = {"is_deleted": 0}, {"is_deleted": 1}
        audit.on_calendar(connection, act, "calendar.remove", (row.id, name), old=old, new=new)
        return int(row.id)

    return {"id": perform(database, actor, why, work), "name": name, "removed": True}


def listed(database: Database, limit: int) -> list[Document]:
    """At most ``limit`` calendars by name."""
    return [calendar_document(row) for row in database.read(lambda c: calendar_rows.listed(c, limit))]


def show(database: Database, name: str, year: int | None = None) -> Document:
    """A calendar, the names of ``tasks`` that use it, and its ``days`` in a year, by default in this one.

    The days are those that differ from the others of their week, each with whether it is ``working``, and its name.
    Raises NotFound.
    """
    shown = year or database.clock.now().year

    def read(connection: Connection) -> Document:
        row = calendar_rows.find(connection, name)
        more = {"tasks": calendar_rows.users(connection, name, USERS_SHOWN), "year": shown}
        return calendar_document(row) | more | {"days": _days_of_year(row, shown)}

    return database.read(read)


def given(database: Database, inputs: PlanInputs) -> PlanInputs:
    """The inputs of a plan with the calendar that they name.

    Raises InvalidInput if there is no such calendar, or if the plan never fires on its days.
    """
    return database.read(lambda connection: calendars.checked(connection, inputs))


def _days_of_year(row: Row[Any], year: int) -> list[Document]:
    found = found_calendar(row.name, row.days_text)
    if isinstance(found, InvalidInput):
        return []
    names = row.holidays if isinstance(row.holidays, dict) else {}
    differing = sorted(day for day in (*found.off, *found.on) if day.year == year)
    return [
        {
            "date": day.isoformat(),
            "weekday": WEEKDAYS[day.weekday()],
            "working": found.is_working(day),
            "name": names.get(day.isoformat()),
        }
        for day in differing
    ]


def check_known(database: Database) -> Check:
    """Check that the holidays of calendars are known for long enough, and as the installed library knows them.

    The check only informs.
    """
    this_year = database.clock.now().year
    wanted = f"known through {this_year + WARNED_YEARS}"
    rows = database.read(lambda connection: calendar_rows.listed(connection, LOOKED_AT))
    told = [why for row in rows if (why := _why_refresh(row, this_year)) is not None]
    if not told:
        return Check("calendars", ok=True, found=wanted, wanted=wanted)
    return Check("calendars", ok=None, found="; ".join(told), wanted=wanted, help="run rota calendar refresh")


def _why_refresh(row: Row[Any], this_year: int) -> str | None:
    if (remark := calendar_document(row)["remark"]) is not None:
        return str(remark)
    last_year = row.last_year or 0
    if row.country is None:
        return None
    if last_year < this_year + WARNED_YEARS:
        return f"{row.name}: known through {last_year}"
    try:
        differing = _differing(_columns(row), worked_out(_columns(row), this_year, last_year)[0])
    except InvalidInput as error:
        return f"{row.name}: {error}"
    return f"{row.name}: {differing} days differ from the installed library of holidays" if differing else None
