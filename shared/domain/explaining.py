"""What became of a fire of a task. Pure: all of it was read from rows, and the time is an argument.

``explain`` answers in a word (``FireOutcome``) and a sentence. It says only what a row, a counter or the trigger says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rota.shared.domain.errors import RotaError
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import PLANNED_ORIGINS, InstanceStatus, OverlapPolicy, SkipReason
from rota.shared.domain.times import span


class FireOutcome(StrEnum):
    """What became of a fire."""

    RAN = "ran"
    RUNNING = "running"
    WAITING = "waiting"
    CATCHING_UP = "catching_up"
    SKIPPED = "skipped"
    CANCELED = "canceled"
    NOT_DUE_YET = "not_due_yet"
    NO_FIRE = "no_fire"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Told:
    """The answer: a word and a sentence."""

    outcome: FireOutcome
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """An instance of a fire, as its row says; times are naive UTC."""

    id: int
    status: str
    origin: str
    schedule_datetime: datetime
    due_at: datetime | None
    gmt_started: datetime | None
    gmt_completed: datetime | None
    is_to_stop: bool
    """Whether somebody has asked to cancel it while it ran."""

    reason: str | None
    worker: str | None
    worker_lives: bool
    failures: int
    attempt: int
    """Of what ``gmt_started`` says the start."""

    @property
    def due(self) -> datetime:
        """When it may run."""
        return self.due_at or self.schedule_datetime


@dataclass(frozen=True, slots=True)
class Stretch:
    """Fires of the task that were not run (with the ``reason``), or are still to be caught up (None)."""

    first: datetime
    last: datetime
    number: int | None
    reason: str | None = None

    def covers(self, fire: datetime) -> bool:
        """Whether the time (naive UTC) lies in it."""
        return self.first <= fire <= self.last


@dataclass(frozen=True, slots=True)
class Plan:
    """What the task's row says of its fires."""

    inputs: PlanInputs
    is_on: bool
    next_fire_at: datetime | None
    error: str | None
    """Why the scheduler has set the task aside."""

    is_stale: bool
    """Whether it was edited since the scheduler saw it last."""

    gmt_create: datetime
    overlap_policy: str = OverlapPolicy.SKIP
    max_instances: int | None = None
    """How many may run at once under ``allow``; None: any number."""

    def has(self, fire: datetime) -> bool:
        """Whether the task fires at this time (naive UTC), by its trigger of now. One that cannot be never fires."""
        if fire == self.next_fire_at:
            return True
        try:
            return not self.inputs.follows_ends and self.inputs.newest_until(fire) == fire
        except RotaError:
            return False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say about one time of a task."""

    now: datetime
    plan: Plan
    runs: Sequence[Run] = ()
    """The instances of that time; the one that was made last comes first."""

    skipped: Sequence[Stretch] = ()
    to_run: Sequence[Stretch] = ()
    holders: Sequence[int] = ()
    """The instances of the task that run now, and hold its overlap slots."""

    follows: str | None = None
    """Why there is no run of that time, where the task follows others."""

    full_limit: str | None = None
    """Why the limit that the task shares lets no more of its instances start now."""

    nobody_plans: str | None = None
    """Why no scheduler writes fires of this task."""

    nobody_gives: str | None = None
    """Why no scheduler gives what waits to workers."""


SKIPPED: Mapping[str, str] = {
    SkipReason.SKIP: "it was missed, and misfire_policy is skip",
    SkipReason.FIRE_ONCE: "it was missed, and a newer fire ran in its place: misfire_policy is fire_once",
    SkipReason.WINDOW: "it was missed longer ago than misfire_window_seconds",
    SkipReason.CAP: "it was missed, and so were misfire_cap newer ones, which run in its place",
    SkipReason.OFF: "its task was off",
    SkipReason.BY_HAND: "a person has skipped it",
    SkipReason.EDITED: "it passed before an edit or a deletion of its task was seen",
}
"""What each reason of ``schedule_skip`` means, in a sentence."""


def explain(fire: datetime, facts: Facts) -> Told:
    """What became of the fire of a task at this time (naive UTC)."""
    if facts.runs:
        return of_run(facts.runs[0], facts)
    is_fire = facts.plan.has(fire)
    for stretch in (*facts.skipped, *facts.to_run):
        if stretch.covers(fire) and (is_fire or fire in (stretch.first, stretch.last)):
            return _of_stretch(stretch)
    if not is_fire:
        return _no_fire(fire, facts)
    return _ahead(facts) if fire > facts.now else _unwritten(fire, facts)


def of_run(run: Run, facts: Facts) -> Told:
    """What became of an instance."""
    match run.status:
        case InstanceStatus.SUCCEED | InstanceStatus.FAILED:
            done = "succeeded" if run.status == InstanceStatus.SUCCEED else "failed"
            return Told(FireOutcome.RAN, _with(f"instance {run.id} {done}{_on(run)}{_course(run)}", run.reason))
        case InstanceStatus.CANCELED if run.gmt_started is None:
            return Told(FireOutcome.SKIPPED, _with(f"instance {run.id} was canceled before it started", run.reason))
        case InstanceStatus.CANCELED:
            return Told(FireOutcome.CANCELED, _with(f"instance {run.id} was canceled{_course(run)}", run.reason))
        case InstanceStatus.RUNNING if run.gmt_started is None:
            return Told(FireOutcome.WAITING, f"instance {run.id} is claimed{_on(run)}, and about to start")
        case InstanceStatus.RUNNING:
            since = span(max(0.0, (facts.now - run.gmt_started).total_seconds())) if run.gmt_started else "now"
            told = f"instance {run.id} runs{_on(run)} for {since}; {_started(run)}"
            asked = _with("; its worker was asked to stop it", run.reason) if run.is_to_stop else ""
            return Told(FireOutcome.RUNNING, told + asked)
    return _waits(run, facts)


def _waits(run: Run, facts: Facts) -> Told:
    """What a pending or assigned instance waits for."""
    if run.due > facts.now:
        return _not_due(run, facts.now)
    was_due = f"instance {run.id} was due {span((facts.now - run.due).total_seconds())} ago, and"
    return Told(FireOutcome.WAITING, f"{was_due} {_waits_for(run, facts)}")


def _waits_for(run: Run, facts: Facts) -> str:
    if not facts.plan.is_on and run.origin in PLANNED_ORIGINS:
        return "is canceled when a worker would claim it: its task is off"
    if facts.nobody_gives:
        return f"waits: {facts.nobody_gives}"
    is_assigned = run.status == InstanceStatus.ASSIGNED
    if is_assigned and not run.worker_lives:
        return f"waits: it was given to worker {run.worker}, which is not live; the scheduler takes it back"
    if (others := _others(run, facts)) is not None:
        return others
    if is_assigned:
        return _with(f"waits on worker {run.worker} for a slot", run.reason)
    return f"waits: {run.reason or 'the scheduler has not given it to a worker yet'}"


def _others(run: Run, facts: Facts) -> str | None:
    """The runs for whose end it waits, those of its task or of its limit; None if there are none."""
    if facts.holders and facts.plan.overlap_policy != OverlapPolicy.ALLOW:
        return _with(f"waits for instance {', '.join(map(str, facts.holders))}, which runs", run.reason)
    if (most := facts.plan.max_instances) is not None and len(facts.holders) >= most:
        return f"waits for its turn: {len(facts.holders)} of its task run, and max_instances is {most}"
    return facts.full_limit


def _not_due(run: Run, now: datetime) -> Told:
    to_come = span((run.due - now).total_seconds())
    if run.failures:
        failures = "1 failure" if run.failures == 1 else f"{run.failures} failures"
        again = f"instance {run.id} is tried again in {to_come}, after {failures}"
        return Told(FireOutcome.WAITING, _with(again, run.reason))
    if run.due > run.schedule_datetime:
        later = span((run.due - run.schedule_datetime).total_seconds())
        return Told(FireOutcome.WAITING, f"instance {run.id} is due in {to_come}, {later} after its own time")
    return Told(FireOutcome.NOT_DUE_YET, f"instance {run.id} is written, and due in {to_come}")


def _of_stretch(stretch: Stretch) -> Told:
    if stretch.reason is None:
        left = "" if stretch.number is None else f"; {stretch.number} are left"
        why = f"it was missed, and is still to be caught up, behind what is due now{left}"
        return Told(FireOutcome.CATCHING_UP, why)
    said = SKIPPED.get(stretch.reason, f"the reason is {stretch.reason}")
    others = f", one of {stretch.number} in a row" if (stretch.number or 1) > 1 else ""
    return Told(FireOutcome.SKIPPED, f"{said}{others}")


def _no_fire(fire: datetime, facts: Facts) -> Told:
    why = "the task does not fire at that time"
    if facts.follows is not None:
        why = f"no run has that time; {facts.follows}"
    elif facts.plan.inputs.follows_ends:
        why = "no run has that time; each fire follows the end of the run before it"
    elif facts.plan.error is not None:
        why = f"the scheduler has set the task aside: {facts.plan.error}"
    near = next((one for one in facts.skipped if one.covers(fire)), None)
    if near is not None:
        number = f"{near.number} fires were skipped ({near.reason})"
        why += f", by its trigger of now; around it {number}, of the trigger that it had then"
    return Told(FireOutcome.NO_FIRE, why)


def _ahead(facts: Facts) -> Told:
    plan = facts.plan
    if plan.error is not None:
        return Told(FireOutcome.NOT_DUE_YET, f"it will not fire: the scheduler has set its task aside: {plan.error}")
    if not plan.is_on:
        return Told(FireOutcome.NOT_DUE_YET, "its task is off, and it does not run if that is so then")
    why = f"nobody would write it: {facts.nobody_plans}" if facts.nobody_plans else "the scheduler writes it in time"
    return Told(FireOutcome.NOT_DUE_YET, why)


def _unwritten(fire: datetime, facts: Facts) -> Told:
    """A fire that has passed and of which no row tells."""
    plan = facts.plan
    if plan.error is not None:
        return Told(FireOutcome.SKIPPED, f"the scheduler has set its task aside: {plan.error}")
    if fire < plan.gmt_create:
        return Told(FireOutcome.NO_FIRE, "the task was made later")
    if (plan.is_stale and plan.next_fire_at is None) or (plan.next_fire_at is not None and plan.next_fire_at <= fire):
        if facts.nobody_plans:
            return Told(FireOutcome.WAITING, f"it is not written yet: {facts.nobody_plans}")
        if not plan.is_on:
            return Told(FireOutcome.SKIPPED, "its task is off; the scheduler counts it at its next look")
        return Told(FireOutcome.WAITING, "the scheduler has not written it yet")
    why = "no row tells of it: the task had another trigger at that time, or its rows were removed"
    return Told(FireOutcome.UNKNOWN, why)


def _with(told: str, reason: str | None) -> str:
    return f"{told}: {reason}" if reason else told


def _on(run: Run) -> str:
    return f" on worker {run.worker}" if run.worker else ""


def _started(run: Run) -> str:
    late = (run.gmt_started - run.due).total_seconds() if run.gmt_started else 0.0
    what = "it" if run.attempt <= 1 else f"its attempt {run.attempt}"
    return f"{what} started {span(late)} late" if late >= 0 else f"{what} started {span(-late)} early"


def _course(run: Run) -> str:
    """How late an instance that has ended started, and how long it took."""
    if run.gmt_started is None:
        return "; it was not entered"
    took = None if run.gmt_completed is None else span((run.gmt_completed - run.gmt_started).total_seconds())
    return f"; {_started(run)}" + (f" and took {took}" if took else "")
