"""The rules that hold in the tables at every moment, whichever process was killed: ``rota doctor --data`` checks them.

Each check is one statement, which sees one snapshot: each transaction is in it completely or not at all. A fault that
the scheduler repairs by itself is reported only after twice the worker's liveness limit.

The checks are for operators, not for a service. Those of pending, assigned and running instances read by
``ix_schedule_instance_work``. Those of ended instances read all instances, and those of nodes read all nodes. No check
is needed for two instances in one overlap slot or for one fire: unique keys prevent both.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, String, and_, bindparam, case, exists, func, or_, select

from rota.shared.database.constructs import SecondsBefore, UtcNow, read_by
from rota.shared.domain.spreading import ITS_SHARDS
from rota.shared.domain.states import TERMINAL, InstanceStatus, NodeStatus
from rota.shared.store.tables import (
    kept_for_nothing,
    owns_node,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_beat,
)

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c
_beat = schedule_worker_beat.c

IDS = 20
"""The most rows that are named for one invariant; the statement stops there."""

EDIT_SECONDS = 60
"""A scheduler may still choose an instance's nodes by the task's old type so many seconds after an edit of the task,
because it read the task before the edit."""

_ENDED = [status.value for status in TERMINAL]
_PENDING, _ASSIGNED = InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value
_RUNNING, _SUCCEED = InstanceStatus.RUNNING.value, InstanceStatus.SUCCEED.value
_runs_itself = func.coalesce(_instance.schedule_worker_node_id, -1) != ITS_SHARDS
"""It is no instance that runs as its shards, and on no worker."""

_WAITS = _instance.status.in_([_PENDING, _ASSIGNED])


@dataclass(frozen=True, slots=True, eq=False)
class Invariant:
    """A rule about the rows of a table, and the statement that finds the ids of those that break it."""

    name: str
    rule: str
    table: Literal["instance", "node"]
    breaches: Select[Any]


def breaches(connection: Connection, invariant: Invariant) -> list[int]:
    """The ids of rows that break an invariant, at most ``IDS``.

    for invariant in INVARIANTS: print(invariant.name, database.read(lambda c: breaches(c, invariant)))
    """
    return sorted(connection.scalars(invariant.breaches.limit(bindparam("ids")), {"ids": IDS}))


def _instances(*condition: ColumnElement[bool]) -> Select[Any]:
    return select(_instance.id).where(*condition)


def _nodes(*condition: ColumnElement[bool]) -> Select[Any]:
    """Nodes with their instances."""
    joined = select(_node.id).join_from(schedule_task_node, schedule_instance, owns_node)
    return joined.where(*condition)


def _without_live_worker(status: str, since: ColumnElement[Any]) -> Select[Any]:
    """Instances whose worker has never beaten, or whose worker has been dead or silent for twice its liveness limit.

    The worker must also have held the instance for as long.
    """
    long_ago = SecondsBefore(UtcNow(), _beat.liveness_seconds * 2)
    gone = func.coalesce(_beat.gmt_dead, _beat.last_beat)
    lost = and_(gone < long_ago, func.coalesce(since, gone) < long_ago)
    return (
        select(_instance.id)
        .outerjoin_from(
            schedule_instance, schedule_worker_beat, _beat.schedule_worker_node_id == _instance.schedule_worker_node_id
        )
        .where(_instance.status == status, _runs_itself, or_(_beat.schedule_worker_node_id.is_(None), lost))
    )


def _own_nodes(status: NodeStatus) -> ColumnElement[bool]:
    return exists(select(_node.id).where(owns_node, _node.status == status.value))


def _lists_nodes(param: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.json_extract(param, "$.nodes").is_not(None)


def _lists_order(param: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether it lists nodes one of which says for which others it waits."""
    return func.json_extract(param, "$.nodes").cast(String).contains('"after"')


