"""Tasks as an operator makes them: by plain SQL, many at once, on any database. All tests that need rows use this."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from rota.shared.database.constructs import among
from rota.shared.database.transactions import opened
from rota.shared.store.tables import schedule_task

_task = schedule_task.c


def insert_tasks(connection: Connection, tasks: Collection[Mapping[str, Any]]) -> list[int]:
    """Insert tasks with these columns, the same for each; returns their ids in the order given.

    A cron of six fields has seconds; a task without a cron runs only when asked.
    """
    rows = [{**_trigger(task.get("cron")), **task} for task in tasks]
    connection.execute(insert(schedule_task), rows)
    names = select(_task.live_name, _task.id).where(_task.live_name.in_([row["name"] for row in rows]))
    ids: dict[str, int] = dict(connection.execute(names).all())
    return [ids[row["name"]] for row in rows]


def note_planned(connection: Connection, task_ids: Collection[int], **columns: Any) -> None:
    """Let these tasks stand as if a scheduler had just planned them from what they say, with these columns."""
    statement = update(schedule_task).where(among(_task.id))
    connection.execute(statement.values(**columns, planned_inputs=_task.plan_inputs), {"ids": sorted(task_ids)})


def add_task(url: str, name: str, *, planned: bool = False, **columns: Any) -> int:
    """Insert one task; returns its id."""
    with opened(url) as database:
        return database.write(lambda connection: _add(connection, {"name": name, **columns}, planned))


def _add(connection: Connection, task: Mapping[str, Any], planned: bool) -> int:
    [task_id] = insert_tasks(connection, [task])
    if planned:
        note_planned(connection, [task_id])
    return task_id


def _trigger(cron: str | None) -> dict[str, Any]:
    if cron is None:
        return {"trigger_kind": "manual"}
    return {"trigger_kind": "cron", "cron_seconds": int(len(cron.split()) == 6)}
