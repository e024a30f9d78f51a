"""Give another time and param to an instance that waits, and put it back to pending."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, case, update
from sqlalchemy.engine import Connection

from rota.shared.database.constructs import UtcNow, bound, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.states import RESCHEDULE
from rota.shared.store.tables import schedule_instance
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_moved = json_rows("moved", id="id", attempt="int", at="time", param="json")
_reschedule = (
    update(schedule_instance)
    .where(_instance.id == _moved.c.id, leaves(RESCHEDULE), _instance.attempt == _moved.c.attempt)
    .values(
        status=RESCHEDULE.target.value,
        schedule_datetime=case((_instance.follows_id.is_(None), _moved.c.at), else_=_instance.schedule_datetime),
        due_at=case((_moved.c.at > UtcNow(), _moved.c.at), else_=UtcNow()),
        param=_moved.c.param,
        schedule_worker_node_id=None,
        gmt_assigned=None,
        reason=None,
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """An instance as it was read, and what it gets: its time (naive UTC), and its param as a JSON text."""

    id: int
    attempt: int
    at: datetime
    param: str | None


def reschedule(connection: Connection, given: Iterable[Rescheduled], by: str) -> None:
    """Reschedule instances that wait. The transaction relies on it that all of them still do.

    What a handler has asked for keeps its nominal time, by which the run that asked finds it.
    """
    rows = sorted((one.id, one.attempt, one.at, one.param) for one in given)
    if rows:
        execute_later(connection, _reschedule, {"rows": bound(rows), "by": by}, expected=len(rows))
