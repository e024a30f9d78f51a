"""What a worker reads of the instances that it claims, and the runs that become of them. Every write is fenced.

The fence is (id, schedule_worker_node_id, attempt, expected status). The worker's id is its epoch, because each start
of a worker inserts a row of its own. ``attempt`` grows at every claim. If a fenced write changes no row, the worker has
lost the instance and must stop it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    bindparam,
    case,
    func,
    select,
    type_coerce,
)

from rota.shared.database.constructs import UtcNow, UtcTime, among, by_index, read_by
from rota.shared.database.transactions import database_time
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import LEFT, InstanceStatus, NodeStatus
from rota.shared.domain.times import is_time
from rota.shared.domain.weights import weight_in
from rota.shared.store import params
from rota.shared.store.node_terms import NODE_TERMS, parsed_node
from rota.shared.store.node_types import NodeTypeNames
from rota.shared.store.overlap import SkipCandidate, Waiting
from rota.shared.store.run_terms import TERMS, RunTerms, parsed_terms
from rota.shared.store.shards import WHOLE, Shard
from rota.shared.store.tables import (
    OVERLAP_SLOTS,
    owns_node,
    schedule_instance,
    schedule_task,
    schedule_task_node,
)

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
ASSIGNED, RUNNING = InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value
NO_SKIP_CANDIDATES: Mapping[int, SkipCandidate] = MappingProxyType({})


@dataclass(slots=True)
class NodeRun:
    """One node of a claimed instance, with its ``result`` if it succeeded, and its ``failures`` so far."""

    id: int
    type: str
    category: str
    sequence: int
    status: str
    param: Any
    result: Any
    failures: int = 0


@dataclass(slots=True)
class Run:
    """A claimed instance with everything that the worker needs to execute it. Times are naive UTC."""

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
    retry: RetryPolicy
    on_worker_lost: str
    timeout_seconds: int | None
    """The limit for each node that has none of its own."""

    nodes: tuple[NodeRun, ...]
    from_sequence: int | None = None
    """The node with which a replay begins: those before it keep the results of another instance."""

    run_timeout_seconds: int | None = None
    """The limit for the whole run."""

    limit_name: str | None = None
    weight: int = 1
    """How many slots it takes."""

    large: int = 0
    """How many bytes of large params and results it and its nodes had when they were read."""

    turn_of: int | None = None
    """Its task, if that runs one at a time: another instance may wait for its end."""

    shard: Shard = WHOLE


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim: the runs that the worker won, and the instances that wait for a slot of their task."""

    runs: list[Run] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    time: datetime | None = field(default=None, compare=False)
    """The database's time during the claim, naive UTC, unless the claim found nothing."""

    following: "list[Wanted]" = field(default_factory=list, compare=False)
    """Those that wait for their turns, as they were read, if a run that ends may hand its slot on to them."""

    skipped: "list[Skip]" = field(default_factory=list, compare=False)


class Skip(NamedTuple):
    """A fire that the claim skips for another run of its task, as it was read, and why."""

    row: "Wanted"
    reason: str