_may_run_beside = or_(
    func.json_extract(_type.defaults, "$.after").is_not(None), _lists_order(_instance.param), _lists_order(_task.param)
)
_not_one_runs = (
    select(_instance.id)
    .outerjoin_from(
        schedule_instance,
        schedule_task_node,
        and_(owns_node, _node.status == NodeStatus.RUNNING.value),
    )
    .outerjoin(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .outerjoin(schedule_task, _task.id == _instance.schedule_task_id)
    .where(_instance.status == _RUNNING, _runs_itself)
    .group_by(_instance.id)
    .having(
        or_(
            func.count(_node.id) == 0,
            and_(func.count(_node.id) > 1, func.sum(case((_may_run_beside, 1), else_=0)) == 0),
        )
    )
)
"""One node runs, or several if one of them need not wait for all before it."""

_parent = schedule_instance.alias("parent")
_open_shard_of_ended = (
    select(_instance.id)
    .join_from(
        schedule_instance,
        _parent,
        and_(
            _parent.c.id == _instance.parent_id,
            _parent.c.schedule_task_id == _instance.schedule_task_id,
            _parent.c.schedule_datetime == _instance.schedule_datetime,
            _parent.c.status.in_(_ENDED),
        ),
    )
    .where(_instance.status.in_([_PENDING, _ASSIGNED, _RUNNING]))
)

_without_instance = (
    select(_node.id).outerjoin_from(schedule_task_node, schedule_instance, owns_node).where(_instance.id.is_(None))
)

# The task was never edited, or its last edit was long before the nodes were chosen. An instance keeps its nodes after
# an edit of its task, so nodes that are older than the edit say nothing.
_chosen_by_this_type = or_(
    _task.gmt_modified == _task.gmt_create, SecondsBefore(_node.gmt_create, EDIT_SECONDS) > _task.gmt_modified
)
_of_another_type = (
    _nodes()
    .join(schedule_task, _task.id == _instance.schedule_task_id)
    .outerjoin(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .where(
        or_(
            _type.id.is_(None),
            and_(
                _type.category != _task.type,
                ~or_(_lists_nodes(_instance.param), _lists_nodes(_task.param)),
                _chosen_by_this_type,
            ),
        )
    )
)

# Nearly all instances have one of these states. So MariaDB reads them by the primary key ten times as fast as by the
# index of the states.
_unclaimed = read_by(
    _instances(
        _instance.status.in_([_RUNNING, _SUCCEED, InstanceStatus.FAILED.value]),
        or_(_instance.attempt == 0, _instance.gmt_started.is_(None)),
    ),
    schedule_instance,
    "PRIMARY",
)

INVARIANTS = (
    Invariant(
        "ended-nodes",
        "when an instance has ended, none of its nodes is pending or running",
        "node",
        _nodes(_instance.status.in_(_ENDED), _node.status.in_([NodeStatus.PENDING.value, NodeStatus.RUNNING.value])),
    ),
    Invariant(
        "succeeded-nodes",
        "when an instance has succeeded, all its nodes have, or were skipped",
        "node",
        _nodes(_instance.status == _SUCCEED, _node.status.not_in([NodeStatus.SUCCEED.value, NodeStatus.SKIPPED.value])),
    ),
    Invariant(
        "waiting-nodes",
        "while an instance is pending or assigned, none of its nodes is running",
        "node",
        _nodes(_WAITS, _node.status == NodeStatus.RUNNING.value),
    ),
    Invariant(
        "assigned-nodes",
        "an assigned instance has a pending node",
        "instance",
        _instances(_instance.status == _ASSIGNED, ~_own_nodes(NodeStatus.PENDING)),
    ),
    Invariant(
        "running-nodes",
        "while an instance is running, exactly one of its nodes is, or those that do not wait for each other",
        "instance",
        _not_one_runs,
    ),
    Invariant(
        "shards-end-first",
        "an instance that runs as its shards ends after the last of them",
        "instance",
        _open_shard_of_ended,
    ),
    Invariant(
        "pending-worker",
        "a pending instance has no worker",
        "instance",
        _instances(_instance.status == _PENDING, _instance.schedule_worker_node_id.is_not(None)),
    ),
    Invariant(
        "assigned-worker",
        "an assigned instance has a worker, dead or silent for two liveness limits at most",
        "instance",
        _without_live_worker(_ASSIGNED, _instance.gmt_assigned),
    ),
    Invariant(
        "running-worker",
        "a running instance has a worker, dead or silent for two liveness limits at most; or it runs as its shards",
        "instance",
        _without_live_worker(_RUNNING, _instance.gmt_started),
    ),
    Invariant(
        "node-instance", "a node has an instance; the scheduler removes those without", "node", _without_instance
    ),
    Invariant(
        "node-type",
        "a node is of its task's type, unless the param lists the nodes",
        "node",
        _of_another_type,
    ),
    Invariant(
        "numbered",
        "an instance that was assigned has a run number and a due time",
        "instance",
        _instances(
            _instance.status.in_([_ASSIGNED, _RUNNING]),
            or_(_instance.run_number.is_(None), _instance.due_at.is_(None)),
        ),
    ),
    Invariant(
        "not-started",
        "an instance that is pending or assigned has no gmt_started",
        "instance",
        _instances(_WAITS, _instance.gmt_started.is_not(None)),
    ),
    Invariant(
        "claimed",
        "an instance that is running, failed or succeed was claimed (attempt) and has gmt_started",
        "instance",
        _unclaimed,
    ),
    Invariant(
        "not-early",
        "no instance started before it was due",
        "instance",
        _instances(_instance.gmt_started < _instance.due_at),
    ),
    Invariant(
        "completed",
        "an instance has gmt_completed when it has ended, and not before",
        "instance",
        _instances(
            or_(
                and_(_instance.status.in_(_ENDED), _instance.gmt_completed.is_(None)),
                and_(_instance.status.not_in(_ENDED), _instance.gmt_completed.is_not(None)),
            )
        ),
    ),
    Invariant(
        "kept-slot",
        "what has ended keeps its overlap slot only while schedule_kept_slot says for whose thread",
        "instance",
        _instances(_instance.overlap_key > 0, kept_for_nothing),
    ),
    Invariant(
        "completed-nodes",
        "a node that is failed or succeed has gmt_completed",
        "node",
        select(_node.id).where(
            _node.status.in_([NodeStatus.FAILED.value, NodeStatus.SUCCEED.value]), _node.gmt_completed.is_(None)
        ),
    ),
)
