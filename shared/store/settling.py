"""Settling: what becomes of an instance for which there is no overlap slot: it waits, is skipped, or replaces a run."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, literal_column, select

from rota.shared.domain.states import PLANNED_ORIGINS, SKIP, TaskStatus
from rota.shared.domain.times import is_time
from rota.shared.store import cleanups, spreading
from rota.shared.store.overlap import (
    IS_OF_THE_PAST,
    LOCKED,
    OFF,
    Contender,
    SkipCandidate,
    Waiting,
    may_skip,
    replaced_by,
    replaces,
    skipped_for,
    slots_waited_for,
    with_task,
)
from rota.shared.store.tables import MOST_ATTEMPTS, OVERLAP_SLOTS, schedule_instance, schedule_task
from rota.shared.store.transitions import canceling, reporting
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_task = schedule_task.c

REPLACED = "replaced by its task's next fire"


class Judged(NamedTuple):
    """The instances to try again; why others are skipped for a run; and the runs that are to be stopped for others."""

    waiting: list[Waiting]
    skipped: dict[int, str]
    replaced: set[int]


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
    unwanted = {row.id: why for row in lost if row.id in states and (why := _unwanted(row, *states[row.id]))}
    parents = {row.id: row.parent_id for row in lost if row.parent_id is not None and row.id in states}
    stranded, early = spreading.stranded(connection, parents)
    unwanted = stranded | unwanted
    wanted = states.keys() - unwanted.keys() - early.keys()
    judged = judge(connection, [row for row in lost if row.id in wanted], now, skip_candidates)
    canceled = {row.id: row.attempt for row in lost if row.attempt and row.id in states and states[row.id][0]}
    cleanups.skip(connection, worker_id, unwanted | judged.skipped, canceled)
    # Those that somebody has locked are asked by a later claim.
    canceling.request_cancel_of_free(connection, judged.replaced, REPLACED)
    return judged.waiting + [Waiting(row.id, row.due_at) for row in lost if row.id in early], judged.skipped


def with_holders(
    connection: Connection, waiting: Sequence[Waiting], skip_candidates: Mapping[int, SkipCandidate]
) -> list[Waiting]:
    """The instances that wait, with whether somebody has locked the runs because of which they may be skipped.

    It does not ask again where the time to report runs already.
    """
    timed = {i for i, candidate in skip_candidates.items() if candidate.until != LOCKED}
    asked = {one.holder_id for one in waiting if one.holder_id is not None and one.id not in timed}
    free = asked - reporting.locked(connection, asked)
    return [one._replace(is_holder_free=one.holder_id in free) for one in waiting]


def judge(
    connection: Connection, rows: Sequence[Contender], now: datetime, skip_candidates: Mapping[int, SkipCandidate]
) -> Judged:
    """Decide about instances for which there is no slot. It writes nothing. ``now`` is naive UTC."""
    holders = _holders(connection, rows) if rows else {}
    skipped: dict[int, str] = {}
    replaced: set[int] = set()
    waiting: list[Waiting] = []
    for row in rows:
        task_holders = holders.get(row.schedule_task_id, [])
        holder_id = _ran_when_due(row, task_holders, now)
        if holder_id is not None and _is_sure(row, now, skip_candidates):
            skipped[row.id] = skipped_for(holder_id)
        elif (newer := _newer_run(row, task_holders, now)) is not None:
            skipped[row.id] = replaced_by(newer)
        else:
            waiting.append(Waiting(row.id, row.due_at, holder_id, _task_of_turn(row)))
            if row.due_at <= now and replaces(row):
                replaced.update(holder.id for holder in task_holders if _is_replaced(holder, row))
    return Judged(waiting, skipped, replaced)


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
    if row.due_at > now or not replaces(row):
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


def _holders(connection: Connection, rows: Sequence[Contender]) -> dict[int, list[Any]]:
    """By task id, the running instances that hold the slot 0 of these instances' tasks."""
    keys = {row.schedule_task_id * OVERLAP_SLOTS for row in rows}
    holders: dict[int, list[Any]] = {}
    columns = (_instance.schedule_task_id, _instance.schedule_datetime, _instance.gmt_started, _instance.origin)
    is_of_the_past = case((IS_OF_THE_PAST, literal_column("1")), else_=literal_column("0")).label("is_of_the_past")
    statement = with_task(_instance.id, *columns, is_of_the_past).where(_instance.overlap_key.in_(sorted(keys)))
    for holder in connection.execute(statement):
        holders.setdefault(holder.schedule_task_id, []).append(holder)
    return holders
