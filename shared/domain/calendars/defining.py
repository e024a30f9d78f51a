"""A calendar as a person defines or changes it, and the columns that are written then."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from rota.shared.domain.calendars.countries import public_days
from rota.shared.domain.calendars.definition import (
    DAY_COLUMNS,
    dates_text,
    plain_dates,
    read_calendar,
    read_date,
    weekend_of,
    weekend_text,
)
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text

YEARS_AHEAD = 10
"""Holidays are worked out through this many years from now, unless somebody says otherwise."""

MOST_YEARS_AHEAD = 30

LONGEST_NAME = 63
LONGEST_TEXT = 60_000

WEEKEND = "sat,sun"
"""The weekend of a calendar of no country."""

OF_COUNTRY = ("holidays", "makeup_days", "first_year", "last_year")
"""The columns that are worked out from the country."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a person says about a calendar; None: nothing.

    ``country``: a code of ISO 3166, with a part of the country as in ``DE-BY``; empty: none. ``off`` and ``on`` are
    dates that become days off and working days, and ``forget`` dates that are as they would be without these.
    """

    country: str | None = None
    weekend: str | None = None
    off: Iterable[str] = ()
    on: Iterable[str] = ()
    forget: Iterable[str] = ()
    last_year: int | None = None


def checked_name(name: str) -> str:
    """A name for a calendar; raises InvalidInput for one that it cannot have."""
    if not re.fullmatch(r"\S(.*\S)?", name) or len(name) > LONGEST_NAME:
        raise InvalidInput(f"name {name!r:.80}: a name has 1 to {LONGEST_NAME} characters, and no blank at its ends")
    return name


def defined(name: str, changes: Changes, this_year: int) -> dict[str, Any]:
    """The columns of a new calendar. Raises InvalidInput, also for a country that is not known."""
    checked_name(name)
    nothing: dict[str, Any] = dict.fromkeys((*DAY_COLUMNS, "subdivision", "first_year", "last_year"))
    return changed(name, nothing, changes, this_year)


def changed(name: str, row: Mapping[str, Any], changes: Changes, this_year: int) -> dict[str, Any]:
    """The columns of a calendar after some changes; ``row`` has those before. Raises InvalidInput."""
    columns = dict(row)
    if changes.country is not None:
        country, _, part = changes.country.partition("-")
        if part and not country:
            raise InvalidInput(f"country {changes.country!r:.40}: write a code such as DE, or DE-BY for a part of it")
        columns |= dict.fromkeys(OF_COUNTRY) | {"country": country or None, "subdivision": part or None}
    if changes.last_year is not None and columns["country"] is None:
        raise InvalidInput("only the holidays of a country have a last year; say --country, too")
    if columns["country"] is not None and (changes.country is not None or changes.last_year is not None):
        of_country, weekend = worked_out(columns, this_year, changes.last_year)
        columns |= of_country
        columns["weekend"] = columns["weekend"] or weekend
    if changes.weekend is not None:
        columns["weekend"] = weekend_text(weekend_of(changes.weekend))
    columns["weekend"] = columns["weekend"] or WEEKEND
    columns |= _plain(columns, changes)
    return _checked(name, columns)


def worked_out(row: Mapping[str, Any], this_year: int, last_year: int | None = None) -> tuple[dict[str, Any], str]:
    """The columns ``OF_COUNTRY`` of a calendar, as the installed library knows them, and the weekend of the country.

    Raises InvalidInput.
    """
    most = this_year + MOST_YEARS_AHEAD
    if last_year is not None and not this_year <= last_year <= most:
        raise InvalidInput(f"last_year {last_year}: write a year from {this_year} to {most}")
    first = row["first_year"] or this_year - 1
    last = last_year or max(this_year + YEARS_AHEAD, min(row["last_year"] or 0, most))
    days = public_days(row["country"], row["subdivision"], first, last)
    columns = {
        "holidays": dates_text(days.holidays) or {},
        "makeup_days": dates_text(days.makeup_days),
        "first_year": first,
        "last_year": days.last_year,
    }
    return columns, days.weekend


def _plain(columns: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    days = plain_dates(columns["days_off"], columns["days_on"])
    said: dict[date, bool | None] = {}
    for name, given, is_off in (
        ("off", changes.off, True),
        ("on", changes.on, False),
        ("forget", changes.forget, None),
    ):
        for text in given:
            day = read_date(name, text)
            if said.setdefault(day, is_off) != is_off:
                raise InvalidInput(f"{day} is given twice; it can be only one of off, on and forgotten")
    left = {day: is_off for day, is_off in {**days, **said}.items() if is_off is not None}
    return {
        "days_off": dates_text(day for day, is_off in left.items() if is_off),
        "days_on": dates_text(day for day, is_off in left.items() if not is_off),
    }


def _checked(name: str, columns: dict[str, Any]) -> dict[str, Any]:
    texts = [_text(columns[name]) for name in DAY_COLUMNS]
    read_calendar(name, json_text(texts))
    for column, text in zip(DAY_COLUMNS, texts, strict=True):
        if text is not None and len(text.encode()) > LONGEST_TEXT:
            raise InvalidInput(f"{column} would have {len(text.encode()):,} bytes; at most {LONGEST_TEXT:,} are kept")
    return columns


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)
