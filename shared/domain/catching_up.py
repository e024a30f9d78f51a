"""Which of a task's missed fires run late, under ``fire_all``. Pure: the row says when they were missed.

A tick of the scheduler leaves the missed fires of a task to the catch-up, as one stretch. Here it is decided which of
them run: those of the last ``misfire_window_seconds``, and of these the newest ``misfire_cap``. They are written a few
at a time, so that neither the table nor the workers are flooded.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rota.shared.domain.counting import count, fire_alike, skipped, some_fires
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import TICK, PlanInputs, Skipped, TaskTerms
from rota.shared.domain.states import MisfirePolicy, SkipReason, TaskStatus

FIRES_OF_TASK = 10
"""So many missed fires of one task are written at a time. The next follow when the last of them has begun."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A stretch of missed fires of a task; times are naive UTC."""

    id: int
    task_id: int
    next_fire: datetime
    last_fire: datetime
    fires_left: int | None
    """How many of them are still to be written; None: nobody has counted them yet."""

    missed_at: datetime
    """When a scheduler found that they were missed."""

    inputs: PlanInputs | None
    """What they were planned from; None: SQL has made it unreadable."""

    window_seconds: int
    cap: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What a step writes for a stretch: some fires, those that are skipped, and what is left of it.

    With ``fires_left`` 0 the stretch is over.
    """

    fires: list[datetime] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    next_fire: datetime | None = None
    fires_left: int = 0


def catch_up(terms: TaskTerms, missed: CatchUp, most: int = FIRES_OF_TASK) -> CaughtUp:
    """Decide about the next fires of a stretch, at most ``most``.

    A task that was edited, turned off or deleted since catches nothing up: what is left is skipped, with the reason.
    Raises InvalidInput for inputs of which no plan can be made.
    """
    reason = _why_not(terms, missed)
    if reason is not None:
        number = missed.fires_left or _counted(missed.inputs or terms.inputs, missed)
        return CaughtUp(skipped=[Skipped(reason, missed.next_fire, missed.last_fire, number)])
    dropped: list[Skipped] = []
    left, first = missed.fires_left, missed.next_fire
    if left is None:
        dropped, oldest, left = _bounded(terms.inputs, missed)
        if oldest is None:
            return CaughtUp(skipped=dropped)
        first = oldest
    fires, following = some_fires(terms.inputs, first, missed.last_fire, min(most, left))
    return CaughtUp(fires, dropped, following, 0 if following is None else max(0, left - len(fires)))


def _counted(inputs: PlanInputs, missed: CatchUp) -> int:
    """How many fires a stretch has. It counts 1 if its calendar is gone."""
    try:
        return count(inputs, missed.next_fire, missed.last_fire)
    except InvalidInput:
        return 1


def _why_not(terms: TaskTerms, missed: CatchUp) -> SkipReason | None:
    if terms.is_deleted or missed.inputs is None or not _is_planned_alike(terms.inputs, missed.inputs, missed):
        return SkipReason.EDITED
    if terms.status == TaskStatus.OFF:
        return SkipReason.OFF
    if terms.misfire_policy != MisfirePolicy.FIRE_ALL:
        return SkipReason.SKIP if terms.misfire_policy == MisfirePolicy.SKIP else SkipReason.FIRE_ONCE
    return None


def _is_planned_alike(inputs: PlanInputs, old: PlanInputs, missed: CatchUp) -> bool:
    try:
        return inputs == old or fire_alike(inputs, old, missed.next_fire, missed.last_fire)
    except InvalidInput:  # the calendar of one of them is gone
        return False


def _bounded(inputs: PlanInputs, missed: CatchUp) -> tuple[list[Skipped], datetime | None, int]:
    """The fires outside of the window and beyond the cap; the oldest one that runs, if any does; and how many run."""
    first, last = missed.next_fire, missed.last_fire
    dropped: list[Skipped] = []
    begin = missed.missed_at - timedelta(seconds=missed.window_seconds)
    if first < begin:
        older = min(last, begin - TICK)
        dropped.append(skipped(SkipReason.WINDOW, inputs, first, older))
        following = inputs.next_after(older)
        if following is None or following > last:
            return dropped, None, 0
        first = following
    oldest, number = last, 1
    while number < missed.cap and oldest > first:
        oldest = max(first, inputs.newest_until(oldest - TICK) or first)
        number += 1
    if oldest > first:
        dropped.append(skipped(SkipReason.CAP, inputs, first, oldest - TICK))
    return dropped, oldest, number
