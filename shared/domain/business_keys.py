"""Business keys of one-off work: what a program calls its work by, and what a call does to what stands there. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.states import TERMINAL, InstanceStatus

LONGEST_CODE = 64
LONGEST_NUMBER = 128
LONGEST_NAME = 63

MOST_AHEAD_SECONDS = 310
"""No scheduler looks at instances that are due later than this: ``lookahead_seconds`` is 300 at most."""

FAR_SECONDS = MOST_AHEAD_SECONDS + 50
"""Due later than this, an instance is moved in place."""

Key = tuple[str, str]
"""The code and the number of a business key. With the task type they name one piece of work."""


def checked_key(number: object, code: object = "") -> Key:
    """The code and the number, as the columns hold them.

    Raises InvalidInput for a number that is empty, for a part that is too long, and for characters that a person could
    not see: a blank at an end, a line break, or one that does not print.

        checked_key("product-42")   # ("", "product-42")
    """
    return _checked(code, "code", 0, LONGEST_CODE), _checked(number, "key", 1, LONGEST_NUMBER)


def _checked(value: object, what: str, least: int, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} {value!r:.100}: it is a text, such as 'product-42'")
    if not least <= len(value) <= most:
        raise InvalidInput(f"{what} {value!r:.100}: it has {len(value)} characters; {least} to {most} are right")
    if value != value.strip() or not value.isprintable():
        raise InvalidInput(f"{what} {value!r:.100}: no blank at its ends, and no character that does not print")
    return value


def task_name(task_type: str) -> str:
    """The name of the task under which the one-off work of a type runs.

    It is the type in lower case and with dashes, and ``once``, so that it is not likely to be that of another task.

    Raises InvalidInput for a type whose name would be too long.

        task_name("END_PROMOTION")   # "end-promotion-once"
    """
    name = re.sub(r"[_\s]+", "-", task_type.lower()) + "-once"
    if len(name) > LONGEST_NAME:
        raise InvalidInput(
            f"type {task_type!r:.150}: the name of its task would have more than {LONGEST_NAME} characters"
        )
    return name


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for: to run at a time (naive UTC) with a param, a JSON text; None: with that of the task."""

    at: datetime
    param: str | None = None
    fire_key: str | None = None
    """That of the run, if the caller is to find it by that."""


@dataclass(frozen=True, slots=True)
class Fire:
    """What names an instance: the id of its task, its nominal time (naive UTC) and its fire key."""

    task_id: int
    moment: datetime
    fire_key: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A key as it was read, with its instance; that is the last one which a handler has asked for, if any has."""

    key_id: int
    type: str
    key: Key
    revision: int
    task_id: int
    next_at: datetime | None
    """When the run is due that is kept as the next one; None if none is."""

    instance_id: int
    status: InstanceStatus | None
    """None: the instance is gone."""

    attempt: int = 0
    cancel_is_requested: bool = False
    is_far: bool = False
    """Whether it is due so late that no scheduler has looked at it yet (``FAR_SECONDS``)."""

    follower: Fire | None = None
    """The instance, if the row of the key does not point to it yet."""

    next_bytes: int = 0
    """How many bytes the param of the next run has; it is not read with the key."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing waits or runs under the key."""
        return self.status is None or self.status in TERMINAL

    @property
    def is_free(self) -> bool:
        """Whether nothing waits, runs, or is kept as the next run under the key."""
        return self.has_ended and self.next_at is None

    @property
    def begins_next(self) -> bool:
        """Whether what is kept as the next run can begin, or move what a handler has asked for and nobody has begun."""
        return self.next_at is not None and (self.has_ended or (self.follower is not None and not self.has_begun))

    @property
    def moves_in_place(self) -> bool:
        """Whether the instance itself may get another time.

        A scheduler or a worker that has read it may be about to act by what it has read.
        """
        return self.status is InstanceStatus.PENDING and self.is_far

    @property
    def has_begun(self) -> bool:
        """Whether a worker has claimed the instance: now, or before a retry."""
        return self.status is InstanceStatus.RUNNING or self.attempt > 0


class Done(StrEnum):
    """What a call does: it ``added`` a run, ``moved`` the one that waits, or is ``kept`` until what runs has ended."""

    ADDED = "added"
    MOVED = "moved"
    KEPT = "kept"


def outcome(standing: Standing | None) -> Done:
    """What a call does to what stands under its key."""
    if standing is None or standing.has_ended:
        return Done.ADDED
    return Done.KEPT if standing.has_begun else Done.MOVED


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys are looked for. Times are naive UTC: ``from_at`` and later, and before ``to_at``.

    By ``begins`` or ``contains`` they come in the order of their numbers, and are of one type and one code, by default
    the empty one. Otherwise they come in the order of their times.
    """

    type: str | None = None
    code: str | None = None
    begins: str | None = None
    contains: str | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None

    @property
    def is_by_number(self) -> bool:
        """Whether they come in the order of their numbers."""
        return self.begins is not None or self.contains is not None
