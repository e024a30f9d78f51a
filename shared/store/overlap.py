"""Overlap: how many instances of one task may run at the same time, and what happens to the others.

A unique key decides it. While an instance runs, its ``overlap_key`` is the task's id times ``OVERLAP_SLOTS``, plus a
slot; otherwise it is NULL. So two workers cannot both take a slot (docs/decisions/0006-overlap-at-the-claim.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Connection, Select, and_, literal_column, or_, select

from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.domain.states import PLANNED_ORIGINS, Origin, OverlapPolicy
from rota.shared.domain.times import LATEST, is_time
from rota.shared.store import taken_slots, turns
from rota.shared.store.tables import schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c


class Contender(Protocol):
    """An assigned instance that wants an overlap slot; times are naive UTC."""

    @property
    def id(self) -> int:
        """The instance's id."""
        ...

    @property
    def schedule_task_id(self) -> int:
        """Its task's id."""
        ...

    @property
    def schedule_datetime(self) -> datetime:
        """The fire's own time."""
        ...

    @property
    def due_at(self) -> datetime:
        """When it may run."""
        ...

    @property
    def origin(self) -> str:
        """What created the instance, as ``Origin``."""
        ...

    @property
    def attempt(self) -> int:
        """How many times a worker has claimed the instance before."""
        ...

    @property
    def parent_id(self) -> int | None:
        """The instance of which it is a shard, and which holds the slot for it."""
        ...

    @property
    def overlap_policy(self) -> str | None:
        """The overlap policy of the instance's task."""
        ...

    @property
    def max_instances(self) -> int | None:
        """How many instances of the task may run at once under ``allow``; None: any number."""
        ...


REPORTED_WITHIN = timedelta(seconds=1)
"""How long a worker waits before it skips a fire, because the run in its way may have ended already without having been
reported yet."""


LOOK_COUNTS_SECONDS = 0.5
"""Of the time between two looks at a run in the way so much counts of its second. So a hold-up of whoever looks takes
half of that second at most, and whoever looks rarely skips the fire at the third look, or far away at the fourth."""

LOCKED = LATEST
"""Until when a run may report that somebody has locked: its second has not begun."""


@dataclass(frozen=True, slots=True)
class SkipCandidate:
    """A fire that will be skipped unless ``holder_id`` reports before ``until`` (naive UTC).

    ``holder_id`` is the instance that holds the task's slot: its row says ``running``, but it may have ended already.
    ``until`` is ``LOCKED`` as long as somebody has that row or one of its nodes locked: a report would wait, too.
    """

    holder_id: int
    until: datetime


Slots = list[tuple[int, int | None]]
"""The overlap slot that each instance is to take: (id, slot). None is no slot, for a task without a limit."""

LAST: turns.Place = ("~", 0)
"""After every place: a task of which no more wait than it has free slots has no last one in turn."""

OFF = "its task was off when it was due"


class Waiting(NamedTuple):
    """An instance to try again; ``due_at`` is naive UTC."""

    id: int
    due_at: datetime
    holder_id: int | None = None
    """The run because of which it may be skipped."""

    task_id: int | None = None  # if it waits for its turn
    limit_name: str | None = None  # of its task
    is_holder_free: bool = False
    """Whether nobody has that run locked, as far as it was asked: then its report need not wait."""


def note_candidate(candidates: dict[int, SkipCandidate], one: Waiting, until: datetime) -> None:
    """Note the run because of which an instance may be skipped: it has until then to report, if it may report now."""
    if one.holder_id is None:
        return
    known = candidates.get(one.id)
    if known is None or known.until == LOCKED:
        candidates[one.id] = SkipCandidate(one.holder_id, until if one.is_holder_free else LOCKED)


def at_the_next_look(
    candidates: dict[int, SkipCandidate], passed: float, *, has_failed: bool = False
) -> dict[int, SkipCandidate]:
    """The candidates at a look that comes ``passed`` seconds after the last one.

    Of these seconds ``LOOK_COUNTS_SECONDS`` count at most; none count if the last look ``has_failed``. For the rest of
    them the database may have been away, or the process may have stood still, and then no run could report.
    """
    counts = 0 if has_failed else LOOK_COUNTS_SECONDS
    if passed <= counts:
        return candidates
    more = timedelta(seconds=passed - counts)
    return {i: one if one.until == LOCKED else replace(one, until=one.until + more) for i, one in candidates.items()}


def slots_waited_for(policy: str | None, max_instances: int | None) -> int | None:
    """How many instances of a task may run at once, if a fire without a free slot waits for one; None if it does not.

    ``max_instances`` is ignored under every policy but ``allow``, because SQL may have left a value there.
    """
    if policy == OverlapPolicy.ALLOW:
        return max_instances
    return 1 if policy == OverlapPolicy.QUEUE else None


def full(connection: Connection, slots: Mapping[int, int]) -> set[int]:
    """The tasks whose overlap slots are all taken. ``slots``: how many instances may run at once, by task id."""
    taken = taken_slots.of(connection, slots)
    return {task for task, used in taken.items() if len(used) >= slots[task]}


def in_turn(slots: int) -> str:
    """The reason of an instance that waits for others of its task.

    It does not depend on the instance that holds the slot, so that each waiting row is written only once.
    """
    return "waits for its turn: its task " + ("runs one at a time" if slots == 1 else f"runs {slots} at once")


