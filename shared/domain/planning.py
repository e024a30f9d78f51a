"""Which fires a task has, and when. Pure: the time is an argument.

A task's plan is its ``next_fire_at``, computed from its inputs: its trigger, its time zone and its window. ``decide``
returns what a tick of the scheduler writes for one task: the fires to materialize, the next fire after them, and how
many fires it does not run because they are misfires or the task is off.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice

from rota.shared.domain.errors import InvalidInput, UnknownKind
from rota.shared.domain.states import MisfirePolicy, OverlapPolicy, TaskStatus
from rota.shared.domain.times import is_time, why_no_time
from rota.shared.domain.triggers.base import TRIGGERS, trigger_of
from rota.shared.domain.triggers.inputs import TriggerInputs

FIRES_AT_ONCE = 100
"""The most fires of one task that one tick materializes; the next tick continues."""

COUNTED_EXACTLY = 50
"""``count`` counts up to so many fires one by one. It estimates the number of the others from the length of time that
they cover."""

TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PlanInputs(TriggerInputs):
    """What a task's fires are computed from: its trigger, and the window outside of which it never fires.

    The names are columns of ``schedule_task``; times are naive UTC.

        PlanInputs("cron", cron="30 16 * * *", timezone="Asia/Shanghai").next_after(datetime(2026, 7, 1))
    """

    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def fires_after(self, moment: datetime) -> Iterator[datetime]:
        """The fires inside the window strictly after a moment (naive UTC), in order.

        Raises InvalidInput for inputs that describe no trigger, or no window.
        """
        fire = self.next_after(moment)
        while fire is not None:
            yield fire
            fire = self.next_after(fire)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None if the task never fires again.

        Raises InvalidInput for inputs that describe no trigger, or no window.
        """
        self._check_window()
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - TICK)
        fire = trigger_of(self).next_after(moment)
        return fire if fire is None or self.ends_at is None or fire <= self.ends_at else None

    def newest_until(self, moment: datetime) -> datetime | None:
        """The newest fire at or before a moment (naive UTC), or None if there is none.

        Raises InvalidInput for inputs that describe no trigger, or no window.
        """
        self._check_window()
        if self.ends_at is not None:
            moment = min(moment, self.ends_at)
        fire = trigger_of(self).latest_at_or_before(moment)
        return fire if fire is None or self.starts_at is None or fire >= self.starts_at else None

    def _check_window(self) -> None:
        for name in ("starts_at", "ends_at"):
            moment = getattr(self, name)
            if moment is not None and not is_time(moment):
                raise InvalidInput(f"{name} {why_no_time(moment)}; write a date, or NULL")


@dataclass(frozen=True, slots=True)
class Planned:
    """What the present plan of a task was made from: the task as the scheduler saw it last."""

    status: str
    is_deleted: bool
    inputs: PlanInputs


@dataclass(frozen=True, slots=True, eq=False)
class TaskTerms:
    """The columns of a task by which a tick decides, without ``next_fire_at`` and ``param``.

    Tasks whose columns are equal share one object, because most tasks have one of a few combinations.
    """

    status: str
    type: str
    inputs: PlanInputs
    inputs_text: str
    """The column ``plan_inputs``: the inputs, the status and the deletion mark in one text, written by the database."""

    is_stale: bool
    """Whether ``inputs_text`` differs from the text that the present plan was made from."""

    needs_replan: bool
    """Whether the plan must be made anew. Turning a task on or off makes a plan stale too, but keeps its next fire."""

    is_deleted: bool
    gmt_create: datetime | None
    """When the task was created (naive UTC) if it was never planned, otherwise None."""

    misfire_policy: str
    misfire_grace_seconds: int
    priority: int
    required_labels: dict[str, str]
    overlap_policy: str = OverlapPolicy.SKIP
    max_instances: int | None = None
    planned: Planned | None = None
    """If the plan is stale: what it was made from. None also if nobody can tell that."""

    @property
    def was_turned_on(self) -> bool:
        """Whether the task is on, and was off when the scheduler saw it last."""
        return self.planned is not None and self.planned.status == TaskStatus.OFF and self.status == TaskStatus.ON

    @property
    def was_planned(self) -> bool:
        """Whether the task had a plan before. If not, its first plan starts at the task's creation."""
        return self.gmt_create is None


@dataclass(slots=True)
class PlannedTask:
    """A task as a tick reads it while the scheduler holds the task's lease; ``param`` is JSON text."""

    id: int
    name: str
    next_fire_at: datetime | None
    param: str | None
    terms: TaskTerms
    large_param: int = 0
    """How many bytes a param has that is too large to be read with the others; ``param`` is None until it is read."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick writes for one task: its next fire, the fires to materialize, and the numbers of those not run."""

    next_fire_at: datetime | None
    fires: list[datetime] = field(default_factory=list)
    misfires: int = 0
    held_back: int = 0


