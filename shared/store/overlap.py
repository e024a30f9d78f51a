"""Overlap: how many instances of one task may run at the same time, and what happens to the others.

A unique key decides it. While an instance runs, its ``overlap_key`` is the task's id times ``OVERLAP_SLOTS``, plus a
slot; otherwise it is NULL. So two workers cannot both take a slot (docs/decisions/0006-overlap-at-the-claim.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Connection, Select, and_, case, literal_column, or_, select

from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.domain.states import PLANNED_ORIGINS, SKIP, Origin, OverlapPolicy, TaskStatus
from rota.shared.domain.times import is_time
from rota.shared.store import taken_slots, turns
from rota.shared.store.tables import MOST_ATTEMPTS, OVERLAP_SLOTS, schedule_instance, schedule_task
from rota.shared.store.transitions import canceling
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_task = schedule_task.c


class Contender(Protocol):
    """An assigned instance that wants an overlap slot; times are naive UTC."""

    id: int
    schedule_task_id: int
    schedule_datetime: datetime
    due_at: datetime

    @property
    def origin(self) -> str:
        """What created the instance, as ``Origin``."""
        ...

    @property
    def attempt(self) -> int:
        """How many times a worker has claimed the instance before."""
        ...

    @property
    def overlap_policy(self) -> str:
        """The overlap policy of the instance's task."""
        ...

    @property
    def max_instances(self) -> int | None:
        """How many instances of the task may run at once under ``allow``; None: any number."""
        ...


REPORTED_WITHIN = timedelta(seconds=1)
"""How long a worker waits before it skips a fire, because the run in its way may have ended already without having been
reported yet."""


@dataclass(frozen=True, slots=True)
class SkipCandidate:
    """A fire that will be skipped unless ``holder_id`` reports before ``until`` (naive UTC).

    ``holder_id`` is the instance that holds the task's slot: its row says ``running``, but it may have ended already.
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
    wherever it is assigned.
    """
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
    slots: Slots = []
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
    waiting = [row for row in rows if _replaces(row) and row.due_at <= now]
    if not waiting:
        return {}
    newest = turns.newest_fires(connection, {row.schedule_task_id for row in waiting}, now)
    return {
        row.id: _replaced_by(last[1])
        for row in waiting
        if (last := newest.get(row.schedule_task_id)) and last > turns.place(row.schedule_datetime, row.id)
    }


def _replaced_by(instance_id: int) -> str:
    return f"replaced by instance {instance_id}, a newer fire of its task"


_LAST: ColumnElement[int] = literal_column(str(CATCH_UP_PRIORITY))
_is_of_the_past = or_(
    _instance.origin == literal_column(f"'{Origin.BACKFILL.value}'"),
    _instance.origin == literal_column(f"'{Origin.REPLAY.value}'"),
    and_(_instance.priority == _LAST, _task.priority != _LAST),
)
"""A replay, or a run of a backfill or of a missed fire: the task's next fire waits for it, and is not skipped."""


def _with_task(*columns: Any) -> Select[Any]:
    """A SELECT of instances that also knows their tasks."""
    return select(*columns).join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)


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
    ended = _with_task(_instance.id, _instance.gmt_started, _instance.gmt_completed).where(
        _instance.id.in_(sorted({holder_id for _, holder_id in candidates})),
        ~_is_of_the_past,
        _instance.gmt_started.is_not(None),
        _instance.gmt_completed.is_not(None),
    )
    rows_ended = connection.execute(ended)
    spans = {holder_id: (start, end) for holder_id, start, end in rows_ended if is_time(start) and is_time(end)}
    return {
        row.id: _skipped_for(holder_id)
        for row, holder_id in candidates
        if holder_id in spans and spans[holder_id][0] < row.due_at < spans[holder_id][1]
    }


def settle(
    connection: Connection,
    worker_id: int,
    lost: Sequence[Contender],
    now: datetime,
    skip_candidates: Mapping[int, SkipCandidate],
) -> tuple[list[Waiting], dict[int, str]]:
    """Decide about assigned instances that a claim did not win: skip them, replace the run in their way, or wait.

    ``now`` is naive UTC. Returns those that the worker must try again, and why others are skipped for a run.
    """
    states = _states(connection, worker_id, lost)
    holders = _holders(connection, lost)
    unwanted = {row.id: why for row in lost if row.id in states and (why := _unwanted(row, *states[row.id]))}
    skipped: dict[int, str] = {}
    replaced: set[int] = set()
    waiting: list[Waiting] = []
    wanted = states.keys() - unwanted.keys()
    for row in (row for row in lost if row.id in wanted):
        task_holders = holders.get(row.schedule_task_id, [])
        holder_id = _ran_when_due(row, task_holders, now)
        if holder_id is not None and _is_sure(row, now, skip_candidates):
            skipped[row.id] = _skipped_for(holder_id)
        elif (newer := _newer_run(row, task_holders, now)) is not None:
            skipped[row.id] = _replaced_by(newer)
        else:
            waiting.append(Waiting(row.id, row.due_at, holder_id, _task_of_turn(row)))
            if row.due_at <= now and _replaces(row):
                replaced.update(holder.id for holder in task_holders if _is_replaced(holder, row))
    canceling.skip(connection, worker_id, unwanted | skipped)
    # Those that somebody has locked are asked by a later claim.
    canceling.request_cancel_of_free(connection, replaced, "replaced by its task's next fire")
    return waiting, skipped


