"""The moves of running instances whose worker was lost."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, case, literal_column, update

from rota.shared.database.constructs import UtcNow, bound, json_rows
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import CANCEL_LOST, FAIL_LOST, RECOVER, Move
from rota.shared.store.tables import schedule_instance
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.nodes import follow

_instance = schedule_instance.c

_lost = json_rows("lost", id="id", status="str", losses="int", reason="str", result="json")
_ended = _lost.c.status != literal_column(f"'{RECOVER.target.value}'")

_recover = (
    update(schedule_instance)
    .where(_instance.id == _lost.c.id, leaves(RECOVER))
    .values(
        status=_lost.c.status,
        schedule_worker_node_id=case((_ended, _instance.schedule_worker_node_id)),
        gmt_assigned=case((_ended, _instance.gmt_assigned)),
        gmt_started=case((_ended, _instance.gmt_started)),
        gmt_completed=case((_ended, UtcNow())),
        worker_losses=_instance.worker_losses + _lost.c.losses,
        lost_by=case((_ended, _instance.lost_by), else_=bindparam("worker")),
        reason=_lost.c.reason,
        execution_result=_lost.c.result,
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The move of an instance whose worker was lost, and why: ``RECOVER``, ``FAIL_LOST`` or ``CANCEL_LOST``."""

    id: int
    move: Move
    reason: str
    losses: int = 1
    """0 if the worker had not begun it: then the instance cannot be what killed the worker."""


def recover(connection: Connection, verdicts: Collection[Verdict], worker: str, by: str) -> None:
    """Carry out verdicts about instances that this transaction has locked; ``worker`` is the lost worker's name."""
    if not verdicts:
        return
    rows = [
        (v.id, v.move.target.value, v.losses, v.reason, None if v.move is RECOVER else json_text({"error": v.reason}))
        for v in verdicts
    ]
    connection.execute(_recover, {"rows": bound(rows), "worker": worker, "by": by})
    for move in (RECOVER, FAIL_LOST, CANCEL_LOST):
        follow(connection, move, [v.id for v in verdicts if v.move is move])
