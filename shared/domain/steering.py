"""Which fire of a task is the next that has not begun, and which fires of its plan lie before another time. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.states import InstanceStatus

MOST_PASSED_OVER = 100
"""A fire that is set to a later time may pass over so many others of the plan."""

WAITS = (InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value)


@dataclass(frozen=True, slots=True)
class Written:
    """A fire of a task that has an instance: when it may run (naive UTC), and what has become of it."""

    id: int
    due_at: datetime
    status: str
    attempt: int
    by: str
    reason: str | None = None

    @property
    def waits(self) -> bool:
        """Whether no worker has claimed it yet, and nobody has canceled it."""
        return self.status in WAITS and self.attempt == 0


@dataclass(frozen=True, slots=True)
class NextFire:
    """A fire that has not begun: its own time, when it runs (naive UTC), and its instance if it has one."""

    moment: datetime
    due_at: datetime
    written: Written | None = None


def upcoming(
    plan: Iterable[datetime], written: Mapping[datetime, Written], now: datetime, number: int
) -> list[NextFire]:
    """The next fires of a task that have not begun, at most ``number``, in the order in which they run.

    They are those of its ``plan`` for times after ``now`` (naive UTC), but for those that have begun, ended or were
    skipped; and those that were set to a time after ``now``.
    """
    waiting = {moment: one for moment, one in written.items() if one.waits and max(moment, one.due_at) > now}
    set_by_hand = [NextFire(moment, one.due_at, one) for moment, one in waiting.items() if one.due_at > now]
    unwritten = (moment for moment in plan if moment not in written)
    found = [NextFire(moment, moment) for moment in islice(unwritten, number)]
    return sorted([*set_by_hand, *found], key=lambda fire: (fire.due_at, fire.moment))[:number]


def passed_over(later: Iterable[datetime], written: Mapping[datetime, Written], at: datetime) -> list[datetime]:
    """The fires of the plan that have not begun, after the one that is set to ``at``, up to that time.

    Raises InvalidInput if they are too many.
    """
    others: list[datetime] = []
    for moment in later:
        if moment > at:
            return others
        if moment not in written or written[moment].waits:
            others.append(moment)
        if len(others) > MOST_PASSED_OVER:
            raise InvalidInput(
                f"at {at.isoformat()}Z: it would pass over more than {MOST_PASSED_OVER} fires of the plan; "
                "let nothing fire before that time by starts_at"
            )
    return others
