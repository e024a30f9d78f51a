"""Which pending instances the scheduler must give to workers, and which instances it must take back from them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    String,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
)

from rota.shared.database.constructs import among, bound, by_index, json_rows, read_by, unindexed
from rota.shared.database.later import read_before
from rota.shared.domain.errors import RotaError
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import PLANNED_ORIGINS, InstanceStatus, OverlapPolicy
from rota.shared.domain.waiting import WaitingFire
from rota.shared.store import overlap, params, turns
from rota.shared.store.tables import PRIORITIES, schedule_instance, schedule_task
from rota.shared.store.transitions import giving

_instance = schedule_instance.c
_task = schedule_task.c
PENDING, ASSIGNED = InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value

Cursor = tuple[int, datetime, int]
"""The last instance that a scan of the pending instances has read: (priority, due_at, id)."""

FireKey = tuple[int, datetime, str]
"""The key that all instances of one fire share: (task id, schedule_datetime, fire_key)."""


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
    listed: Sequence[PlannedNode] | RotaError | None = None
    """The nodes that its param lists, or why that is a bad list. ``pending`` leaves it None."""

    @property
    def is_planned(self) -> bool:
        """Whether the instance is a fire of its task's plan, with times that SQL has not made unreadable."""
        is_dated = isinstance(self.schedule_datetime, datetime) and isinstance(self.due_at, datetime)
        return is_dated and self.task_type is not None and self.origin in PLANNED_ORIGINS

    @property
    def waiting_fire(self) -> WaitingFire:
        """The instance as a fire that waits for a worker."""
        grace = self.misfire_grace_seconds or 0
        return WaitingFire(self.id, self.task_id, self.schedule_datetime, self.due_at, grace, self.overlap_policy)

    @property
    def is_out_of_line(self) -> bool:
        """Whether the instance may wait for others of its task, and has no place in the order of their turns.

        The assigner has not seen it before, or no live worker could run it.
        """
        return self.overlap_slot is None and turns.waits_in_turn(self.overlap_policy, self.max_instances)

    @property
    def slots(self) -> int | None:
        """How many instances of the task may run at once, if this instance waits for a free slot; otherwise None.

        A fire that may be skipped, or that replaces its predecessor, does not wait: the claim decides about it.
        """
        is_no_new_fire = self.attempt > 0 or self.origin not in PLANNED_ORIGINS
        if is_no_new_fire and self.overlap_policy in (OverlapPolicy.SKIP, OverlapPolicy.REPLACE):
            return 1
        return overlap.slots_waited_for(self.overlap_policy, self.max_instances)

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
_any_work = select(exists(_unassigned.where(_instance.due_at <= bindparam("horizon"))), exists(_without_due_at))
_orphans = (
    _without_due_at.add_columns(_instance.schedule_datetime).limit(bindparam("limit")).with_for_update(skip_locked=True)
)


def look(connection: Connection, horizon: datetime) -> tuple[bool, bool]:
    """Whether ``pending`` would find an instance due by ``horizon`` (naive UTC), and whether ``orphans`` would.

    A scheduler asks this first, because for an idle one it is the only statement.
    """
    due, orphaned = connection.execute(_any_work, {"horizon": horizon}).one()
    return bool(due), bool(orphaned)


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


def _pending(connection: Connection, statement: Select[Any], **values: Any) -> list[Pending]:
    rows: list[Any] = list(connection.execute(statement, values))
    return [Pending(*row) for row in rows]


_param = func.coalesce(type_coerce(_instance.param, String), type_coerce(_task.param, String))
_pending_with_tasks = (
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
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .where(
        _instance.status == PENDING,
        _instance.schedule_worker_node_id.is_(None),
        _instance.due_at <= bindparam("horizon"),
    )
    .order_by(_instance.priority, _instance.due_at, _instance.id)
    .limit(bindparam("limit"))
)
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


_asked = json_rows("asked", task="id", moment="time", fire_key="str")

_fire = (_instance.schedule_task_id, _instance.schedule_datetime, _instance.fire_key)
_last_run_numbers = by_index(
    select(*_fire, func.max(_instance.run_number))
    .select_from(_asked)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _asked.c.task,
            _instance.schedule_datetime == _asked.c.moment,
            _instance.fire_key == _asked.c.fire_key,
        ),
    )
    .group_by(*_fire),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def last_run_numbers(connection: Connection, fires: Collection[FireKey]) -> dict[FireKey, int]:
    """The highest run number of each of these fires; 0 if no instance of the fire has a number yet."""
    if not fires:
        return {}
    rows = read_before(connection, _last_run_numbers, {"rows": bound(sorted(set(fires)))})
    return {(task, moment, key): number or 0 for task, moment, key, number in rows}


_queue = json_rows("queue", worker="id", priority="int")


def _first_of_queue(what: Any, worker: Any, priority: Any) -> Any:
    """A SELECT of a worker's assigned instances of one priority, the one that is due first at first."""
    chosen = select(what).where(
        _instance.status == ASSIGNED,
        _instance.schedule_worker_node_id == worker,
        _instance.priority == priority,
        _instance.gmt_assigned.is_not(None),
    )
    return read_by(chosen.order_by(_instance.due_at), schedule_instance, "ix_schedule_instance_work")


_assigned_when_due = case((_instance.due_at < bindparam("cutoff"), _instance.gmt_assigned))
_first = _first_of_queue(_assigned_when_due, _queue.c.worker, _queue.c.priority).limit(literal_column("1"))
_late_queues = select(_queue.c.worker, _queue.c.priority).where(
    _first.correlate(_queue).scalar_subquery() < bindparam("cutoff")
)
_front = (
    _first_of_queue(_instance.id, bindparam("worker"), bindparam("priority"))
    .add_columns(_instance.gmt_assigned)
    .where(_instance.due_at < bindparam("cutoff"))
    .limit(bindparam("limit"))
    .subquery("front")
)
_overdue = select(_front.c.id).where(_front.c.gmt_assigned < bindparam("cutoff"))


def overdue(connection: Connection, workers: Collection[int], cutoff: datetime, limit: int) -> list[int]:
    """Ids of unstarted instances that were assigned to these workers, and were due, before ``cutoff`` (naive UTC).

    A worker starts those of one priority in the order in which they are due. So this looks at the first of each
    priority, and if that is overdue, at the next ``limit``: it reads no long queue to its end. What is behind an
    instance that was assigned later is found when that has been started, or is overdue itself.
    """
    queues = bound((worker, priority) for worker in sorted(workers) for priority in PRIORITIES)
    late = read_before(connection, _late_queues, {"rows": queues, "cutoff": cutoff}).all() if workers else []
    found: list[int] = []
    for worker, priority in sorted(map(tuple, late)):
        if len(found) < limit:
            values = {"worker": worker, "priority": priority, "cutoff": cutoff, "limit": limit - len(found)}
            found += read_before(connection, _overdue, values).scalars()
    return sorted(found)


def take_back_unstarted(
    connection: Connection, workers: Collection[int], cutoff: datetime, limit: int, avoid: str | None = None
) -> int:
    """Put instances that are ``overdue`` back to pending; returns how many.

    ``avoid``: the name of a worker that they are given to again only if there is no other.
    """
    ids = free_assigned(connection, overdue(connection, workers, cutoff, limit))
    if ids:
        giving.take_back_unstarted(connection, ids, cutoff, avoid)
    return len(ids)


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
