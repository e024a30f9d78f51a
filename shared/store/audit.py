"""The acts of people and code: one row for each act, written in the transaction that makes the change."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, insert, or_, select, type_coerce

from rota.shared.database.constructs import among
from rota.shared.database.later import execute_later, read_before
from rota.shared.store import params
from rota.shared.store.tables import (
    schedule_audit,
    schedule_backfill,
    schedule_calendar,
    schedule_instance,
    schedule_limit,
    schedule_pause,
    schedule_task,
    schedule_worker_node,
)

_audit = schedule_audit.c
_task = schedule_task.c


def _without_large_param(values: ColumnElement[Any]) -> ColumnElement[Any]:
    """These values; in large ones the param, if they have one, is None."""
    return case((params.size_if_large(values).is_(None), values), else_=func.json_replace(values, "$.param", None))


_narrow: Select[Any] = select(
    *(column for column in _audit if not column.name.endswith("_values")),
    *(type_coerce(_without_large_param(c), c.type).label(c.name) for c in (_audit.old_values, _audit.new_values)),
    or_(*(params.size_if_large(c).is_not(None) for c in (_audit.old_values, _audit.new_values))).label("is_cut"),
).order_by(_audit.id.desc())
"""The acts, the newest first. Params are the only values that may be large."""

TASK, INSTANCE, WORKER = schedule_task.name, schedule_instance.name, schedule_worker_node.name
BACKFILL, LIMIT, PAUSE = schedule_backfill.name, schedule_limit.name, schedule_pause.name
CALENDAR = schedule_calendar.name
"""Values of ``object_type``: the table of the row that the act changed or inserted."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act; ``old_values`` and ``new_values`` hold only the fields that it changed.

    AuditEntry("5f0c…", "ann", "cli", "task.off", TASK, 3, "nightly", None, {"status": "on"}, {"status": "off"})
    """

    act_key: str
    actor: str
    face: str
    action: str
    object_type: str
    object_id: int
    object_name: str | None
    why: str | None
    old_values: Mapping[str, Any] | None
    new_values: Mapping[str, Any]


def record(connection: Connection, entry: AuditEntry) -> None:
    """Insert the row of an act, in the transaction of the act."""
    values = {name: getattr(entry, name) for name in AuditEntry.__dataclass_fields__}
    row = insert(schedule_audit).values(**values, creator=entry.actor, modifier=entry.actor)
    execute_later(connection, row.inline(), {})  # nobody needs its id


def has_act(connection: Connection, key: str) -> bool:
    """Whether an act has left a row."""
    return read_before(connection, select(_audit.id).where(_audit.act_key == key).limit(1), {}).scalar() is not None


def whole(connection: Connection, act_id: int) -> Row[Any]:
    """An act, however large its values are."""
    return connection.execute(select(schedule_audit).where(_audit.id == act_id)).one()


def listed(connection: Connection, limit: int) -> list[Row[Any]]:
    """The acts, the newest first. In large values the param is None, and ``is_cut`` says so."""
    return list(connection.execute(_narrow.limit(limit)))


def of_ids(connection: Connection, ids: Collection[int]) -> list[Row[Any]]:
    """These acts. In large values the param is None."""
    return list(connection.execute(_narrow.where(among(_audit.id)), {"ids": ids}))


def of_task(connection: Connection, name: str, limit: int) -> list[Row[Any]]:
    """The acts on the tasks of this name and on their instances, the newest first.

    They include acts on deleted tasks of this name, and acts on the live task while it had another name.
    """
    live = select(_task.id).where(_task.live_name == name).scalar_subquery()
    rows = {
        row.id: row
        for statement in (
            _narrow.where(_audit.object_name == name),
            _narrow.where(_audit.object_type == TASK, _audit.object_id == live),
        )
        for row in connection.execute(statement.limit(limit))
    }
    return [rows[number] for number in sorted(rows, reverse=True)[:limit]]


def of_instance(connection: Connection, instance_id: int, limit: int) -> list[Row[Any]]:
    """The acts on an instance, the newest first."""
    statement = _narrow.where(_audit.object_type == INSTANCE, _audit.object_id == instance_id)
    return list(connection.execute(statement.limit(limit)))
