"""Tasks: add, edit, switch, remove, run, show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit, known_types
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import (
    Document,
    catch_up_document,
    declaration_document,
    instance_document,
    instance_in_list,
    last_run_document,
    plain,
    skip_document,
    task_document,
    task_in_list,
    task_with_fires,
    values_of,
)
from rota.shared.database.transactions import Database
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition, read_times
from rota.shared.domain.task_filter import EVERY_TASK, TaskFilter
from rota.shared.domain.times import read_time, zone_of
from rota.shared.store import catch_ups, chains, declarations, instances, last_runs, skips, steering, tasks
from rota.shared.waking.schedulers import wake_schedulers

INSTANCES_SHOWN = 5
SKIPS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an act, with remarks for its author: for example, how an ambiguous local time was read."""

    document: Document
    remarks: Sequence[str] = ()


def add(database: Database, actor: Actor, fields: Mapping[str, Any], why: str | None = None) -> Outcome:
    """Add a task; returns it with its next fires. ``fields`` are those of `TaskDefinition`; times may be text.

    Raises InvalidInput with every fault, InvalidParam, NameTaken.

        add(database, Actor("ann", "cli"), {"name": "nightly", "type": "CLEANUP_TEMP", "cron": "0 3 * * *"})
    """
    taken, remarks = read_times(fields, fields.get("timezone") or "UTC")
    definition = TaskDefinition.of(**taken)

    def work(connection: Connection, act: Act) -> Row[Any]:
        task_id = tasks.add(connection, definition, actor.name)
        _record_new(connection, act, (task_id, definition.name), definition.columns())
        return tasks.find(connection, definition.name)

    row = perform(database, actor, why, work)
    return Outcome(task_with_fires(row, database.clock.now()), remarks)


def edit(database: Database, actor: Actor, name: str, changes: Mapping[str, Any], why: str | None = None) -> Outcome:
    """Change fields of a task; returns it with its next fires.

    None clears a field. A time without an offset is local time in the task's zone.
    Raises NotFound, InvalidInput, InvalidParam, NameTaken.
    """

    def work(connection: Connection, act: Act) -> tuple[int, list[str]]:
        before = tasks.find(connection, name)
        taken, remarks = read_times(changes, changes.get("timezone") or before.timezone)
        _record_edit(connection, act, before, tasks.edit(connection, before, taken, actor.name))
        return before.id, remarks

    with tasks.naming(changes.get("name", name)):
        task_id, remarks = perform(database, actor, why, work)
    row = database.read(lambda connection: tasks.by_id(connection, task_id))
    return Outcome(task_with_fires(row, database.clock.now()), remarks)


def switch(
    database: Database, actor: Actor, names: Sequence[str], status: TaskStatus, why: str | None = None
) -> list[Document]:
    """Turn all of these tasks on or off, or none; says of each whether it was changed.

    Raises NotFound.
    """

    def turn(connection: Connection, act: Act, row: Row[Any]) -> Document:
        changed = tasks.switch(connection, row, status, actor.name)
        if changed:
            old, new = {"status": row.status}, {"status": status.value}
            audit.on_task(connection, act, f"task.{status.value}", (row.id, row.name), old=old, new=new)
        return {"name": row.name, "status": status.value, "changed": changed}

    def turn_all(connection: Connection, act: Act) -> list[Document]:
        rows = {name: tasks.find(connection, name) for name in sorted(set(names))}
        once_each = {row.id: row for row in rows.values()}  # in the order of names: all acts lock in one order
        turned = {number: turn(connection, act, row) for number, row in once_each.items()}
        return [turned[rows[name].id] for name in dict.fromkeys(names)]

    return perform(database, actor, why, turn_all)


def remove(database: Database, actor: Actor, name: str, why: str | None = None) -> Document:
    """Mark a task as deleted: it fires no more, its name is free, its history stays.

    Raises NotFound.
    """

    def work(connection: Connection, act: Act) -> int:
        row = tasks.find(connection, name)
        tasks.remove(connection, row, actor.name)
        old, new = {"is_deleted": 0}, {"is_deleted": 1}
        audit.on_task(connection, act, "task.remove", (row.id, name), old=old, new=new)
        return int(row.id)

    return {"id": perform(database, actor, why, work), "name": name, "removed": True}