def free_slots(connection: Connection, rows: Sequence[Contender]) -> Slots:
    """The overlap slot for each instance.

    Instances that find no free slot are left out, and so are those before which an older one of their task waits,
    wherever it is assigned. A shard needs none.
    """
    slots: Slots = [(row.id, None) for row in rows if row.parent_id is not None]
    rows = [row for row in rows if row.parent_id is None]
    numbers = {
        row.schedule_task_id: number
        for row in rows
        if (number := slots_waited_for(row.overlap_policy, row.max_instances)) is not None
    }
    taken = taken_slots.of(connection, {row.schedule_task_id for row in rows if not _is_unlimited(row)})
    if numbers:
        unused = {task: number - len(taken.get(task, ())) for task, number in numbers.items()}
        rows = [row for row in rows if unused.get(row.schedule_task_id, 1) > 0]
        last = turns.last_in_turn(connection, {task: number for task, number in unused.items() if number > 0})
        places = {row.id: turns.place(row.due_at, row.id) for row in rows}
        near = (row for row in rows if places[row.id] <= last.get(row.schedule_task_id, LAST))
        rows = sorted(near, key=lambda row: places[row.id])
    for row in rows:
        used = taken.setdefault(row.schedule_task_id, set())
        number = numbers.get(row.schedule_task_id, 1)
        free = next((slot for slot in range(number) if slot not in used), None)
        if _is_unlimited(row):
            slots.append((row.id, None))
        elif free is not None and len(used) < number:
            used.add(free)
            slots.append((row.id, free))
    return slots


def _is_unlimited(row: Contender) -> bool:
    return row.overlap_policy == OverlapPolicy.ALLOW and row.max_instances is None


def superseded(connection: Connection, rows: Sequence[Contender], now: datetime) -> dict[int, str]:
    """The fires of ``replace`` tasks for which a newer fire waits that is due, each with why it is skipped.

    ``now`` is naive UTC. The newer fire may be assigned to any worker, or pending.
    """
    waiting = [row for row in rows if replaces(row) and row.due_at <= now]
    if not waiting:
        return {}
    newest = turns.newest_fires(connection, {row.schedule_task_id for row in waiting}, now)
    return {
        row.id: replaced_by(last[1])
        for row in waiting
        if (last := newest.get(row.schedule_task_id)) and last > turns.place(row.schedule_datetime, row.id)
    }


def no_place(max_waiting: int) -> str:
    """Why a fire is canceled for which the line of its task has no place."""
    return f"overlap: as many fires of its task as max_waiting allows ({max_waiting}) waited before this one"


def replaced_by(instance_id: int) -> str:
    return f"replaced by instance {instance_id}, a newer fire of its task"


_LAST: ColumnElement[int] = literal_column(str(CATCH_UP_PRIORITY))
IS_OF_THE_PAST = or_(
    _instance.origin == literal_column(f"'{Origin.BACKFILL.value}'"),
    _instance.origin == literal_column(f"'{Origin.REPLAY.value}'"),
    and_(_instance.priority == _LAST, _task.priority != _LAST),
)
"""A replay, or a run of a backfill or of a missed fire: the task's next fire waits for it, and is not skipped."""


def with_task(*columns: Any) -> Select[Any]:
    """A SELECT of instances that also knows their tasks."""
    return select(*columns).join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)


def skipped_for(holder_id: int) -> str:
    """Why a fire is skipped for this run."""
    return f"overlap: instance {holder_id} still ran when this instance was due"


def overrun(
    connection: Connection, rows: Sequence[Contender], skip_candidates: Mapping[int, SkipCandidate]
) -> dict[int, str]:
    """The fires that were due while a run was in their way that has ended since, each with why it is skipped.

    ``skip_candidates`` holds, by instance id, what the last claim found.
    """
    known = [row for row in rows if row.id in skip_candidates] if skip_candidates else ()
    candidates = [(row, skip_candidates[row.id].holder_id) for row in known if may_skip(row)]
    if not candidates:
        return {}
    ended = with_task(_instance.id, _instance.gmt_started, _instance.gmt_completed).where(
        _instance.id.in_(sorted({holder_id for _, holder_id in candidates})),
        ~IS_OF_THE_PAST,
        _instance.gmt_started.is_not(None),
        _instance.gmt_completed.is_not(None),
    )
    rows_ended = connection.execute(ended)
    spans = {holder_id: (start, end) for holder_id, start, end in rows_ended if is_time(start) and is_time(end)}
    return {
        row.id: skipped_for(holder_id)
        for row, holder_id in candidates
        if holder_id in spans and spans[holder_id][0] < row.due_at < spans[holder_id][1]
    }


def may_skip(row: Contender) -> bool:
    """Whether the instance may be skipped: only a new fire may, and only for a run that had started when it was due.

    Other instances wait: those that somebody asked for, those that ran before, and fires that were due together with
    the run in their way but came late.
    """
    return row.overlap_policy == OverlapPolicy.SKIP and _is_new_fire(row)


def replaces(row: Contender) -> bool:
    """Whether the instance may replace the run in its way: only a new fire may, and only a fire for an earlier time.

    Otherwise an older instance, or a retry, would cancel a newer one.
    """
    return row.overlap_policy == OverlapPolicy.REPLACE and _is_new_fire(row)


def _is_new_fire(row: Contender) -> bool:
    return row.origin in PLANNED_ORIGINS and row.attempt == 0
