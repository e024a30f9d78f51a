"""The moves of running instances whose worker was lost."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Integer, bindparam, case, cast, exists, literal_column, or_, select, update

from rota.shared.database.constructs import BigId, UtcNow, among, bound, by_primary_key, json_rows, unindexed
from rota.shared.database.later import execute_later
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import CANCEL_LOST, FAIL_LOST, RECOVER, Move
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
_entered = exists(select(_node.id).where(owns_node, _node.gmt_started.is_not(None)).correlate(schedule_instance))
_ended = _lost.c.status != literal_column(f"'{RECOVER.target.value}'")

_recover = (
    update(schedule_instance)
    .where(
        _instance.id == _lost.c.id,
        leaves(RECOVER, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id).is_not_distinct_from(bindparam("holder", type_=BigId)),
        _instance.attempt == _lost.c.attempt,
        case((_instance.gmt_cancel_requested.is_(None), 0), else_=1) == _lost.c.requested,
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
        reason=_lost.c.reason,
        execution_result=_lost.c.result,
        failed_attempts=one_more(_instance.failed_attempts, _lost.c.attempt_end),
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The move of an instance whose worker was lost, and why: ``RECOVER``, ``FAIL_LOST`` or ``CANCEL_LOST``."""

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


_hold = by_primary_key(update(schedule_instance).where(among(_instance.id)).values(attempt=_instance.attempt))
"""It changes nothing: it locks the rows, so that the next statement sees which handlers were entered before."""


def recover(connection: Connection, verdicts: Collection[Verdict], holder: int | None, worker: str, by: str) -> None:
    """Carry out verdicts about instances that were read as ``running`` under the worker ``holder``.

    ``worker`` is the name to avoid. An instance that is not as its verdict says any more stays as it is.
    """
    if not verdicts:
        return
    if waiting := sorted(v.id for v in verdicts if v.waits):
        execute_later(connection, _hold, {"ids": waiting})
    rows = [
        (
            v.id, v.attempt, int(v.is_cancel_requested), int(v.waits), v.move.target.value, v.losses, v.reason,
            None if v.move is RECOVER else json_text({"error": v.reason}), v.attempt_end,
        )
        for v in verdicts
    ]  # fmt: skip
    values = {"rows": bound(rows), "holder": holder, "worker": worker, "by": by}
    execute_later(connection, _recover, values)
    for move in (RECOVER, FAIL_LOST, CANCEL_LOST):
        follow(connection, move, [v.id for v in verdicts if v.move is move])
