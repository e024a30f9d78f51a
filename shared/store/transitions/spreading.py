"""The scheduler spreads an instance over its shards, and ends it when they have ended."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import UtcNow, among, bound, by_index, ignore_conflicts, json_rows, read_by
from rota.shared.database.later import execute_later
from rota.shared.domain.spreading import ITS_SHARDS, Gathered
from rota.shared.domain.states import (
    CANCEL,
    PLANNED_ORIGINS,
    SPREAD,
    SUCCEED,
    TERMINAL,
    InstanceStatus,
    Origin,
    TaskStatus,
)
from rota.shared.store.tables import schedule_instance, schedule_kept_slot, schedule_task
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.nodes import follow

_instance = schedule_instance.c
_task = schedule_task.c
_shard = schedule_instance.alias("shard")
_parent = schedule_instance.alias("parent")
_scheduler: ColumnElement[str] = literal_column("'scheduler'")
_kept = schedule_kept_slot.c
_nobody: ColumnElement[int] = literal_column(str(ITS_SHARDS))
_OPEN = [status.value for status in InstanceStatus if status not in TERMINAL]


@dataclass(frozen=True, slots=True)
class Parent:
    """An instance that is to run as its shards: ``workers`` has for each the only worker that may run it, or None.

    One that has its shards already, and that somebody has put back to pending, gets no others: ``total`` is their
    number.
    """

    id: int
    attempt: int
    slot: int | None
    run_number: int
    workers: Sequence[int | None]
    total: int


_parents = json_rows("parents", id="id", attempt="int", slot="int", run_number="int", total="int")
_its_task = _task.id == _instance.schedule_task_id
_may_run = exists(
    by_index(
        select(_task.id).where(
            _its_task,
            _task.is_deleted == 0,
            or_(_task.status == TaskStatus.ON.value, _instance.origin.not_in([o.value for o in PLANNED_ORIGINS])),
        ),
        schedule_task,
    ).with_for_update(read=True)
)
_spread = ignore_conflicts(
    update(schedule_instance)
    .where(
        _instance.id == _parents.c.id,
        leaves(SPREAD),
        _instance.attempt == _parents.c.attempt,
        _instance.gmt_cancel_requested.is_(None),
        _may_run,
    )
    .values(
        status=SPREAD.target.value,
        schedule_worker_node_id=_nobody,
        attempt=_instance.attempt + 1,
        overlap_slot=_parents.c.slot,
        shard_total=_parents.c.total,
        run_number=func.coalesce(_instance.run_number, _parents.c.run_number),
        param=func.coalesce(_instance.param, select(_task.param).where(_its_task).scalar_subquery()),
        gmt_assigned=UtcNow(),
        gmt_started=case((_instance.due_at > UtcNow(), _instance.due_at), else_=UtcNow()),
        gmt_completed=None,
        execution_result=None,
        reason=None,
    )
)

_shards = json_rows("shards", parent="id", attempt="int", place="int", total="int", worker="id", fire_key="str")
_of_shard: dict[str, Any] = {
    "schedule_task_id": _parent.c.schedule_task_id,
    "status": literal_column(f"'{InstanceStatus.PENDING.value}'"),
    "schedule_datetime": _parent.c.schedule_datetime,
    "due_at": _parent.c.gmt_started,
    "fire_key": _shards.c.fire_key,
    "run_number": literal_column("0"),
    "origin": literal_column(f"'{Origin.SHARD.value}'"),
    "priority": _parent.c.priority,
    "param": _parent.c.param,
    "parent_id": _parent.c.id,
    "shard_index": _shards.c.place,
    "shard_total": _shards.c.total,
    "only_worker_node_id": _shards.c.worker,
    "creator": _scheduler,
    "modifier": _scheduler,
}
_insert_shards = ignore_conflicts(insert(schedule_instance)).from_select(
    list(_of_shard),
    by_index(
        select(*_of_shard.values()).join_from(
            _shards,
            _parent,
            and_(
                _parent.c.id == _shards.c.parent,
                _parent.c.status == SPREAD.target.value,
                _parent.c.schedule_worker_node_id == _nobody,
                _parent.c.attempt == _shards.c.attempt,
            ),
        ),
        _parent,
    ),
    include_defaults=False,
)


def spread(connection: Connection, parents: Iterable[Parent]) -> None:
    """Let these pending instances run as their shards, in the same transaction as the shards are inserted.

    An instance that is not as it was read stays as it is, and so does one whose overlap slot is taken. Neither gets any
    shards.
    """
    ordered = sorted(parents, key=lambda one: one.id)
    rows = [(one.id, one.attempt, one.slot, one.run_number, one.total) for one in ordered]
    execute_later(connection, _spread, {"rows": bound(rows)})
    shards = [
        (one.id, one.attempt + 1, index, one.total, worker, f"shard/{one.id}/{index}")
        for one in ordered
        for index, worker in enumerate(one.workers)
    ]
    if shards:
        execute_later(connection, _insert_shards, {"rows": bound(shards)})


_is_kept = and_(
    _shard.c.slot_kept == 1,
    exists(select(_kept.schedule_instance_id).where(_kept.schedule_instance_id == _shard.c.id).correlate(_shard)),
)
has_open_shard = exists(
    read_by(select(_shard.c.id), _shard, "uq_schedule_instance_fire")
    .where(
        _shard.c.schedule_task_id == _instance.schedule_task_id,
        _shard.c.schedule_datetime == _instance.schedule_datetime,
        _shard.c.parent_id == _instance.id,
        or_(_shard.c.status.in_(_OPEN), and_(_instance.overlap_slot.is_not(None), _is_kept)),
    )
    .correlate(schedule_instance)
)
"""Whether a shard of an instance has not ended, or its thread still runs and nothing of the task may run beside it."""

End = tuple[int, int, Gathered]
"""An instance whose shards have all ended: its id, its attempt, and how it ends."""

_ended = json_rows("ended", id="id", attempt="int", status="str", reason="str", result="json", at="time")
_end = (
    update(schedule_instance)
    .where(
        _instance.id == _ended.c.id,
        leaves(SUCCEED),
        _instance.schedule_worker_node_id == _nobody,
        _instance.attempt == _ended.c.attempt,
    )
    .values(
        status=_ended.c.status,
        reason=_ended.c.reason,
        execution_result=_ended.c.result,
        gmt_completed=case((_ended.c.at.between(_instance.gmt_started, UtcNow()), _ended.c.at), else_=UtcNow()),
        gmt_modified=UtcNow(),
        modifier=_scheduler,
    )
)


def end(connection: Connection, ends: Iterable[End]) -> None:
    """End instances whose shards have all ended, when the last one did. What is not as it was read stays as it is."""
    rows = [
        (number, attempt, one.status.value, one.reason, one.result, one.gmt_completed) for number, attempt, one in ends
    ]
    if rows:
        execute_later(connection, _end, {"rows": bound(sorted(rows))})


_cancel = (
    update(schedule_instance)
    .where(among(_instance.id), leaves(CANCEL))
    .values(
        status=CANCEL.target.value,
        reason=bindparam("why"),
        gmt_completed=UtcNow(),
        gmt_modified=UtcNow(),
        modifier=_scheduler,
    )
)


def cancel(connection: Connection, shard_ids: Collection[int], reason: str) -> None:
    """Cancel those of these shards that no worker has begun."""
    if shard_ids:
        execute_later(connection, _cancel, {"ids": sorted(shard_ids), "why": reason})
        follow(connection, CANCEL, shard_ids)
