"""Which fires a task has, and when. Pure: the time is an argument.

A task's plan is its ``next_fire_at``, computed from its inputs: its trigger, its time zone and its window.
``deciding.decide`` makes of it a ``Decision``: what a tick of the scheduler writes for one task.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Self

from rota.shared.domain.calendars.definition import Found
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.groups import Group, group_of
from rota.shared.domain.states import OnEnd, OverlapPolicy, SkipReason, TaskStatus, TriggerKind
from rota.shared.domain.times import EARLIEST, LATEST, is_time, why_no_time
from rota.shared.domain.triggers.after import AfterTrigger
from rota.shared.domain.triggers.base import AFTER_ENDS, search_of, trigger_of
from rota.shared.domain.triggers.fixed_delay import FixedDelayTrigger
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.zones import load_zone

TICK = timedelta(microseconds=1)

CATCH_UP_PRIORITY = 9
"""The priority of a fire that was missed and runs all the same: what is due now goes first."""


@dataclass(frozen=True, slots=True)
class PlanInputs(TriggerInputs):
    """What a task's fires are computed from: its trigger, and the window outside of which it never fires.

    The names are columns of ``schedule_task``; times are naive UTC.

        PlanInputs("cron", cron="30 16 * * *", timezone="Asia/Shanghai").next_after(datetime(2026, 7, 1))
    """

    ends_at: datetime | None = None

    def on(self, calendars: Mapping[str, Found]) -> "PlanInputs":
        """The inputs with their calendar, if they name one of these."""
        found = calendars.get(self.named_calendar or "")
        return self if found is None else replace(self, calendar=found)

    def without_calendar(self) -> "PlanInputs":
        """The inputs of a task that fires on all days."""
        spec = {key: value for key, value in (self.trigger_spec or {}).items() if not key.startswith("calendar")}
        return replace(self, trigger_spec=spec or None, calendar=None)

    def fires_after(self, moment: datetime) -> Iterator[datetime]:
        """The fires inside the window strictly after a moment (naive UTC), in order.

        Raises InvalidInput for inputs that describe no trigger, or no window, or that name an unknown calendar.
        """
        fire = self.next_after(moment)
        while fire is not None:
            yield fire
            fire = self.next_after(fire)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None if the task never fires again.

        Raises InvalidInput for inputs that describe no trigger, or no window, or that name an unknown calendar.
        """
        self._check_window()
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - TICK)
        if (days := self.days) is None:
            return self._before_the_end(trigger_of(self).next_after(moment))
        search, zone = search_of(self), load_zone(self.timezone)
        return days.next_after(moment, zone, lambda m: self._before_the_end(search.next_after(m)))

    def newest_until(self, moment: datetime) -> datetime | None:
        """The newest fire at or before a moment (naive UTC), or None if there is none.

        Raises InvalidInput for inputs that describe no trigger, or no window, or that name an unknown calendar.
        """
        self._check_window()
        if self.ends_at is not None:
            moment = min(moment, self.ends_at)
        if (days := self.days) is None:
            return self._after_the_start(trigger_of(self).latest_at_or_before(moment))
        search, zone = search_of(self), load_zone(self.timezone)
        return days.latest_until(moment, zone, lambda m: self._after_the_start(search.latest_at_or_before(m)))

    def describe(self) -> str | None:
        """The trigger and its days in plain English; None if the task never fires by itself. Raises InvalidInput."""
        words, name = trigger_of(self).describe(), self.calendar_name
        return words if words is None or name is None else f"{words}, {self.which_days.describe(name)}"

    def label(self) -> str:
        """The trigger in a few characters, and the calendar: ``0 9 * * *, cn``. Raises InvalidInput."""
        words, name = trigger_of(self).label(), self.calendar_name
        return words if name is None else f"{words}, {name}"

    def _before_the_end(self, fire: datetime | None) -> datetime | None:
        return fire if fire is None or self.ends_at is None or fire <= self.ends_at else None

    def _after_the_start(self, fire: datetime | None) -> datetime | None:
        return fire if fire is None or self.starts_at is None or fire >= self.starts_at else None

    def due_at(self, task_id: int, fire: datetime) -> datetime | None:
        """When a fire of a task may run (naive UTC), or None if that is its own time.

        With ``jitter_seconds`` it is later than the fire, by a part of them that a hash of the task and the fire says:
        the same whoever asks, and before the next fire. Raises InvalidInput.
        """
        if not (jitter := self.jitter_seconds):
            return None
        following = self.from_fire(fire).next_after(fire) or LATEST
        span = min(timedelta(seconds=jitter), following - fire)
        part = blake2b(f"{task_id} {fire.isoformat()}".encode(), digest_size=8).digest()
        return fire + TICK * (span // TICK * int.from_bytes(part) >> 64)

    @property
    def follows_ends(self) -> bool:
        """Whether each fire follows the end of the run before it: after a fire the plan waits for that end."""
        return self.trigger_kind in AFTER_ENDS

    @property
    def follows_tasks(self) -> bool:
        """Whether it fires when other tasks have ended: a chain. It has no times of its own."""
        return self.trigger_kind == TriggerKind.AFTER

    @property
    def before(self) -> Mapping[str, OnEnd]:
        """The tasks that it follows, by name, each with the end that it waits for; none where not ``follows_tasks``.

        Raises InvalidInput.
        """
        return dict(AfterTrigger.of(self).ends) if self.follows_tasks else {}

    def admits(self, moment: datetime) -> bool:
        """Whether the window and the calendar have nothing against a fire for a time (naive UTC).

        Raises InvalidInput.
        """
        return self.in_window(moment) == moment

    @property
    def delay(self) -> timedelta:
        """How long after the end of a run the next fire is, where ``follows_ends``.

        Raises InvalidInput.
        """
        return FixedDelayTrigger.of(self).delay

    def from_fire(self, fire: datetime) -> Self:
        """The inputs by which fires go on from this one (naive UTC) if none of them runs.

        They differ where ``follows_ends``: what is not run counts as ended at its own time. Raises InvalidInput.
        """
        if not self.follows_ends:
            return self
        before = fire - self.delay if fire - EARLIEST >= self.delay else fire
        return replace(self, starts_at=before)

    def after_end(self, end: datetime) -> datetime | None:
        """The fire that follows the end of a run (naive UTC), where ``follows_ends``; None: it never fires again.

        Raises InvalidInput.
        """
        return None if self.delay > LATEST - end else self.in_window(end + self.delay)

    def in_window(self, moment: datetime) -> datetime | None:
        """The moment (naive UTC), or ``starts_at`` if it is before that; None after ``ends_at``.

        On a day that the calendar leaves out it is the next fire after that. Raises InvalidInput.
        """
        self._check_window()
        moment = moment if self.starts_at is None else max(moment, self.starts_at)
        if not self.is_on_its_days(moment):
            return self.from_fire(moment).next_after(moment)
        return self._before_the_end(moment)

    def _check_window(self) -> None:
        for name in ("starts_at", "ends_at"):
            moment = getattr(self, name)
            if moment is not None and not is_time(moment):
                raise InvalidInput(f"{name} {why_no_time(moment)}; write a date, or NULL")
        if self.starts_at is not None and self.ends_at is not None and self.ends_at < self.starts_at:
            raise InvalidInput(
                f"ends_at {self.ends_at} is before starts_at {self.starts_at}: the task would never fire"
            )


INPUT_COLUMNS = tuple(column.name for column in fields(PlanInputs) if column.name != "calendar")
"""The columns of ``schedule_task`` that are inputs of a plan."""


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
    limit_name: str | None = None
    pool: str | None = None
    weight: int = 1
    run_timeout_seconds: int | None = None
    spread: str | None = None
    planned: Planned | None = None
    """If the plan is stale: what it was made from. None also if nobody can tell that."""

    new_edition: str | None = None
    """The edition of the task's calendar, if the present plan was made with another one."""

    put_by_hand: frozenset[datetime] = frozenset()
    """Of the fires that were missed, those that a person has skipped or set to another time (naive UTC)."""

    @property
    def was_turned_on(self) -> bool:
        """Whether the task is on, and was off when the scheduler saw it last."""
        return self.planned is not None and self.planned.status == TaskStatus.OFF and self.status == TaskStatus.ON

    @property
    def is_new_plan(self) -> bool:
        """Whether the plan is made anew: the task was edited, or its calendar."""
        return self.needs_replan or self.new_edition is not None

    @property
    def calendars(self) -> set[str]:
        """The names of the calendars of the task's plans, the present one and the one that is to be made."""
        names = {self.inputs.named_calendar, self.planned.inputs.named_calendar if self.planned else None}
        return {name for name in names if name is not None}

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

    task_group: str | None = None

    @property
    def group(self) -> Group:
        """The group whose fires take turns with those of others."""
        return group_of(self.task_group, self.id)

    @property
    def calendar_use(self) -> tuple[int, str, str] | None:
        """What is recorded of the calendar of a new plan: (task id, calendar, edition); None if nothing is new."""
        name, edition = self.terms.inputs.named_calendar, self.terms.new_edition
        return None if name is None or edition is None else (self.id, name, edition)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Fires of a task that are not run: why, the first and the last of them (naive UTC), and how many they are.

    ``after`` is the fire before the first, where these may continue a stretch that was skipped for the same reason.
    """

    reason: SkipReason
    first: datetime
    last: datetime
    number: int
    after: datetime | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """Fires that were missed and may all run: the first and the last of them (naive UTC)."""

    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick writes for one task: its next fire, the fires to materialize, those that it skips, and those that it
    leaves to the catch-up."""

    next_fire_at: datetime | None
    fires: list[datetime] = field(default_factory=list)
    skipped: Skipped | None = None
    missed: Missed | None = None

    @property
    def misfires(self) -> int:
        """How many fires were missed and are not run."""
        return 0 if self.skipped is None or self.skipped.reason == SkipReason.OFF else self.skipped.number

    @property
    def held_back(self) -> int:
        """How many fires passed while the task was off."""
        return 0 if self.skipped is None else self.skipped.number - self.misfires
