"""A calendar as people define it, and as its row has it. SQL may have written anything into the row."""

import json
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from rota.shared.domain.calendars.calendar import WHOLE_WEEK, Calendar
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_value

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NONE, ALL = "none", "all"

FIRST_DATE, LAST_DATE = date(1970, 1, 1), date(2199, 12, 31)
"""The dates that a calendar may name."""

MOST_DATES = 4000
"""The most dates that one column of a calendar may have."""

DAY_COLUMNS = ("weekend", "country", "holidays", "makeup_days", "days_off", "days_on")
"""The columns that say which days are working days, in the order of the JSON array in which they are read."""


@lru_cache(1000)
def read_calendar(name: str, text: str) -> Calendar:
    """The calendar of a row, whose ``DAY_COLUMNS`` are a JSON array.

    Raises InvalidInput if SQL has written there what no calendar has.
    """
    weekend, country, holidays, makeup, off, on = json.loads(text)
    try:
        _require_known(name, country, holidays)
        free = weekend_of(weekend)
        is_off = dict.fromkeys(read_dates("holidays", holidays), True)
        is_off |= dict.fromkeys(read_dates("makeup_days", makeup), False)
        is_off |= plain_dates(off, on)
    except InvalidInput as error:
        raise InvalidInput(f"calendar {name!r}: {error}") from None
    days_off = sorted(day for day, off in is_off.items() if off and day.weekday() not in free)
    days_on = sorted(day for day, off in is_off.items() if not off and day.weekday() in free)
    return Calendar(name, edition_of(text), free, tuple(days_off), tuple(days_on))


def _require_known(name: str, country: str | None, holidays: str | None) -> None:
    if country is not None and holidays is None:
        raise InvalidInput(f"the holidays of {country} are not there yet; run rota calendar refresh {name}")


def plain_dates(off: Any, on: Any) -> dict[date, bool]:
    """The dates in ``days_off`` and ``days_on``, each with whether it is off.

    Raises InvalidInput, also for a date that is in both.
    """
    days_off, days_on = read_dates("days_off", off), read_dates("days_on", on)
    if both := sorted(days_off & days_on):
        raise InvalidInput(f"{both[0]} is in days_off and in days_on; leave it in one of them")
    return dict.fromkeys(days_off, True) | dict.fromkeys(days_on, False)


Found = Calendar | InvalidInput
"""A calendar, or what is wrong with its row."""


def found_calendar(name: str, text: str) -> Found:
    """The calendar of a row, or what is wrong with it."""
    try:
        return read_calendar(name, text)
    except InvalidInput as error:
        return error


@lru_cache(1000)
def edition_of(text: str) -> str:
    """What tells one state of a calendar's ``DAY_COLUMNS`` from another: 16 characters."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def read_dates(column: str, value: Any) -> frozenset[date]:
    """The dates of a JSON list of texts, or of a JSON object whose keys they are.

    Raises InvalidInput.
    """
    found = json_value(value) if isinstance(value, str) else value
    if found is None:
        return frozenset()
    if not isinstance(found, list | dict):
        raise InvalidInput(f'{column} is {found!s:.60}; write a JSON list of dates, such as ["2027-12-24"]')
    if len(found) > MOST_DATES:
        raise InvalidInput(f"{column} has {len(found):,} dates; at most {MOST_DATES:,} are kept")
    return frozenset(read_date(column, text) for text in found)


def read_date(name: str, value: Any) -> date:
    """A date that somebody wrote; raises InvalidInput. ``name`` says where."""
    try:
        day = value if type(value) is date else date.fromisoformat(value)
    except (ValueError, TypeError):
        day = None
    if day is None or not FIRST_DATE <= day <= LAST_DATE:
        said = value if isinstance(value, str) else repr(value)
        raise InvalidInput(f"{name} {said!r:.60}: write a date from {FIRST_DATE} to {LAST_DATE}, such as 2027-12-24")
    return day


def weekend_of(text: Any) -> frozenset[int]:
    """The days of the week that are off: ``sat,sun``, ``none`` or ``all``; Monday is 0.

    Raises InvalidInput.
    """
    if text in (NONE, ALL):
        return frozenset() if text == NONE else WHOLE_WEEK
    words = [word.strip() for word in text.lower().split(",")] if isinstance(text, str) else []
    if not words or any(word not in WEEKDAYS for word in words):
        raise InvalidInput(f"weekend {text!r:.60}: write days such as sat,sun, or {NONE}, or {ALL}")
    return frozenset(WEEKDAYS.index(word) for word in words)


def weekend_text(days: Iterable[int]) -> str:
    """The days of the week as ``weekend_of`` reads them."""
    found = frozenset(days)
    if found in (frozenset(), WHOLE_WEEK):
        return ALL if found else NONE
    return ",".join(WEEKDAYS[day] for day in sorted(found))


def dates_text(days: Mapping[date, str] | Iterable[date]) -> Any:
    """Dates as a row has them: a list of texts, or with their names an object; None if there are none."""
    if isinstance(days, Mapping):
        return {day.isoformat(): days[day] for day in sorted(days)} or None
    return [day.isoformat() for day in sorted(days)] or None
