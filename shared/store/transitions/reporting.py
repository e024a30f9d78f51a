"""Write what a worker reports of its runs: their nodes and their ends, in one transaction. All writes are fenced.

A report may be written twice, when the answer to a commit is lost. The second write finds its instances ended, or sets
its nodes to the values that they have already.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from operator import itemgetter

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, literal_column, select, update

from rota.shared.database.constructs import (
    Listed,
    RowsUpdate,
    UtcNow,
    among,
    bound,
    by_index,
    json_rows,
    unindexed,
)
from rota.shared.database.later import Unexpected, execute_later, read_before
from rota.shared.domain.states import BEGIN, FAIL, HAND_BACK, PROCEED, RETRY, STOP, SUCCEED, InstanceStatus, NodeStatus
from rota.shared.store.failed_attempts import one_more
from rota.shared.store.tables import schedule_instance, schedule_task_node
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.nodes import follow

_instance = schedule_instance.c
_node = schedule_task_node.c

Success = tuple[
    int, int, str | None, datetime | None, datetime | None, int, str | None, datetime | None, datetime | None
]
"""An instance whose last node succeeded: (id, attempt, result, start, end, node id, node's result, node's start, node's
end). Results are JSON text; times are the database's, naive UTC."""

Step = tuple[int, str | None, datetime | None, datetime | None, int, datetime | None]
"""A node that succeeded and the next one, which starts: (node id, result, start, end, next node's id, its start)."""

NodeRow = tuple[int, str, str | None, datetime | None, datetime | None, int | None]
"""A node: (id, status, result, start, end, failures)."""

InstanceRow = tuple[
    int, int, str, str | None, str | None, datetime | None, datetime | None, int | None, datetime | None, str | None
]
"""An instance: (id, attempt, status, result, reason, start, end, failures, due time, how the attempt failed)."""


def _text(status: InstanceStatus) -> ColumnElement[str]:
    return literal_column(f"'{status.value}'")


_done_node = json_rows("done", id="id", status="str", result="json", started="time", completed="time", failures="int")

_write_nodes = (
    update(schedule_task_node)
    .where(_node.id == _done_node.c.id)
    .values(
        status=_done_node.c.status,
        execution_result=_done_node.c.result,
        gmt_started=case(  # what has ended without a handler's being entered has no start
            (_done_node.c.completed.is_not(None), _done_node.c.started),
            else_=func.coalesce(_done_node.c.started, _node.gmt_started),
        ),
        gmt_completed=_done_node.c.completed,
        failures=func.coalesce(_done_node.c.failures, _node.failures),
    )
)

_done = json_rows(
    "done", id="id", attempt="int", status="str", result="json", reason="str",
    started="time", completed="time", failures="int", due="time", attempt_end="json",
)  # fmt: skip
_again = _done.c.status == _text(RETRY.target)
_is_canceled = and_(_again, _instance.gmt_cancel_requested.is_not(None))
"""Whoever has asked to cancel does not wait for the retry."""

_is_noted = and_(_done.c.status == _text(BEGIN.target), _instance.reason == _done.c.reason)
"""This failure of a run that goes on was written before: the answer to that commit was lost."""

_write_instances = (
    update(schedule_instance)
    .where(
        _instance.id == _done.c.id,
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.attempt == _done.c.attempt,
        leaves(SUCCEED),  # as begin, fail, stop, retry and hand back do
    )
    .ordered_values(  # whether a failure is noted must come before the reason, by which it is seen
        (
            _instance.failed_attempts,
            one_more(_instance.failed_attempts, case((_is_noted, None), else_=_done.c.attempt_end)),
        ),
        (_instance.status, _done.c.status),
        (_instance.execution_result, _done.c.result),
        # The request to cancel may have left a reason in the row; the worker does not know that reason.
        (
            _instance.reason,
            case(
                (_done.c.status == _text(STOP.target), func.coalesce(_instance.reason, _done.c.reason)),
                (_done.c.status == _text(BEGIN.target), func.coalesce(_done.c.reason, _instance.reason)),
                else_=_done.c.reason,
            ),
        ),
        (_instance.gmt_started, case((_again, None), else_=func.coalesce(_done.c.started, _instance.gmt_started))),
        (_instance.gmt_completed, _done.c.completed),
        (_instance.failures, func.coalesce(_done.c.failures, _instance.failures)),
        (_instance.due_at, case((_is_canceled, UtcNow()), else_=func.coalesce(_done.c.due, _instance.due_at))),
        (_instance.schedule_worker_node_id, case((_again, None), else_=_instance.schedule_worker_node_id)),
        (_instance.gmt_modified, UtcNow()),
        (_instance.modifier, "worker"),
    )
)


