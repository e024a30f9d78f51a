"""What a worker does with its instances: poll, claim, report, hand back. Every write is fenced.

The fence is (id, schedule_worker_node_id, attempt, expected status): the worker's id is its epoch, a row of its own for
each start, and ``attempt`` grows at every claim. Zero rows changed means: you lost it, stop.
"""

import json
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, String, Update, bindparam, case, func, select, type_coerce, update
from sqlalchemy.exc import IntegrityError

from shared.domain.states import PLANNED_ORIGINS, InstanceStatus, NodeStatus, TaskStatus
from shared.store import overlap
from shared.store.dialects import UtcNow, UtcTime, among, by_index, ignore_conflicts, joined_ids, split_ids, unindexed
from shared.store.node_types import NodeTypeNames
from shared.store.overlap import Doubt, Waiting
from shared.store.plans import TERMS_KEPT
from shared.store.tables import PRIORITIES, schedule_instance, schedule_task, schedule_task_node

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
ASSIGNED, RUNNING = InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value
NO_DOUBTS: Mapping[int, Doubt] = MappingProxyType({})


@dataclass(slots=True)
class NodeRun:
    """One node of a claimed instance; ``result`` is set where an earlier attempt of it succeeded."""

    id: int
    type: str
    category: str
    sequence: int
    status: str
    param: Any
    result: Any


@dataclass(slots=True)
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
    """What a claim brought: runs that are ours, and those that wait for a slot of their task."""

    runs: list[Run] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)


_polled = (
    select(_instance.id, _instance.due_at, _instance.priority)
    .where(
        _instance.status == ASSIGNED,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.priority.in_(PRIORITIES),
        _instance.due_at <= bindparam("horizon"),
    )
    .order_by(_instance.priority, _instance.due_at)
    .limit(bindparam("limit"))
).subquery("polled")
_moment = (_polled.c.priority, _polled.c.due_at)
_poll = select(joined_ids(_polled.c.id), *_moment).group_by(*_moment).order_by(*_moment)


