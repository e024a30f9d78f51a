"""Limits that tasks share: how many of their instances run at once, how many start in a minute. Pure: time is given.

A rate limit keeps, in its row, how many instances were claimed in each second of the last minute. It counts a claim
until 62 s after the beginning of its second. So however the seconds fall, never more than ``starts_per_minute``
instances are claimed within 60 s.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.sentences import close_to

COUNTED_SECONDS = 62
"""For so long after the beginning of a second the claims of that second count: a minute; that second; and another one,
because a claim is written at most so long after its time was read (``CLAIMED_WITHIN``)."""

CLAIMED_WITHIN = 1.0
"""A claim that is late by more seconds than this is made again."""

AHEAD = 20
MOST_AHEAD = 500
"""Of each limit so many instances are assigned beyond those that may start, the fewest and the most."""

LONGEST_NAME = 63

Starts = Sequence[tuple[int, int]]
"""How many instances were claimed in which second since 1970, the oldest first."""


class LimitDefinition(BaseModel):
    """A limit as a person or code defines it.

    LimitDefinition.of(name="warehouse", max_running=4)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    max_running: int | None = Field(default=None, ge=0, le=1000)
    starts_per_minute: int | None = Field(default=None, ge=0, le=60_000, validate_default=True)

    @classmethod
    def of(cls, **fields: Any) -> "LimitDefinition":
        """A checked definition.

        Raises InvalidInput with every fault, a line each.
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            raise InvalidInput("\n".join(_sentence(fault) for fault in faults)) from None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not re.fullmatch(r"\S(.*\S)?", value) or len(value) > LONGEST_NAME:
            raise ValueError(f"name {value!r:.80}: a name has 1 to {LONGEST_NAME} characters, and no blank at its ends")
        return value

    @field_validator("starts_per_minute")
    @classmethod
    def _limits_something(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and "max_running" in info.data and info.data["max_running"] is None:
            raise ValueError("it limits nothing: give max_running, or starts_per_minute, or both")
        return value

    def columns(self) -> dict[str, Any]:
        """The columns of ``schedule_limit`` and the values to write into them."""
        return self.model_dump()


def _sentence(fault: Any) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    return message if fault["type"] == "value_error" else f"{fault['loc'][0]} {fault['input']!r}: {message}"


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit, and what it allows at a moment."""

    name: str
    max_running: int | None
    starts_per_minute: int | None
    running: int = 0
    recent: Starts = ()

    def allowed(self, now: datetime) -> int:
        """How many more instances may start now (naive UTC)."""
        left = [] if self.max_running is None else [max(0, self.max_running - self.running)]
        if self.starts_per_minute is not None:
            left.append(max(0, self.starts_per_minute - sum(number for _, number in counted(self.recent, now))))
        return min(left, default=0)

    def ahead(self) -> int:
        """How many instances are assigned beyond those that may start, at first: a slow rate needs few."""
        rate = self.starts_per_minute
        return AHEAD if rate is None else min(AHEAD, 1 + rate // 30)

    def why(self) -> str:
        """Why an instance waits for it. The same for all, so that each waiting row is written only once."""
        return f"waits for its limit {self.name!r}: {in_words(self.max_running, self.starts_per_minute)}"

    def free_again(self, now: datetime) -> datetime | None:
        """When the next instance may start, as far as the rate says it (naive UTC); None: it says nothing."""
        recent = counted(self.recent, now)
        if not self.starts_per_minute or sum(number for _, number in recent) < self.starts_per_minute:
            return None
        left = sum(number for _, number in recent)
        for second, number in recent:
            left -= number
            if left < self.starts_per_minute:
                return datetime.fromtimestamp(second, UTC).replace(tzinfo=None) + timedelta(seconds=COUNTED_SECONDS)
        return None


def in_words(max_running: int | None, starts_per_minute: int | None) -> str:
    """What a limit says: ``"at most 4 at once, 60 starts a minute"``."""
    said = [] if max_running is None else [f"{max_running} at once"]
    if starts_per_minute is not None:
        said.append(f"{starts_per_minute} starts a minute")
    return f"at most {', '.join(said)}"


def counted(recent: Starts, now: datetime) -> Starts:
    """The starts that still count at a moment (naive UTC). Those of a time to come do not: the clock was set back."""
    second = second_of(now)
    return [(at, number) for at, number in recent if second - COUNTED_SECONDS < at <= second + 1]


def noted(recent: Starts, now: datetime, number: int) -> Starts:
    """The starts that count, and ``number`` more at a moment (naive UTC)."""
    second, starts = second_of(now), dict(counted(recent, now))
    starts[second] = starts.get(second, 0) + number
    return sorted(starts.items())


def second_of(moment: datetime) -> int:
    """The second since 1970 of a naive UTC time."""
    return int(moment.replace(tzinfo=UTC).timestamp())


def starts_in(value: Any) -> Starts:
    """What the column ``recent_starts`` holds. What SQL has made unreadable counts as no start."""
    pairs = value if isinstance(value, list) else []
    return sorted(
        (at, number)
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair)
        for at, number in [pair]
        if number > 0
    )


def no_such_limit(name: str) -> str:
    """Why an instance waits whose task names a limit that is not there."""
    return f"waits: there is no limit {name!r}"


def unknown_limit(name: str, known: Iterable[str]) -> str:
    """A sentence that refuses the name of a limit."""
    names = sorted(known)
    listed = f"there are: {', '.join(names)}" if names else "there is none"
    return f"there is no limit {name!r}{close_to(name, names)}; {listed}; add it with rota limit add"
