"""Runs that the handler of another run has asked for, by ``RunAgain``.

They are written in the transaction that reports the end, so no mark is needed for them. Their ``fire_key`` names the
run that asked, so there is one at most (docs/decisions/0048-what-follows-an-end.md).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    select,
    update,
)

from rota.shared.database.constructs import UtcNow, bound, by_index, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.states import SUCCEED, Origin
from rota.shared.store.tables import schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c
_asked = json_rows("asked", id="id", attempt="int", at="time", fire_key="str")

_has_asked = and_(
    _instance.id == _asked.c.id,
    _instance.schedule_worker_node_id == bindparam("worker"),
    _instance.attempt == _asked.c.attempt,
    _instance.status == literal_column(f"'{SUCCEED.target.value}'"),
)
_note = update(schedule_instance).where(_has_asked).values(run_again_at=_asked.c.at)
_worker: ColumnElement[str] = literal_column("'worker'")
_columns = {
    "schedule_task_id": _instance.schedule_task_id,
    "schedule_datetime": _asked.c.at,
    "due_at": case((_asked.c.at > UtcNow(), _asked.c.at), else_=UtcNow()),
    "fire_key": _asked.c.fire_key,
    "run_number": literal_column("0"),
    "origin": literal_column(f"'{Origin.MANUAL.value}'"),
    "priority": func.coalesce(_task.priority, _instance.priority),
    "param": _instance.param,
    "follows_id": _instance.id,
    "creator": _worker,
    "modifier": _worker,
}
_insert = ignore_conflicts(insert(schedule_instance)).from_select(
    list(_columns),
    by_index(
        select(*_columns.values())
        .join_from(_asked, schedule_instance, _has_asked)
        .outerjoin(schedule_task, _task.id == _instance.schedule_task_id),
        schedule_instance,
    ),
    include_defaults=False,
)


def fire_key(instance_id: int) -> str:
    """The ``fire_key`` of what an instance's handler has asked for."""
    return f"after-{instance_id}"


def ask(connection: Connection, worker_id: int, runs: Iterable[tuple[int, int, datetime]]) -> None:
    """Insert one more run of the task of each of these runs, (instance id, attempt, time in naive UTC).

    This transaction has reported that they succeeded. A run that is there already stays as it is.
    """
    if rows := sorted((i, attempt, at, fire_key(i)) for i, attempt, at in runs):
        values = {"rows": bound(rows), "worker": worker_id}
        execute_later(connection, _note, values)
        execute_later(connection, _insert, values)


def of_instance(connection: Connection, instance: Row[Any]) -> int | None:
    """The id of the run that an instance's handler has asked for; None if it has asked for none, or SQL deleted it."""
    if instance.run_again_at is None:
        return None
    found: int | None = connection.scalar(
        select(_instance.id).where(
            _instance.schedule_task_id == instance.schedule_task_id,
            _instance.schedule_datetime == instance.run_again_at,
            _instance.fire_key == fire_key(instance.id),
            _instance.run_number == 0,
        )
    )
    return found
