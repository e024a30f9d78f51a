"""Tasks as the scheduler sees them: which are due, what their plan is, and how it moves on."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, delete, or_, select, update

from shared.domain.planning import PlanInputs, PlannedTask
from shared.domain.states import InstanceStatus, Origin, TaskStatus
from shared.store.dialects import bound, by_index, json_rows
from shared.store.tables import PLAN_INPUTS, schedule_instance, schedule_task, schedule_task_lock, schedule_task_node

_task = schedule_task.c
_instance = schedule_instance.c
_input_columns = [_task[name] for name in PLAN_INPUTS]
_columns = [
    *(_task[name] for name in ("id", "name", "status", "type", "param", "next_fire_at", "plan_stale")),
    *(_task[name] for name in ("planned_trigger_kind", "is_deleted", "gmt_create", "misfire_policy")),
    *(_task[name] for name in ("misfire_grace_seconds", "priority", "required_labels")),
    *(_task[name] for name in ("overlap_policy", "max_instances")),
    *_input_columns,
]


@dataclass(frozen=True, slots=True)
class Advance:
    """How one task's plan moves on; ``inputs`` are those the decision was made from."""

    task: PlannedTask
    next_fire_at: datetime | None
    misfires: int = 0
    held_back: int = 0
    error: str | None = None


def due(connection: Connection, now: datetime, horizon: datetime, limit: int) -> list[int]:
    """Ids of tasks with a fire to materialize, or whose plan is stale; at most ``limit``, the earliest first.

    A task that is off is due only when its fire has passed: turned on in time, it still fires.
    """
    on, off = TaskStatus.ON.value, TaskStatus.OFF.value
    stale = select(_task.id).where(_task.plan_stale == 1)
    fires = select(_task.id).where(_task.status == on, _task.next_fire_at <= horizon).order_by(_task.next_fire_at)
    passed = select(_task.id).where(_task.status == off, _task.next_fire_at <= now).order_by(_task.next_fire_at)
    ids: dict[int, None] = {}
    for statement in (stale, fires, passed):
        ids.update(dict.fromkeys(connection.scalars(statement.limit(limit))))
    return list(ids)[:limit]


def locked(connection: Connection, token: str, task_ids: Collection[int]) -> list[PlannedTask]:
    """Read the tasks again, now that ``token`` holds their leases."""
    statement = (
        select(*_columns)
        .join(schedule_task_lock, schedule_task_lock.c.schedule_task_id == _task.id)
        .where(_task.id.in_(sorted(task_ids)), schedule_task_lock.c.locked_by == token)
    )
    return [
        PlannedTask(
            id=row.id,
            name=row.name,
            status=row.status,
            type=row.type,
            param=row.param,
            inputs=PlanInputs(*(getattr(row, name) for name in PLAN_INPUTS)),
            next_fire_at=row.next_fire_at,
            is_stale=bool(row.plan_stale),
            was_planned=row.planned_trigger_kind is not None,
            is_deleted=bool(row.is_deleted),
            gmt_create=row.gmt_create,
            misfire_policy=row.misfire_policy,
            misfire_grace_seconds=row.misfire_grace_seconds,
            priority=row.priority,
            required_labels=row.required_labels or {},
            overlap_policy=row.overlap_policy,
            max_instances=row.max_instances,
        )
        for row in connection.execute(statement)
    ]


_moved = json_rows(
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

_advance = (
    update(schedule_task)
    .where(_task.id == _moved.c.id, _task.next_fire_at.is_not_distinct_from(_moved.c.old))
    .values(
        next_fire_at=_moved.c.next,
        misfires=_task.misfires + _moved.c.misfires,
        fires_held_back=_task.fires_held_back + _moved.c.held_back,
        plan_error=_moved.c.error,
        **{f"planned_{name}": _moved.c[name] for name in PLAN_INPUTS},
    )
)


def advance(connection: Connection, advances: Iterable[Advance]) -> None:
    """Move plans on, each only if its ``next_fire_at`` still is what was read.

    The inputs that the decision used are recorded: an edit made meanwhile differs from them, so the plan stays stale
    and the next tick sees it.
    """
    rows = [
        (
            a.task.id,
            a.task.next_fire_at,
            a.next_fire_at,
            a.misfires,
            a.held_back,
            a.error,
            *(getattr(a.task.inputs, name) for name in PLAN_INPUTS),
        )
        for a in advances
    ]
    if rows:
        connection.execute(_advance, {"rows": bound(rows)})


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
