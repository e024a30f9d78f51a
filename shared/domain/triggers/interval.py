"""The trigger of a task that fires at a fixed distance, and the texts for such a distance."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.times import EARLIEST, LATEST, UNITS, is_time
from rota.shared.domain.triggers.inputs import TriggerInputs

LONGEST_SECONDS = 3650 * 86_400
_TEXT = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?(?:(\d{1,9})s)?", re.ASCII)
_NAMES = ("day", "hour", "minute", "second")


@dataclass(frozen=True, slots=True)
class IntervalTrigger:
    """Fires each time that so many seconds have passed since its anchor, and at the anchor itself.

    The anchor is the task's ``starts_at``, or else 1970-01-01 00:00 UTC. So neither a restart nor an edit of other
    fields shifts a fire. Its seconds are real ones: no change of a zone's clocks shifts a fire, either.
    """

    every: timedelta
    anchor: datetime

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``every`` in ``trigger_spec`` and ``starts_at`` describe.

        Raises InvalidInput.
        """
        every = timedelta(seconds=interval_seconds(inputs.spec_value("every", "15m")))
        return cls(every, inputs.starts_at if is_time(inputs.starts_at) else EARLIEST)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None if there is none before the year 9999 ends."""
        if moment < self.anchor:
            return self.anchor
        passed = (moment - self.anchor) // self.every
        fire = (passed + 1) * self.every
        return self.anchor + fire if fire <= LATEST - self.anchor else None

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment (naive UTC), or None before the anchor."""
        if moment < self.anchor:
            return None
        return self.anchor + (moment - self.anchor) // self.every * self.every

    def describe(self) -> str:
        """The interval in plain English: ``every hour``, ``every 1 hour and 30 minutes``."""
        words = in_words(self.every)
        return f"every {words.removeprefix('1 ') if sum(_counts(self.every)) == 1 else words}"

    def label(self) -> str:
        """The interval as people write it: ``every 1h30m``."""
        return f"every {in_short(self.every)}"


def in_words(span: timedelta) -> str:
    """A span of whole seconds in plain English: ``1 hour and 30 minutes``."""
    parts = [(count, name) for count, name in zip(_counts(span), _NAMES, strict=True) if count]
    return " and ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in parts)


def in_short(span: timedelta) -> str:
    """A span of whole seconds as people write it: ``1h30m``."""
    return "".join(f"{count}{name[0]}" for count, name in zip(_counts(span), _NAMES, strict=True) if count)


def _counts(span: timedelta) -> list[int]:
    """How many days, hours, minutes and seconds a span has."""
    counts, left = [], round(span.total_seconds())
    for size, _ in UNITS:
        count, left = divmod(left, size)
        counts.append(count)
    return counts


def interval_seconds(value: Any, name: str = "every") -> int:
    """The seconds of an interval that somebody wrote: as seconds, as a ``timedelta``, or as a text.

    ``name`` is the field, for an error. Raises InvalidInput for anything else, and for less than a second or more than
    ten years.

        interval_seconds("1h30m")   # 5400
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, str):
        seconds = _seconds_in(value.replace(" ", "").lower())
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 1 <= seconds <= LONGEST_SECONDS or seconds != int(seconds):
        raise InvalidInput(
            f"{name} {_shown(value)}: an interval is from 1s to {LONGEST_SECONDS // 86_400}d; "
            "write whole seconds, or a text such as 90s, 15m or 1h30m"
        )
    return int(seconds)


def _seconds_in(text: str) -> int | None:
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return int(text)
    found = _TEXT.fullmatch(text)
    if found is None or not text:
        return None
    return sum(int(count or 0) * size for count, (size, _) in zip(found.groups(), UNITS, strict=True))


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, timedelta) else f"'{value}'"
    return text if len(text) <= 60 else text[:57] + "..."
