"""Tasks as people edit them."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, String, cast, insert, select, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.constructs import UtcNow, among, by_index
from rota.shared.database.json_lists import HasText
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.errors import NameTaken, NotFound
from rota.shared.domain.spreading import together
from rota.shared.domain.states import TaskStatus, TriggerKind
from rota.shared.domain.task import TRIGGER_FIELDS, TaskDefinition, edited
from rota.shared.domain.task_filter import EVERY_TASK, TaskFilter
from rota.shared.store import calendars, chains, params, pools, shared_limits, weights
from rota.shared.store.node_types import catalog
from rota.shared.store.tables import schedule_instance, schedule_task

_task = schedule_task.c
_instance = schedule_instance.c
_in_list = (
    *(column for column in _task if column.name not in ("param", "declared")),
    params.small(_task.param).label("param"),
    params.size_if_large(_task.param).label("param_bytes"),
    calendars.text_of_task.label("days_text"),
)

_modified = cast(_task.gmt_modified, String)
as_read = select(schedule_task, _modified.label("modified"), calendars.text_of_task.label("days_text"))
"""Tasks; as a text when each was changed last, which is the same again even for a time that SQL has spoiled; and the
days of the calendar that each names."""


def find(connection: Connection, name: str) -> Row[Any]:
    """The live task of that name.

    Raises NotFound.
    """
    row: Row[Any] | None = read_before(connection, as_read.where(_task.live_name == name), {}).one_or_none()
    if row is None:
        raise NotFound(f"no task is named {name!r}; rota task list shows them")
    return row


def by_id(connection: Connection, task_id: int) -> Row[Any]:
    """A task that was there, though it may be deleted now."""
    return connection.execute(as_read.where(_task.id == task_id)).one()


_types = by_index(
    select(_task.type)
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
    .where(among(_instance.id))
    .distinct(),
    schedule_instance,
)


def types_of_instances(connection: Connection, instance_ids: Collection[int]) -> list[str]:
    """The task types of these instances' tasks, each once."""
    return sorted(connection.scalars(_types, {"ids": sorted(instance_ids)}))


def listed(connection: Connection, limit: int, chosen: TaskFilter = EVERY_TASK) -> list[Row[Any]]:
    """At most ``limit`` live tasks that were chosen, by name.

    They come without large params, of which ``param_bytes`` has the size, and without what code declared.
    """
    statement = select(*_in_list).where(*are_chosen(chosen)).order_by(_task.live_name).limit(limit)
    return list(connection.execute(statement))


def are_chosen(chosen: TaskFilter) -> Iterator[ColumnElement[bool]]:
    """What holds of the live tasks that were chosen."""
    yield _task.live_name.is_not(None)
    equal = {_task.status: chosen.status, _task.owner: chosen.owner, _task.task_group: chosen.group}
    yield from (column == value for column, value in equal.items() if value is not None)
    if chosen.like is not None:
        yield _task.live_name.contains(chosen.like, autoescape=True)
    yield from (HasText(_task.tags, tag) for tag in chosen.tags)


def ids(connection: Connection, chosen: TaskFilter) -> list[int]:
    """The ids of the live tasks that were chosen, ascending."""
    return sorted(connection.scalars(select(_task.id).where(*are_chosen(chosen))))


def add(connection: Connection, definition: TaskDefinition, by: str) -> int:
    """Check a task against the registered node types and insert it; returns its id. The next tick plans it.

    Raises NameTaken, UnknownType, InvalidParam for a param that does not match its node types' schemas, or InvalidInput
    for a limit, a pool, a calendar or a task to follow that is not there, or a weight beyond every worker.
    """
    _check_param(connection, definition)
    shared_limits.require(connection, definition.limit_name)
    pools.require(connection, definition.pool)
    weights.require(connection, definition.weight, definition.pool)
    calendars.checked(connection, definition.inputs)
    chains.checked(connection, definition.name, definition.inputs)
    task_id = insert_task(connection, definition.columns(), by)
    calendars.use_by(connection, task_id, definition.inputs)
    chains.link_new(connection, task_id, definition.inputs)
    return task_id


def _check_param(connection: Connection, definition: TaskDefinition) -> None:
    """Check the param; but a manual task may be without one that its type needs, since each run can bring its own."""
    types = catalog(connection)
    if definition.param is None and definition.columns()["trigger_kind"] == TriggerKind.MANUAL:
        types.lists_of(definition.type)
    else:
        types.check(definition.type, definition.param)


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


def edit(connection: Connection, row: Row[Any], changes: dict[str, Any], by: str) -> dict[str, Any]:
    """Change fields of a task that was read, and check the whole task; returns the columns that this sets.

    Raises InvalidInput or InvalidParam; then nothing is changed. If it gives a new name, do the whole transaction in
    ``naming``, because the database may refuse the name at the commit only.
    """
    changes = together(changes)
    definition = edited(row, changes)
    _check_param(connection, definition)
    shared_limits.require(connection, changes.get("limit_name"))
    pools.require(connection, changes.get("pool"))
    if not {"weight", "pool"}.isdisjoint(changes):
        weights.require(connection, definition.weight, definition.pool)
    is_replanned = not calendars.OF_PLAN.isdisjoint(changes)
    if is_replanned:
        calendars.checked(connection, definition.inputs)
    is_renamed = definition.name != row.name
    if is_renamed:
        chains.require_unfollowed(connection, row.name, "renamed")
    is_new_trigger = not TRIGGER_FIELDS.keys().isdisjoint(changes)
    if is_new_trigger or is_renamed:
        chains.checked(connection, definition.name, definition.inputs, old_name=row.name)
    touched = definition.columns_of(changes)
    change(connection, row, touched, by)
    if is_new_trigger:
        chains.link_edited(connection, row, definition.inputs)
    if is_replanned:
        calendars.use_by(connection, row.id, definition.inputs)
    return touched


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Raises NameTaken if the block gives this name to a task, and another task has it."""
    try:
        yield
    except IntegrityError as error:
        raise NameTaken(f"a task named {name!r} exists already; choose another name") from error


def switch(connection: Connection, row: Row[Any], status: TaskStatus, by: str) -> bool:
    """Turn a task that was read on or off; False if it already was."""
    if row.status == status:
        return False
    change(connection, row, {"status": status.value}, by)
    return True


def remove(connection: Connection, row: Row[Any], by: str) -> None:
    """Mark a task that was read as deleted: it fires no more, its name is free, its history stays.

    Raises InvalidInput if others follow it.
    """
    chains.require_unfollowed(connection, row.name, "removed")
    change(connection, row, {"is_deleted": 1}, by)
    chains.link_edited(connection, row, None)


def change(connection: Connection, row: Row[Any], columns: Mapping[str, Any], by: str) -> None:
    """Set columns of a task that was read. The transaction raises Unexpected if Rota has changed the task since."""
    same = (_task.id == row.id, _task.is_deleted == 0, _modified == row.modified)
    statement = update(schedule_task).where(*same).values(**columns, modifier=by, gmt_modified=UtcNow())
    execute_later(connection, statement, {}, expected=1)
