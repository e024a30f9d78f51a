"""Tasks as the scheduler sees them: which are due, what their plan is, and how it moves on."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
    union_all,
    update,
)

from shared.domain.jsontext import json_value
from shared.domain.planning import PlanInputs, PlannedTask, Terms
from shared.domain.states import InstanceStatus, Origin, TaskStatus
from shared.store.dialects import (
    Listed,
    RowsUpdate,
    SecondsBefore,
    UtcNow,
    among,
    bound,
    by_index,
    joined_ids,
    json_rows,
    split_ids,
    stored_time,
)
from shared.store.tables import PLAN_INPUTS, schedule_instance, schedule_task, schedule_task_lock, schedule_task_node

_task = schedule_task.c
_instance = schedule_instance.c
_lock = schedule_task_lock.c

TERMS_KEPT = 10_000
"""How many different terms are kept parsed; many tasks have the same."""


@dataclass(slots=True)
class Advance:
    """How one task's plan moves on; the task's inputs are those the decision was made from."""

    task: PlannedTask
    next_fire_at: datetime | None
    misfires: int = 0
    held_back: int = 0
    error: str | None = None


_leased = and_(
    _lock.schedule_task_id == _task.id,
    _lock.is_locked == 1,
    _lock.locked_at >= SecondsBefore(UtcNow(), bindparam("lease")),
)


def _due(index: str, *condition: ColumnElement[bool]) -> Select[Any]:
    """Ids of tasks that nobody has leased, in the order of an index: so reading ends at the limit.

    An outer join, for of NOT EXISTS MariaDB makes a table of all locks as soon as many tasks are due.
    """
    free = select(_task.id).outerjoin_from(schedule_task, schedule_task_lock, _leased)
    found: Select[Any] = by_index(free, schedule_task, index)
    found = found.with_hint(schedule_task_lock, "FORCE INDEX (PRIMARY)", "mysql")
    return found.where(_lock.schedule_task_id.is_(None), *condition).limit(bindparam("limit"))


_stale = _due("ix_schedule_task_stale", _task.plan_stale == 1)
_fires = _due("ix_schedule_task_due", _task.status == TaskStatus.ON.value, _task.next_fire_at <= bindparam("horizon"))
_passed = _due("ix_schedule_task_due", _task.status == TaskStatus.OFF.value, _task.next_fire_at <= bindparam("now"))
_earliest = (_stale, _fires.order_by(_task.next_fire_at), _passed.order_by(_task.next_fire_at))
_found = union_all(*(select(some.subquery().c.id) for some in _earliest)).subquery("found")
_due_ids = select(joined_ids(_found.c.id))


def due(connection: Connection, now: datetime, horizon: datetime, limit: int, lease_seconds: float) -> list[int]:
    """Ids of tasks with a fire to materialize, or whose plan is stale; at most ``limit``, of each kind the earliest.

    A task that is off is due only when its fire has passed: turned on in time, it still fires. What another scheduler
    has leased is left to it.
    """
    values = {"now": now, "horizon": horizon, "limit": limit, "lease": lease_seconds}
    return list(dict.fromkeys(split_ids(connection.scalar(_due_ids, values))))[:limit]


def _text(column: Any) -> Any:
    return cast(type_coerce(column, String), String)


_terms = func.json_array(
    *(type_coerce(_task[name], String) for name in PLAN_INPUTS),
    type_coerce(_task.status, String),
    _task.type,
    func.coalesce(_task.plan_stale, literal_column("0")),
    _task.is_deleted,
    case((_task.planned_trigger_kind.is_(None), _task.gmt_create)),
    type_coerce(_task.misfire_policy, String),
    _task.misfire_grace_seconds,
    _task.priority,
    _text(_task.required_labels),
    type_coerce(_task.overlap_policy, String),
    _task.max_instances,
    type_=String(),
)
"""One column for a dozen: most tasks have one of few combinations, which is parsed once."""

_locked = (
    select(_task.id, _task.name, _task.next_fire_at, type_coerce(_task.param, String), _terms)
    .join(schedule_task_lock, _lock.schedule_task_id == _task.id)
    .where(among(_task.id), _lock.locked_by == bindparam("token"), _lock.is_locked == 1)
)


def locked(connection: Connection, token: str, task_ids: Collection[int]) -> list[PlannedTask]:
    """Read the tasks again, now that ``token`` holds their leases."""
    rows = connection.execute(_locked, {"ids": sorted(task_ids), "token": token})
    return [
        PlannedTask(task_id, name, next_fire_at, param, _parsed_terms(terms))
        for task_id, name, next_fire_at, param, terms in rows
    ]


@lru_cache(TERMS_KEPT)
def _parsed_terms(text: str) -> Terms:
    kind, cron, seconds, timezone, starts_at, ends_at, *rest = json.loads(text)
    status, task_type, stale, deleted, gmt_create, misfire, grace, priority, labels, overlap, most = rest
    return Terms(
        status=status,
        type=task_type,
        inputs=PlanInputs(kind, cron, seconds, timezone, _moment(starts_at), _moment(ends_at)),
        is_stale=bool(stale),
        is_deleted=bool(deleted),
        gmt_create=_moment(gmt_create),
        misfire_policy=misfire,
        misfire_grace_seconds=grace,
        priority=priority,
        required_labels={} if labels is None else json_value(labels),
        overlap_policy=overlap,
        max_instances=most,
    )


def _moment(text: str | None) -> Any:
    return None if text is None else stored_time(text)


_move = RowsUpdate(
    schedule_task,
    lambda moved: (
        update(schedule_task)
        .where(moved.match, _task.next_fire_at == moved.c["old"])
        .values(next_fire_at=moved.c["next"])
    ),
    old="time",
    next="time",
)

_replanned = json_rows(
    "moved",
    id="id",
    old="time",
    next="time",
    misfires="int",
    held_back="int",
    error="str",
    trigger_kind="str",
    cron="str",
    cron_seconds="int",
    timezone="str",
    starts_at="time",
    ends_at="time",
)
_replan = (
    update(schedule_task)
    .where(_task.id == _replanned.c.id, _task.next_fire_at.is_not_distinct_from(_replanned.c.old))
    .values(
        next_fire_at=_replanned.c.next,
        misfires=_task.misfires + _replanned.c.misfires,
        fires_held_back=_task.fires_held_back + _replanned.c.held_back,
        plan_error=_replanned.c.error,
        **{f"planned_{name}": _replanned.c[name] for name in PLAN_INPUTS},
    )
)


def advance(connection: Connection, advances: Iterable[Advance]) -> None:
    """Move plans on, each only if its ``next_fire_at`` still is what was read.

    The inputs that a decision used are recorded, unless they are already: an edit made meanwhile differs from them, so
    the plan stays stale and the next tick sees it.
    """
    moved, replanned = [], []
    for a in advances:
        if a.task.terms.is_stale or a.misfires or a.held_back or a.error is not None:
            inputs = (getattr(a.task.terms.inputs, name) for name in PLAN_INPUTS)
            replanned.append(
                (a.task.id, a.task.next_fire_at, a.next_fire_at, a.misfires, a.held_back, a.error, *inputs)
            )
        else:
            moved.append((a.task.id, a.task.next_fire_at, a.next_fire_at))
    if moved:
        ids, old, following = zip(*sorted(moved), strict=True)
        _move(connection, Listed(ids), Listed.of(old), Listed.of(following))
    if replanned:
        connection.execute(_replan, {"rows": bound(replanned)})


def drop_ahead(connection: Connection, task_ids: Collection[int], now: datetime) -> None:
    """Delete what an old plan had put ahead and nobody claimed."""
    if not task_ids:
        return
    ahead = and_(
        _instance.schedule_task_id.in_(sorted(task_ids)),
        _instance.schedule_datetime > now,
        _instance.run_number == 0,
        _instance.origin == Origin.CRON.value,
        _instance.attempt == 0,
        or_(_instance.status == InstanceStatus.PENDING.value, _instance.status == InstanceStatus.ASSIGNED.value),
    )
    statement = by_index(select(_instance.id).where(ahead), schedule_instance, "uq_schedule_instance_fire")
    ids = sorted(connection.scalars(statement.with_for_update()))
    if ids:
        connection.execute(delete(schedule_instance).where(_instance.id.in_(ids)))
        connection.execute(delete(schedule_task_node).where(schedule_task_node.c.schedule_instance_id.in_(ids)))
