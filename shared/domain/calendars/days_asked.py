"""The days of a calendar on which a task may fire, and the search for fires on them. Pure: the time is an argument."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from rota.shared.domain.calendars.calendar import BACKWARD, FORWARD, Calendar
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.times import localized
from rota.shared.domain.triggers.zones import offsets_of, transition_between

MOST_FIRES = 1000
"""A search looks at so many fires on days that are not asked for, and then gives up: there is none."""

YEARS_SEARCHED = 28
"""In so many years each date has been on each day of the week."""

FIRST_YEAR = 1970

DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)

WORKING, OFF = "working", "off"
WORDS = {"first": 1, "last": -1}

Fire = datetime | None


@dataclass(frozen=True, slots=True)
class Which:
    """What a task asks of its calendar: its working days, its days off, or one working day of each month.

    ``nth``: 1 is the first working day of a month, -1 the last; None: ``working`` says which days.
    """

    working: bool = True
    nth: int | None = None

    @classmethod
    def read(cls, value: Any) -> "Which":
        """What somebody wrote: ``working``, ``off``, ``first``, ``last``, or a number such as 3 or -2.

        Raises InvalidInput.
        """
        if value in (None, WORKING):
            return cls()
        if value == OFF:
            return cls(working=False)
        nth = WORDS.get(value, value) if isinstance(value, str) else value
        try:
            number = int(nth) if isinstance(nth, str) or type(nth) is int else 0
        except ValueError:
            number = 0
        if not 1 <= abs(number) <= 31:
            raise InvalidInput(
                f"calendar_days {value!r:.60}: write {WORKING}, {OFF}, first, last, or the number of a working day "
                "in its month: 3 is the third, -2 the last but one"
            )
        return cls(nth=number)

    @property
    def text(self) -> str:
        """As ``read`` reads it, each in one way."""
        words = {number: word for word, number in WORDS.items()}
        return (WORKING if self.working else OFF) if self.nth is None else words.get(self.nth, str(self.nth))

    def describe(self, calendar: str) -> str:
        """The days in plain English: ``on working days of calendar cn``."""
        if self.nth is None:
            return f"on {'working days' if self.working else 'days off'} of calendar {calendar}"
        return f"on the {_ordinal(self.nth)} working day of each month in calendar {calendar}"


def days_text(value: Any, *, has_calendar: bool) -> str | None:
    """What somebody wrote as the days of a task's calendar, as ``Which.text``; None stays None. Raises InvalidInput."""
    if value is not None and not has_calendar:
        raise InvalidInput(f"calendar_days {value!r:.60} goes with calendar; say which one")
    return None if value is None else Which.read(value).text


def _ordinal(nth: int) -> str:
    number = abs(nth)
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    if nth > 0:
        return "first" if nth == 1 else f"{number}{ending}"
    return "last" if nth == -1 else f"{number}{ending} last"


@dataclass(frozen=True, slots=True, eq=False)
class DaysAsked:
    """The days of a calendar on which a task may fire."""

    calendar: Calendar
    which: Which

    def has(self, day: date) -> bool:
        """Whether the task may fire on a day."""
        if self.which.nth is None:
            return self.calendar.is_working(day) == self.which.working
        return self.calendar.is_working(day) and self._of_month(day) == day

    def nearest(self, day: date, step: int) -> date | None:
        """The first of them from a day on, or the last one up to it; None if there is none."""
        if self.which.nth is None:
            return self.calendar.nearest(day, step, working=self.which.working)
        last_year = max(day, self.calendar.last_named()).year + YEARS_SEARCHED
        near = self.calendar.nearest(day, step, working=True)
        while near is not None and FIRST_YEAR <= near.year <= min(last_year, date.max.year - 1):
            found = self._of_month(near)
            if found is not None and (found - day).days * step >= 0:
                return found
            near = self.calendar.nearest(_beyond_month(near, step), step, working=True)
        return None

    def _of_month(self, day: date) -> date | None:
        days, nth = self.calendar.month(day.year, day.month), self.which.nth or 1
        return days[nth - 1 if nth > 0 else nth] if len(days) >= abs(nth) else None

    def next_after(self, moment: datetime, zone: ZoneInfo, fires_after: Callable[[datetime], Fire]) -> Fire:
        """The first fire after a moment (naive UTC) on one of these days in the zone; None if there is none.

        ``fires_after`` tells the first fire after a moment, on whatever day. It is asked 1,000 times at most.
        """
        for _ in range(MOST_FIRES):
            fire = fires_after(moment)
            if fire is None or self.has(day := localized(fire, zone).date()):
                return fire
            following = self.nearest(day + DAY, FORWARD)
            if following is None:
                return None
            moment = max(fire, begin_of(following, zone) - TICK)
        return None

    def latest_until(self, moment: datetime, zone: ZoneInfo, latest_until: Callable[[datetime], Fire]) -> Fire:
        """The last fire up to a moment (naive UTC) on one of these days in the zone; None if there is none."""
        for _ in range(MOST_FIRES):
            fire = latest_until(moment)
            if fire is None or self.has(day := localized(fire, zone).date()):
                return fire
            previous = self.nearest(day - DAY, BACKWARD)
            if previous is None or previous.year < FIRST_YEAR:
                return None
            moment = min(fire - TICK, end_of(previous, zone))
        return None


def _beyond_month(day: date, step: int) -> date:
    """The first day of the next month, or the last day of the previous one."""
    if step == BACKWARD:
        return day.replace(day=1) - DAY
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def begin_of(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a day in a zone (naive UTC), also where its midnight occurs twice, or does not occur."""
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - local time
    before, after = offsets_of(midnight, zone)
    if before >= after:
        return midnight - before
    return transition_between(midnight - after, midnight - before, zone) or midnight - before


def end_of(day: date, zone: ZoneInfo) -> datetime:
    """The last instant of a day in a zone (naive UTC), also where a part of the day occurs twice."""
    following = day + DAY
    midnight = datetime(following.year, following.month, following.day)  # noqa: DTZ001 - local time
    before, after = offsets_of(midnight, zone)
    second = midnight - after - TICK
    if before > after and localized(second, zone).date() <= day:
        return second
    return begin_of(following, zone) - TICK
