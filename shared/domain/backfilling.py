"""Which fires of a past range a backfill runs, and what it writes next. Pure: the times are arguments.

A backfill keeps the inputs of the plan as they were when it was made, so an edit of its task changes nothing in it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rota.shared.domain.counting import estimated, some_fires
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import TICK, PlanInputs
from rota.shared.domain.states import TERMINAL, BackfillStatus, InstanceStatus, TriggerKind

MOST_FIRES = 1_000_000
"""A backfill has at most so many fires."""

COUNTED_FIRES = 20_000
"""So many fires of a range are counted one by one, which takes a second; the number of the others is estimated."""

MOST_AT_ONCE = 1_000
"""The greatest ``concurrency``."""

LOOKED_AT = 1_000
"""A step of a backfill with ``only_missing`` looks at so many fires."""

WITHOUT_A_PAST: Mapping[str, str] = {
    TriggerKind.MANUAL: "it runs only when asked; rota task run NAME --at TIME runs it for a time",
    TriggerKind.FIXED_DELAY: "when it fires depends on the ends of its runs; rota task run NAME --at TIME runs it",
    TriggerKind.AFTER: "it fires when the tasks that it follows have ended; backfill those, and it follows",
}
"""The kinds of triggers of which nobody can tell the past fires, and why."""


@dataclass(frozen=True, slots=True)
class Range:
    """The fires of a range: those that were counted, the oldest first, the last of all, and how many they are."""

    counted: Sequence[datetime]
    last: datetime
    number: int

    @property
    def is_exact(self) -> bool:
        """Whether all were counted."""
        return self.number == len(self.counted)


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill as a step reads it. Times are naive UTC."""

    id: int
    task_id: int
    status: str
    from_at: datetime
    to_at: datetime
    next_fire: datetime | None
    """The next fire to be written or passed over; None: none is left."""

    inputs: PlanInputs | None
    """What its fires are computed from; None: SQL has made it unreadable, or has inserted the backfill."""

    newest_first: bool
    only_missing: bool
    concurrency: int
    in_flight: Sequence[datetime]
    """The fires that were written and had not ended when it was written last."""

    revision: int
    """How often a step has been written: the fence."""


@dataclass(frozen=True, slots=True)
class Past:
    """What ``only_missing`` goes by. A fire that the task's plan, or its catch-up, may still write is not missing yet:
    the backfill waits for it."""

    planned_until: datetime | None = None
    """The next fire of the task's plan (naive UTC), None if it has none."""

    catching_up: Sequence[tuple[datetime, datetime]] = ()
    """The first and the last fire of each stretch that is still to be caught up."""

    complete_from: datetime | None = None
    """Since when the task's history is complete, None: from its beginning."""

    ran: Collection[datetime] = ()
    """Those of the fires looked at that have run, or will."""

    def is_open(self, fire: datetime) -> bool:
        """Whether somebody else may still write this fire."""
        is_planned = self.planned_until is not None and fire >= self.planned_until
        return is_planned or any(first <= fire <= last for first, last in self.catching_up)


@dataclass(slots=True)
class Step:
    """What is written for a backfill."""

    status: str
    next_fire: datetime | None
    fires: list[datetime] = field(default_factory=list)
    not_missing: int = 0
    in_flight: list[datetime] = field(default_factory=list)
    """Those of the earlier fires that have not ended; ``fires`` come after them."""

    ended: dict[str, int] = field(default_factory=dict)
    """How many of the earlier fires have ended since, by their status. One whose row is gone counts as canceled."""

    reason: str | None = None

    def changes(self, backfill: Backfill) -> bool:
        """Whether there is anything to be written."""
        has_moved = (self.status, self.next_fire) != (backfill.status, backfill.next_fire)
        return has_moved or bool(self.fires or self.ended)