@dataclass(slots=True)
class Wanted:
    """An instance that a worker wants to claim, with the terms of its task and with its nodes. Times are naive UTC."""

    id: int
    schedule_task_id: int
    schedule_datetime: datetime
    due_at: datetime
    param: Any
    task_name: str
    terms: RunTerms
    nodes: list[NodeRun] = field(default_factory=list)
    holder_id: int | None = None
    """The instance in the first slot of the task, if this one is not running and that was read."""

    large: int = 0
    """How many bytes of large params and results it and its nodes have. These are read apart (``large_values``)."""

    large_nodes: tuple[int, ...] = ()
    """The ids of its nodes with large ones."""

    @property
    def first_node(self) -> int | None:
        """The id of the first node that is left to run; else of the first that has not succeeded; None without one."""
        for node in self.nodes:
            if node.status in LEFT:
                return node.id
        return next((node.id for node in self.nodes if node.status != NodeStatus.SUCCEED), None)

    @property
    def origin(self) -> str:
        """What created the instance, as ``Origin``."""
        return self.terms.origin

    @property
    def attempt(self) -> int:
        """How many times a worker has claimed the instance before."""
        return self.terms.attempt

    @property
    def overlap_policy(self) -> str:
        """The overlap policy of the instance's task."""
        return self.terms.overlap_policy

    @property
    def max_instances(self) -> int | None:
        """How many instances of the task may run at once under ``allow``; None: any number."""
        return self.terms.max_instances

    @property
    def parent_id(self) -> int | None:
        """The instance of which it is a shard, and which holds the overlap slot for it."""
        return self.terms.shard.parent_id

    @property
    def limit_name(self) -> str | None:
        """The limit that the instance's task shares with others."""
        return self.terms.limit_name

    def run(self) -> Run:
        """The run that the claim has made of this instance."""
        t = self.terms
        attempt = t.attempt + 1 if t.status == ASSIGNED else t.attempt
        return Run(
            id=self.id,
            attempt=attempt,
            task_id=self.schedule_task_id,
            task_name=self.task_name,
            timezone=t.timezone,
            schedule_datetime=self.schedule_datetime,
            due_at=self.due_at,
            run_number=t.run_number,
            origin=t.origin,
            param=self.param,
            failures=t.failures,
            retry=t.retry,
            on_worker_lost=t.on_worker_lost,
            timeout_seconds=t.timeout_seconds,
            limit_name=t.limit_name,
            weight=weight_in(t.weight),
            nodes=tuple(self.nodes),
            from_sequence=t.from_sequence,
            run_timeout_seconds=t.run_timeout_seconds,
            large=self.large,
            turn_of=self.schedule_task_id if t.is_alone else None,
            shard=t.shard,
        )


_sequence = attrgetter("sequence")

_holder = schedule_instance.alias("holder")
_holder_id = (
    read_by(select(_holder.c.id), _holder, "uq_schedule_instance_overlap_key")
    .where(_holder.c.overlap_key == _instance.schedule_task_id * OVERLAP_SLOTS)
    .scalar_subquery()
)
_counted = schedule_task_node.alias("counted")
_number_of_nodes = (
    select(func.count())
    .where(_counted.c.schedule_instance_id == _instance.id, _counted.c.instance_gmt_create == _instance.gmt_create)
    .scalar_subquery()
)


def _rows(more: ColumnElement[Any], told: Callable[[ColumnElement[Any]], ColumnElement[Any]]) -> Select[Any]:
    """A row for each node of the instances. ``told`` may hide ``more`` and the columns of the instance in some rows."""
    of_instance = (
        _instance.schedule_task_id,
        _instance.schedule_datetime,
        func.nullif(_instance.due_at, _instance.schedule_datetime, type_=UtcTime),
        params.small(_instance.param),
        _task.name,
        func.json_array(*TERMS.values(), type_=String()),
        more,
    )
    rows = (
        select(
            _instance.id,
            *map(told, of_instance),
            case((_instance.id == bindparam("first"), UtcNow())),
            _node.id,
            func.json_array(*NODE_TERMS.values(), type_=String()),
            params.small(_node.param),
            params.small(_node.execution_result),
        )
        .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
        .outerjoin(schedule_task_node, owns_node)
        .where(
            among(_instance.id),
            _instance.schedule_worker_node_id == bindparam("worker"),
            _instance.status.in_([ASSIGNED, RUNNING]),
        )
        .order_by(_instance.id)
    )
    by_id: Select[Any] = by_index(rows, schedule_instance)
    return by_id


