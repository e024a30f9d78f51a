"""Giving pending instances to workers, and taking back what a worker will not run."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, exists, func, or_, select, update

from shared.domain.states import PLANNED_ORIGINS, InstanceStatus, OverlapPolicy
from shared.store import overlap
from shared.store.dialects import UtcNow, among, bound, by_index, ignore_conflicts, json_rows
from shared.store.tables import PRIORITIES, schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c
PENDING, ASSIGNED = InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value

Cursor = tuple[int, datetime, int]
"""Where a scan of the pending instances stands: priority, due_at, id."""

Fire = tuple[int, datetime, str]
"""What instances of one fire share: task id, schedule_datetime, fire_key."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending instance with what is needed to place it; ``task_type`` is None where its task does not exist."""

    id: int
    task_id: int
    schedule_datetime: datetime
    due_at: datetime
    run_number: int | None
    fire_key: str
    priority: int
    param: Any
    reason: str | None
    lost_by: str | None
    task_type: str | None
    task_param: Any
    task_deleted: int | None
    required_labels: dict[str, str] | None
    origin: str
    attempt: int
    overlap_policy: str | None
    max_instances: int | None

    @property
    def slots(self) -> int | None:
        """How many instances of its task may run at once, if at the claim it would wait for one of them; else None.

        A fire that may be skipped or that replaces its predecessor does not wait: the claim decides about it.
        """
        begun = self.attempt > 0 or self.origin not in PLANNED_ORIGINS
        if begun and self.overlap_policy in (OverlapPolicy.SKIP, OverlapPolicy.REPLACE):
            return 1
        return overlap.slots_waited_for(self.overlap_policy, self.max_instances)

    @property
    def fire(self) -> Fire:
        """The fire it is an instance of; others of it are told apart by their run numbers."""
        return (self.task_id, self.schedule_datetime, self.fire_key)

    @property
    def cursor(self) -> Cursor:
        """Where a scan goes on after it."""
        return (self.priority, self.due_at, self.id)


_waits = select(_instance.id).where(
    _instance.status == PENDING, _instance.schedule_worker_node_id.is_(None), _instance.priority.in_(PRIORITIES)
)
_without_moment = _waits.where(_instance.due_at.is_(None))
_look = select(exists(_waits.where(_instance.due_at <= bindparam("horizon"))), exists(_without_moment))
_orphans = _without_moment.limit(bindparam("limit"))
_adopt = (
    update(schedule_instance)
    .where(among(_instance.id), _instance.due_at.is_(None))
    .values(due_at=_instance.schedule_datetime)
)


def look(connection: Connection, horizon: datetime) -> tuple[bool, bool]:
    """Whether there is anything for ``pending``, and anything for ``adopt``: what an idle scheduler asks."""
    due, orphaned = connection.execute(_look, {"horizon": horizon}).one()
    return bool(due), bool(orphaned)


def orphans(connection: Connection, limit: int) -> list[int]:
    """The ids of pending rows that SQL inserted without a ``due_at``."""
    return sorted(connection.scalars(_orphans, {"limit": limit}))


def adopt(connection: Connection, limit: int) -> int:
    """Give rows inserted by SQL their ``due_at``: the nominal time. Returns how many there were."""
    ids = orphans(connection, limit)
    if ids:
        connection.execute(_adopt, {"ids": ids})
    return len(ids)


def pending(connection: Connection, horizon: datetime, limit: int, after: Cursor | None = None) -> list[Pending]:
    """Pending instances due by ``horizon``, by priority and due time, from a cursor on."""
    if after is None:
        return _pending(connection, _of_priorities(PRIORITIES), horizon=horizon, limit=limit)
    priority, due_at, last = after
    found = _pending(connection, _behind, horizon=horizon, limit=limit, priority=priority, due_at=due_at, last=last)
    rest = tuple(p for p in PRIORITIES if p > priority)
    if len(found) < limit and rest:
        found += _pending(connection, _of_priorities(rest), horizon=horizon, limit=limit - len(found))
    return found


def _pending(connection: Connection, statement: Select[Any], **values: Any) -> list[Pending]:
    rows: list[Any] = list(connection.execute(statement, values))
    return [Pending(*row) for row in rows]


