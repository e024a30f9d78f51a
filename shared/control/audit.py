"""The audit: who changed what, when, through which face and why. Each act is recorded in its own transaction."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control.acts import Act
from rota.shared.control.documents import Document, audit_document
from rota.shared.database.transactions import Database
from rota.shared.store import audit, tasks
from rota.shared.store.audit import BACKFILL, CALENDAR, INSTANCE, LIMIT, PAUSE, TASK, WORKER, AuditEntry

Values = Mapping[str, Any]


def listed(
    database: Database, limit: int, *, task: str | None = None, instance_id: int | None = None
) -> list[Document]:
    """At most ``limit`` acts, the newest first.

    With ``task``, only those on the tasks of this name and on their instances; with ``instance_id``, only those on one
    instance. In large values the param is None. Raises NotFound for a task that never existed.
    """
    return [audit_document(row) for row in _read(database, limit, task, instance_id)]


def each_whole(
    database: Database, limit: int, *, task: str | None = None, instance_id: int | None = None
) -> Iterator[Document]:
    """The acts of ``listed``, one after the other, with params however large. Raises as it does."""
    for row in _read(database, limit, task, instance_id):
        yield audit_document(database.read(partial(audit.whole, act_id=row.id)) if row.is_cut else row)


def _read(database: Database, limit: int, task: str | None, instance_id: int | None) -> list[Row[Any]]:
    def read(connection: Connection) -> list[Row[Any]]:
        if instance_id is not None:
            return audit.of_instance(connection, instance_id, limit)
        if task is None:
            return audit.listed(connection, limit)
        rows = audit.of_task(connection, task, limit)
        if not rows:
            tasks.find(connection, task)
        return rows

    return database.read(read)


def on_task(
    connection: Connection, act: Act, action: str, task: tuple[int, str], *, old: Values | None, new: Values
) -> None:
    """Record what an act did to a task, given by its id and its name then; ``old`` is None for a new task."""
    audit.record(connection, _entry(act, action, (TASK, *task), old, new))


def on_instance(
    connection: Connection, act: Act, action: str, instance: Row[Any], *, old: Values | None, new: Values
) -> None:
    """Record what an act did to an instance, given by its row with ``task_name``; ``old`` is None for a new one."""
    changed = (INSTANCE, instance.id, instance.task_name)
    audit.record(connection, _entry(act, action, changed, old, new))


def on_backfill(
    connection: Connection, act: Act, action: str, backfill: tuple[int, str], *, old: Values | None, new: Values
) -> None:
    """Record what an act did to a backfill, given by its id and the name of its task; ``old`` is None for a new one."""
    audit.record(connection, _entry(act, action, (BACKFILL, *backfill), old, new))


def on_worker(connection: Connection, act: Act, action: str, worker: Row[Any], *, old: Values, new: Values) -> None:
    """Record what an act did to a worker, given by its row. The values hold its name: ``object_name`` is a task's."""
    name = {"name": worker.name}
    audit.record(connection, _entry(act, action, (WORKER, worker.id, None), name | {**old}, name | {**new}))


def on_limit(
    connection: Connection, act: Act, action: str, limit: tuple[int, str], *, old: Values | None, new: Values
) -> None:
    """Record what an act did to a limit, given by its id and its name. The values hold its name, as of a worker."""
    name = {"name": limit[1]}
    was = None if old is None else name | {**old}
    audit.record(connection, _entry(act, action, (LIMIT, limit[0], None), was, name | {**new}))


def on_pause(connection: Connection, act: Act, action: str, pause_id: int, *, old: Values | None, new: Values) -> None:
    """Record what an act did to the pause of all scheduling; ``old`` is None where it began."""
    audit.record(connection, _entry(act, action, (PAUSE, pause_id, None), old, new))


def on_calendar(
    connection: Connection, act: Act, action: str, calendar: tuple[int, str], *, old: Values | None, new: Values
) -> None:
    """Record what an act did to a calendar, given by its id and its name; the values hold its name."""
    calendar_id, name = calendar
    before = None if old is None else {"name": name} | {**old}
    audit.record(connection, _entry(act, action, (CALENDAR, calendar_id, None), before, {"name": name} | {**new}))


def _entry(act: Act, action: str, changed: tuple[str, int, str | None], old: Values | None, new: Values) -> AuditEntry:
    return AuditEntry(act.key, act.actor.name, act.actor.face, action, *changed, act.why, old, new)
