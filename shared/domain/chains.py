"""Chains: when a task that follows others fires. Pure.

A fire of such a task has the time and the ``fire_key`` of the runs that it follows. It is decided each time that one of
these runs has ended; so whichever ends last, the decision at that moment sees the ends of all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.shared.domain.states import TERMINAL, InstanceStatus, OnEnd, Origin

SHOWN = 100
"""So many tasks of a chain are shown at most, the nearest first."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run of a task that others follow, as it has ended: its task's name, its id, and its status.

    ``again_of``: the replay with its chain for which it ran.
    """

    task_name: str
    id: int
    status: str
    again_of: int | None = None


def matches(end: OnEnd, status: str) -> bool:
    """Whether a run that has ended with this status has ended as a task asks that follows it.

    matches(OnEnd.FAILURE, "canceled")   # False: it has not failed
    """
    match end:
        case OnEnd.SUCCESS:
            return status == InstanceStatus.SUCCEED
        case OnEnd.FAILURE:
            return status == InstanceStatus.FAILED
        case OnEnd.ALWAYS:
            return status in TERMINAL


Ended = Mapping[str, Sequence[EndedRun]]
"""The runs of tasks that have ended for one time, by the name of the task, the oldest first."""


def fires(ends: Iterable[tuple[str, OnEnd]], ended: Ended) -> bool:
    """Whether a task fires that follows these ends: each of these tasks has a run that has ended as it asks.

    fires([("extract", OnEnd.SUCCESS)], {"extract": [EndedRun("extract", 12, "failed")]})   # False
    """
    return all(any(matches(end, run.status) for run in ended.get(name, ())) for name, end in ends)


def why_not(ends: Iterable[tuple[str, OnEnd]], ended: Ended) -> str:
    """Why a task has no run for a time, in a sentence.

    "it follows the success of extract, and instance 12 of extract has failed"
    """
    ends = list(ends)
    for name, end in ends:
        runs = ended.get(name, ())
        if runs and not any(matches(end, run.status) for run in runs):
            last = runs[-1]
            told = {"succeed": "has succeeded", "failed": "has failed"}.get(last.status, f"was {last.status}")
            return f"it follows the {end.value} of {name}, and instance {last.id} of {name} {told}"
    waits = [name for name, _ in ends if not ended.get(name)]
    if waits:
        return f"it waits for {', '.join(waits)}: no run of that time that counts has ended"
    return "the runs that it follows have ended, and the scheduler has not written it yet, or it did not fire then"


@dataclass(frozen=True, slots=True)
class Link:
    """A run that has ended and a task that follows it, for which a fire is to be decided."""

    task_id: int
    moment: datetime
    fire_key: str
    origin: str
    again_of: int | None = None
    """The replay for which somebody has asked that what follows runs once more."""

    late: int | None = None
    """The priority of a fire that is made up for, if the run that it follows is one: what is due now goes first."""

    @property
    def place(self) -> tuple[datetime, str]:
        """The time and the ``fire_key`` of the runs that the fire follows, which are its own, too."""
        return (self.moment, self.fire_key)

    @property
    def fire(self) -> tuple[int, datetime, str]:
        """The fire: the task's id, the time, the ``fire_key``."""
        return (self.task_id, self.moment, self.fire_key)

    @property
    def own_origin(self) -> str:
        """The origin of the fire: that of the run that it follows; what follows an INSERT by SQL was asked for."""
        return Origin.MANUAL.value if self.origin == Origin.SQL else self.origin
