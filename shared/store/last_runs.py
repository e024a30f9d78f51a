"""The last run of each of some tasks, by the index of their fires: reading no history, and writing nothing."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, literal_column, or_, select, union_all

from rota.shared.database.constructs import UtcNow, among, by_index, read_by
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c
_newest = schedule_instance.alias("newest")

WAITS = (InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value)

FIRES_LOOKED_AT = 200
"""Of a task whose newest fire waits, so many of the newest fires are looked at. All of them may wait."""


TASKS_IN_STATEMENT = 50

_IS_NO_SHARD = or_(_newest.c.fire_key < "shard/", _newest.c.fire_key >= "shard0")
"""It is no shard, nor the replay of one. The index tells it: of a thousand shards no row is read."""

_IN_ORDER = ("schedule_datetime", "fire_key", "run_number")
_newest_id = (
    read_by(select(_newest.c.id), _newest, "uq_schedule_instance_fire")
    .where(_newest.c.schedule_task_id == _task.id, _IS_NO_SHARD)
    .order_by(*(_newest.c[name].desc() for name in ("schedule_task_id", *_IN_ORDER)))  # MySQL sorts without the task
    .limit(literal_column("1"))
    .correlate(schedule_task)
    .scalar_subquery()
)


def _is_skipped(fire: Any) -> ColumnElement[bool]:
    """Whether a fire is to come and was skipped by a person: it is no run."""
    return and_(fire.status == InstanceStatus.CANCELED.value, fire.due_at > UtcNow())


_run = select(
    _instance.id,
    _instance.schedule_task_id,
    _instance.status,
    _instance.reason,
    _instance.schedule_datetime,
    _instance.gmt_started,
    _instance.gmt_completed,
    case((_is_skipped(_instance), literal_column("1")), else_=literal_column("0")).label("is_skipped"),
)
_newest_fires = by_index(
    _run.join_from(schedule_task, schedule_instance, _instance.id == _newest_id).where(among(_task.id)),
    schedule_instance,
)
_by_ids = by_index(_run.where(among(_instance.id)), schedule_instance)


def _begun(task_id: int) -> Select[Any]:
    """The id of the newest fire of a task that has begun, if it is among those that are looked at."""
    columns = (_newest.c.id, _newest.c.status, _newest.c.due_at, *(_newest.c[name] for name in _IN_ORDER))
    own = read_by(select(*columns), _newest, "uq_schedule_instance_fire")
    own = own.where(_newest.c.schedule_task_id == task_id, _IS_NO_SHARD)
    looked_at = own.order_by(*(_newest.c[name].desc() for name in _IN_ORDER)).limit(FIRES_LOOKED_AT).subquery().c
    begun = select(looked_at.id).where(looked_at.status.not_in(WAITS), ~_is_skipped(looked_at))
    return select(begun.order_by(*(looked_at[name].desc() for name in _IN_ORDER)).limit(1).subquery().c.id)


_first_slot = _task.id * literal_column(str(OVERLAP_SLOTS))
_last_slot = _first_slot + literal_column(str(OVERLAP_SLOTS - 1))
_running = by_index(
    _run.join_from(schedule_task, schedule_instance, _instance.overlap_key.between(_first_slot, _last_slot))
    .where(among(_task.id))
    .order_by(_instance.schedule_datetime),
    schedule_instance,
    "uq_schedule_instance_overlap_key",
)


def of_tasks(connection: Connection, task_ids: Collection[int]) -> dict[int, Row[Any]]:
    """The last run of each of these tasks that has run, by task id: the newest fire that runs or has ended.

    It passes over what waits, but reads no long backlog: if more fires wait than it looks at, the last run is what runs
    now, if anything does.
    """
    if not task_ids:
        return {}
    found = {row.schedule_task_id: row for row in connection.execute(_newest_fires, {"ids": sorted(task_ids)})}
    waiting = _waiting(found)
    for some in (waiting[at : at + TASKS_IN_STATEMENT] for at in range(0, len(waiting), TASKS_IN_STATEMENT)):
        ids = sorted(connection.scalars(union_all(*map(_begun, some))))
        found |= {row.schedule_task_id: row for row in connection.execute(_by_ids, {"ids": ids})} if ids else {}
    if waiting := _waiting(found):
        found |= {row.schedule_task_id: row for row in connection.execute(_running, {"ids": waiting})}
    return {task_id: row for task_id, row in found.items() if not _is_to_come(row)}


def _waiting(found: Mapping[int, Row[Any]]) -> list[int]:
    return sorted(task_id for task_id, row in found.items() if _is_to_come(row))


def _is_to_come(row: Row[Any]) -> bool:
    return row.status in WAITS or bool(row.is_skipped)
