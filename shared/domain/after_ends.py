"""Plans in which each fire follows the end of the run before it. Pure: the time is an argument.

Such a plan is either a next fire, or a marked run (``MarkedRun``): the mark is written with the fire, when nobody knows
yet when the run ends, and ``next_fire_at`` is NULL. When the run has ended, in whatever way, the next fire takes the
place of the mark. So a task has one run of its trigger at a time, and its plan never gets lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.shared.domain.errors import RotaError
from rota.shared.domain.planning import PlannedTask, TaskTerms
from rota.shared.domain.times import is_time


@dataclass(frozen=True, slots=True)
class MarkedRun:
    """A run that is to be followed up, as it stands now; times are naive UTC, or what SQL wrote instead."""

    mark_id: int
    task_id: int
    schedule_datetime: datetime | None
    is_open: bool
    """Whether it has not ended. A run that SQL has deleted counts as ended."""

    stays: bool
    """Whether an edit of the task leaves it there: a worker has claimed it, or a person has put it there."""

    gmt_completed: datetime | None

    def end(self, now: datetime) -> datetime:
        """When it ended: not after now, and not before its own time, whatever SQL wrote."""
        end = self.gmt_completed if is_time(self.gmt_completed) and self.gmt_completed <= now else now
        return max(end, self.schedule_datetime) if is_time(self.schedule_datetime) else end


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """What the marked runs of one task say about its plan."""

    is_open: bool = False
    """Whether one of them has not ended, but for those that an edit deletes."""

    ahead: datetime | None = None
    """The time of a fire that is still to come and that nobody has claimed: an edit deletes it."""

    ended: datetime | None = None
    """When the last of those ended whose end is not followed up yet."""

    @classmethod
    def of(cls, runs: Sequence[MarkedRun], now: datetime) -> "Flight":
        """The flight of these runs of one task at a moment (naive UTC)."""
        ahead = {run.mark_id: run.schedule_datetime for run in runs if _is_ahead(run, now)}
        return cls(
            any(run.is_open and run.mark_id not in ahead for run in runs),
            max(filter(None, ahead.values()), default=None),
            max((run.end(now) for run in runs if not run.is_open), default=None),
        )

    def holds(self, terms: TaskTerms) -> bool:
        """Whether the task fires no more before an end."""
        return self.is_open or (self.ahead is not None and not terms.is_new_plan)


NO_FLIGHT = Flight()


def _is_ahead(run: MarkedRun, now: datetime) -> bool:
    moment = run.schedule_datetime
    return run.is_open and not run.stays and is_time(moment) and moment > now


def first_after_edit(terms: TaskTerms, next_fire_at: datetime | None, flight: Flight, now: datetime) -> datetime | None:
    """The next fire (naive UTC) of a task that is new or was edited, and of which no run goes on.

    A new task fires when it was created, at once. After an edit the delay counts from the end that it counted from
    before. If that is not known, or if the new time has passed, the task fires now. Raises InvalidInput.
    """
    inputs, old = terms.inputs, terms.planned
    if not terms.was_planned and next_fire_at is None and flight is NO_FLIGHT and is_time(terms.gmt_create):
        return inputs.in_window(min(terms.gmt_create, now))
    fire = now
    before = next_fire_at if is_time(next_fire_at) else flight.ahead
    if flight.ended is not None:
        fire = flight.ended + inputs.delay
    elif before is not None and old is None:
        fire = before
    elif before is not None and old is not None and not old.is_deleted and old.inputs.follows_ends:
        fire = _moved(terms, before, now)
    return inputs.in_window(max(fire, now))


def _moved(terms: TaskTerms, before: datetime, now: datetime) -> datetime:
    """The fire that was planned for another time, as the edited task has it."""
    old = terms.planned.inputs if terms.planned else terms.inputs
    if old.starts_at is not None and before <= old.starts_at:  # it waited for its window
        return now
    try:
        return before - old.delay + terms.inputs.delay
    except (RotaError, OverflowError):  # SQL has written the text of a plan that cannot be
        return now


def follow_up(task: PlannedTask, runs: Iterable[MarkedRun], now: datetime) -> tuple[datetime | None, list[int]]:
    """What follows the ended runs of a task: its next fire (naive UTC) if its plan gets one, and the marks to remove.

    If another of its runs goes on, that one is followed up later. What a person has planned meanwhile stays. The plan
    of an edited task is made by the materializer, which reads the marks.
    """
    runs, terms = list(runs), task.terms
    ended = [run for run in runs if not run.is_open]
    marks = [run.mark_id for run in ended]
    if terms.is_deleted or not terms.inputs.follows_ends:
        return None, marks
    if terms.needs_replan:
        return None, []
    if len(ended) < len(runs) or task.next_fire_at is not None or not ended:
        return None, marks
    try:
        return terms.inputs.after_end(max(run.end(now) for run in ended)), marks
    except RotaError:  # of what SQL has written: the task is set aside, and an edit makes a new plan
        return None, marks
