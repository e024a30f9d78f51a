"""What a worker does with its instances: poll, claim, report, hand back. Every write is fenced.

The fence is (id, schedule_worker_node_id, attempt, expected status): the worker's id is its epoch, a row of its own for
each start, and ``attempt`` grows at every claim. Zero rows changed means: you lost it, stop.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, exists, or_, select, update

from shared.domain.states import PLANNED_ORIGINS, InstanceStatus, NodeStatus, TaskStatus
from shared.store import overlap
from shared.store.dialects import UtcNow, bound, by_index, ignore_conflicts, json_rows
from shared.store.tables import (
    PRIORITIES,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
)

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c
ASSIGNED, RUNNING = InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node of a claimed instance; ``result`` is set where an earlier attempt of it succeeded."""

    id: int
    type: str
    category: str
    sequence: int
    status: str
    param: Any
    result: Any


@dataclass(frozen=True, slots=True)
class Run:
    """A claimed instance: all that is needed to execute it. Times are naive UTC."""

    id: int
    attempt: int
    task_id: int
    task_name: str
    timezone: str
    schedule_datetime: datetime
    due_at: datetime
    run_number: int
    origin: str
    param: Any
    failures: int
    retries: int
    retry_delay_seconds: int
    retry_backoff: str
    on_worker_lost: str
    timeout_seconds: int | None
    nodes: tuple[NodeRun, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought: runs that are ours, and those that wait for a slot of their task, with ``due_at``."""

    runs: list[Run] = field(default_factory=list)
    waiting: list[tuple[int, datetime]] = field(default_factory=list)


def poll(connection: Connection, worker_id: int, horizon: datetime, limit: int) -> list[tuple[int, datetime]]:
    """The worker's assigned instances due by ``horizon``, by priority and due time: (id, due_at)."""
    statement = (
        select(_instance.id, _instance.due_at)
        .where(
            _instance.status == ASSIGNED,
            _instance.schedule_worker_node_id == worker_id,
            _instance.priority.in_(PRIORITIES),
            _instance.due_at <= horizon,
        )
        .order_by(_instance.priority, _instance.due_at)
        .limit(limit)
    )
    return [(instance_id, due_at) for instance_id, due_at in connection.execute(statement)]


_claimed = json_rows("claimed", id="id", slot="int")

_may_run = exists(
    by_index(
        select(_task.id).where(
            _task.id == _instance.schedule_task_id,
            _task.is_deleted == 0,
            or_(
                _task.status == TaskStatus.ON.value,
                _instance.origin.not_in([origin.value for origin in PLANNED_ORIGINS]),
            ),
        ),
        schedule_task,
    )
)


_claim = ignore_conflicts(
    update(schedule_instance)
    .where(
        _instance.id == _claimed.c.id,
        _instance.status == ASSIGNED,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.gmt_cancel_requested.is_(None),
        _may_run,
    )
    .values(
        status=RUNNING,
        attempt=_instance.attempt + 1,
        overlap_slot=_claimed.c.slot,
        gmt_started=case((_instance.due_at > UtcNow(), _instance.due_at), else_=UtcNow()),
        reason=None,
    )
)


def claim(connection: Connection, worker_id: int, instance_ids: Collection[int], now: datetime) -> Claim:
    """Claim assigned instances: one guarded UPDATE that looks at the task and, by the unique overlap key, at what runs.

    A row count does not say which rows were won, so they are read again before the commit. If the answer to the commit
    is lost, the same call finds what stands ``running`` under this worker: only this process can have done that.

    An edit of a task that is not committed yet holds up the instances of that task, and no others: they wait.
    """
    ids = sorted(instance_ids)
    wanted = _wanted(connection, worker_id, ids)
    assigned = [row for row in wanted if row.status == ASSIGNED]
    settled_tasks = _lock_settled_tasks(connection, {row.schedule_task_id for row in assigned})
    slots = overlap.free_slots(connection, [row for row in assigned if row.schedule_task_id in settled_tasks])
    if slots:
        connection.execute(_claim, {"rows": bound(slots), "worker": worker_id})
    attempts = _running(connection, worker_id, ids)
    lost = [row for row in assigned if row.id not in attempts]
    won = [row for row in wanted if row.id in attempts]
    nodes = _start_nodes(connection, list(attempts)) if won else {}
    return Claim(
        runs=[_run(row, attempts[row.id], nodes.get(row.id, ())) for row in won],
        waiting=overlap.settle(connection, worker_id, lost, now) if lost else [],
    )


def _wanted(connection: Connection, worker_id: int, ids: list[int]) -> list[Row[Any]]:
    statement = (
        select(
            *(_instance[name] for name in ("id", "status", "attempt", "schedule_task_id", "schedule_datetime")),
            *(_instance[name] for name in ("due_at", "run_number", "origin", "param", "failures")),
            *(_task[name] for name in ("name", "timezone", "retries", "retry_delay_seconds", "retry_backoff")),
            *(_task[name] for name in ("on_worker_lost", "timeout_seconds", "overlap_policy", "max_instances")),
        )
        .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
        .where(
            _instance.id.in_(ids),
            _instance.schedule_worker_node_id == worker_id,
            _instance.status.in_([ASSIGNED, RUNNING]),
        )
        .order_by(_instance.id)
    )
    return list(connection.execute(by_index(statement, schedule_instance)))


def _lock_settled_tasks(connection: Connection, task_ids: Collection[int]) -> set[int]:
    """Hold the tasks as they are until the commit, but those that somebody is editing; returns those held.

    The claim's look at the task locks it anyway, so that nothing starts once ``off`` is committed; but it would wait.
    """
    if not task_ids:
        return set()
    statement = select(_task.id).where(_task.id.in_(sorted(task_ids))).with_for_update(read=True, skip_locked=True)
    return set(connection.scalars(by_index(statement, schedule_task)))


def _running(connection: Connection, worker_id: int, ids: list[int]) -> dict[int, int]:
    statement = select(_instance.id, _instance.attempt).where(
        _instance.id.in_(ids), _instance.schedule_worker_node_id == worker_id, _instance.status == RUNNING
    )
    found = connection.execute(by_index(statement, schedule_instance))
    return dict(found.all())


def _start_nodes(connection: Connection, ids: list[int]) -> dict[int, tuple[NodeRun, ...]]:
    statement = (
        select(
            _node.schedule_instance_id, _node.id, _type.type, _type.category, _node.sequence, _node.status,
            _node.param, _node.execution_result,
        )
        .join_from(schedule_task_node, schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
        .where(_node.schedule_instance_id.in_(ids))
        .order_by(_node.schedule_instance_id, _node.sequence)
    )  # fmt: skip
    nodes: dict[int, tuple[NodeRun, ...]] = {}
    for instance_id, *columns in connection.execute(statement):
        nodes[instance_id] = (*nodes.get(instance_id, ()), NodeRun(*columns))
    first = sorted(
        next((node.id for node in of_one if node.status != NodeStatus.SUCCEED), 0) for of_one in nodes.values()
    )
    connection.execute(
        update(schedule_task_node)
        .where(_node.id.in_(first))
        .values(status=NodeStatus.RUNNING.value, gmt_started=UtcNow(), gmt_completed=None)
    )
    return nodes


def _run(row: Row[Any], attempt: int, nodes: tuple[NodeRun, ...]) -> Run:
    return Run(
        id=row.id,
        attempt=attempt,
        task_id=row.schedule_task_id,
        task_name=row.name,
        timezone=row.timezone,
        schedule_datetime=row.schedule_datetime,
        due_at=row.due_at,
        run_number=row.run_number,
        origin=row.origin,
        param=row.param,
        failures=row.failures,
        retries=row.retries,
        retry_delay_seconds=row.retry_delay_seconds,
        retry_backoff=row.retry_backoff,
        on_worker_lost=row.on_worker_lost,
        timeout_seconds=row.timeout_seconds,
        nodes=nodes,
    )


def held(connection: Connection, worker_id: int) -> list[tuple[int, int, bool]]:
    """What stands ``running`` under a worker: (id, attempt, whether somebody asked to cancel it)."""
    statement = select(_instance.id, _instance.attempt, _instance.gmt_cancel_requested).where(
        _instance.status == RUNNING, _instance.schedule_worker_node_id == worker_id
    )
    return [(i, attempt, requested is not None) for i, attempt, requested in connection.execute(statement)]
