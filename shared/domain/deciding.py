"""What a tick of the scheduler writes for one task. Pure: the time is an argument.

``decide`` returns the fires to materialize, the next fire after them, which fires it does not run and why, and which it
leaves to the catch-up. Where fires were missed, the task's misfire policy decides.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from rota.shared.domain.after_ends import NO_FLIGHT, Flight, first_after_edit
from rota.shared.domain.counting import fire_alike, newest, skipped
from rota.shared.domain.errors import InvalidInput, UnknownKind
from rota.shared.domain.planning import TICK, Decision, Missed, Skipped, TaskTerms
from rota.shared.domain.states import MisfirePolicy, SkipReason, TaskStatus
from rota.shared.domain.times import is_time
from rota.shared.domain.triggers.base import TRIGGERS, trigger_of

FIRES_AT_ONCE = 100
"""The most fires of one task that one tick materializes; the next tick continues."""


def decide(
    terms: TaskTerms,
    next_fire_at: datetime | None,
    now: datetime,
    horizon: datetime,
    flight: Flight = NO_FLIGHT,
    *,
    paused: bool = False,
) -> Decision:
    """Decide which fires of a task up to ``horizon`` are materialized, and which fire is next. Times are naive UTC.

    ``flight``: the runs whose ends its plan follows. While all scheduling is ``paused``, no fire is materialized. The
    plan of a task that is on then stays where it is, so that on resuming its misfire policy decides; an edited one is
    made anew. Raises InvalidCron or InvalidTimezone for a task into which SQL wrote a bad cron expression or time zone.
    """
    if terms.inputs.follows_ends and not terms.is_deleted:
        trigger_of(terms.inputs)  # a plan that waits for an end reads its trigger only then
        if flight.holds(terms):
            return Decision(next_fire_at=None)
    passed = _passed(terms, next_fire_at, now)
    if passed is not None:
        following = _next_of_plan(terms, next_fire_at, flight, now)
        decision = Decision(following) if paused else _decide(terms, following, now, horizon)
        return replace(decision, skipped=passed)
    first = first_fire(terms, next_fire_at, now, flight)
    if paused and terms.status == TaskStatus.ON and not terms.is_deleted:
        return Decision(first)
    return _decide(terms, first, now, horizon)


def _next_of_plan(terms: TaskTerms, passed: datetime | None, flight: Flight, now: datetime) -> datetime | None:
    """The first fire after now, where fires of the plan have passed from ``passed`` on."""
    if terms.is_deleted:
        return None
    if terms.inputs.follows_ends and terms.is_new_plan:
        return first_after_edit(terms, passed, flight, now)
    return (terms.inputs if passed is None else terms.inputs.from_fire(passed)).next_after(now)


def _decide(terms: TaskTerms, first: datetime | None, now: datetime, horizon: datetime) -> Decision:
    if terms.is_deleted:
        return Decision(next_fire_at=None)
    if terms.status == TaskStatus.OFF:
        return _held_back(terms, first, now)
    if first is None:
        return Decision(next_fire_at=None)
    if (now - first).total_seconds() > terms.misfire_grace_seconds:
        return _misfire(terms)(terms, first, now, horizon)
    return _on_time(terms, first, horizon)


def _misfire(terms: TaskTerms) -> "MisfireRule":
    policy = terms.misfire_policy
    if policy not in MISFIRE:
        raise UnknownKind("misfire_policy", policy, MISFIRE)
    if terms.inputs.follows_ends and policy != MisfirePolicy.SKIP:
        return _the_only_one
    return MISFIRE[policy]


def _the_only_one(terms: TaskTerms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """Run the missed fire of a plan that follows ends: no second one can have been missed before it has run."""
    return _on_time(terms, first, horizon)


def first_fire(
    terms: TaskTerms, next_fire_at: datetime | None, now: datetime, flight: Flight = NO_FLIGHT
) -> datetime | None:
    """The next fire of the plan: the one in the row, or after an edit the first one after ``now``.

    An edit never replays the past. What the old plan and the new one both had for it is no replay. A new task is
    planned from its creation, so fires since then count as misfires. What SQL wrote into the row instead of a time
    counts as an edit.
    """
    is_usable = next_fire_at is None or is_time(next_fire_at)
    keeps = not terms.needs_replan or _has_passed_alike(terms, next_fire_at, now)
    if (keeps and is_usable) or terms.is_deleted:
        if terms.new_edition is None or terms.is_deleted:
            return next_fire_at
        if not terms.inputs.follows_ends:
            return _by_the_calendar(terms, next_fire_at, now)
    if terms.inputs.follows_ends:
        return first_after_edit(terms, next_fire_at, flight, now)
    return terms.inputs.next_after(min(terms.gmt_create, now) if is_time(terms.gmt_create) else now)


def _by_the_calendar(terms: TaskTerms, next_fire_at: datetime | None, now: datetime) -> datetime | None:
    """The next fire of a plan whose calendar was edited.

    If it has passed, the fires since then were missed: those that the calendar leaves.
    """
    if next_fire_at is None or next_fire_at > now:
        return terms.inputs.next_after(now)
    return next_fire_at if terms.inputs.is_on_its_days(next_fire_at) else terms.inputs.next_after(next_fire_at)


def _passed(terms: TaskTerms, next_fire_at: datetime | None, now: datetime) -> Skipped | None:
    """The fires of the old plan that have passed up to ``now`` and belong to it, because the task was edited since.

    Nobody knows when it was edited, so the old inputs count up to now. If the task was and is on, and only its text has
    changed or its trigger says the same of that time, they belong to the new plan: it makes up for them as its misfire
    policy says.
    """
    old = terms.planned
    if old is None or old.is_deleted or not is_time(next_fire_at) or next_fire_at > now:
        return None
    is_on = old.status == terms.status == TaskStatus.ON and not terms.is_deleted
    if is_on and (not terms.needs_replan or _has_passed_alike(terms, next_fire_at, now)):
        return None
    reason = SkipReason.OFF if old.status == TaskStatus.OFF else SkipReason.EDITED
    try:
        return skipped(reason, old.inputs.from_fire(next_fire_at), next_fire_at, now)
    except (InvalidInput, ValueError, TypeError):  # SQL has written the text of a plan that cannot be
        return None


def _has_passed_alike(terms: TaskTerms, next_fire_at: datetime | None, now: datetime) -> bool:
    """Whether fires from ``next_fire_at`` on have passed, and the old plan and the new one have the same."""
    if terms.planned is None or not is_time(next_fire_at) or next_fire_at > now:
        return False
    if terms.planned.inputs.follows_ends or terms.inputs.follows_ends:
        return False  # such a plan goes on from an end that an edit does not take away
    try:
        return fire_alike(terms.planned.inputs, terms.inputs, next_fire_at, now)
    except (InvalidInput, ValueError, TypeError):  # one of them cannot be
        return False


def recalled(terms: TaskTerms, now: datetime) -> datetime | None:
    """The last fire before ``now`` that an edit has taken away, if the old plan has jitter: it may be due still."""
    old = terms.planned
    if old is None or old.is_deleted or not (terms.needs_replan or terms.is_deleted) or old.inputs.follows_ends:
        return None
    try:
        fire = old.inputs.newest_until(now) if old.inputs.jitter_seconds else None
        stays = fire is not None and not terms.is_deleted and terms.inputs.newest_until(fire) == fire
    except (InvalidInput, ValueError, TypeError):  # one of them cannot be
        return None
    return None if stays else fire


def _on_time(terms: TaskTerms, first: datetime, horizon: datetime) -> Decision:
    fires: list[datetime] = []
    fire: datetime | None = first
    while fire is not None and fire <= horizon and len(fires) < FIRES_AT_ONCE:
        fires.append(fire)
        fire = None if terms.inputs.follows_ends else terms.inputs.next_after(fire)
    return Decision(next_fire_at=fire, fires=fires)


def _held_back(terms: TaskTerms, first: datetime | None, now: datetime) -> Decision:
    if first is None or first > now:
        return Decision(next_fire_at=first)
    inputs = terms.inputs.from_fire(first)
    return Decision(inputs.next_after(now), skipped=skipped(SkipReason.OFF, inputs, first, now))


def _fire_once(terms: TaskTerms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """Run the newest missed fire once in place of all missed fires; then continue with the plan."""
    last = newest(terms.inputs, first, now)
    decision = _going_on(terms, last, horizon)
    one = _newest_of_plan(terms, first, last)
    if one is None:
        return decision
    older = None
    if one > first:
        older = skipped(SkipReason.FIRE_ONCE, terms.inputs, first, one - TICK)
    return replace(decision, fires=[one, *decision.fires], skipped=older)


def _newest_of_plan(terms: TaskTerms, first: datetime, last: datetime) -> datetime | None:
    """The newest missed fire about which no person has decided."""
    fire: datetime | None = last
    while fire is not None and fire in terms.put_by_hand:
        fire = newest(terms.inputs, first, fire - TICK) if fire > first else None
    return fire


def _skip(terms: TaskTerms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """Run none of the fires that are late by more than the grace; then continue with the plan."""
    terms = replace(terms, inputs=terms.inputs.from_fire(first))
    last = _last_missed(terms, first, now)
    decision = _going_on(terms, last, horizon)
    return replace(decision, skipped=skipped(SkipReason.SKIP, terms.inputs, first, last))


def _fire_all(terms: TaskTerms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """Leave the fires that are late by more than the grace to the catch-up; then continue with the plan."""
    last = _last_missed(terms, first, now)
    return replace(_going_on(terms, last, horizon), missed=Missed(first, last))


def _last_missed(terms: TaskTerms, first: datetime, now: datetime) -> datetime:
    """The last fire that is late by more than the grace, where ``first`` is."""
    return newest(terms.inputs, first, now - timedelta(seconds=terms.misfire_grace_seconds) - TICK)


def _going_on(terms: TaskTerms, last: datetime, horizon: datetime) -> Decision:
    """The plan behind the last missed fire."""
    ahead = terms.inputs.next_after(last)
    return Decision(next_fire_at=None) if ahead is None else _on_time(terms, ahead, horizon)


MisfireRule = Callable[[TaskTerms, datetime, datetime, datetime], Decision]

MISFIRE: dict[str, MisfireRule] = {
    MisfirePolicy.FIRE_ONCE: _fire_once,
    MisfirePolicy.SKIP: _skip,
    MisfirePolicy.FIRE_ALL: _fire_all,
}
"""For each policy the function that decides about fires missed by more than ``misfire_grace_seconds``."""


def known_kinds() -> dict[str, list[str]]:
    """The words that this Rota knows of each column that says of what kind a task's plan is.

    known_kinds()   # {"trigger_kind": ["cron", "manual"], "misfire_policy": ["fire_once", "skip", "fire_all"]}
    """
    return {"trigger_kind": list(map(str, TRIGGERS)), "misfire_policy": list(map(str, MISFIRE))}
