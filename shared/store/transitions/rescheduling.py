"""Give another time and param to an instance that waits, and at which no scheduler has looked yet."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, case, update

from rota.shared.database.constructs import SecondsBefore, UtcNow, bound, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.business_keys import MOST_AHEAD_SECONDS
from rota.shared.domain.states import RESCHEDULE
from rota.shared.store.tables import schedule_instance
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_moved = json_rows("moved", id="id", task="id", at="time", param="json")
_reschedule = (
    update(schedule_instance)
    .where(
        _instance.id == _moved.c.id,
        leaves(RESCHEDULE),
        SecondsBefore(_instance.due_at, bindparam("most_ahead")) > UtcNow(),
    )
    .values(
        status=RESCHEDULE.target.value,
        schedule_task_id=_moved.c.task,
        schedule_datetime=case((_instance.follows_id.is_(None), _moved.c.at), else_=_instance.schedule_datetime),
        due_at=case((_moved.c.at > UtcNow(), _moved.c.at), else_=UtcNow()),
        param=_moved.c.param,
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """What an instance gets: its task, its time (naive UTC), and its param as a JSON text."""

    id: int
    task_id: int
    at: datetime
    param: str | None


def reschedule(connection: Connection, given: Iterable[Rescheduled], by: str) -> None:
    """Reschedule instances. The transaction relies on it that all wait, and are not due within MOST_AHEAD_SECONDS.

    What a handler has asked for keeps its nominal time, by which the run that asked finds it.
    """
    rows = sorted((one.id, one.task_id, one.at, one.param) for one in given)
    if rows:
        values = {"rows": bound(rows), "by": by, "most_ahead": MOST_AHEAD_SECONDS}
        execute_later(connection, _reschedule, values, expected=len(rows))
