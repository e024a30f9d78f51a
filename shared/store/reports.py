"""What a worker says of its runs, many in one transaction: results and states together, fenced.

``report`` locks the batch's instances in the order of their ids and keeps those that are still ours by id, worker,
attempt and ``running``; the nodes and the instances of the others are left as they are, and their ids returned: the
worker lost them, and stops them. A report that is written again after a lost commit finds its instances ended, or its
nodes as it would write them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, literal_column, select, update

from shared.domain.states import InstanceStatus, NodeStatus
from shared.store.dialects import Listed, RowsUpdate, UtcNow, bound, by_index, json_rows, unindexed
from shared.store.tables import schedule_instance, schedule_task_node

_instance = schedule_instance.c
_node = schedule_task_node.c
_PENDING: ColumnElement[str] = literal_column(f"'{InstanceStatus.PENDING.value}'")


@dataclass(slots=True)
class NodeReport:
    """What became of one node. ``result`` is JSON text; times are the database's, naive UTC."""

    id: int
    status: NodeStatus
    result: str | None = None
    gmt_started: datetime | None = None
    gmt_completed: datetime | None = None


@dataclass(slots=True)
class InstanceReport:
    """What became of the instance: ended, or ``pending`` again, to be run at ``due_at``."""

    status: InstanceStatus
    result: str | None
    reason: str | None
    gmt_started: datetime | None
    gmt_completed: datetime | None
    failures: int | None = None
    """How often it has failed now; None: as before."""

    due_at: datetime | None = None


@dataclass(slots=True)
class Report:
    """One step of a run, under its fence: nodes that changed, and the instance if it is through."""

    instance_id: int
    attempt: int
    nodes: Sequence[NodeReport]
    instance: InstanceReport | None = None

    @property
    def is_plain_success(self) -> bool:
        """Whether it says of one node that it succeeded, and its instance with it."""
        return (
            self.instance is not None
            and len(self.nodes) == 1
            and self.instance.status is InstanceStatus.SUCCEED
            and self.nodes[0].gmt_started is not None
        )

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        results = [node.result for node in self.nodes] + [self.instance.result if self.instance else None]
        return 200 * len(results) + sum(len(result) * 2 for result in results if result)


_done_node = json_rows("done", id="id", status="str", result="json", started="time", completed="time")

_write_nodes = (
    update(schedule_task_node)
    .where(_node.id == _done_node.c.id)
    .values(
        status=_done_node.c.status,
        execution_result=_done_node.c.result,
        gmt_started=func.coalesce(_done_node.c.started, _node.gmt_started),
        gmt_completed=_done_node.c.completed,
    )
)

_done = json_rows(
    "done", id="id", attempt="int", status="str", result="json", reason="str",
    started="time", completed="time", failures="int", due="time",
)  # fmt: skip
_again = _done.c.status == _PENDING
_canceled = _done.c.status == literal_column(f"'{InstanceStatus.CANCELED.value}'")

_write_instances = (
    update(schedule_instance)
    .where(
        _instance.id == _done.c.id,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.attempt == _done.c.attempt,
        _instance.status == InstanceStatus.RUNNING.value,
    )
    .values(
        status=_done.c.status,
        execution_result=_done.c.result,
        # Who asked to cancel it may have said why; the worker knows only that.
        reason=case((_canceled, func.coalesce(_instance.reason, _done.c.reason)), else_=_done.c.reason),
        gmt_started=case((_again, None), else_=func.coalesce(_done.c.started, _instance.gmt_started)),
        gmt_completed=_done.c.completed,
        failures=func.coalesce(_done.c.failures, _instance.failures),
        due_at=func.coalesce(_done.c.due, _instance.due_at),
        schedule_worker_node_id=case((_again, None), else_=_instance.schedule_worker_node_id),
        gmt_modified=UtcNow(),
        modifier="worker",
    )
)


_NOT_DONE = (InstanceStatus.FAILED, InstanceStatus.CANCELED)
_cancel_nodes = (
    update(schedule_task_node)
    .where(
        _node.schedule_instance_id.in_(bindparam("ids", expanding=True)),
        _node.status.in_([NodeStatus.PENDING.value, NodeStatus.RUNNING.value]),
    )
    .values(status=NodeStatus.CANCELED.value)
)
"""What of an instance that failed or was canceled has not ended: its later nodes."""


_fence = json_rows("fence", id="id", attempt="int")
_fenced = _fence.join(
    schedule_instance,
    and_(
        _instance.id == _fence.c.id,
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _instance.attempt == _fence.c.attempt,
    ),
)
_runs = unindexed(_instance.status) == InstanceStatus.RUNNING.value
_count_ours = by_index(select(func.count()).select_from(_fenced).where(_runs).with_for_update(), schedule_instance)
_which_ours = by_index(select(_fence.c.id, _fence.c.attempt).select_from(_fenced).where(_runs), schedule_instance)
_which_succeeded = by_index(
    select(_fence.c.id).select_from(_fenced).where(unindexed(_instance.status) == InstanceStatus.SUCCEED.value),
    schedule_instance,
)


def report(connection: Connection, worker_id: int, reports: Collection[Report]) -> set[int]:
    """Write a batch of reports; returns the ids of the instances that are not this worker's any more."""
    plain = [r for r in reports if r.is_plain_success]
    rest = [r for r in reports if not r.is_plain_success] if len(plain) < len(reports) else []
    lost = _succeed(connection, worker_id, plain) if plain else set()
    return lost | _report(connection, worker_id, rest) if rest else lost


