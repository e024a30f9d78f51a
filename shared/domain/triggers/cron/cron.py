"""What a cron expression means, when it fires in a time zone, and how it is described in words.

croniter (7.x) parses and expands the fields; only this module imports it. This module finds the fires in naive local
time from that expansion, and maps them to UTC. It does not use croniter's own iterator, for two reasons. With daylight
saving time the iterator fires ``30 1 * * *`` twice in the night when the clocks go back, and ``0 */2 * * *`` once too
often in the night when they go forward. And it keeps a state that threads cannot share.

The rule for DST is that of Debian's Vixie cron (cron(8)) for changes of less than three hours:

- A fixed local time (neither the minute nor the hour field begins with ``*``) fires exactly once for each time that it
  names. If a time occurs twice because clocks go back (a fold), the first fires. If a time does not occur because
  clocks go forward (a gap), the first instant after the gap fires; several times in one gap are one fire. So "every
  night at 02:30" runs once every night.
- Any other expression follows real time: it fires whenever the clock shows a time that it names. In a fold both
  passes fire, in a gap nothing fires. So "every 5 minutes" is every 5 minutes.

The rule holds for every gap and fold, not only for summer time: also for the whole day that Pacific/Apia skipped in
2011.
"""

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter

from rota.shared.domain.triggers.cron.description import MONTH_NAMES, describe, listing
from rota.shared.domain.triggers.cron.syntax import FIELDS_KEPT, normalise, read_fields, refusal
from rota.shared.domain.triggers.cron.wall_clock import FIRST_YEAR, LAST, LAST_YEAR, WallClock
from rota.shared.domain.triggers.zones import SECOND, offset_at, offsets_of, transition_between

