"""Which pending instances the scheduler must give to workers, and which instances it must take back from them."""

from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Select,
    String,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
)

from rota.shared.database.constructs import among, by_index, unindexed
from rota.shared.database.later import read_before
from rota.shared.database.stored_json import in_order_of
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import params
from rota.shared.store.pending import Cursor, Pending
from rota.shared.store.requests import any_waiting
from rota.shared.store.tables import PRIORITIES, any_bound, any_chain, is_paused, schedule_instance, schedule_task
from rota.shared.store.transitions import giving

_instance = schedule_instance.c
_task = schedule_task.c
PENDING, ASSIGNED = InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value

_unassigned = select(_instance.id).where(
    _instance.status == PENDING, _instance.schedule_worker_node_id.is_(None), _instance.priority.in_(PRIORITIES)
)
_without_due_at = _unassigned.where(_instance.due_at.is_(None))
_any_work = select(
    exists(_unassigned.where(_instance.due_at <= bindparam("horizon"))),
    exists(_without_due_at),
    is_paused,
    any_waiting,
    any_chain,
    any_bound,
)
_orphans = (
    _without_due_at.add_columns(_instance.schedule_datetime).limit(bindparam("limit")).with_for_update(skip_locked=True)
)


class Look(NamedTuple):
    """Whether an instance is due, an orphan waits, all scheduling is paused, a program has requested something, any
    task follows another, and any has a line with a bound (``max_waiting``)."""

    due: bool
    orphaned: bool
    is_paused: bool
    requested: bool
    any_chain: bool
    any_bound: bool


def look(connection: Connection, horizon: datetime) -> Look:
    """Whether ``pending`` would find an instance due by ``horizon`` (naive UTC), ``orphans`` one, ``requests`` any.

    A scheduler asks this first, because for an idle one it is the only statement.
    """
    return Look(*map(bool, connection.execute(_any_work, {"horizon": horizon}).one()))


def orphans(connection: Connection, limit: int) -> dict[int, datetime]:
    """The pending rows that SQL inserted without a ``due_at``: their nominal times by id.

    It passes over rows that somebody has locked.
    """
    return dict(sorted(map(tuple, connection.execute(_orphans, {"limit": limit}))))


class Standing(NamedTuple):
    """Where a pending instance stands among the others."""

    id: int
    task_id: int
    priority: int
    due_at: datetime

    @property
    def cursor(self) -> Cursor:
        """The cursor with which a scan continues after this instance."""
        return (self.priority, self.due_at, self.id)


def pending(connection: Connection, horizon: datetime, limit: int, after: Cursor | None = None) -> list[Pending]:
    """Up to ``limit`` pending instances due by ``horizon`` (naive UTC), after the cursor, by priority and due time."""
    return [Pending(*row) for row in _in_order(connection, _are_pending, horizon, limit, after)]


def standing(connection: Connection, horizon: datetime, limit: int, after: Cursor | None = None) -> list[Standing]:
    """Where those stand that ``pending`` would find."""
    return [Standing(*row) for row in _in_order(connection, _are_standing, horizon, limit, after)]


def _in_order(
    connection: Connection, found: Select[Any], horizon: datetime, limit: int, after: Cursor | None
) -> list[Any]:
    values: dict[str, Any] = {"horizon": horizon, "limit": limit}
    if after is None:
        return list(connection.execute(_of_priorities(found, PRIORITIES), values))
    priority, due_at, last = after
    cursor = {"priority": priority, "due_at": due_at, "last": last}
    rows: list[Any] = list(connection.execute(_after_cursor(found), {**values, **cursor}))
    rest = tuple(p for p in PRIORITIES if p > priority)
    if len(rows) < limit and rest:
        rows += connection.execute(_of_priorities(found, rest), {**values, "limit": limit - len(rows)})
    return rows


def pending_in_turn(connection: Connection, task: int, horizon: datetime, limit: int) -> list[Pending]:
    """Up to ``limit`` pending instances of a task with turns that are due by ``horizon`` (naive UTC), the oldest first.

    What of the task is assigned is read, too.
    """
    return _pending(connection, _pending_in_turn, task=task, horizon=horizon, limit=limit)


def newest_pending(connection: Connection, priority: int, horizon: datetime, limit: int) -> list[Pending]:
    """The last ``limit`` pending instances of a priority that are due by ``horizon`` (naive UTC), in their order."""
    return _pending(connection, _newest_pending, priority=priority, horizon=horizon, limit=limit)[::-1]


def pending_of(connection: Connection, ids: Collection[int], horizon: datetime) -> list[Pending]:
    """Those of these instances that are pending still and due by ``horizon`` (naive UTC)."""
    return _pending(connection, _pending_of_these, ids=sorted(ids), horizon=horizon, limit=len(ids)) if ids else []