def run(
    database: Database, actor: Actor, name: str, *, at: str | None = None, param: Any = None, why: str | None = None
) -> Outcome:
    """Run a task once, even if it is off; returns the new instance.

    ``at`` is the nominal time of the instance, by default now. A time to come is waited for; for one that has passed
    the instance runs now. A time without an offset is local time in the task's
    zone. Raises NotFound, InvalidParam, or InvalidInput for a text that is no time.
    """
    now = database.clock.now()

    def work(connection: Connection, act: Act) -> tuple[Row[Any], str | None]:
        task = tasks.find(connection, name)
        moment, remark = (now, None) if at is None else read_time(at, zone_of(task.timezone))
        if param is not None or task.param is None:
            known_types.check(database, connection, task.type, param)
        instance_id = instances.ask(connection, task, moment, actor.name, param=param)
        instance = instances.find(connection, instance_id)
        new = {"schedule_datetime": plain(moment), **({} if param is None else {"param": param})}
        audit.on_instance(connection, act, "task.run", instance, old=None, new=new)
        return instance, remark

    instance, remark = perform(database, actor, why, work)
    wake_schedulers(database, instance.due_at)
    return Outcome(instance_document(instance, nodes=()), [remark] if remark else [])


def declare(database: Database, actor: Actor, definition: TaskDefinition, *, liveness_seconds: float) -> bool:
    """Insert or update, by name, a task that code declares; True if the declaration is in force now.

    An update writes only the fields whose declared value differs from the declaration in force. False: it yields to a
    newer one, which a live worker carries or has carried within ``liveness_seconds``. Raises InvalidInput, and what
    ``Database.write_if_free`` raises.
    """

    def work(connection: Connection, act: Act) -> bool:
        declared = declarations.declare(connection, definition, actor.name, liveness_seconds=liveness_seconds)
        if declared.before is None:
            _record_new(connection, act, (declared.task_id, definition.name), declared.written)
        else:
            _record_edit(connection, act, declared.before, declared.written)
        return declared.in_force

    return perform(database, actor, None, work, waits=False)


def listed(database: Database, limit: int, chosen: TaskFilter = EVERY_TASK) -> list[Document]:
    """At most ``limit`` tasks by name, each with its last run, and with its next fire if it is on.

    listed(database, 100, TaskFilter(owner="ann", tags=["finance"]))
    """

    now = database.clock.now()

    def read(connection: Connection) -> list[Document]:
        rows = tasks.listed(connection, limit, chosen)
        ids = [row.id for row in rows]
        last, written = last_runs.of_tasks(connection, ids), steering.ahead(connection, ids, now)
        return [task_in_list(row, now, last.get(row.id), written.get(row.id)) for row in rows]

    return database.read(read)


def get(database: Database, name: str) -> Document:
    """A task's columns alone.

    Raises NotFound.
    """
    return task_document(database.read(lambda connection: tasks.find(connection, name)))


def show(database: Database, name: str) -> Document:
    """A task with its next fires, its newest instances, and the ``declaration`` of code that is in force.

    ``last_run`` is the newest that has begun or ended. ``skipped`` has the newest stretches of fires that were not run,
    and why, ``catching_up`` the missed fires that are still to run, and ``followed_by`` the names of the tasks that
    follow it. Raises NotFound.
    """

    now = database.clock.now()

    def read(connection: Connection) -> Document:
        row = tasks.find(connection, name)
        fires = task_with_fires(row, now, steering.newest(connection, row.id))
        last = instances.listed(connection, INSTANCES_SHOWN, task_id=row.id)
        declared = row.declared is not None
        return fires | {
            "declaration": declaration_document(row, declarations.carriers(connection, name)) if declared else None,
            "instances": [instance_in_list(one) for one in last],
            "last_run": last_run_document(last_runs.of_tasks(connection, [row.id]).get(row.id)),
            "skipped": [skip_document(one) for one in skips.newest(connection, row.id, SKIPS_SHOWN)],
            "followed_by": chains.followers(connection, row.name),
            "catching_up": [catch_up_document(one) for one in catch_ups.of_task(connection, row.id)],
        }

    return database.read(read)


def _record_new(connection: Connection, act: Act, task: tuple[int, str], written: Mapping[str, Any]) -> None:
    """Record a new task with all its fields; its name has a column of its own."""
    new = {field: plain(value) for field, value in written.items() if value is not None and field != "name"}
    audit.on_task(connection, act, "task.add", task, old=None, new=new)


def _record_edit(connection: Connection, act: Act, before: Row[Any], written: Mapping[str, Any]) -> None:
    """Record the fields whose values have changed; nothing if none has."""
    new = {name: plain(value) for name, value in written.items() if getattr(before, name) != value}
    if new:
        old = values_of(before, new)
        audit.on_task(connection, act, "task.set", (before.id, before.name), old=old, new=new)