_fence = json_rows("fence", id="id", attempt="int")
_fenced = _fence.join(
    schedule_instance,
    and_(
        _instance.id == _fence.c.id,
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _instance.attempt == _fence.c.attempt,
    ),
)
_runs = leaves(PROCEED, unindexed(_instance.status))
_count_held = by_index(
    select(func.count()).select_from(_fenced).where(_runs).with_for_update(of=schedule_instance), schedule_instance
)
_hold = RowsUpdate(
    schedule_instance,
    lambda held: (
        update(schedule_instance)
        .where(
            held.match,
            unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
            _instance.attempt == held.c["attempt"],
            _runs,
        )
        .values(attempt=_instance.attempt)
    ),
    attempt="int",
)
"""It changes nothing: it locks the rows and counts them, without an answer that somebody has to wait for."""

_find_held = by_index(select(_fence.c.id, _fence.c.attempt).select_from(_fenced).where(_runs), schedule_instance)
_find_succeeded = by_index(
    select(_fence.c.id).select_from(_fenced).where(unindexed(_instance.status) == SUCCEED.target.value),
    schedule_instance,
)


def lock(
    connection: Connection, worker_id: int, fences: Collection[tuple[int, int]], *, at_once: bool = False
) -> set[tuple[int, int]]:
    """Lock these runs, (instance id, attempt), in the order of their ids; returns those that the worker still holds.

    Nearly always the worker still holds all of them. So the statement only counts them, and the ids are read only if
    the count is less. With ``at_once`` the transaction raises Unexpected then.
    """
    expected = sorted(set(fences))
    if at_once:
        if len(dict(expected)) < len(expected):
            raise Unexpected("a worker holds one attempt of a run at most")
        ids, attempts = zip(*expected, strict=True) if expected else ((), ())
        _hold.later(connection, Listed(ids), Listed(attempts), expected=len(expected), worker=worker_id)
        return set(expected)
    values = {"rows": bound(expected), "worker": worker_id}
    if connection.scalar(_count_held, values) == len(expected):
        return set(expected)
    return {(instance_id, attempt) for instance_id, attempt in connection.execute(_find_held, values)}


_rows_of = (
    select(_instance.id, _instance.id).where(among(_instance.id)),
    select(_node.schedule_instance_id, _node.id).where(among(_node.schedule_instance_id)),
)


def locked(connection: Connection, instance_ids: Collection[int]) -> set[int]:
    """Those of the instances that somebody else has locked, or nodes of which. Waits for nobody, and locks nothing."""
    found: set[int] = set()
    for rows in _rows_of if instance_ids else ():
        there, free = (
            {tuple(row) for row in read_before(connection, read, {"ids": sorted(instance_ids)})}
            for read in (rows, rows.with_for_update(skip_locked=True))
        )
        found |= {instance_id for instance_id, _ in there - free}
    return found


def report(connection: Connection, worker_id: int, nodes: Sequence[NodeRow], instances: Sequence[InstanceRow]) -> None:
    """Write the nodes and the ends of runs that this transaction has locked, in the order of their ids.

    A run in ``nodes`` only makes the move "proceed". For a run in ``instances`` the new state says which move it makes:
    begin, succeed, fail, stop or retry. After fail and stop the later nodes are canceled.
    """
    if nodes:
        execute_later(connection, _write_nodes, {"rows": bound(nodes)})
    if not instances:
        return
    execute_later(connection, _write_instances, {"rows": bound(instances), "worker": worker_id})
    for move in (FAIL, STOP):
        follow(connection, move, [row[0] for row in instances if row[2] == move.target])


_blame = (
    update(schedule_instance)
    .where(among(_instance.id), _instance.status == RETRY.target.value)
    .values(
        lost_by=func.coalesce(bindparam("worker"), _instance.lost_by),
        gmt_cancel_requested=None,
        modifier=bindparam("by"),
    )
)


_still_runs = (
    update(schedule_task_node)
    .where(
        _node.id == bindparam("node"),
        _node.status == NodeStatus.RUNNING.value,
        _node.failures == bindparam("counted"),
    )
    .values(failures=_node.failures)
)
"""It changes nothing. It finds no row if the worker has ended the node, or gone on to the next, since it was read."""


