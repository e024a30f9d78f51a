"""The syntax of a cron expression, and the sentences that refuse a bad one.

This module turns an expression into six checked fields; it knows nothing of dates. It also refuses expressions that
croniter, or cron itself, would read in another way than people do. Rota refuses an ambiguous expression when somebody
writes it, instead of firing at a time that nobody meant.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from rota.shared.domain.errors import InvalidCron

MAX_LENGTH = 127
"""The most characters in an expression: the width of the column ``schedule_task.cron``."""

FIELDS_KEPT = 4096
"""How many fields are cached. Thousands of different expressions have far fewer different fields."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}


@dataclass(frozen=True, slots=True)
class Field:
    """One of the six fields: its least and greatest value, the names of its values, and its special forms."""

    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)
    special: str = "(?!)"  # a regular expression; this one matches nothing
    examples: str = "'5', '1-5', '*/2' or a list of such, joined by commas"

    @property
    def size(self) -> int:
        return self.high - self.low + 1


DAY_OF_MONTH = Field(
    *("day-of-month", 1, 31),
    special=r"l|w\d+|\d+w",
    examples="'1', '1-5', '*/2', 'L' (the last day) or '15W' (the weekday nearest to it)",
)
DAY_OF_WEEK = Field(
    *("day-of-week", 0, 6, WEEKDAYS),
    special=r"l[0-7]|([0-7]|sun|mon|tue|wed|thu|fri|sat)#[1-5]",
    examples="'1', 'MON-FRI', '*/2', '1#2' (the second Monday) or 'L5' (the last Friday)",
)
FIELDS = (
    Field("second", 0, 59),
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    DAY_OF_MONTH,
    Field("month", 1, 12, MONTHS),
    DAY_OF_WEEK,
)

_BLANKS = re.compile(r"[ \t\r\n]+")
_UNPRINTABLE = re.compile(r"[^ -~]")
_HASHED = re.compile(r"[hr](\(.*\))?(/.*)?")
_PLAIN = re.compile(r"(?:\*|(?P<low>\d+|[a-z]{3})(?:-(?P<high>\d+|[a-z]{3}))?)(?:/(?P<step>\d+))?", re.ASCII)
_QUARTZ_LAST = re.compile(r"(?P<day>[0-7]|[a-z]{3})l")