_pending_with_tasks = (
    select(
        _instance.id,
        _instance.schedule_task_id,
        _instance.schedule_datetime,
        _instance.due_at,
        _instance.run_number,
        _instance.fire_key,
        _instance.priority,
        _instance.param,
        _instance.reason,
        _instance.lost_by,
        _task.type,
        _task.param,
        _task.is_deleted,
        _task.required_labels,
        _instance.origin,
        _instance.attempt,
        _task.overlap_policy,
        _task.max_instances,
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
_behind = _pending_with_tasks.where(
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


def last_run_numbers(connection: Connection, fires: Collection[Fire]) -> dict[Fire, int]:
    """The highest run number of each of these fires; 0 where none has one yet."""
    if not fires:
        return {}
    rows = connection.execute(_last_run_numbers, {"rows": bound(sorted(set(fires)))})
    return {(task, moment, key): number or 0 for task, moment, key, number in rows}


_given = json_rows("given", id="id", worker="id", run_number="int", param="json")

_give = ignore_conflicts(
    update(schedule_instance)
    .where(_instance.id == _given.c.id, _instance.status == PENDING)
    .values(
        status=ASSIGNED,
        schedule_worker_node_id=_given.c.worker,
        gmt_assigned=UtcNow(),
        run_number=func.coalesce(_instance.run_number, _given.c.run_number),
        param=func.coalesce(_instance.param, _given.c.param),
        reason=None,
    )
)


def give(connection: Connection, rows: Iterable[tuple[int, int, int | None, str | None]]) -> None:
    """Assign instances that are still pending: (instance id, worker id, run number, param as JSON).

    One whose run number is taken meanwhile stays pending; the next pass gives it another.
    """
    ordered = sorted(rows)
    if ordered:
        connection.execute(_give, {"rows": bound(ordered)})


_explained = json_rows("explained", id="id", reason="str")


def explain(connection: Connection, reasons: dict[int, str]) -> None:
    """Write why instances stay pending."""
    if reasons:
        connection.execute(
            update(schedule_instance)
            .where(_instance.id == _explained.c.id, _instance.status == PENDING)
            .values(reason=_explained.c.reason),
            {"rows": bound(sorted(reasons.items()))},
        )


def refuse(connection: Connection, reasons: dict[int, str]) -> None:
    """Cancel pending instances that can never run, each with its reason."""
    if reasons:
        connection.execute(
            update(schedule_instance)
            .where(_instance.id == _explained.c.id, _instance.status == PENDING)
            .values(
                status=InstanceStatus.CANCELED.value,
                reason=_explained.c.reason,
                gmt_completed=UtcNow(),
                gmt_modified=UtcNow(),
                modifier="scheduler",
            ),
            {"rows": bound(sorted(reasons.items()))},
        )


_back = json_rows("back", id="id")
_take_back = (
    update(schedule_instance)
    .where(_instance.id == _back.c.id, _instance.status == ASSIGNED)
    .values(status=PENDING, schedule_worker_node_id=None, gmt_assigned=None)
)
_take_back_unstarted = _take_back.where(_instance.gmt_assigned < bindparam("cutoff")).values(
    reason="its worker did not start it in time"
)
_take_back_assigned = _take_back.where(_instance.schedule_worker_node_id == bindparam("worker")).values(
    reason="its worker stopped before it started it"
)


_overdue = (
    select(_instance.id)
    .where(
        _instance.status == ASSIGNED,
        among(_instance.schedule_worker_node_id, "workers"),
        _instance.priority.in_(PRIORITIES),
        _instance.due_at < bindparam("cutoff"),
        _instance.gmt_assigned < bindparam("cutoff"),
    )
    .limit(bindparam("limit"))
)


def overdue(connection: Connection, workers: Collection[int], cutoff: datetime, limit: int) -> list[int]:
    """The ids of instances that were assigned to these workers and due before ``cutoff`` and are not started."""
    if not workers:
        return []
    values = {"workers": sorted(workers), "cutoff": cutoff, "limit": limit}
    return sorted(connection.scalars(_overdue, values))


def take_back_unstarted(connection: Connection, workers: Collection[int], cutoff: datetime, limit: int) -> int:
    """Put back to pending what is overdue; returns how many."""
    ids = overdue(connection, workers, cutoff, limit)
    if not ids:
        return 0
    return connection.execute(_take_back_unstarted, {"rows": bound((i,) for i in ids), "cutoff": cutoff}).rowcount


def take_back_assigned(connection: Connection, worker_id: int, limit: int) -> int:
    """Put back to pending what a worker was assigned and has not claimed; returns how many (``limit``: maybe more)."""
    mine = and_(_instance.status == ASSIGNED, _instance.schedule_worker_node_id == worker_id)
    ids = sorted(connection.scalars(select(_instance.id).where(mine).limit(limit)))
    if ids:
        connection.execute(_take_back_assigned, {"rows": bound((i,) for i in ids), "worker": worker_id})
    return len(ids)