def expect_running(connection: Connection, node_id: int, failures: int) -> None:
    """Let the transaction rely on that this node still runs, and has failed as often as was read."""
    execute_later(connection, _still_runs, {"node": node_id, "counted": failures}, expected=1)


def blame(connection: Connection, instance_id: int, worker: str | None, by: str) -> None:
    """Let a run that this transaction has put back to pending avoid this worker. If a cancel was asked for, that is
    carried out: what is to be cleaned up may be claimed."""
    execute_later(connection, _blame, {"ids": [instance_id], "worker": worker, "by": by})


def hand_back(connection: Connection, worker_id: int, fences: Collection[tuple[int, int]], reason: str) -> int:
    """Put runs that this transaction has locked, (instance id, attempt), back to pending; returns how many."""
    if not fences:
        return 0
    status = HAND_BACK.target.value
    rows = [
        (instance_id, attempt, status, None, reason, None, None, None, None, None) for instance_id, attempt in fences
    ]
    execute_later(connection, _write_instances, {"rows": bound(sorted(rows)), "worker": worker_id})
    follow(connection, HAND_BACK, [instance_id for instance_id, _ in fences])
    return len(rows)


_succeed_instances = RowsUpdate(
    schedule_instance,
    lambda good: (
        update(schedule_instance)
        .where(
            good.match,
            _instance.schedule_worker_node_id == bindparam("worker"),
            _instance.attempt == good.c["attempt"],
            leaves(SUCCEED),
        )
        .values(
            status=SUCCEED.target.value,
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
            status=SUCCEED.nodes[NodeStatus.RUNNING].value,
            execution_result=good.c["result"],
            gmt_started=good.c["started"],
            gmt_completed=good.c["ended"],
        )
    ),
    result="json",
    started="time",
    ended="time",
)


_start_nodes = RowsUpdate(
    schedule_task_node,
    lambda good: (
        update(schedule_task_node)
        .where(good.match)
        .values(
            status=PROCEED.first_node,
            execution_result=None,
            gmt_started=good.c["started"],
            gmt_completed=None,
        )
    ),
    started="time",
)


def proceed(connection: Connection, steps: Collection[Step]) -> None:
    """Let runs that this transaction has locked make the move "proceed": a node has succeeded, and the next starts."""
    if not steps:
        return
    ids, *done, _, _ = zip(*sorted(steps, key=itemgetter(0)), strict=True)
    lists = [Listed.of(values) for values in done]
    _succeed_nodes.later(connection, Listed(ids), *lists)
    following, starts = zip(*sorted(step[4:] for step in steps), strict=True)
    _start_nodes.later(connection, Listed(following), lists[2] if starts == done[2] else Listed.of(starts))


def succeed(
    connection: Connection, worker_id: int, successes: Collection[Success], *, at_once: bool = False
) -> set[int]:
    """End runs whose last node succeeded; returns the ids of the instances that the worker no longer holds.

    The instances are updated first, because their update is the fence. If it finds all rows, the worker holds all of
    them. If it does not, with ``at_once`` the transaction raises Unexpected.
    """
    rows = sorted(successes, key=itemgetter(0))
    ids, attempts, *ends = list(zip(*rows, strict=True))[:5]
    lists = [Listed.of(values) for values in ends]
    instances = (Listed(ids), Listed(attempts), *lists)
    lost: set[int] = set()
    if at_once:
        _succeed_instances.later(connection, *instances, worker=worker_id, expected=len(rows))
    elif _succeed_instances(connection, *instances, worker=worker_id).rowcount < len(rows):
        fences = {"rows": bound(zip(ids, attempts, strict=True)), "worker": worker_id}
        lost = set(ids) - set(connection.scalars(_find_succeeded, fences))
    nodes = sorted((row[5:] for row in rows if row[0] not in lost), key=itemgetter(0))
    if nodes:
        node_ids, *node_ends = zip(*nodes, strict=True)
        # Nearly always each node has the same result, start and end as its instance: then the lists are used again.
        paired = zip(node_ends, ends, lists, strict=True)
        node_lists = [listed if values == ended else Listed.of(values) for values, ended, listed in paired]
        _succeed_nodes.later(connection, Listed(node_ids), *node_lists)
    return lost
