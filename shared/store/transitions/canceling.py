"""Cancel an instance that has not started, with its nodes; or ask the worker that runs an instance to stop it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    String,
    Update,
    bindparam,
    case,
    exists,
    func,
    literal,
    select,
    update,
)

from rota.shared.database.constructs import Json, UtcNow, among, bound, by_index, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.lingering import END_WAITS
from rota.shared.domain.states import CALL_OFF, CANCEL, REASON_LIMIT, REFUSE, SKIP, STOP, Move, NodeStatus
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task_node
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.nodes import follow

NOTE_LIMIT = 400
"""How long a note may be that is added to a reason; it names a worker."""

_instance = schedule_instance.c
_node = schedule_task_node.c
_canceled = json_rows("canceled", id="id", reason="str")


def _canceling(move: Move, *fence: ColumnElement[bool]) -> Update:
    return (
        update(schedule_instance)
        .where(_instance.id == _canceled.c.id, leaves(move), *fence)
        .values(
            status=move.target.value,
            reason=_canceled.c.reason,
            gmt_completed=UtcNow(),
            gmt_modified=UtcNow(),
            modifier=bindparam("by"),
        )
    )


_refuse = _canceling(REFUSE)
_skip = _canceling(SKIP, _instance.schedule_worker_node_id == bindparam("worker"))
_cancel = _canceling(CANCEL)
_cancel_as_read = _canceling(CANCEL, _instance.status == bindparam("was"))
_cancel_unclaimed = _pass_over = _canceling(CANCEL, _instance.attempt == 0)


def refuse(connection: Connection, reasons: Mapping[int, str]) -> None:
    """Cancel pending instances that can never run, each with its reason. The scheduler does so."""
    if reasons:
        execute_later(connection, _refuse, {"rows": bound(sorted(reasons.items())), "by": "scheduler"})
        follow(connection, REFUSE, reasons)


def skip(connection: Connection, worker_id: int, reasons: Mapping[int, str]) -> None:
    """Cancel instances that are assigned to this worker and that its claim must not start, each with its reason."""
    if reasons:
        rows = bound(sorted(reasons.items()))
        execute_later(connection, _skip, {"rows": rows, "worker": worker_id, "by": "worker"})
        follow(connection, SKIP, reasons)


def cancel(connection: Connection, instance_id: int, reason: str, by: str) -> None:
    """Cancel an instance if it has not started."""
    execute_later(connection, _cancel, {"rows": bound([(instance_id, reason)]), "by": by})
    follow(connection, CANCEL, [instance_id])


def cancel_as_read(connection: Connection, instance: Row[Any], reason: str, by: str) -> None:
    """Cancel an instance that was read and had not started. The transaction relies on its status."""
    values = {"rows": bound([(instance.id, reason)]), "by": by, "was": instance.status}
    execute_later(connection, _cancel_as_read, values, expected=1)
    follow(connection, CANCEL, [instance.id])


def cancel_waiting(connection: Connection, instance_ids: Collection[int], reason: str, by: str) -> None:
    """Cancel instances that were read and had not started. The transaction relies on it that none has."""
    if instance_ids:
        rows = bound([(number, reason) for number in sorted(instance_ids)])
        execute_later(connection, _cancel, {"rows": rows, "by": by}, expected=len(instance_ids))
        follow(connection, CANCEL, instance_ids)


def cancel_unclaimed(connection: Connection, instance_ids: Collection[int], reason: str, by: str) -> None:
    """Cancel instances that were read and that no worker had ever claimed. The transaction relies on that."""
    if instance_ids:
        rows = bound([(number, reason) for number in sorted(instance_ids)])
        execute_later(connection, _cancel_unclaimed, {"rows": rows, "by": by}, expected=len(instance_ids))
        follow(connection, CANCEL, instance_ids)


def pass_over(connection: Connection, reasons: Mapping[int, str]) -> None:
    """Cancel instances that were never claimed, each with its reason. The scheduler does so."""
    if reasons:
        execute_later(connection, _pass_over, {"rows": bound(sorted(reasons.items())), "by": "scheduler"})
        follow(connection, CANCEL, reasons)


_said: ColumnElement[str] = bindparam("why", type_=String)
_why_requested = case(  # that a run waits for its handler must not be hidden: beside it nobody may clean up
    (_instance.reason.like(f"{END_WAITS}%"), func.substr(literal(f"{END_WAITS}: ").concat(_said), 1, REASON_LIMIT)),
    else_=_said,
)
_request_cancel = (
    update(schedule_instance)
    .where(_instance.id == bindparam("instance"), leaves(STOP), _instance.gmt_cancel_requested.is_(None))
    .values(gmt_cancel_requested=bindparam("requested"), reason=_why_requested)
)


_running = (
    by_index(
        select(_instance.id).where(among(_instance.id), leaves(STOP), _instance.gmt_cancel_requested.is_(None)),
        schedule_instance,
    )
    .distinct()  # so that the server does not merge this into the UPDATE, which would then wait for locked rows
    .with_for_update(skip_locked=True)
    .subquery("running")
)
_request_cancel_of_free = (
    update(schedule_instance)
    .where(_instance.id == _running.c.id)
    .values(gmt_cancel_requested=UtcNow(), reason=_why_requested)
)


_request_cancel_of = (
    update(schedule_instance)
    .where(among(_instance.id), leaves(STOP), _instance.gmt_cancel_requested.is_(None))
    .values(gmt_cancel_requested=UtcNow(), reason=_why_requested)
)


def request_cancel_of(connection: Connection, instance_ids: Collection[int], reason: str) -> None:
    """Ask the workers that run these instances to stop them."""
    if instance_ids:
        execute_later(connection, _request_cancel_of, {"ids": sorted(instance_ids), "why": reason})


def request_cancel_of_free(connection: Connection, instance_ids: Collection[int], reason: str) -> None:
    """Ask the workers that run these instances to stop them, but for the rows that somebody has locked."""
    if instance_ids:
        execute_later(connection, _request_cancel_of_free, {"ids": sorted(instance_ids), "why": reason})


_forget_requests = (
    update(schedule_instance)
    .where(among(_instance.id), leaves(SKIP), _instance.schedule_worker_node_id == bindparam("worker"))
    .values(gmt_cancel_requested=None)
)


def forget_requests(connection: Connection, worker_id: int, instance_ids: Collection[int]) -> None:
    """The cancels of these instances, which are assigned to this worker, are carried out: it may claim what is left."""
    if instance_ids:
        execute_later(connection, _forget_requests, {"ids": sorted(instance_ids), "worker": worker_id})


_call_off = (
    update(schedule_instance)
    .where(
        _instance.id == bindparam("instance"),
        leaves(CALL_OFF),
        _instance.status == bindparam("was"),
        _instance.attempt == bindparam("attempt_read"),
    )
    .values(
        status=CALL_OFF.target.value,
        schedule_worker_node_id=None,
        gmt_assigned=None,
        gmt_cancel_requested=None,
        due_at=UtcNow(),
        reason=bindparam("why"),
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)
_is_called_off = exists(
    select(_instance.id)
    .where(owns_node, _instance.status == CALL_OFF.target.value, _instance.attempt == bindparam("attempt_read"))
    .correlate(schedule_task_node)
)
_call_off_nodes = (
    update(schedule_task_node)
    .where(among(_node.id, "nodes"), _node.status.in_([status.value for status in CALL_OFF.nodes]), _is_called_off)
    .values(status=CALL_OFF.nodes[NodeStatus.PENDING].value, execution_result=bindparam("result", type_=Json))
)


@dataclass(frozen=True, slots=True)
class CalledOff:
    """An instance that had begun, and waits in this state, after so many attempts; and its nodes that are canceled.

    Its other nodes run always: a worker runs them.
    """

    id: int
    was: str
    attempt: int
    nodes: Collection[int]


def call_off(connection: Connection, one: CalledOff, reason: str, by: str, *, expected: int | None = None) -> None:
    """Cancel an instance but for its nodes that run always, if it is as it was read.

    With ``expected=1`` the transaction relies on that.
    """
    values = {"instance": one.id, "was": one.was, "attempt_read": one.attempt, "why": reason, "by": by}
    execute_later(connection, _call_off, values, expected=expected)
    given = {"nodes": sorted(one.nodes), "attempt_read": one.attempt, "result": {"error": reason}}
    execute_later(connection, _call_off_nodes, given)


_noted = json_rows("noted", id="id", note="str")
_add_to_reason = (
    update(schedule_instance)
    .where(_instance.id == _noted.c.id, leaves(STOP), _instance.reason.is_not(None))
    .values(reason=func.substr(_instance.reason, 1, REASON_LIMIT - NOTE_LIMIT).concat(_noted.c.note))
)


def add_to_reasons(connection: Connection, notes: Mapping[int, str]) -> None:
    """Add to the reasons of runs that are to be canceled, and that this transaction has locked."""
    if notes:
        rows = bound((instance_id, note[:NOTE_LIMIT]) for instance_id, note in sorted(notes.items()))
        execute_later(connection, _add_to_reason, {"rows": rows})


def request_cancel(connection: Connection, instance_id: int, now: datetime, reason: str) -> None:
    """Ask the worker that runs this instance to stop it; ``now`` is naive UTC.

    The transaction relies on that it runs, and that nobody has asked before.
    """
    values = {"instance": instance_id, "requested": now, "why": reason}
    execute_later(connection, _request_cancel, values, expected=1)