_HORIZON = timedelta(hours=26)  # longer than any change of an offset so far: 24 h, across the date line
_EARLIEST = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - naive UTC, as all instants here
_LATEST = datetime(LAST_YEAR, 12, 31, 23, 59, 59)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression that is valid and fires at least once. It is immutable, so threads may share it.

    Five fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday). With ``seconds`` there are six,
    and the first gives the seconds, as in Quartz. Fields take lists, ranges (which may wrap: ``22-2``), steps, and
    names of months and days. ``L`` is the month's last day, ``15W`` the weekday nearest to the 15th, ``1#2`` the second
    Monday, ``L5`` the last Friday. The aliases are ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``,
    ``@yearly`` and ``@annually``. If day of month and day of week are both restricted, a day needs to match only one.

        >>> Cron.parse("30 16 * * *").next_after(datetime(2026, 7, 1), ZoneInfo("Asia/Shanghai"))
        datetime.datetime(2026, 7, 1, 8, 30)
    """

    expression: str
    """The expression as written, with single blanks between its fields."""
    seconds: bool = False
    """Whether the first of six fields gives seconds."""
    _clock: WallClock = field(init=False, repr=False, compare=False)
    _fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = normalise(self.expression)
        fields = read_fields(text, seconds=self.seconds)
        object.__setattr__(self, "expression", text)
        object.__setattr__(self, "_clock", _expand(text, fields))
        object.__setattr__(self, "_fixed", not (fields[1].startswith("*") or fields[2].startswith("*")))

    @classmethod
    def parse(cls, expression: str, *, seconds: bool = False) -> "Cron":
        """Parse an expression; parsed expressions are cached.

        Raises InvalidCron, and no other error, for every text that is no expression. Its sentence names the
        expression, the reason and what would be right.

            >>> Cron.parse("0 15 10 * * *", seconds=True).describe()
            'every day at 10:15'
        """
        return _parse(expression, seconds)

    def next_after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The first fire strictly after a moment, both naive UTC; None if there is none before the year 9999.

            >>> Cron.parse("30 2 * * *").next_after(datetime(2026, 3, 8), ZoneInfo("America/New_York"))
            datetime.datetime(2026, 3, 8, 7, 0)

        (02:30 does not occur on that day: the first instant after the gap is 03:00, which is 07:00 UTC.)
        """
        cursor = min(max(_whole_second(moment), _EARLIEST), _LATEST) + SECOND
        while cursor < _LATEST:
            found, cursor = self._step_forward(cursor, zone)
            if found:
                return cursor
        return None

    def latest_at_or_before(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The last fire that is not after a moment, both naive UTC; None if there is none since the year 2.

        It searches backwards from the moment. So the cost does not depend on how often the expression fires.

            >>> Cron.parse("*/5 * * * *").latest_at_or_before(datetime(2026, 7, 1, 12, 4, 59), ZoneInfo("UTC"))
            datetime.datetime(2026, 7, 1, 12, 0)
        """
        cursor = min(_whole_second(moment), _LATEST)
        while cursor > _EARLIEST:
            found, cursor = self._step_backward(cursor, zone)
            if found:
                return cursor
        return None

    def fires_after(self, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Every fire strictly after a moment, ascending, all naive UTC. They go on until the year 9999: take a few."""
        fire = self.next_after(moment, zone)
        while fire is not None:
            yield fire
            fire = self.next_after(fire, zone)

    def describe(self) -> str:
        """The expression in plain English, in local time; exact for every expression.

        >>> Cron.parse("15 10 * * mon-fri").describe()
        'at 10:15 on Monday through Friday'
        """
        return describe(self._clock)

    def _step_forward(self, cursor: datetime, zone: ZoneInfo) -> tuple[bool, datetime]:
        """The first fire at or after an instant (True), or a later instant before which there is none (False)."""
        offset = offset_at(cursor, zone)
        reading = self._clock.first_from(cursor + offset)
        if reading is None:
            return False, _LATEST
        if offset_at(cursor - SECOND, zone) == offset == offset_at(cursor + _HORIZON, zone):
            # The offset is constant within the horizon, so no earlier reading occurs again. If this reading occurs only
            # once, it is the next fire.
            first, second = offsets_of(reading, zone)
            if first == second:
                return True, reading - first
            near = reading - first - _HORIZON
            if near > cursor:
                return False, near
        return self._step_to_transition(cursor, reading, offset, zone)

    def _step_to_transition(
        self, cursor: datetime, reading: datetime, offset: timedelta, zone: ZoneInfo
    ) -> tuple[bool, datetime]:
        """``_step_forward`` near a change of the zone's offset, before or after the cursor."""
        before = offset_at(cursor - SECOND, zone)
        if self._fixed and before < offset and self._names_any(cursor + before, cursor + offset):
            return True, cursor  # the first instant after a gap that has swallowed a fire
        end = transition_between(cursor, cursor + _HORIZON, zone) or cursor + _HORIZON
        fire = reading - offset
        if fire >= end:
            return False, end
        repeated = offsets_of(reading, zone)[0] - offset  # positive in the second pass of a fold
        if not self._fixed or repeated <= timedelta(0):
            return True, fire
        start = transition_between(fire - repeated, fire, zone) or cursor
        return False, min(start + repeated, end)

    def _step_backward(self, cursor: datetime, zone: ZoneInfo) -> tuple[bool, datetime]:
        """The last fire at or before an instant (True), or an earlier instant after which there is none (False)."""
        offset = offset_at(cursor, zone)
        reading = self._clock.last_until(cursor + offset)
        if reading is None:
            return False, _EARLIEST
        if offset_at(cursor - _HORIZON, zone) == offset:  # as in _step_forward
            first, second = offsets_of(reading, zone)
            if first == second:
                return True, reading - first
            near = reading - second + _HORIZON
            if near < cursor:
                return False, near
        transition = transition_between(cursor - _HORIZON, cursor, zone)
        start = transition or cursor - _HORIZON
        fire = reading - offset
        if fire >= start and not (self._fixed and offsets_of(reading, zone)[0] > offset):
            return True, fire
        if self._fixed and transition and self._names_any(start + offset_at(start - SECOND, zone), start + offset):
            return True, start  # the first instant after a gap, as above
        return False, start - SECOND

    def _names_any(self, start: datetime, end: datetime) -> bool:
        """Whether the expression names a reading in [start, end)."""
        reading = self._clock.first_from(start)
        return reading is not None and reading < end


@lru_cache(maxsize=8192)
def _parse(expression: str, seconds: bool) -> Cron:
    return Cron(expression, seconds)


def _whole_second(moment: datetime) -> datetime:
    if moment.tzinfo is not None:
        raise TypeError(f"Moments are naive UTC, but {moment!r} has a time zone; convert it, then drop its tzinfo.")
    return moment.replace(microsecond=0, fold=0)


def _expand(text: str, fields: tuple[str, ...]) -> WallClock:
    """The values that the fields allow, expanded by croniter.

    The two fields of days are expanded together, because they bear on each other, and each of the others alone. So
    thousands of different expressions cost croniter only as many expansions as they have different fields.
    """
    seconds, minutes, hours, days, months, weekdays = fields
    try:
        clock = WallClock(
            seconds=_expand_time(seconds) or tuple(range(60)),
            minutes=_expand_time(minutes) or tuple(range(60)),
            hours=_expand_time(hours, place=1) or tuple(range(24)),
            months=_expand_time(months, place=3) or tuple(range(1, 13)),
            **_expand_days(days, weekdays),
        )
    except Exception as error:
        raise refusal(text, f"croniter does not read it ({error})", "write it in the form of crontab(5)") from error
    _check_that_days_come(text, clock)
    return clock


@lru_cache(FIELDS_KEPT)
def _expand_time(one: str, place: int = 0) -> tuple[int, ...] | None:
    """The values of one field of the five: 0 minutes, which are as seconds are, 1 hours, 3 months."""
    fields = ["*"] * 5
    fields[place] = one
    return _values(croniter(" ".join(fields), start_time=0.0).expanded[place])


@lru_cache(FIELDS_KEPT)
def _expand_days(days: str, weekdays: str) -> dict[str, Any]:
    """What the two fields of days mean, as arguments of a ``WallClock``."""
    parsed = croniter(f"* * {days} * {weekdays}", start_time=0.0)
    values, of_week = parsed.expanded[2], parsed.expanded[4]
    nth = {(day, LAST if n == "l" else n) for day, those in parsed.nth_weekday_of_month.items() for n in those}
    nearest: int | None = next(iter(parsed.nearest_weekday), None)
    return {
        "days": _values(values) if nearest is None else (),
        "last_day": "l" in values,
        "nearest_weekday": nearest,
        "weekdays": None if nth else _values(of_week),
        "nth_weekdays": tuple(sorted(nth)),
    }


def _check_that_days_come(text: str, clock: WallClock) -> None:
    """Refuse a day that never comes, such as ``31 2``.

    Every other expression that passed the syntax fires, some only every forty years (``0 0 * 2 1#5``).
    """
    longest = max(monthrange(2000, month)[1] for month in clock.months)
    if clock.days and clock.days[0] > longest and not clock.last_day:
        never = f"day {clock.days[0]} never comes in {listing(clock.months, MONTH_NAMES.__getitem__)}"
        raise refusal(text, never, "write a day that comes, or 'L' for the last day of the month")


def _values(expanded: list[int | str]) -> tuple[int, ...] | None:
    """The values of one field as croniter expanded it, ascending; None for ``*``."""
    return None if "*" in expanded else tuple(sorted(value for value in expanded if isinstance(value, int)))
