"""The moves of running instances whose worker was lost."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    bindparam,
    case,
    cast,
    exists,
    literal_column,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import BigId, Json, UtcNow, among, bound, found_by, json_rows, unindexed
from rota.shared.database.later import execute_later
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import CANCEL_LOST, CLEAN_UP, FAIL_LOST, RECOVER, InstanceStatus, Move, NodeStatus
from rota.shared.store.failed_attempts import one_more
from rota.shared.store.limits import RANGES
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task_node
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.nodes import follow

_instance = schedule_instance.c
_node = schedule_task_node.c

MOST_LOSSES = RANGES["schedule_instance"]["worker_losses"][1]
LOSSES = cast(_instance.worker_losses, Integer)
"""How many workers an instance has lost: a number also where SQL wrote a text, which SQLite keeps as it is."""

_lost = json_rows(
    "lost", id="id", attempt="int", requested="int", waits="int", status="str", losses="int", reason="str",
    result="json", attempt_end="json",
)  # fmt: skip
_entered = exists(
    select(_node.id)
    .where(owns_node, _node.status == NodeStatus.RUNNING.value, _node.gmt_started.is_not(None))
    .correlate(schedule_instance)
)
_ended = _lost.c.status != literal_column(f"'{RECOVER.target.value}'")


def _fence(attempt: Any, requested: Any) -> tuple[ColumnElement[bool], ...]:
    """The instance is still as it was read: running under its holder, in this attempt, to be canceled or not."""
    return (
        leaves(RECOVER, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id).is_not_distinct_from(bindparam("holder", type_=BigId)),
        _instance.attempt == attempt,
        case((_instance.gmt_cancel_requested.is_(None), 0), else_=1) == requested,
    )


_recover = (
    update(schedule_instance)
    .where(
        _instance.id == _lost.c.id,
        *_fence(_lost.c.attempt, _lost.c.requested),
        or_(_lost.c.waits == 0, ~_entered),
    )
    .values(
        status=_lost.c.status,
        schedule_worker_node_id=case((_ended, _instance.schedule_worker_node_id)),
        gmt_assigned=case((_ended, _instance.gmt_assigned)),
        gmt_started=case((_ended, _instance.gmt_started)),
        gmt_completed=case((_ended, UtcNow())),
        worker_losses=case((LOSSES < MOST_LOSSES, LOSSES + _lost.c.losses), else_=LOSSES),
        lost_by=case((_ended, _instance.lost_by), else_=bindparam("worker")),
        # What is to be cleaned up may be claimed. Of what waits, the claim carries the cancel out.
        gmt_cancel_requested=case((or_(_ended, _lost.c.waits == 1), _instance.gmt_cancel_requested)),
        reason=_lost.c.reason,
        execution_result=_lost.c.result,
        failed_attempts=one_more(_instance.failed_attempts, _lost.c.attempt_end),
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The move of an instance whose worker was lost, and why.

    It is ``RECOVER``, ``FAIL_LOST`` or ``CANCEL_LOST``; or ``CLEAN_UP``, with the nodes that have ``ended``.
    """

    id: int
    attempt: int
    """The attempt that was lost."""

    move: Move
    reason: str
    losses: int = 1
    """0 if the worker had not begun it: then the instance cannot be what killed the worker."""

    is_cancel_requested: bool = False
    """Whether somebody had asked to cancel it."""

    waits: bool = False
    """Whether no handler of it was entered."""

    attempt_end: str | None = None
    """How the attempt failed, as JSON text; None if it did not fail: it was canceled, or never began."""

    ended: Sequence[int] = ()
    """The ids of the nodes that have ended: the one that ran has failed, or was canceled if somebody had asked for
    that, and the others were canceled."""

    runs_again: bool = False
    """Whether the node that ran has not ended: another worker runs it once more, since it runs always."""


_hold = found_by(update(schedule_instance).where(among(_instance.id)).values(attempt=_instance.attempt))
"""It changes nothing: it locks the rows, so that the next statement sees which handlers were entered before."""

_ran = _node.status == NodeStatus.RUNNING.value
_says_why = _node.id == bindparam("first")
_end_nodes = (
    update(schedule_task_node)
    .where(
        among(_node.id, "nodes"),
        _node.status.in_([status.value for status in CLEAN_UP.nodes]),
        exists(
            select(_instance.id)
            .where(owns_node, *_fence(bindparam("attempt"), bindparam("requested")))
            .correlate(schedule_task_node)
        ),
    )
    .ordered_values(  # the state must come last, as in ``follow``
        (_node.execution_result, case((_says_why, bindparam("result", type_=Json)), else_=_node.execution_result)),
        (_node.gmt_completed, case((_ran, UtcNow()), else_=_node.gmt_completed)),
        (_node.status, case((_ran, bindparam("status")), else_=CLEAN_UP.nodes[NodeStatus.PENDING].value)),
    )
)


def recover(connection: Connection, verdicts: Collection[Verdict], holder: int | None, worker: str, by: str) -> None:
    """Carry out verdicts about instances that were read as ``running`` under the worker ``holder``.

    ``worker`` is the name to avoid. An instance that is not as its verdict says any more stays as it is.
    """
    if not verdicts:
        return
    if held := sorted(v.id for v in verdicts if v.waits or v.ended):
        execute_later(connection, _hold, {"ids": held})
    for verdict in verdicts:
        if verdict.ended:
            _clean_up(connection, verdict, holder)
    rows = [
        (
            v.id, v.attempt, int(v.is_cancel_requested), int(v.waits), v.move.target.value, v.losses, v.reason,
            None if v.move.target is InstanceStatus.PENDING else json_text({"error": v.reason}), v.attempt_end,
        )
        for v in verdicts
    ]  # fmt: skip
    values = {"rows": bound(rows), "holder": holder, "worker": worker, "by": by}
    execute_later(connection, _recover, values)
    for move in (RECOVER, FAIL_LOST, CANCEL_LOST):
        follow(connection, move, [v.id for v in verdicts if v.move is move or (move is RECOVER and v.runs_again)])


def _clean_up(connection: Connection, verdict: Verdict, holder: int | None) -> None:
    """End the nodes of a run, whose row is locked, but for those that are left."""
    status = NodeStatus.CANCELED if verdict.is_cancel_requested else CLEAN_UP.nodes[NodeStatus.RUNNING]
    values = {
        "nodes": sorted(verdict.ended),
        "first": verdict.ended[0],
        "attempt": verdict.attempt,
        "requested": int(verdict.is_cancel_requested),
        "holder": holder,
        "status": status.value,
        "result": {"error": verdict.reason},
    }
    execute_later(connection, _end_nodes, values)
