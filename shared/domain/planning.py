"""What a task fires, and when: pure, with the time as an argument.

A plan is ``next_fire_at``, computed from the task's inputs (its cron, zone and window). ``decide`` says what a tick
writes for one task: the fires to materialize, the next fire after them, and how many did not run and why.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from shared.domain.errors import InvalidCron
from shared.domain.states import MisfirePolicy, OverlapPolicy, TaskStatus, TriggerKind
from shared.domain.triggers.cron import Cron, load_zone

FIRES_AT_ONCE = 100
"""Fires of one task that one tick materializes; the next tick goes on."""

COUNTED_EXACTLY = 50
"""Skipped fires are counted one by one up to here; beyond, their number is estimated from the time they span."""

TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan is made from, as the row says it; times are naive UTC."""

    trigger_kind: str
    cron: str | None
    cron_seconds: int
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None

    def fires_after(self, moment: datetime) -> Iterator[datetime]:
        """The fires strictly after a moment, in order, inside the window.

        Raises InvalidCron or InvalidTimezone.
        """
        if self.trigger_kind == TriggerKind.MANUAL:
            return
        fire = self.next_after(moment)
        while fire is not None:
            yield fire
            fire = self.next_after(fire)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment, or None if there is none any more."""
        if self.trigger_kind == TriggerKind.MANUAL:
            return None
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - TICK)
        fire = self._trigger().next_after(moment, load_zone(self.timezone))
        return fire if fire is None or self.ends_at is None or fire <= self.ends_at else None

    def newest_until(self, moment: datetime) -> datetime | None:
        """The newest fire at or before a moment, or None."""
        if self.ends_at is not None:
            moment = min(moment, self.ends_at)
        fire = self._trigger().latest_at_or_before(moment, load_zone(self.timezone))
        return fire if fire is None or self.starts_at is None or fire >= self.starts_at else None

    def _trigger(self) -> Cron:
        if not self.cron:
            raise InvalidCron(
                "the task is triggered by cron but has no cron expression; set cron, or trigger_kind manual"
            )
        return Cron.parse(self.cron, seconds=bool(self.cron_seconds))


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a tick decides by, beside the task's own next fire and param. Tasks that have it alike share one object."""

    status: str
    type: str
    inputs: PlanInputs
    is_stale: bool
    is_deleted: bool
    gmt_create: datetime | None
    """When the task was created, if it was never planned."""

    misfire_policy: str
    misfire_grace_seconds: int
    priority: int
    required_labels: dict[str, str]
    overlap_policy: str = OverlapPolicy.SKIP
    max_instances: int | None = None

    @property
    def was_planned(self) -> bool:
        """Whether there was a plan before; else it counts from the task's creation."""
        return self.gmt_create is None


@dataclass(slots=True)
class PlannedTask:
    """A task as a tick reads it under the lock; ``param`` is JSON text."""

    id: int
    name: str
    next_fire_at: datetime | None
    param: str | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick writes for one task."""

    next_fire_at: datetime | None
    fires: list[datetime] = field(default_factory=list)
    misfires: int = 0
    held_back: int = 0


def decide(terms: Terms, next_fire_at: datetime | None, now: datetime, horizon: datetime) -> Decision:
    """The fires of a task up to ``horizon`` (naive UTC), its next fire, and the count of those that do not run.

    Raises InvalidCron or InvalidTimezone, for a task that SQL gave a bad plan.
    """
    if terms.is_deleted:
        return Decision(next_fire_at=None)
    first = first_fire(terms, next_fire_at, now)
    if terms.status == TaskStatus.OFF:
        return _held_back(terms, first, now)
    if first is None:
        return Decision(next_fire_at=None)
    if now - first > timedelta(seconds=terms.misfire_grace_seconds):
        return MISFIRE[MisfirePolicy(terms.misfire_policy)](terms, first, now, horizon)
    return _on_time(terms, first, horizon)


def first_fire(terms: Terms, next_fire_at: datetime | None, now: datetime) -> datetime | None:
    """Where the plan stands: as written, or made anew from now on after an edit (an edit never replays the past).

    A task that was never planned counts from its creation: what it missed since then is a misfire.
    """
    if not terms.is_stale:
        return next_fire_at
    return terms.inputs.next_after(now if terms.gmt_create is None else min(terms.gmt_create, now))


def _on_time(terms: Terms, first: datetime, horizon: datetime) -> Decision:
    fires: list[datetime] = []
    fire: datetime | None = first
    while fire is not None and fire <= horizon and len(fires) < FIRES_AT_ONCE:
        fires.append(fire)
        fire = terms.inputs.next_after(fire)
    return Decision(next_fire_at=fire, fires=fires)


def _held_back(terms: Terms, first: datetime | None, now: datetime) -> Decision:
    if first is None or first > now:
        return Decision(next_fire_at=first)
    return Decision(next_fire_at=terms.inputs.next_after(now), held_back=count(terms.inputs, first, now))


def _fire_once(terms: Terms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """The newest missed fire runs once, for all that were missed; then the plan goes on."""
    newest = terms.inputs.newest_until(now) or first
    ahead = terms.inputs.next_after(newest)
    decision = Decision(next_fire_at=None) if ahead is None else _on_time(terms, ahead, horizon)
    return Decision(
        next_fire_at=decision.next_fire_at,
        fires=[newest, *decision.fires],
        misfires=count(terms.inputs, first, newest) - 1,
    )


MISFIRE = {MisfirePolicy.FIRE_ONCE: _fire_once}
"""What each policy makes of fires missed for longer than the grace time."""


def count(inputs: PlanInputs, first: datetime, last: datetime) -> int:
    """How many fires there are from ``first`` (a fire) to ``last``, both included; estimated beyond COUNTED_EXACTLY."""
    seen = [first, *islice((f for f in _until(inputs, first, last)), COUNTED_EXACTLY)]
    if len(seen) <= COUNTED_EXACTLY:
        return len(seen)
    span = (seen[-1] - first) / (len(seen) - 1)
    return len(seen) + int((last - seen[-1]) / span)


def _until(inputs: PlanInputs, first: datetime, last: datetime) -> Iterator[datetime]:
    for fire in inputs.fires_after(first):
        if fire > last:
            return
        yield fire
