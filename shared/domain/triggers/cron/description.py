"""A cron expression in plain English. The text depends on the times that the fields allow, not on their spelling.

Each phrase names its set of times exactly. If no short phrase does, the fields are listed one by one.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, product

from rota.shared.domain.triggers.cron.wall_clock import LAST, WallClock

MONTH_NAMES = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAY_NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

_NTH = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", LAST: "last"}
_SHORTEST = {2: 28, 4: 30, 6: 30, 9: 30, 11: 30}
_TIMES_LISTED = 6


def describe(clock: WallClock) -> str:
    """The times of a clock in words, such as ``every day at 16:30`` or ``every 5 minutes on Monday through Friday``."""
    times = _times(clock)
    if clock.restricts_days or clock.restricts_weekdays:
        return f"{f'at {times}' if times else _pattern(clock)} {_days(clock)}"
    months = f" in {_months(clock)}" if len(clock.months) < 12 else ""
    return f"every day{months} at {times}" if times else _pattern(clock) + months


def listing(values: Sequence[int], name: Callable[[int], str] = str) -> str:
    """Values in words: ``1``, ``1 and 2``, ``1 through 5 and 9``.

    Four or more at equal distances become ``0 through 55 in steps of 5``. ``values`` ascend and are not empty.
    """
    return _joined(_parts(values, name))


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _parts(values: Sequence[int], name: Callable[[int], str]) -> list[str]:
    step = _even_step(values)
    if step > 1 and len(values) > 3:
        return [f"{name(values[0])} through {name(values[-1])} in steps of {step}"]
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return [
        part
        for run in runs
        for part in ([f"{name(run[0])} through {name(run[-1])}"] if len(run) > 2 else [name(value) for value in run])
    ]


def _even_step(values: Sequence[int]) -> int:
    """The distance between neighbours if all distances are equal, otherwise 0."""
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(steps) == 1 else 0


def _cycle(values: Sequence[int], size: int) -> int:
    """The step of values that also continue at the same step into the next minute, hour or day, otherwise 0."""
    step = _even_step(values)
    return step if step and tuple(values) == tuple(range(0, size, step)) and size % step == 0 else 0


def _every(step: int, unit: str) -> str:
    return f"every {unit}" if step == 1 else f"every {step} {unit}s"


def _times(clock: WallClock) -> str | None:
    """The times of day one by one if they are few, otherwise None."""
    if len(clock.hours) * len(clock.minutes) * len(clock.seconds) > _TIMES_LISTED:
        return None
    shown = 2 if clock.seconds == (0,) else 3
    times = product(clock.hours, clock.minutes, clock.seconds)
    return _joined([":".join(f"{part:02}" for part in time[:shown]) for time in times])


def _pattern(clock: WallClock) -> str:
    """The times of day as ``every 5 minutes`` where possible, otherwise field by field."""
    if clock.seconds == (0,):
        rhythm = _rhythm(clock.minutes, clock.hours)
        return rhythm or _by_field({"minute": clock.minutes, "hour": clock.hours})
    step = _cycle(clock.seconds, 60)
    if step and len(clock.minutes) == 60 and len(clock.hours) == 24:
        return _every(step, "second")
    return _by_field({"second": clock.seconds, "minute": clock.minutes, "hour": clock.hours})


def _rhythm(minutes: tuple[int, ...], hours: tuple[int, ...]) -> str | None:
    minute, hour = _cycle(minutes, 60), _cycle(hours, 24)
    between = f" from {hours[0]:02}:{minutes[0]:02} through {hours[-1]:02}:{minutes[-1]:02}"
    if hour == 1 and minute:
        return _every(minute, "minute")
    if hour and minutes == (0,):
        return _every(hour, "hour")
    if hour == 1 and len(minutes) == 1:
        return f"every hour at minute {minutes[0]}"
    if len(minutes) == 1:
        return _every(_even_step(hours), "hour") + between if _even_step(hours) else None
    step = minute if _even_step(hours) == 1 else _even_step(minutes) if len(hours) == 1 else 0
    return _every(step, "minute") + between if step else None


def _by_field(fields: dict[str, tuple[int, ...]]) -> str:
    """The fields one by one, exact for all values: ``at minutes 3 and 7 of hours 9 through 17``."""
    sizes = {"second": 60, "minute": 60, "hour": 24}
    phrases = [
        f"every {unit}" if len(values) == sizes[unit] else f"{unit}{'s' * (len(values) > 1)} {listing(values)}"
        for unit, values in fields.items()
    ]
    phrase = " of ".join(phrases)
    return phrase if phrase.startswith("every") else f"at {phrase}"


def _months(clock: WallClock) -> str:
    return "every month" if len(clock.months) == 12 else listing(clock.months, MONTH_NAMES.__getitem__)


def _days(clock: WallClock) -> str:
    """The days, if not all: ``on the 13th of every month or on Friday (either is enough)``."""
    phrases = []
    if clock.restricts_days:
        phrases.append(_days_of_month(clock))
    if clock.nth_weekdays:
        those = _joined([f"{_NTH[nth]} {WEEKDAY_NAMES[day]}" for day, nth in clock.nth_weekdays])
        rare = " (if the month has it)" if any(nth == 5 for _, nth in clock.nth_weekdays) else ""
        phrases.append(f"on the {those} of {_months(clock)}{rare}")
    elif clock.weekdays is not None:
        monday_first = sorted(day or 7 for day in clock.weekdays)
        months = f" in {_months(clock)}" if len(clock.months) < 12 else ""
        phrases.append(f"on {listing(monday_first, lambda day: WEEKDAY_NAMES[day % 7])}{months}")
    return phrases[0] if len(phrases) == 1 else f"{' or '.join(phrases)} (either is enough)"


def _days_of_month(clock: WallClock) -> str:
    shortest = min(_SHORTEST.get(month, 31) for month in clock.months)
    if clock.nearest_weekday is not None:
        clamped = " (or to its last day, if it is shorter)" if clock.nearest_weekday > shortest else ""
        return f"on the weekday nearest to the {_ordinal(clock.nearest_weekday)} of {_months(clock)}{clamped}"
    days = clock.days or ()
    parts = (_parts(days, _ordinal) if days else []) + ["last day"] * clock.last_day
    rare = ""
    if days and days[-1] > shortest:
        rare = " (if the month has it)" if len(days) == 1 else " (as far as the month has them)"
    return f"on the {_joined(parts)} of {_months(clock)}{rare}"


def _ordinal(day: int) -> str:
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"