def fires_in(inputs: PlanInputs, from_at: datetime, to_at: datetime, now: datetime) -> Range:
    """The fires of a range of the past, both ends included; times are naive UTC.

    Raises InvalidInput for a range that is backwards, or not over yet, or has no fire or too many; and for a trigger of
    which nobody can tell the past fires.
    """
    if to_at < from_at:
        raise InvalidInput(f"from_at {from_at} is after to_at {to_at} (UTC): write the earlier time first")
    if to_at > now:
        raise InvalidInput(
            f"to_at {to_at} (UTC) is still to come: the task fires then by itself; write a time up to now"
        )
    if inputs.trigger_kind in WITHOUT_A_PAST:
        raise InvalidInput(f"the task has no fires of its own in the past: {WITHOUT_A_PAST[inputs.trigger_kind]}")
    first = inputs.next_after(from_at - TICK)
    if first is None or first > to_at:
        raise InvalidInput(f"the task has no fire from {from_at} to {to_at} (UTC); nothing is to be run")
    counted, following = some_fires(inputs, first, to_at, COUNTED_FIRES)
    number = len(counted) if following is None else max(len(counted) + 1, estimated(counted, to_at))
    if number > MOST_FIRES:
        raise InvalidInput(
            f"there are about {number:,} fires from {from_at} to {to_at} (UTC); "
            f"a backfill has at most {MOST_FIRES:,}: choose a shorter range"
        )
    return Range(counted, inputs.newest_until(to_at) or counted[-1], number)


def why_not_only_missing(complete_from: datetime | None, from_at: datetime) -> str | None:
    """Why nobody can tell which fires are missing from a time on (naive UTC); None if the history tells it."""
    if complete_from is None or from_at >= complete_from:
        return None
    return (
        f"the history of the task is complete only from {complete_from} on (UTC); what ran before cannot be told from "
        f"what is missing: begin there, or leave out only_missing to run all fires again"
    )


def settled(backfill: Backfill, statuses: Mapping[datetime, str]) -> Step:
    """What has become of the fires in flight, by the statuses of their instances; nothing new is begun."""
    step = Step(backfill.status, backfill.next_fire)
    for fire in backfill.in_flight:
        status = statuses.get(fire, InstanceStatus.CANCELED)
        if status in TERMINAL:
            step.ended[status] = step.ended.get(status, 0) + 1
        else:
            step.in_flight.append(fire)
    return step


def to_look_at(backfill: Backfill, room: int) -> tuple[list[datetime], datetime | None]:
    """The next fires that may be written, where there is room for so many more, and the one after them.

    Raises InvalidInput for inputs of which no plan can be made.
    """
    if backfill.next_fire is None or room <= 0:
        return [], backfill.next_fire
    if backfill.inputs is None:
        raise InvalidInput("its plan_inputs cannot be read")
    last = backfill.from_at if backfill.newest_first else backfill.to_at
    most = LOOKED_AT if backfill.only_missing else room
    return some_fires(backfill.inputs, backfill.next_fire, last, most, newest_first=backfill.newest_first)


def go_on(step: Step, room: int, look: tuple[Iterable[datetime], datetime | None], past: Past | None) -> None:
    """Add to a step the fires that it begins: of those looked at the first ``room``.

    ``past``: with ``only_missing``. A history that is not complete any more pauses the backfill.
    """
    fires, step.next_fire = look
    for fire in fires:
        if past is not None and past.complete_from is not None and fire < past.complete_from:
            step.status, step.reason = BackfillStatus.PAUSED, why_not_only_missing(past.complete_from, fire)
        if (
            len(step.fires) >= room
            or step.status != BackfillStatus.RUNNING
            or (past is not None and past.is_open(fire))
        ):
            step.next_fire = fire
            return
        if past is not None and fire in past.ran:
            step.not_missing += 1
        else:
            step.fires.append(fire)


def finish(step: Step) -> None:
    """A backfill of which all fires were begun is done when all of them have ended."""
    is_over = step.next_fire is None and not step.fires and not step.in_flight
    if is_over and step.status in (BackfillStatus.RUNNING, BackfillStatus.PAUSED):
        step.status, step.reason = BackfillStatus.DONE, None


def fire_key(backfill_id: int) -> str:
    """The ``fire_key`` of the instances of a backfill: by it each of its fires has one instance."""
    return f"backfill-{backfill_id}"