_succeed_instances = RowsUpdate(
    schedule_instance,
    lambda good: (
        update(schedule_instance)
        .where(
            good.match,
            _instance.schedule_worker_node_id == bindparam("worker"),
            _instance.attempt == good.c["attempt"],
            _instance.status == InstanceStatus.RUNNING.value,
        )
        .values(
            status=InstanceStatus.SUCCEED.value,
            execution_result=good.c["result"],
            reason=None,
            gmt_started=good.c["started"],
            gmt_completed=good.c["ended"],
            gmt_modified=UtcNow(),
            modifier="worker",
        )
    ),
    attempt="int",
    result="json",
    started="time",
    ended="time",
)
_succeed_nodes = RowsUpdate(
    schedule_task_node,
    lambda good: (
        update(schedule_task_node)
        .where(good.match)
        .values(
            status=NodeStatus.SUCCEED.value,
            execution_result=good.c["result"],
            gmt_started=good.c["started"],
            gmt_completed=good.c["ended"],
        )
    ),
    result="json",
    started="time",
    ended="time",
)


def _succeed(connection: Connection, worker_id: int, reports: Collection[Report]) -> set[int]:
    """Instances first: they fence, and how many were found tells whether all are ours still."""
    ordered = sorted(reports, key=lambda r: r.instance_id)
    ids, attempts = Listed(r.instance_id for r in ordered), Listed(r.attempt for r in ordered)
    ends = _ends(r.instance for r in ordered if r.instance is not None)
    lists = [Listed.of(values) for values in ends]
    updated = _succeed_instances(connection, ids, attempts, *lists, worker=worker_id)
    lost: set[int] = set()
    if updated.rowcount < len(ids):
        fences = {"rows": bound(zip(ids, attempts, strict=True)), "worker": worker_id}
        lost = set(ids) - set(connection.scalars(_which_succeeded, fences))
    nodes = sorted((n for r in ordered if r.instance_id not in lost for n in r.nodes), key=lambda n: n.id)
    if nodes:  # which nearly always ended as their instances did, one by one: then the same lists serve both
        same = zip(_ends(nodes), ends, lists, strict=True)
        own = [listed if values == others else Listed.of(values) for values, others, listed in same]
        _succeed_nodes(connection, Listed(n.id for n in nodes), *own)
    return lost


def _ends(ended: Iterable[NodeReport | InstanceReport]) -> list[tuple[Any, ...]]:
    """Their results, when they started, and when they ended."""
    return list(zip(*((e.result, e.gmt_started, e.gmt_completed) for e in ended), strict=True))


def _report(connection: Connection, worker_id: int, reports: Collection[Report]) -> set[int]:
    ours = _locked(connection, worker_id, ((r.instance_id, r.attempt) for r in reports))
    kept = [r for r in reports if (r.instance_id, r.attempt) in ours]
    last = {n.id: n for r in kept for n in r.nodes}  # an UPDATE by a join takes the first of several
    nodes = [(n.id, n.status.value, n.result, n.gmt_started, n.gmt_completed) for _, n in sorted(last.items())]
    if nodes:
        connection.execute(_write_nodes, {"rows": bound(nodes)})
    ended = sorted(
        (
            r.instance_id, r.attempt, i.status.value, i.result, i.reason,
            i.gmt_started, i.gmt_completed, i.failures, i.due_at,
        )
        for r in kept
        if (i := r.instance) is not None
    )  # fmt: skip
    if ended:
        connection.execute(_write_instances, {"rows": bound(ended), "worker": worker_id})
    unfinished = sorted(r.instance_id for r in kept if r.instance is not None and r.instance.status in _NOT_DONE)
    if unfinished:
        connection.execute(_cancel_nodes, {"ids": unfinished})
    return {r.instance_id for r in reports if (r.instance_id, r.attempt) not in ours}


def hand_back(connection: Connection, worker_id: int, held: Collection[tuple[int, int]], reason: str) -> int:
    """Put back to pending what this worker holds and will not run: (instance id, attempt); returns how many."""
    kept = sorted(_locked(connection, worker_id, held))
    if not kept:
        return 0
    connection.execute(
        update(schedule_task_node)
        .where(
            _node.schedule_instance_id.in_([instance_id for instance_id, _ in kept]),
            _node.status == NodeStatus.RUNNING.value,
        )
        .values(status=NodeStatus.PENDING.value, gmt_started=None)
    )
    pending = InstanceStatus.PENDING.value
    rows = [(instance_id, attempt, pending, None, reason, None, None, None, None) for instance_id, attempt in kept]
    return connection.execute(_write_instances, {"rows": bound(rows), "worker": worker_id}).rowcount


def _locked(connection: Connection, worker_id: int, fences: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Lock these runs, (instance id, attempt), in the order of their ids; returns those that are still ours.

    Nearly always all are, and a number says so.
    """
    asked = sorted(set(fences))
    values = {"rows": bound(asked), "worker": worker_id}
    if connection.scalar(_count_ours, values) == len(asked):
        return set(asked)
    return {(instance_id, attempt) for instance_id, attempt in connection.execute(_which_ours, values)}
