"""The limits that tasks share, as people and code keep them: rows of ``schedule_limit``; who holds them, who waits."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, String, bindparam, cast, delete, exists, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.constructs import UtcNow, read_by
from rota.shared.database.later import Unexpected, execute_later, read_before
from rota.shared.domain.errors import InvalidInput, NameTaken, NotFound, NotPossible
from rota.shared.domain.limits import LimitDefinition, unknown_limit
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.limit_slots import is_taken
from rota.shared.store.tables import (
    PRIORITIES,
    schedule_instance,
    schedule_limit,
    schedule_limit_slot,
    schedule_task,
    schedule_worker_node,
)

_limit = schedule_limit.c
_slot = schedule_limit_slot.c
_instance = schedule_instance.c
_task = schedule_task.c
_worker = schedule_worker_node.c

NAMES_SHOWN = 10
LOOKED_AT = 10_000
"""Among so many instances of each state those that wait for a limit are looked for."""

_modified = cast(_limit.gmt_modified, String)
_running = (
    select(func.count())
    .select_from(schedule_limit_slot)
    .join(schedule_instance, is_taken)
    .where(_slot.limit_name == _limit.name)
    .correlate(schedule_limit)
    .scalar_subquery()
)
_tasks = (
    select(func.count())
    .where(_task.limit_name == _limit.name, _task.live_name.is_not(None))
    .correlate(schedule_limit)
    .scalar_subquery()
)
_rows = select(
    schedule_limit, _modified.label("modified"), _running.label("running"), _tasks.label("tasks"), UtcNow().label("now")
).where(_limit.is_deleted == 0)


def find(connection: Connection, name: str) -> Row[Any]:
    """The limit of that name, with how many instances hold it (``running``) and how many ``tasks`` name it.

    Raises NotFound.
    """
    row: Row[Any] | None = read_before(connection, _rows.where(_limit.name == name), {}).one_or_none()
    if row is None:
        raise NotFound(unknown_limit(name, _names(connection)))
    return row


def listed(connection: Connection, limit: int) -> list[Row[Any]]:
    """At most ``limit`` limits by name, as ``find`` returns them."""
    return list(connection.execute(_rows.order_by(_limit.name).limit(limit)))


def there(connection: Connection, names: Collection[str]) -> set[str]:
    """Those of these names that limits have."""
    named = select(_limit.name).where(_limit.name.in_(sorted(names)), _limit.is_deleted == 0)
    return set(read_before(connection, named, {}).scalars()) if names else set()


def require(connection: Connection, name: str | None) -> None:
    """Raises InvalidInput for the name of a limit that is not there."""
    if name is not None and not there(connection, [name]):
        raise InvalidInput(unknown_limit(name, _names(connection)))


def _names(connection: Connection) -> list[str]:
    named = select(_limit.name).where(_limit.is_deleted == 0).order_by(_limit.name).limit(NAMES_SHOWN)
    return list(read_before(connection, named, {}).scalars())


def add(connection: Connection, definition: LimitDefinition, by: str, declared: Any = None) -> int:
    """Insert a limit; returns its id. ``declared``: what code declares.

    Raises NameTaken.
    """
    try:
        values = {**definition.columns(), "declared": declared, "creator": by, "modifier": by}
        result = connection.execute(insert(schedule_limit).values(**values))
    except IntegrityError as error:
        raise NameTaken(
            f"a limit named {definition.name!r} exists already; change it with rota limit set, or choose another name"
        ) from error
    return int(result.lastrowid)


def change(connection: Connection, row: Row[Any], columns: Mapping[str, Any], by: str) -> None:
    """Set columns of a limit that was read. The transaction raises Unexpected if Rota has changed it since."""
    statement = update(schedule_limit).where(_limit.id == row.id, _modified == row.modified)
    execute_later(connection, statement.values(**columns, modifier=by, gmt_modified=UtcNow()), {}, expected=1)


def remove(connection: Connection, row: Row[Any]) -> None:
    """Delete a limit that was read, and those of its slots that are free.

    Raises NotPossible while tasks name it.
    """
    naming = select(_task.live_name).where(_task.limit_name == row.name, _task.live_name.is_not(None))
    first = naming.order_by(_task.live_name).limit(NAMES_SHOWN)
    if names := list(read_before(connection, first, {}).scalars()):
        others = f", … ({row.tasks} in all)" if row.tasks > len(names) else ""
        raise NotPossible(
            f"limit {row.name!r} is named by {', '.join(names)}{others}; first take it from each:"
            f" rota task set {names[0]} --no-limit"
        )
    it = delete(schedule_limit).where(_limit.id == row.id, ~exists(naming))
    execute_later(connection, it, {}, expected=1)
    holds = exists(select(_instance.id).where(is_taken).correlate(schedule_limit_slot))
    execute_later(connection, delete(schedule_limit_slot).where(_slot.limit_name == row.name, ~holds), {})


@dataclass(frozen=True, slots=True)
class Declared:
    """What a declaration of code did: the limit, its row before (None for a new one), and what it wrote."""

    limit_id: int
    before: Row[Any] | None
    written: Mapping[str, Any]


def declare(connection: Connection, definition: LimitDefinition, by: str) -> Declared:
    """Insert or update, by name, a limit that code declares.

    It writes only the fields whose declared value differs from what was declared last: an operator's edit survives
    restarts. The transaction raises Unexpected if the limit was changed, or made, since it was read.
    """
    declared = definition.columns()
    row = read_before(connection, _rows.where(_limit.name == definition.name), {}).one_or_none()
    if row is None:
        try:
            return Declared(add(connection, definition, by, declared), None, declared)
        except NameTaken:
            raise Unexpected("another worker of the app has just declared it") from None
    before = row.declared if isinstance(row.declared, dict) else {}
    if before == declared:
        return Declared(row.id, row, {})
    written = {name: value for name, value in declared.items() if name not in before or before[name] != value}
    after = LimitDefinition.of(**{name: written.get(name, getattr(row, name)) for name in declared})
    change(connection, row, {**after.columns(), "declared": declared}, by)
    return Declared(row.id, row, written)


_holders = (
    select(
        _slot.slot, _instance.id, _instance.attempt, _instance.gmt_started, _instance.status,
        _task.name.label("task_name"), _worker.name.label("worker_name"),
    )
    .select_from(schedule_limit_slot)
    .join(schedule_instance, is_taken)
    .outerjoin(schedule_task, _task.id == _instance.schedule_task_id)
    .outerjoin(schedule_worker_node, _worker.id == _instance.schedule_worker_node_id)
    .where(_slot.limit_name == bindparam("name"))
    .order_by(_slot.slot)
    .limit(bindparam("limit"))
)  # fmt: skip


def holders(connection: Connection, name: str, limit: int) -> list[Row[Any]]:
    """The instances that hold slots of a limit, at most ``limit``."""
    return list(connection.execute(_holders, {"name": name, "limit": limit}))


def _looked_at(status: InstanceStatus) -> Any:
    some = (
        select(_instance.id, _instance.schedule_task_id, _instance.priority, _instance.due_at)
        .where(_instance.status == status.value)
        .limit(LOOKED_AT)
    )
    if status == InstanceStatus.PENDING:
        some = some.where(_instance.schedule_worker_node_id.is_(None), _instance.priority.in_(PRIORITIES))
    return read_by(some, schedule_instance, "ix_schedule_instance_work").subquery("looked_at")


def _waiting(status: InstanceStatus) -> tuple[Select[Any], Select[Any]]:
    looked_at = _looked_at(status)
    found = (
        select(looked_at.c.id)
        .join_from(looked_at, schedule_task, _task.id == looked_at.c.schedule_task_id)
        .where(_task.limit_name == bindparam("name"))
    )
    first = found.order_by(looked_at.c.priority, looked_at.c.due_at, looked_at.c.id).limit(bindparam("limit"))
    return first, found.with_only_columns(func.count(), maintain_column_froms=True)


_waiting_by_status = {status: _waiting(status) for status in (InstanceStatus.ASSIGNED, InstanceStatus.PENDING)}
_details = (
    select(
        _instance.id, _instance.status, _instance.priority, _instance.due_at, _instance.reason,
        _task.name.label("task_name"), _worker.name.label("worker_name"),
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
    .outerjoin(schedule_worker_node, _worker.id == _instance.schedule_worker_node_id)
)  # fmt: skip


def waiting(connection: Connection, name: str, limit: int) -> tuple[list[Row[Any]], int]:
    """The first instances that wait for a limit, at most ``limit``, and how many wait in all.

    It looks at 10,000 instances that are assigned, and at as many that are pending: what waits behind is not counted.
    """
    ids: list[int] = []
    number = 0
    for first, count in _waiting_by_status.values():
        ids += connection.execute(first, {"name": name, "limit": limit}).scalars()
        number += connection.execute(count, {"name": name}).scalar_one()
    found: list[Any] = list(connection.execute(_details.where(_instance.id.in_(ids[:limit]))))
    rows = {row.id: row for row in found}
    return [rows[i] for i in ids[:limit] if i in rows], number
