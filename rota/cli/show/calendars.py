"""Shows calendars: which days are working days."""

from collections.abc import Sequence
from typing import Any

import click

from rota.cli.show.output import cell, show_fields
from rota.cli.show.table import show_table
from rota.shared.control.documents import Document
from rota.shared.domain.calendars.definition import WEEKDAYS, weekend_of
from rota.shared.domain.errors import InvalidInput

COLUMNS = ("name", "weekend", "country", "through", "days off", "working days", "remark")
SHOWN = ("name", "weekend", "country", "subdivision", "first_year", "last_year", "creator", "modifier")


def saved_sentence(calendar: Document, done: str) -> str:
    """A sentence about the calendar that was saved."""
    return cell(f"{calendar['name']} is {done}: {working_days(calendar)}")


def working_days(calendar: Document) -> str:
    """Which days are working days: ``mon to fri, without the public holidays of DE (known through 2036)``."""
    parts = [_week(calendar["weekend"])]
    if calendar["country"]:
        known = f"(known through {calendar['last_year']})"
        parts.append(f"without the public holidays of {_country(calendar)} {known}")
        if calendar["makeup_days"]:
            parts.append("with its make-up days")
    for name, word in (("days_off", "off"), ("days_on", "on")):
        if count := _count(calendar[name]):
            parts.append(f"{count} plain date{'s' if count > 1 else ''} {word}")
    return ", ".join(parts)


def _week(weekend: Any) -> str:
    try:
        days = [day for number, day in enumerate(WEEKDAYS) if number not in weekend_of(weekend)]
    except InvalidInput:
        return f"weekend {weekend}"
    if len(days) in (0, 7):
        return "all days" if days else "no day of the week"
    at = [WEEKDAYS.index(day) for day in days]
    in_turn = at == list(range(at[0], at[0] + len(at)))
    return f"{days[0]} to {days[-1]}" if in_turn and len(days) > 2 else ", ".join(days)


def _country(calendar: Document) -> str:
    part = calendar["subdivision"]
    return f"{calendar['country']}-{part}" if part else str(calendar["country"])


def _count(dates: Any) -> int:
    return len(dates) if isinstance(dates, list | dict) else 0


def show_calendars(calendars: Sequence[Document]) -> None:
    """Print calendars, a line for each."""
    lines = [
        (
            one["name"],
            one["weekend"],
            _country(one) if one["country"] else None,
            one["last_year"],
            _count(one["holidays"]) + _count(one["days_off"]),
            _count(one["makeup_days"]) + _count(one["days_on"]),
            one["remark"],
        )
        for one in calendars
    ]
    show_table(COLUMNS, lines, empty="no calendar; add one with rota calendar add", least=COLUMNS[:0:-1])


def show_calendar(calendar: Document) -> None:
    """Print a calendar, its days in a year, and the tasks that use it."""
    makeup = calendar["makeup_days"]
    last_makeup = max(map(str, makeup)) if isinstance(makeup, list) and makeup else None
    show_fields([*((name, calendar[name]) for name in SHOWN), ("last make-up day", last_makeup)])
    click.echo(f"\n{cell(working_days(calendar))}")
    if calendar["tasks"]:
        click.echo(f"used by {cell(', '.join(calendar['tasks']))}")
    if calendar["days"]:
        click.echo()
        lines = [
            (one["date"], one["weekday"], "working" if one["working"] else "off", one["name"])
            for one in calendar["days"]
        ]
        show_table((str(calendar["year"]), "", "", ""), lines, empty="")
