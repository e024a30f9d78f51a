"""A calendar: a named set of working days and days off. Pure.

A calendar is in the database as a command has worked it out, with the holidays of its country as dates. So all
schedulers see the same days, whichever version of the library of holidays each of them has.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import date

WHOLE_WEEK = frozenset(range(7))

FORWARD, BACKWARD = 1, -1


@dataclass(frozen=True, slots=True, eq=False)
class Calendar:
    """Which days are working days, and which are days off.

    ``weekend``: the days of the week that are off; Monday is 0. ``off`` and ``on``: the dates that differ from that,
    each sorted. ``edition`` is another one whenever the calendar's row was changed.
    """

    name: str
    edition: str
    weekend: frozenset[int]
    off: tuple[date, ...] = ()
    on: tuple[date, ...] = ()

    def is_working(self, day: date) -> bool:
        """Whether a day is a working day."""
        if day.weekday() in self.weekend:
            return _nearest(self.on, day, FORWARD) == day
        return _nearest(self.off, day, FORWARD) != day

    def nearest(self, day: date, step: int, *, working: bool) -> date | None:
        """The first working day, or day off, from a day on; or the last one up to it. None if there is none.

        ``step`` is ``FORWARD`` or ``BACKWARD``. The search looks at a few more days than the calendar has dates.
        """
        has_no_such_weekday = self.weekend == (WHOLE_WEEK if working else frozenset())
        if has_no_such_weekday:
            return _nearest(self.on if working else self.off, day, step)
        at = day.toordinal()
        while date.min.toordinal() <= at <= date.max.toordinal():
            if self.is_working(found := date.fromordinal(at)) == working:
                return found
            at += step
        return None

    def month(self, year: int, month: int) -> list[date]:
        """The working days of a month."""
        days = (date(year, month, number) for number in range(1, monthrange(year, month)[1] + 1))
        return [day for day in days if self.is_working(day)]

    def last_named(self) -> date:
        """The last date that differs from its day of the week."""
        return max((*self.off[-1:], *self.on[-1:]), default=date.min)


def _nearest(days: tuple[date, ...], day: date, step: int) -> date | None:
    at = bisect_left(days, day) if step == FORWARD else bisect_right(days, day) - 1
    return days[at] if 0 <= at < len(days) else None