def decide(terms: TaskTerms, next_fire_at: datetime | None, now: datetime, horizon: datetime) -> Decision:
    """Decide which fires of a task up to ``horizon`` are materialized, and which fire is next. Times are naive UTC.

    Raises InvalidCron or InvalidTimezone for a task into which SQL wrote a bad cron expression or time zone.
    """
    old = terms.planned
    passed = _passed(terms, next_fire_at, now) if old is not None else 0
    if passed and old is not None:
        following = None if terms.is_deleted else terms.inputs.next_after(now)
        decision = _decide(terms, following, now, horizon)
        was_off = old.status == TaskStatus.OFF
        return replace(decision, held_back=passed) if was_off else replace(decision, misfires=passed)
    return _decide(terms, first_fire(terms, next_fire_at, now), now, horizon)


def _decide(terms: TaskTerms, first: datetime | None, now: datetime, horizon: datetime) -> Decision:
    if terms.is_deleted:
        return Decision(next_fire_at=None)
    if terms.status == TaskStatus.OFF:
        return _held_back(terms, first, now)
    if first is None:
        return Decision(next_fire_at=None)
    if now - first > timedelta(seconds=terms.misfire_grace_seconds):
        return _misfire(terms.misfire_policy)(terms, first, now, horizon)
    return _on_time(terms, first, horizon)


def _misfire(policy: str) -> "MisfireRule":
    if policy not in MISFIRE:
        raise UnknownKind("misfire_policy", policy, MISFIRE)
    return MISFIRE[policy]


def first_fire(terms: TaskTerms, next_fire_at: datetime | None, now: datetime) -> datetime | None:
    """The next fire of the plan: the one in the row, or after an edit the first one after ``now``.

    An edit never replays the past. A new task is planned from its creation, so fires since then count as misfires.
    What SQL wrote into the row instead of a time counts as an edit.
    """
    is_usable = next_fire_at is None or is_time(next_fire_at)
    if (not terms.needs_replan and is_usable) or terms.is_deleted:
        return next_fire_at
    return terms.inputs.next_after(min(terms.gmt_create, now) if is_time(terms.gmt_create) else now)


def _passed(terms: TaskTerms, next_fire_at: datetime | None, now: datetime) -> int:
    """How many fires of the old plan have passed up to ``now`` and belong to it, because the task was edited since.

    Nobody knows when it was edited, so the old inputs count up to now. If the task was and is on and only its text has
    changed, they belong to the new plan: it makes up for them as its misfire policy says.
    """
    old = terms.planned
    if old is None or old.is_deleted or not is_time(next_fire_at) or next_fire_at > now:
        return 0
    if old.status == terms.status == TaskStatus.ON and not terms.needs_replan and not terms.is_deleted:
        return 0
    try:
        return count(old.inputs, next_fire_at, now)
    except (InvalidInput, ValueError, TypeError):  # SQL has written the text of a plan that cannot be
        return 0


def _on_time(terms: TaskTerms, first: datetime, horizon: datetime) -> Decision:
    fires: list[datetime] = []
    fire: datetime | None = first
    while fire is not None and fire <= horizon and len(fires) < FIRES_AT_ONCE:
        fires.append(fire)
        fire = terms.inputs.next_after(fire)
    return Decision(next_fire_at=fire, fires=fires)


def _held_back(terms: TaskTerms, first: datetime | None, now: datetime) -> Decision:
    if first is None or first > now:
        return Decision(next_fire_at=first)
    return Decision(next_fire_at=terms.inputs.next_after(now), held_back=count(terms.inputs, first, now))


def _fire_once(terms: TaskTerms, first: datetime, now: datetime, horizon: datetime) -> Decision:
    """Run the newest missed fire once in place of all missed fires; then continue with the plan."""
    newest = terms.inputs.newest_until(now) or first
    ahead = terms.inputs.next_after(newest)
    decision = Decision(next_fire_at=None) if ahead is None else _on_time(terms, ahead, horizon)
    return Decision(
        next_fire_at=decision.next_fire_at,
        fires=[newest, *decision.fires],
        misfires=count(terms.inputs, first, newest) - 1,
    )


MisfireRule = Callable[[TaskTerms, datetime, datetime, datetime], Decision]

MISFIRE: dict[str, MisfireRule] = {MisfirePolicy.FIRE_ONCE: _fire_once}
"""For each policy the function that decides about fires missed by more than ``misfire_grace_seconds``."""


def known_kinds() -> dict[str, list[str]]:
    """The words that this Rota knows of each column that says of what kind a task's plan is.

    known_kinds()   # {"trigger_kind": ["cron", "manual"], "misfire_policy": ["fire_once"]}
    """
    return {"trigger_kind": list(map(str, TRIGGERS)), "misfire_policy": list(map(str, MISFIRE))}


def count(inputs: PlanInputs, first: datetime, last: datetime) -> int:
    """How many fires there are from ``first`` (a fire) to ``last`` (naive UTC), both included.

    The number is an estimate if it is greater than ``COUNTED_EXACTLY``.
    """
    counted = [first, *islice(_until(inputs, first, last), COUNTED_EXACTLY)]
    if len(counted) <= COUNTED_EXACTLY:
        return len(counted)
    average_distance = (counted[-1] - first) / (len(counted) - 1)
    return len(counted) + int((last - counted[-1]) / average_distance)


def _until(inputs: PlanInputs, first: datetime, last: datetime) -> Iterator[datetime]:
    for fire in inputs.fires_after(first):
        if fire > last:
            return
        yield fire