def _pending(connection: Connection, statement: Select[Any], **values: Any) -> list[Pending]:
    rows: list[Any] = list(connection.execute(statement, values))
    return [Pending(*row) for row in rows]


_param = func.coalesce(type_coerce(_instance.param, String), type_coerce(_task.param, String))
_is_pending = and_(
    _instance.status == PENDING,
    _instance.schedule_worker_node_id.is_(None),
    _instance.due_at <= bindparam("horizon"),
)
_are_standing: Select[Any] = (
    select(
        _instance.id,
        _instance.schedule_task_id,
        _instance.priority,
        _instance.due_at,
    )
    .where(_is_pending)
    .limit(bindparam("limit"))
)
_are_pending: Select[Any] = (
    select(
        _instance.id,
        _instance.schedule_task_id,
        _instance.schedule_datetime,
        _instance.due_at,
        _instance.run_number,
        _instance.fire_key,
        _instance.priority,
        _instance.param.is_not(None),
        params.size(_param),
        func.coalesce(params.may_list_nodes(_param), literal_column("0")),
        _instance.reason,
        _instance.lost_by,
        _task.type,
        _task.is_deleted,
        _task.required_labels,
        _instance.origin,
        _instance.attempt,
        _task.overlap_policy,
        _task.max_instances,
        _instance.overlap_slot,
        _task.status,
        _task.misfire_grace_seconds,
        _task.misfire_policy,
        _task.misfire_cap,
        _instance.from_sequence,
        _task.limit_name,
        _task.run_timeout_seconds,
        _instance.parent_id,
        _instance.shard_index,
        _instance.shard_total,
        _instance.only_worker_node_id,
        _task.spread,
        _task.shards,
        _instance.gmt_cancel_requested,
        _task.pool,
        _task.task_group,
        _task.weight,
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .where(_is_pending)
    .limit(bindparam("limit"))
)
_pending_in_turn: Select[Any] = in_order_of(
    _are_pending.where(_instance.turn_key == bindparam("task")).order_by(_instance.due_at, _instance.id),
    schedule_instance,
    "ix_schedule_instance_turn",
)
_pending_of_these: Select[Any] = by_index(_are_pending.where(among(_instance.id)), schedule_instance)
_newest_pending: Select[Any] = in_order_of(
    _are_pending.where(_instance.priority == bindparam("priority")).order_by(
        _instance.priority.desc(), _instance.due_at.desc(), _instance.id.desc()
    ),
    schedule_instance,
    "ix_schedule_instance_work",
)


@cache
def _after_cursor(found: Select[Any]) -> Select[Any]:
    return _ordered(found).where(
        _instance.priority == bindparam("priority"),
        or_(
            _instance.due_at > bindparam("due_at"),
            and_(_instance.due_at == bindparam("due_at"), _instance.id > bindparam("last")),
        ),
    )


@cache
def _of_priorities(found: Select[Any], priorities: tuple[int, ...]) -> Select[Any]:
    return _ordered(found).where(_instance.priority.in_(priorities))


def _ordered(found: Select[Any]) -> Select[Any]:
    in_order = found.order_by(_instance.priority, _instance.due_at, _instance.id)
    ordered: Select[Any] = in_order_of(in_order, schedule_instance, "ix_schedule_instance_work")
    return ordered


def take_back_assigned(connection: Connection, worker_id: int, limit: int) -> int:
    """Put instances that a worker was assigned and has not claimed back to pending; returns how many.

    If it returns ``limit``, there may be more. It passes over rows that somebody has locked.
    """
    assigned = and_(_instance.status == ASSIGNED, _instance.schedule_worker_node_id == worker_id)
    ids = free_assigned(
        connection, read_before(connection, select(_instance.id).where(assigned).limit(limit), {}).scalars()
    )
    if ids:
        giving.take_back_from(connection, worker_id, ids)
    return len(ids)


_assigned = by_index(
    select(_instance.id).where(among(_instance.id), unindexed(_instance.status) == ASSIGNED), schedule_instance
)


def still_assigned(connection: Connection, ids: Collection[int]) -> set[int]:
    """Those of these instances that are still assigned: nobody has claimed them."""
    return set(connection.execute(_assigned, {"ids": sorted(ids)}).scalars()) if ids else set()


_free_assigned = by_index(
    select(_instance.id)
    .where(among(_instance.id), unindexed(_instance.status) == ASSIGNED)
    .with_for_update(skip_locked=True),
    schedule_instance,
)


def free_assigned(connection: Connection, ids: Iterable[int]) -> list[int]:
    """Those of these instances that are still assigned and that nobody has locked."""
    wanted = sorted(ids)
    return sorted(read_before(connection, _free_assigned, {"ids": wanted}).scalars()) if wanted else []