_is_first_row = func.coalesce(_node.sequence, 1) == 1
_wanted = _rows(case((type_coerce(_instance.status, String) == ASSIGNED, _holder_id)), lambda column: column)
_free = _rows(_number_of_nodes, lambda column: case((_is_first_row, column))).with_for_update(
    read=True, skip_locked=True
)
"""The columns that many instances have in common are read as one JSON text, and each text is parsed once. Fewer columns
matter here more than anything else. A row is unpacked by position: attributes of SQLAlchemy's rows take 0.3 µs each.
They come by the ids of the instances, as they are read. To order the nodes, too, MariaDB would sort in a temporary
table.

Where the free ones are read, only the row of the first node says something of its instance."""


def read_wanted(
    connection: Connection, worker_id: int, ids: Collection[int], types: NodeTypeNames
) -> tuple[list[Wanted], datetime | None]:
    """The instances that a worker may claim or has claimed, without those whose times SQL has spoiled; and the
    database's time, naive UTC, if there are any. They come without large params and results.
    """
    found = _read(connection, _wanted, worker_id, ids, types)
    for instance_id, one in found.wanted.items():
        one.holder_id = found.more[instance_id]
    return list(found.wanted.values()), found.time


def read_free(
    connection: Connection, worker_id: int, ids: Collection[int], types: NodeTypeNames
) -> tuple[list[Wanted], datetime | None]:
    """As ``read_wanted``, without those that somebody has locked, or one of whose nodes, or whose task somebody is
    editing; and without ``holder_id``.

    How many nodes an instance has is read without locks: if fewer came, somebody may have locked the others.
    """
    found = _read(connection, _free, worker_id, ids, types)
    doubtful = [i for i, nodes in found.nodes.items() if found.more.get(i) != len(nodes)]
    if doubtful:  # the first node is locked, or SQL has given it another number; or another one is locked
        whole = _read(connection, _wanted, worker_id, doubtful, types)
        for i in doubtful:
            found.wanted.pop(i, None)
            if i in whole.wanted and len(whole.nodes[i]) == len(found.nodes[i]):
                found.wanted[i] = whole.wanted[i]
    return sorted(found.wanted.values(), key=attrgetter("id")), found.time


@dataclass(slots=True)
class _Found:
    """Instances and nodes as they were read, by the ids of the instances, and what else was asked of each instance."""

    wanted: dict[int, Wanted] = field(default_factory=dict)
    nodes: dict[int, list[NodeRun]] = field(default_factory=dict)
    more: dict[int, Any] = field(default_factory=dict)
    time: datetime | None = None


def _read(
    connection: Connection, rows: Select[Any], worker_id: int, ids: Collection[int], types: NodeTypeNames
) -> _Found:
    found = _Found()
    large_nodes: dict[int, dict[int, int]] = {}
    values = {"ids": sorted(ids), "worker": worker_id, "first": min(ids, default=0)}
    for row in connection.execute(rows, values):
        i, task_id, fire, due_at, param, name, terms, more, moment, node_id, node_terms, node_param, result = row
        found.time = moment or found.time
        if terms is not None and i not in found.wanted and is_time(fire) and (due_at is None or is_time(due_at)):
            found.wanted[i] = Wanted(i, task_id, fire, due_at or fire, param, name, parsed_terms(terms))
            found.more[i] = more
        nodes = found.nodes.setdefault(i, [])
        if node_id is not None:
            type_id, sequence, status, failures, large = parsed_node(node_terms)
            named = types.of(connection, type_id)
            nodes.append(NodeRun(node_id, *named, sequence, status, node_param, result, failures))
            if large:
                large_nodes.setdefault(i, {})[node_id] = large
    for i, one in found.wanted.items():
        one.nodes = sorted(found.nodes[i], key=_sequence)
        sizes = large_nodes.get(i, {})
        one.large, one.large_nodes = one.terms.large_param + sum(sizes.values()), tuple(sizes)
    if found.wanted and found.time is None:  # the instance of the least id is locked, or no longer this worker's
        found.time = database_time(connection)
    return found