def _task_of_turn(row: Contender) -> int | None:
    has_turns = slots_waited_for(row.overlap_policy, row.max_instances) is not None
    return row.schedule_task_id if has_turns else None


def _states(
    connection: Connection, worker_id: int, rows: Sequence[Contender]
) -> dict[int, tuple[datetime | None, int, str]]:
    """By instance id, for those still assigned to the worker: the cancel request, the task's deletion and status."""
    statement = (
        select(_instance.id, _instance.gmt_cancel_requested, _task.is_deleted, _task.status)
        .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
        .where(_instance.id.in_([row.id for row in rows]), _instance.schedule_worker_node_id == worker_id, leaves(SKIP))
    )
    return {
        instance_id: (requested, deleted, status)
        for instance_id, requested, deleted, status in connection.execute(statement)
    }


def _unwanted(row: Contender, cancel_requested: datetime | None, deleted: int, status: str) -> str | None:
    """Why nobody wants this instance any more, whatever runs; None if somebody does."""
    if cancel_requested:
        return "canceled before it started"
    if row.attempt >= MOST_ATTEMPTS:
        return f"it cannot be claimed again: its attempt is {row.attempt}, the greatest there is"
    if deleted:
        return "its task was deleted"
    if status == TaskStatus.OFF and row.origin in PLANNED_ORIGINS:
        return OFF
    return None


def _ran_when_due(row: Contender, holders: Sequence[Any], now: datetime) -> int | None:
    """The id of a run that had started when this fire was due, so that the fire is skipped; None if there is none."""
    if row.due_at > now or not may_skip(row):
        return None
    before = (h for h in holders if not h.is_of_the_past and _is_before(h.gmt_started, row.due_at))
    return next((holder.id for holder in before), None)


def _is_before(written: Any, moment: datetime) -> bool:
    """Whether what a row has as a time is one, and before a moment. SQL may have written a row as ``running``."""
    return is_time(written) and written < moment


def _is_after(written: Any, moment: datetime) -> bool:
    return is_time(written) and written > moment


def _newer_run(row: Contender, holders: Sequence[Any], now: datetime) -> int | None:
    """The id of a newer fire that runs and has replaced this one while it waited; None if there is none."""
    if row.due_at > now or not _replaces(row):
        return None
    newer = (
        h for h in holders if h.origin in PLANNED_ORIGINS and _is_after(h.schedule_datetime, row.schedule_datetime)
    )
    return next((holder.id for holder in newer), None)


def _is_replaced(holder: Any, row: Contender) -> bool:
    """Whether a new fire replaces this run: it is a fire too, for an earlier time, and not what somebody asked for."""
    return holder.origin in PLANNED_ORIGINS and _is_before(holder.schedule_datetime, row.schedule_datetime)


def _is_sure(row: Contender, now: datetime, skip_candidates: Mapping[int, SkipCandidate]) -> bool:
    return row.id in skip_candidates and skip_candidates[row.id].until <= now


def _skipped_for(holder_id: int) -> str:
    return f"overlap: instance {holder_id} still ran when this instance was due"


def may_skip(row: Contender) -> bool:
    """Whether the instance may be skipped: only a new fire may, and only for a run that had started when it was due.

    Other instances wait: those that somebody asked for, those that ran before, and fires that were due together with
    the run in their way but came late.
    """
    return row.overlap_policy == OverlapPolicy.SKIP and _is_new_fire(row)


def _replaces(row: Contender) -> bool:
    """Whether the instance may replace the run in its way: only a new fire may, and only a fire for an earlier time.

    Otherwise an older instance, or a retry, would cancel a newer one.
    """
    return row.overlap_policy == OverlapPolicy.REPLACE and _is_new_fire(row)


def _is_new_fire(row: Contender) -> bool:
    return row.origin in PLANNED_ORIGINS and row.attempt == 0


def _holders(connection: Connection, rows: Sequence[Contender]) -> dict[int, list[Any]]:
    """By task id, the running instances that hold the slot 0 of these instances' tasks."""
    keys = {row.schedule_task_id * OVERLAP_SLOTS for row in rows}
    holders: dict[int, list[Any]] = {}
    columns = (_instance.schedule_task_id, _instance.schedule_datetime, _instance.gmt_started, _instance.origin)
    is_of_the_past = case((_is_of_the_past, literal_column("1")), else_=literal_column("0")).label("is_of_the_past")
    statement = _with_task(_instance.id, *columns, is_of_the_past).where(_instance.overlap_key.in_(sorted(keys)))
    for holder in connection.execute(statement):
        holders.setdefault(holder.schedule_task_id, []).append(holder)
    return holders
