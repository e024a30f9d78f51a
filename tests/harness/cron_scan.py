"""An oracle for cron: random expressions with what they mean, and a literal scan of what the clock shows.

The scan walks a window minute by minute (second by second where seconds are declared), looks at what the zone's clock
shows, and applies the rule of ``rota.shared.domain.triggers.cron`` word for word. It shares no code with what it
tests, and needs no parser, since the expressions come with the sets that they stand for.
"""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

# --- Random expressions, with what they mean ---------------------------------------------------------------------


@dataclass(frozen=True)
class Meant:
    """An expression and the values of its fields; ``days`` or ``weekdays`` is None where that field is ``*``."""

    text: str
    seconds: set[int]
    minutes: set[int]
    hours: set[int]
    days: set[int] | None
    months: set[int]
    weekdays: set[int] | None
    fixed: bool

    def matches(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and wall.month in self.months
            and self._matches_day(wall)
        )

    def _matches_day(self, wall: datetime) -> bool:
        day = self.days is not None and wall.day in self.days
        weekday = self.weekdays is not None and wall.isoweekday() % 7 in self.weekdays
        return day or weekday or (self.days is None and self.weekdays is None)


def random_field(rng: random.Random, low: int, high: int) -> tuple[str, set[int]]:
    size = high - low + 1
    a, b = sorted(rng.sample(range(low, high + 1), 2))
    kind = rng.choice(["step", "value", "value", "list", "range", "range step", "wrapped", "open step"])
    text, values = f"{a}-{b}", range(a, b + 1)
    if kind == "step":
        step = rng.randint(2, size // 2)
        text, values = f"*/{step}", range(low, high + 1, step)
    elif kind == "value":
        text, values = str(a), range(a, a + 1)
    elif kind == "list":
        some = rng.sample(range(low, high + 1), min(size - 1, rng.randint(2, 4)))
        return ",".join(map(str, some)), set(some)
    elif kind == "wrapped" and (a, b) != (low, high):
        step = rng.choice([1, rng.randint(1, a + size - b)])
        text, values = f"{b}-{a}" + f"/{step}" * (step > 1), range(b, a + size + 1, step)
    elif kind == "range step":
        step = rng.randint(1, b - a)
        text, values = f"{a}-{b}/{step}", range(a, b + 1, step)
    elif kind == "open step":
        step = rng.randint(1, high - a)
        text, values = f"{a}/{step}", range(a, high + 1, step)
    return text, {(value - low) % size + low for value in values}


def random_day_field(rng: random.Random, low: int, high: int) -> tuple[str, set[int] | None]:
    """Mostly ``*``. Never another way to write every value: beside a restricted day, croniter takes it as such."""
    if rng.random() < 0.7:
        return "*", None
    text, values = random_field(rng, low, high)
    return (text, values) if len(values) <= high - low else ("*", None)


def random_expression(rng: random.Random, near: datetime, *, seconds: bool = False) -> Meant:
    """About half are near the hour of ``near``, where the clocks are moved."""
    everything = ("*", set(range(60)))
    minute, minutes = everything if rng.random() < 0.15 else random_field(rng, 0, 59)
    hour, hours = ("*", set(range(24))) if rng.random() < 0.25 else random_field(rng, 0, 23)
    if hour != "*" and rng.random() < 0.5:
        first = (near.hour + rng.randint(-1, 1)) % 24
        hour, hours = (str(first), {first}) if rng.random() < 0.5 else (f"{first},12", {first, 12})
    day, days = random_day_field(rng, 1, 31)
    weekday, weekdays = random_day_field(rng, 0, 6)
    possible = days is None or min(days) <= 28
    months = {near.month, rng.randint(1, 12)} if possible and rng.random() < 0.1 else set(range(1, 13))
    month = "*" if len(months) == 12 else ",".join(map(str, months))
    second, seconds_set = ("0", {0})
    if seconds:
        second, seconds_set = everything if rng.random() < 0.2 else random_field(rng, 0, 59)
    fixed = not (minute.startswith("*") or hour.startswith("*"))
    text = " ".join(([second] if seconds else []) + [minute, hour, day, month, weekday])
    return Meant(text, seconds_set, minutes, hours, days, months, weekdays, fixed)


# --- The scan ------------------------------------------------------------------------------------------------------


class Tick(NamedTuple):
    """What the clock shows at an instant, whether it showed that before, and what it has just jumped over."""

    instant: datetime
    wall: datetime
    again: bool
    jumped: tuple[datetime, ...]


QUARTER = timedelta(minutes=15)  # no zone's offset changes twice within it


def ticks(zone_name: str, start: datetime, end: datetime, unit: timedelta) -> list[Tick]:
    zone, scanned, shown = ZoneInfo(zone_name), [], set()

    def offset_at(instant: datetime) -> timedelta:
        return zone.fromutc(instant.replace(tzinfo=zone)).replace(tzinfo=None) - instant

    instant, last, changes = start, None, start
    while instant <= end:
        if instant >= changes:
            offset = offset_at(instant)
            changes = instant + (QUARTER if offset_at(instant + QUARTER) == offset else unit)
        wall = instant + offset
        jumped: tuple[datetime, ...] = ()
        if last is not None and wall - last > unit:
            jumped = tuple(last + unit * n for n in range(1, (wall - last) // unit))
        scanned.append(Tick(instant, wall, wall in shown, jumped))
        shown.add(wall)
        instant, last = instant + unit, wall
    return scanned


def scan(meant: Meant, window: list[Tick]) -> list[datetime]:
    """The rule, literally."""
    if not meant.fixed:
        return [tick.instant for tick in window if meant.matches(tick.wall)]
    return [
        tick.instant
        for tick in window
        if (not tick.again and meant.matches(tick.wall)) or any(map(meant.matches, tick.jumped))
    ]
