"""Tasks as people and code edit them."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from shared.domain.errors import NameTaken, NotFound
from shared.domain.states import TaskStatus
from shared.domain.task import TaskDefinition
from shared.store.database import Database
from shared.store.dialects import UtcNow
from shared.store.node_types import catalog
from shared.store.tables import schedule_task

_task = schedule_task.c


def find(connection: Connection, name: str) -> Row[Any]:
    """The live task of that name.

    Raises NotFound.
    """
    row = connection.execute(select(schedule_task).where(_task.live_name == name)).one_or_none()
    if row is None:
        raise NotFound(f"no task is named {name!r}; rota task list shows them")
    return row


def listed(connection: Connection, limit: int, *, status: str | None = None, like: str | None = None) -> list[Row[Any]]:
    """Live tasks by name; ``like`` is a part of the name."""
    statement = select(schedule_task).where(_task.live_name.is_not(None)).order_by(_task.live_name).limit(limit)
    if status is not None:
        statement = statement.where(_task.status == status)
    if like is not None:
        statement = statement.where(_task.live_name.contains(like, autoescape=True))
    return list(connection.execute(statement))


def insert_into(database: Database, work: Callable[[Connection], list[int]]) -> list[int]:
    """Run ``work``, which adds tasks, and return their ids; a lost answer is not taken for a name that is taken."""
    return database.insert(schedule_task, work)


def add(connection: Connection, definition: TaskDefinition, by: str) -> int:
    """Insert a task, checked against the registered node types; returns its id. The scheduler plans it within a tick.

    Raises NameTaken, or InvalidParam for an unknown type or a param that does not fit it.
    """
    catalog(connection).check(definition.type, definition.param)
    return _insert(connection, definition.columns(), by)


def _insert(connection: Connection, columns: dict[str, Any], by: str) -> int:
    try:
        result = connection.execute(insert(schedule_task).values(**columns, creator=by, modifier=by))
    except IntegrityError as error:
        raise NameTaken(
            f"a task named {columns['name']!r} exists already; change it with rota task set, or choose another name"
        ) from error
    return int(result.lastrowid)


def definition_of(row: Row[Any]) -> TaskDefinition:
    """The definition a row holds.

    Raises InvalidInput for one that SQL made invalid.
    """
    return TaskDefinition.of(**{name: getattr(row, name) for name in TaskDefinition.model_fields})


def edit(connection: Connection, name: str, changes: dict[str, Any], by: str) -> TaskDefinition:
    """Change fields of a task, checked as a whole; returns what it is now.

    Raises NotFound, InvalidInput, InvalidParam, NameTaken; nothing is changed then.
    """
    row = find(connection, name)
    definition = TaskDefinition.of(**{n: getattr(row, n) for n in TaskDefinition.model_fields} | changes)
    catalog(connection).check(definition.type, definition.param)
    columns = definition.columns()
    touched = {n: columns[n] for n in {*changes, *(["trigger_kind"] if "cron" in changes else [])}}
    try:
        connection.execute(
            update(schedule_task).where(_task.id == row.id).values(**touched, modifier=by, gmt_modified=UtcNow())
        )
    except IntegrityError as error:
        raise NameTaken(f"a task named {definition.name!r} exists already; choose another name") from error
    return definition


def switch(connection: Connection, name: str, status: TaskStatus, by: str) -> bool:
    """Turn a task on or off; False if it was already.

    Raises NotFound.
    """
    row = find(connection, name)
    changed = connection.execute(
        update(schedule_task)
        .where(_task.id == row.id, _task.status != status.value)
        .values(status=status.value, modifier=by, gmt_modified=UtcNow())
    )
    return changed.rowcount == 1


def remove(connection: Connection, name: str, by: str) -> int:
    """Delete a task, softly: it fires no more, its name is free, its history stays. Returns its id.

    Raises NotFound.
    """
    row = find(connection, name)
    connection.execute(
        update(schedule_task).where(_task.id == row.id).values(is_deleted=1, modifier=by, gmt_modified=UtcNow())
    )
    return int(row.id)


def declare(connection: Connection, definition: TaskDefinition, by: str) -> None:
    """Upsert by name what code declares: only the fields whose declared value changed since the last declaration.

    So an operator's edit survives restarts and rolling deploys. ``status`` is never touched.
    """
    declared = definition.model_dump(mode="json", exclude={"status"})
    there = select(schedule_task).where(_task.live_name == definition.name).with_for_update()
    row = connection.execute(there).one_or_none()
    if row is None:
        try:
            _insert(connection, {**definition.columns(), "status": TaskStatus.ON.value, "declared": declared}, by)
        except NameTaken:  # another worker of the app has just declared it
            row = connection.execute(there).one()
        else:
            return
    before: dict[str, Any] = row.declared or {}
    changed = {name for name, value in declared.items() if name not in before or before[name] != value}
    if not changed:
        return
    columns = definition.columns()
    values = {name: columns[name] for name in changed}
    if "cron" in changed:
        values["trigger_kind"] = columns["trigger_kind"]
    connection.execute(
        update(schedule_task)
        .where(_task.id == row.id)
        .values(**values, declared=declared, modifier=by, gmt_modified=UtcNow())
    )