class _Refused(Exception):
    """The reason of a refusal and what would be right; ``read_fields`` adds the expression."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy


def refusal(expression: str, reason: str, remedy: str) -> InvalidCron:
    """The error for a refused expression. Its sentence is safe in a log line, whatever the expression holds."""
    shown = expression if len(expression) <= MAX_LENGTH else f"{expression[:40]}..."
    return InvalidCron(f"The cron expression {shown!a} is refused: {reason}; {remedy}.")


def normalise(expression: str) -> str:
    """The expression with single blanks between its fields.

    Raises InvalidCron for a text that is empty, too long, or not printable ASCII.
    """
    text = _BLANKS.sub(" ", expression).strip(" ")
    if not text:
        raise refusal(
            expression, "it is empty", "write five fields such as '30 16 * * *', or an alias such as '@daily'"
        )
    if len(text) > MAX_LENGTH:
        reason = f"it has {len(text)} characters"
        raise refusal(text, reason, f"use at most {MAX_LENGTH}, with ranges and steps in place of lists")
    if strange := _UNPRINTABLE.search(text):
        raise refusal(text, f"it holds the character {strange[0]!a}", "use ASCII letters, digits and * , - / # only")
    return text


def read_fields(text: str, *, seconds: bool) -> tuple[str, ...]:
    """Six checked fields in lower case; the first gives the seconds, ``0`` if they are not declared.

    A range that wraps around and has a step is replaced by its values, because croniter 7.0.0 expands it wrongly
    (``21-3/2`` hours: 21, 23, 2). ``*/1`` becomes ``*``. Raises InvalidCron.

        >>> read_fields("0 21-3/2 * * MON-FRI", seconds=False)
        ('0', '0', '21,23,1,3', '*', '*', 'mon-fri')
    """
    try:
        written = _split(text, seconds=seconds)
        fields = tuple(_read_field(place, whole) for place, whole in enumerate(written))
        _check_days(fields[3].split(","), fields[5].split(","))
    except _Refused as refused:
        raise refusal(text, refused.reason, refused.remedy) from None
    return fields


def _split(text: str, *, seconds: bool) -> list[str]:
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise _Refused(f"{text.split(maxsplit=1)[0]!a} is not an alias", f"use one of {', '.join(ALIASES)}")
        return ["0", *ALIASES[text.lower()].split()]
    fields = text.lower().split(" ")
    if len(fields) == 7:
        raise _Refused("a year field is not supported", "give the task a window with a start and an end instead")
    if seconds and len(fields) == 6:
        return fields
    if seconds and len(fields) == 5:
        raise _Refused("it has five fields although seconds are declared", f"write the seconds first, as in '0 {text}'")
    if not seconds and len(fields) == 5:
        return ["0", *fields]
    if not seconds and len(fields) == 6:
        raise _Refused(
            "it has six fields and seconds are not declared (Quartz reads the first as seconds, croniter the last)",
            "write five fields, or declare that seconds come first (`--seconds`, `seconds=True`, `cron_seconds = 1`)",
        )
    order = "second minute hour day-of-month month day-of-week"
    wanted = f"six fields: {order}" if seconds else f"five fields: {order.removeprefix('second ')}"
    raise _Refused(f"it has {len(fields)} field{'s' if len(fields) > 1 else ''}", f"write {wanted}")


@lru_cache(FIELDS_KEPT)
def _read_field(place: int, whole: str) -> str:
    return ",".join(_read_item(FIELDS[place], item) for item in whole.split(","))


def _read_item(rule: Field, item: str) -> str:
    if re.fullmatch(rule.special, item, re.ASCII):
        return item
    plain = _PLAIN.fullmatch(item)
    if plain is None:
        _refuse_unknown(rule, item)
    step = 1 if plain["step"] is None else int(plain["step"])
    if plain["low"] is None:
        _check_step(rule, item, step, limit=rule.size)
        return item if step > 1 else "*"
    low = _value(rule, plain["low"])
    if plain["high"] is None and plain["step"] is None:
        return item
    high = rule.high if plain["high"] is None else _value(rule, plain["high"])
    whole_week = not plain["low"].strip("0") and plain["high"] is not None and plain["high"].lstrip("0") == "7"
    if plain["high"] is not None and low == high and not whole_week:
        raise _Refused(
            f"the range {item!a} in the {rule.name} field begins where it ends (croniter reads it as every value)",
            f"write {plain['low']} for that value alone, or * for every value",
        )
    last = high if high > low else high + rule.size if high < low else rule.high
    if plain["step"] is not None:
        _check_step(rule, item, step, limit=last - low)
    if last > rule.high and step > 1:
        return ",".join(str((value - rule.low) % rule.size + rule.low) for value in range(low, last + 1, step))
    return item


def _value(rule: Field, text: str) -> int:
    if text in rule.names:
        return rule.names[text]
    if not text.isdigit():
        raise _Refused(
            f"the {rule.name} field does not know {text!a}",
            f"use one of {', '.join(rule.names).upper()}" if rule.names else f"use a number {_bounds(rule)}",
        )
    value = int(text)
    if rule is DAY_OF_WEEK and value == 7:
        return 0
    if not rule.low <= value <= rule.high:
        raise _Refused(f"the {rule.name} field has {text}", f"use a number {_bounds(rule)}")
    return value


def _bounds(rule: Field) -> str:
    return "from 0 through 7 (0 and 7 are Sunday)" if rule is DAY_OF_WEEK else f"from {rule.low} through {rule.high}"


def _check_step(rule: Field, item: str, step: int, *, limit: int) -> None:
    if step == 0:
        raise _Refused(f"the step in {item!a} is 0", "a step is at least 1")
    if step > limit:
        start = item.split("/", maxsplit=1)[0].split("-", maxsplit=1)[0]
        raise _Refused(
            f"the step {step} in the {rule.name} field is longer than what it steps over, so that {item!a} "
            f"would take its first value only",
            f"write {rule.low if start == '*' else start} if that is meant"
            + (f", or a step of at most {limit}" if limit > 0 else ""),
        )


def _refuse_unknown(rule: Field, item: str) -> NoReturn:
    if not item:
        raise _Refused(f"the {rule.name} field has an empty item", "remove the comma that is too many")
    if "?" in item:
        raise _Refused(
            f"Quartz's '?' in the {rule.name} field says nothing that '*' does not", "write '*' in its place"
        )
    if _HASHED.fullmatch(item):
        raise _Refused(
            f"the hashed or random {item!a} in the {rule.name} field would have no stable meaning",
            "write a number, and give the task a jitter to spread its load",
        )
    if rule is DAY_OF_WEEK and (last := _QUARTZ_LAST.fullmatch(item)):
        day = _value(rule, last["day"])
        raise _Refused(
            f"{item!a} in the day-of-week field is not read", f"write 'L{day}' for the last one of the month"
        )
    raise _Refused(f"{item!a} in the {rule.name} field is not read", f"write something like {rule.examples}")


def _check_days(days: Iterable[str], weekdays: Iterable[str]) -> None:
    """Refuse combinations of days that croniter accepts and then ignores silently, or never finds."""
    days, weekdays = list(days), list(weekdays)
    relative = [item for item in weekdays if item.startswith("l") or "#" in item]
    nearest = [item for item in days if "w" in item]
    if relative and len(relative) < len(weekdays):
        raise _Refused(
            f"the day-of-week field mixes {relative[0].upper()!a} with plain days, of which croniter drops one kind",
            "make two tasks, or write all of them with '#' or 'L'",
        )
    if relative and "*" not in days:
        raise _Refused(
            f"{relative[0].upper()!a} as day of week stands together with a day of month, which croniter drops",
            "write '*' as the day of month, or make two tasks",
        )
    for item in nearest:
        if not 1 <= int(item.strip("w")) <= DAY_OF_MONTH.high:
            raise _Refused(f"the day-of-month field has {item.upper()!a}", "use a day from 1 through 31 before the 'W'")
    if nearest and len(days) > 1:
        raise _Refused(f"{nearest[0].upper()!a} stands in a list of days", "write it alone, or make two tasks")
    if nearest and "*" not in weekdays:
        raise _Refused(
            f"{nearest[0].upper()!a} stands together with a day of week, which croniter drops",
            "write '*' as the day of week, or make two tasks",
        )
