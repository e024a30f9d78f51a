"""Tasks as people edit them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.constructs import UtcNow
from rota.shared.domain.errors import NameTaken, NotFound
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import params
from rota.shared.store.node_types import catalog
from rota.shared.store.tables import schedule_task

_task = schedule_task.c
_in_list = (
    *(column for column in _task if column.name not in ("param", "declared")),
    params.small(_task.param).label("param"),
    params.size_if_large(_task.param).label("param_bytes"),
)


def find(connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
    """The live task of that name; with ``lock`` it is locked until the transaction ends.

    Raises NotFound.
    """
    statement = select(schedule_task).where(_task.live_name == name)
    row = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise NotFound(f"no task is named {name!r}; rota task list shows them")
    return row


def listed(connection: Connection, limit: int, *, status: str | None = None, like: str | None = None) -> list[Row[Any]]:
    """At most ``limit`` live tasks, by name; only those whose name contains ``like``, if given.

    They come without large params, of which ``param_bytes`` has the size, and without what code declared.
    """
    statement = select(*_in_list).where(_task.live_name.is_not(None)).order_by(_task.live_name).limit(limit)
    if status is not None:
        statement = statement.where(_task.status == status)
    if like is not None:
        statement = statement.where(_task.live_name.contains(like, autoescape=True))
    return list(connection.execute(statement))


def add(connection: Connection, definition: TaskDefinition, by: str) -> int:
    """Check a task against the registered node types and insert it; returns its id. The next tick plans it.

    Raises NameTaken, UnknownType, or InvalidParam for a param that does not match its node types' schemas.
    """
    catalog(connection).check(definition.type, definition.param)
    return insert_task(connection, definition.columns(), by)


def insert_task(connection: Connection, columns: Mapping[str, Any], by: str) -> int:
    """Insert a task with these columns; returns its id.

    Raises NameTaken.
    """
    try:
        result = connection.execute(insert(schedule_task).values(**columns, creator=by, modifier=by))
    except IntegrityError as error:
        raise NameTaken(
            f"a task named {columns['name']!r} exists already; change it with rota task set, or choose another name"
        ) from error
    return int(result.lastrowid)


def edit(connection: Connection, name: str, changes: dict[str, Any], by: str) -> TaskDefinition:
    """Change fields of a task, and check the whole task; returns its new definition.

    Raises NotFound, InvalidInput, InvalidParam, NameTaken; then nothing is changed.
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
    """Turn a task on or off; False if it already was.

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
    """Mark a task as deleted: it fires no more, its name is free, its history stays. Returns its id.

    Raises NotFound.
    """
    row = find(connection, name)
    connection.execute(
        update(schedule_task).where(_task.id == row.id).values(is_deleted=1, modifier=by, gmt_modified=UtcNow())
    )
    return int(row.id)