def poll(connection: Connection, worker_id: int, horizon: datetime, limit: int) -> list[tuple[int, datetime, int]]:
    """The worker's assigned instances due by ``horizon``, by priority and due time: (id, due_at, priority)."""
    values = {"worker": worker_id, "horizon": horizon, "limit": limit}
    return [
        (instance_id, due_at, priority)
        for ids, priority, due_at in connection.execute(_poll, values)
        for instance_id in split_ids(ids)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """What an instance and its task have alike with many others; those share one object."""

    status: str
    attempt: int
    run_number: int
    origin: str
    failures: int
    is_on: bool
    is_deleted: int
    overlap_policy: str
    max_instances: int | None
    timezone: str
    retries: int
    retry_delay_seconds: int
    retry_backoff: str
    on_worker_lost: str
    timeout_seconds: int | None


@lru_cache(TERMS_KEPT)
def _parsed_terms(text: str) -> _Terms:
    status, attempt, run_number, origin, failures, task_status, *rest = json.loads(text)
    return _Terms(status, attempt, run_number, origin, failures, task_status == TaskStatus.ON, *rest)


@dataclass(slots=True)
class Wanted:
    """An instance that a worker wants to claim, with its task's terms and its nodes."""

    id: int
    schedule_task_id: int
    schedule_datetime: datetime
    due_at: datetime
    param: Any
    task_name: str
    terms: _Terms
    nodes: list[NodeRun] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """What asked for it."""
        return self.terms.origin

    @property
    def attempt(self) -> int:
        """How often it was claimed before."""
        return self.terms.attempt

    @property
    def overlap_policy(self) -> str:
        """Its task's."""
        return self.terms.overlap_policy

    @property
    def max_instances(self) -> int | None:
        """Its task's."""
        return self.terms.max_instances

    @property
    def may_run(self) -> bool:
        """Whether its task is there, and on where that matters."""
        return not self.terms.is_deleted and (self.terms.is_on or self.origin not in PLANNED_ORIGINS)

    @property
    def first_node(self) -> int | None:
        """The id of the node that is to run first."""
        return next((node.id for node in self.nodes if node.status != NodeStatus.SUCCEED), None)

    def run(self) -> Run:
        """The run it has become."""
        t = self.terms
        attempt = t.attempt + 1 if t.status == ASSIGNED else t.attempt
        return Run(
            self.id, attempt, self.schedule_task_id, self.task_name, t.timezone, self.schedule_datetime, self.due_at,
            t.run_number, t.origin, self.param, t.failures, t.retries, t.retry_delay_seconds,
            t.retry_backoff, t.on_worker_lost, t.timeout_seconds, tuple(self.nodes),
        )  # fmt: skip


_terms = func.json_array(
    type_coerce(_instance.status, String),
    _instance.attempt,
    _instance.run_number,
    type_coerce(_instance.origin, String),
    _instance.failures,
    type_coerce(_task.status, String),
    _task.is_deleted,
    type_coerce(_task.overlap_policy, String),
    _task.max_instances,
    _task.timezone,
    _task.retries,
    _task.retry_delay_seconds,
    type_coerce(_task.retry_backoff, String),
    type_coerce(_task.on_worker_lost, String),
    _task.timeout_seconds,
    type_=String(),
)

_wanted = by_index(
    select(
        _instance.id,
        _instance.schedule_task_id,
        _instance.schedule_datetime,
        func.nullif(_instance.due_at, _instance.schedule_datetime, type_=UtcTime),
        _instance.param,
        _task.name,
        _terms,
        _node.id,
        func.json_array(
            _node.schedule_task_node_type_id, _node.sequence, type_coerce(_node.status, String), type_=String()
        ),
        _node.param,
        _node.execution_result,
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
    .outerjoin(schedule_task_node, _node.schedule_instance_id == _instance.id)
    .where(
        among(_instance.id),
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.status.in_([ASSIGNED, RUNNING]),
    )
    .order_by(_instance.id, _node.sequence)
    .with_for_update(read=True, skip_locked=True),
    schedule_instance,
)
"""What many have alike comes as one column, which is parsed once: columns cost more than anything else here.

Shared locks hold the tasks as they are until the commit, so that nothing starts once ``off`` is committed. A task
that somebody is editing holds up its own instances, and no others: they are passed over."""

_passed_over = by_index(
    select(_instance.id, _instance.due_at).where(
        among(_instance.id), _instance.schedule_worker_node_id == bindparam("worker"), _instance.status == ASSIGNED
    ),
    schedule_instance,
)

_claim = (
    update(schedule_instance)
    .where(
        among(_instance.id),
        unindexed(_instance.status) == ASSIGNED,
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _instance.gmt_cancel_requested.is_(None),
    )
    .values(
        status=RUNNING,
        attempt=_instance.attempt + 1,
        overlap_slot=bindparam("slot"),
        gmt_started=case((_instance.due_at > UtcNow(), _instance.due_at), else_=UtcNow()),
        reason=None,
    )
    .with_hint("FORCE INDEX (PRIMARY)", dialect_name="mysql")
)

_claim_what_is_free = ignore_conflicts(_claim)
"""It does not tell what it left out."""

_start_nodes = (
    update(schedule_task_node)
    .where(among(_node.id, "nodes"))
    .values(status=NodeStatus.RUNNING.value, gmt_started=UtcNow(), gmt_completed=None)
    .with_hint("FORCE INDEX (PRIMARY)", dialect_name="mysql")
)
"""For nodes of instances that this transaction has claimed, or read again under a lock: nobody else changes them."""

_ours = by_index(
    select(_instance.id)
    .where(among(_instance.id), _instance.schedule_worker_node_id == bindparam("worker"), _instance.status == RUNNING)
    .with_for_update(read=True),
    schedule_instance,
)


def claim(
    connection: Connection,
    worker_id: int,
    instance_ids: Collection[int],
    now: datetime,
    types: NodeTypeNames,
    *,
    tried: Container[int] = (),
    doubts: Mapping[int, Doubt] = NO_DOUBTS,
) -> Claim:
    """Claim assigned instances: one guarded UPDATE, which decides by the unique overlap key about what runs already.

    ``tried`` are those that found no slot before, and ``doubts`` what the last claim said of them. If the answer to the
    commit is lost, the same call finds what stands ``running`` under this worker: only this process can have done that.
    """
    ids = sorted(instance_ids)
    which: dict[str, Any] = {"ids": ids, "worker": worker_id}
    wanted = _read_wanted(connection, which, types)
    assigned = [row for row in wanted if row.terms.status == ASSIGNED]
    if skipped := overlap.skip_overrun(connection, worker_id, assigned, doubts):
        assigned = [row for row in assigned if row.id not in skipped]
    slots = overlap.free_slots(connection, [row for row in assigned if row.may_run])
    tasks = {row.id: row.schedule_task_id for row in assigned}
    wishes = Counter((tasks[i], slot) for i, slot in slots)
    hoped = {i for i, slot in slots if slot is None or (wishes[tasks[i], slot] == 1 and i not in tried)}
    won = _win(connection, worker_id, [row.id for row in wanted], slots, hoped)
    if first := [n for row in wanted if row.id in won and (n := row.first_node) is not None]:
        connection.execute(_start_nodes, {"nodes": sorted(first)})
    waiting: list[Waiting] = []
    if lost := [row for row in assigned if row.id not in won]:
        waiting = overlap.settle(connection, worker_id, lost, now, doubts)
    if len(wanted) < len(ids):
        waiting += _left_waiting(connection, which, {row.id for row in wanted})
    return Claim([row.run() for row in wanted if row.id in won], waiting)


def _win(
    connection: Connection, worker_id: int, wanted: list[int], slots: Sequence[tuple[int, int | None]], hoped: set[int]
) -> set[int]:
    """Claim each for its slot; returns those that are ours.

    Of those hoped for it is likely that all slots are free; then how many rows were changed says that all were won. The
    rest is read again.
    """
    sure = [slot for slot in slots if slot[0] in hoped]
    rest = [slot for slot in slots if slot[0] not in hoped]
    won: set[int] = set()
    try:
        if _update(connection, _claim, sure, worker_id) == len(sure):
            won = {instance_id for instance_id, _ in sure}
    except IntegrityError:  # the server has undone the whole statement
        rest = list(slots)
    _update(connection, _claim_what_is_free, rest, worker_id)
    if unknown := [instance_id for instance_id in wanted if instance_id not in won]:
        won.update(connection.scalars(_ours, {"ids": unknown, "worker": worker_id}))
    return won


def _update(connection: Connection, statement: Update, slots: Sequence[tuple[int, int | None]], worker_id: int) -> int:
    return sum(
        connection.execute(statement, {"ids": ids, "slot": slot, "worker": worker_id}).rowcount
        for slot, ids in _by_slot(slots)
    )


def _by_slot(slots: Sequence[tuple[int, int | None]]) -> Iterable[tuple[int | None, list[int]]]:
    """Instances by the slot they are to run in: nearly all in the first, or in none."""
    ids: dict[int | None, list[int]] = {}
    for instance_id, slot in slots:
        ids.setdefault(slot, []).append(instance_id)
    return ids.items()


def _read_wanted(connection: Connection, which: dict[str, Any], types: NodeTypeNames) -> list[Wanted]:
    wanted: list[Wanted] = []
    for row in connection.execute(_wanted, which):
        instance_id, task_id, fire, due_at, param, name, terms, node_id, node, node_param, result = row
        if not wanted or wanted[-1].id != instance_id:
            wanted.append(Wanted(instance_id, task_id, fire, due_at or fire, param, name, _parsed_terms(terms)))
        if node_id is not None:
            type_id, sequence, status = _parsed_node(node)
            node_type, category = types.of(connection, type_id)
            wanted[-1].nodes.append(NodeRun(node_id, node_type, category, sequence, status, node_param, result))
    return wanted


@lru_cache(TERMS_KEPT)
def _parsed_node(text: str) -> tuple[int, int, str]:
    type_id, sequence, status = json.loads(text)
    return type_id, sequence, status


def _left_waiting(connection: Connection, which: dict[str, Any], seen: Collection[int]) -> list[Waiting]:
    """What is still assigned, but was passed over."""
    left = {**which, "ids": [instance_id for instance_id in which["ids"] if instance_id not in seen]}
    return [(instance_id, due_at, None) for instance_id, due_at in connection.execute(_passed_over, left)]


def held(connection: Connection, worker_id: int) -> list[tuple[int, int, bool]]:
    """What stands ``running`` under a worker: (id, attempt, whether somebody asked to cancel it)."""
    statement = select(_instance.id, _instance.attempt, _instance.gmt_cancel_requested).where(
        _instance.status == RUNNING, _instance.schedule_worker_node_id == worker_id
    )
    return [(i, attempt, requested is not None) for i, attempt, requested in connection.execute(statement)]
