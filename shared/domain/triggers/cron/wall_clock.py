"""The wall-clock readings that a cron expression names, in naive local time and without any zone.

A reading is a local date and time in whole seconds. Every object is immutable, so threads may share it.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

FIRST_YEAR, LAST_YEAR = 2, 9998
"""The years that are searched. ``datetime`` holds one more at each end, so that adding an offset never overflows."""

LAST = -1
"""In ``WallClock.nth_weekdays`` this stands for the last such weekday of the month."""

_Time = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class WallClock:
    """The values that each field of an expression allows, ascending. Sunday is 0.

    ``days`` or ``weekdays`` is None if that field is ``*``. If both are restricted, a day needs to match only one of
    them (Vixie cron, crontab(5)).
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: tuple[int, ...] | None = None
    last_day: bool = False
    nearest_weekday: int | None = None
    weekdays: tuple[int, ...] | None = None
    nth_weekdays: tuple[tuple[int, int], ...] = ()

    def first_from(self, reading: datetime) -> datetime | None:
        """The earliest named reading that is not before this one; None if there is none up to ``LAST_YEAR``."""
        year, month, day = reading.year, reading.month, reading.day
        if day in self.days_in(year, month):
            time = self._time_from(reading.hour, reading.minute, reading.second)
            if time is not None:
                return datetime(year, month, day, *time)  # noqa: DTZ001 - a wall clock's reading has no zone
        while year <= LAST_YEAR:
            for candidate in self.days_in(year, month):
                if candidate > day:
                    time = self.hours[0], self.minutes[0], self.seconds[0]
                    return datetime(year, month, candidate, *time)  # noqa: DTZ001
            day = 0
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return None

    def last_until(self, reading: datetime) -> datetime | None:
        """The latest named reading that is not after this one; None if there is none since ``FIRST_YEAR``."""
        year, month, day = reading.year, reading.month, reading.day
        if day in self.days_in(year, month):
            time = self._time_until(reading.hour, reading.minute, reading.second)
            if time is not None:
                return datetime(year, month, day, *time)  # noqa: DTZ001
        while year >= FIRST_YEAR:
            for candidate in reversed(self.days_in(year, month)):
                if candidate < day:
                    time = self.hours[-1], self.minutes[-1], self.seconds[-1]
                    return datetime(year, month, candidate, *time)  # noqa: DTZ001
            day = 32
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)
        return None

    def days_in(self, year: int, month: int) -> Sequence[int]:
        """The named days of a month, ascending."""
        if month not in self.months:
            return ()
        first_weekday, length = monthrange(year, month)
        if not self.restricts_days and not self.restricts_weekdays:
            return range(1, length + 1)
        return sorted({*self._days_of_month(first_weekday, length), *self._days_of_week(first_weekday, length)})

    @property
    def restricts_days(self) -> bool:
        return self.days is not None

    @property
    def restricts_weekdays(self) -> bool:
        return self.weekdays is not None or bool(self.nth_weekdays)

    def _days_of_month(self, first_weekday: int, length: int) -> Iterator[int]:
        for day in self.days or ():
            if day <= length:
                yield day
        if self.last_day:
            yield length
        if self.nearest_weekday is not None:
            yield _nearest_weekday(min(self.nearest_weekday, length), first_weekday, length)

    def _days_of_week(self, first_weekday: int, length: int) -> Iterator[int]:
        for weekday in self.weekdays or ():
            yield from range(_first(weekday, first_weekday), length + 1, 7)
        for weekday, nth in self.nth_weekdays:
            all_of_them = range(_first(weekday, first_weekday), length + 1, 7)
            if nth == LAST:
                yield all_of_them[-1]
            elif nth <= len(all_of_them):
                yield all_of_them[nth - 1]

    def _time_from(self, hour: int, minute: int, second: int) -> _Time | None:
        if hour in self.hours:
            if minute in self.minutes:
                at = bisect_left(self.seconds, second)
                if at < len(self.seconds):
                    return hour, minute, self.seconds[at]
            at = bisect_right(self.minutes, minute)
            if at < len(self.minutes):
                return hour, self.minutes[at], self.seconds[0]
        at = bisect_right(self.hours, hour)
        return (self.hours[at], self.minutes[0], self.seconds[0]) if at < len(self.hours) else None

    def _time_until(self, hour: int, minute: int, second: int) -> _Time | None:
        if hour in self.hours:
            if minute in self.minutes:
                at = bisect_right(self.seconds, second)
                if at > 0:
                    return hour, minute, self.seconds[at - 1]
            at = bisect_left(self.minutes, minute)
            if at > 0:
                return hour, self.minutes[at - 1], self.seconds[-1]
        at = bisect_left(self.hours, hour)
        return (self.hours[at - 1], self.minutes[-1], self.seconds[-1]) if at > 0 else None


def _first(weekday: int, first_weekday: int) -> int:
    """The first day of a month that is a ``weekday`` (Sunday is 0); the 1st is a ``first_weekday`` (Monday is 0)."""
    return (weekday - first_weekday - 1) % 7 + 1


def _nearest_weekday(day: int, first_weekday: int, length: int) -> int:
    """The day from Monday to Friday in the same month that is nearest to ``day`` (``W``, as in Quartz)."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day
