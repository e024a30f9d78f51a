"""Which pending instances the scheduler must give to workers, and which instances it must take back from them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
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
from rota.shared.domain.errors import RotaError
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import PLANNED_ORIGINS, InstanceStatus, OverlapPolicy
from rota.shared.domain.waiting import A_WORKER, ITS_LIMIT, WaitingFire
from rota.shared.store import overlap, params, turns
from rota.shared.store.requests import any_waiting
from rota.shared.store.run_numbers import FireKey
from rota.shared.store.tables import PRIORITIES, any_chain, is_paused, schedule_instance, schedule_task
from rota.shared.store.transitions import giving

_instance = schedule_instance.c
_task = schedule_task.c
PENDING, ASSIGNED = InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value

Cursor = tuple[int, datetime, int]
"""The last instance that a scan of the pending instances has read: (priority, due_at, id)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending instance with the columns needed to assign it; ``task_type`` is None if its task does not exist.

    It comes without its param, of which a thousand may be gigabytes.
    """

    id: int
    task_id: int
    schedule_datetime: datetime
    due_at: datetime
    run_number: int | None
    fire_key: str
    priority: int
    has_own_param: bool
    param_size: int | None
    """About how many bytes its param has, or else its task's; None if there is neither."""

    may_list_nodes: bool
    """Whether that param may list its own nodes."""

    reason: str | None
    lost_by: str | None
    task_type: str | None
    task_deleted: int | None
    required_labels: dict[str, str] | None
    origin: str
    attempt: int
    overlap_policy: str | None
    max_instances: int | None
    overlap_slot: int | None
    task_status: str | None
    misfire_grace_seconds: int | None
    misfire_policy: str | None
    misfire_cap: int | None
    from_sequence: int | None
    limit_name: str | None
    run_timeout_seconds: int | None
    parent_id: int | None
    shard_index: int | None
    shard_total: int | None
    only_worker_id: int | None
    spread: str | None
    shards: int | None
    gmt_cancel_requested: datetime | None
    pool: str | None
    listed: Sequence[PlannedNode] | RotaError | None = None
    """The nodes that its param lists, or why that is a bad list. ``pending`` leaves it None."""

    @property
    def may_have_nodes(self) -> bool:
        """Whether it may have nodes already. Whatever comes back has a reason."""
        return self.attempt > 0 or self.reason is not None or self.from_sequence is not None

    @property
    def is_planned(self) -> bool:
        """Whether the instance is a fire of its task's plan, with times that SQL has not made unreadable."""
        is_dated = isinstance(self.schedule_datetime, datetime) and isinstance(self.due_at, datetime)
        return is_dated and self.task_type is not None and self.origin in PLANNED_ORIGINS

    @property
    def waiting_fire(self) -> WaitingFire:
        """The instance as a fire that waits for a worker."""
        grace = self.misfire_grace_seconds or 0
        policies = (self.overlap_policy, self.misfire_policy, self.misfire_cap or 1)
        waits_for = A_WORKER if self.limit_name is None else ITS_LIMIT
        return WaitingFire(self.id, self.task_id, self.schedule_datetime, self.due_at, grace, *policies, waits_for)

    @property
    def is_out_of_line(self) -> bool:
        """Whether the instance may wait for others of its task, and has no place in the order of their turns.

        The assigner has not seen it before, or no live worker could run it.
        """
        is_in_line = self.overlap_slot is not None or self.parent_id is not None
        return not is_in_line and turns.waits_in_turn(self.overlap_policy, self.max_instances)

    @property
    def slots(self) -> int | None:
        """How many instances of the task may run at once, if this instance waits for a free slot; otherwise None.

        A fire that may be skipped, or that replaces its predecessor, does not wait: the claim decides about it. Nor
        does a shard, whose parent has the slot.
        """
        if self.parent_id is not None:
            return None
        is_no_new_fire = self.attempt > 0 or self.origin not in PLANNED_ORIGINS
        if is_no_new_fire and self.overlap_policy in (OverlapPolicy.SKIP, OverlapPolicy.REPLACE):
            return 1
        return overlap.slots_waited_for(self.overlap_policy, self.max_instances)

    @property
    def is_to_spread(self) -> bool:
        """Whether it is to run as its shards. What has begun as a whole goes on as a whole."""
        is_new = self.spread is not None and self.attempt == 0 and self.from_sequence is None
        return self.shard_index is None and (is_new or self.has_shards)

    @property
    def has_shards(self) -> bool:
        """Whether it has run as its shards, and somebody has put it back: SQL, or a scheduler of an older version."""
        return self.shard_index is None and self.shard_total is not None

    @property
    def schedule_task_id(self) -> int:
        """``task_id``, as those who contend for a slot call it."""
        return self.task_id

    @property
    def fire(self) -> FireKey:
        """The fire of this instance; instances of one fire differ in their run numbers."""
        return (self.task_id, self.schedule_datetime, self.fire_key)

    @property
    def cursor(self) -> Cursor:
        """The cursor with which a scan continues after this instance."""
        return (self.priority, self.due_at, self.id)


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
)
_orphans = (
    _without_due_at.add_columns(_instance.schedule_datetime).limit(bindparam("limit")).with_for_update(skip_locked=True)
)


class Look(NamedTuple):
    """Whether an instance is due, an orphan waits, all scheduling is paused, a program has requested something, and
    any task follows another."""

    due: bool
    orphaned: bool
    is_paused: bool
    requested: bool
    any_chain: bool


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


def pending(connection: Connection, horizon: datetime, limit: int, after: Cursor | None = None) -> list[Pending]:
    """Up to ``limit`` pending instances due by ``horizon`` (naive UTC), after the cursor, by priority and due time."""
    if after is None:
        return _pending(connection, _of_priorities(PRIORITIES), horizon=horizon, limit=limit)
    priority, due_at, last = after
    found = _pending(
        connection, _after_cursor, horizon=horizon, limit=limit, priority=priority, due_at=due_at, last=last
    )
    rest = tuple(p for p in PRIORITIES if p > priority)
    if len(found) < limit and rest:
        found += _pending(connection, _of_priorities(rest), horizon=horizon, limit=limit - len(found))
    return found


def pending_in_turn(connection: Connection, task: int, horizon: datetime, limit: int) -> list[Pending]:
    """Up to ``limit`` pending instances of a task with turns that are due by ``horizon`` (naive UTC), the oldest first.

    What of the task is assigned is read, too.
    """
    return _pending(connection, _pending_in_turn, task=task, horizon=horizon, limit=limit)


def pending_of(connection: Connection, ids: Collection[int], horizon: datetime) -> list[Pending]:
    """Those of these instances that are pending still and due by ``horizon`` (naive UTC)."""
    return _pending(connection, _pending_of_these, ids=sorted(ids), horizon=horizon, limit=len(ids)) if ids else []


def _pending(connection: Connection, statement: Select[Any], **values: Any) -> list[Pending]:
    rows: list[Any] = list(connection.execute(statement, values))
    return [Pending(*row) for row in rows]


_param = func.coalesce(type_coerce(_instance.param, String), type_coerce(_task.param, String))
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
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .where(
        _instance.status == PENDING,
        _instance.schedule_worker_node_id.is_(None),
        _instance.due_at <= bindparam("horizon"),
    )
    .limit(bindparam("limit"))
)
_pending_with_tasks: Select[Any] = in_order_of(
    _are_pending.order_by(_instance.priority, _instance.due_at, _instance.id),
    schedule_instance,
    "ix_schedule_instance_work",
)
_pending_in_turn: Select[Any] = in_order_of(
    _are_pending.where(_instance.turn_key == bindparam("task")).order_by(_instance.due_at, _instance.id),
    schedule_instance,
    "ix_schedule_instance_turn",
)
_pending_of_these: Select[Any] = by_index(_are_pending.where(among(_instance.id)), schedule_instance)
_after_cursor = _pending_with_tasks.where(
    _instance.priority == bindparam("priority"),
    or_(
        _instance.due_at > bindparam("due_at"),
        and_(_instance.due_at == bindparam("due_at"), _instance.id > bindparam("last")),
    ),
)


@cache
def _of_priorities(priorities: tuple[int, ...]) -> Select[Any]:
    return _pending_with_tasks.where(_instance.priority.in_(priorities))


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
