"""Declarations: the tasks that apps declare, and whose declaration is in force.

Workers of several versions of an app may run at once, each with a declaration of its own for one task. In force is the
newest declaration that a live worker carries, or carried within one liveness limit. A declaration is newer than another
if it was seen first later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, or_, select

from rota.shared.database.constructs import SecondsBefore, UtcNow
from rota.shared.database.later import Unexpected, read_before
from rota.shared.domain.errors import InvalidInput, NameTaken
from rota.shared.domain.jsontext import object_in, texts_in
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import IN_SPEC, TRIGGER_FIELDS, TaskDefinition, defaults, edited
from rota.shared.domain.versions import version_of
from rota.shared.store import calendars, chains, shared_limits, tasks
from rota.shared.store.tables import schedule_task, schedule_worker_beat, schedule_worker_node
from rota.shared.store.workers import LIVES, OF_ITS_WORKER, SILENT

_task = schedule_task.c
_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

VERSIONS_KEPT = 100
"""The most versions of a task's declaration that are remembered: the newest."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a declaration did: the task, its row before (None for a new task), and the columns that it wrote."""

    task_id: int
    before: Row[Any] | None
    written: Mapping[str, Any]
    in_force: bool = True
    """False if it yielded to a newer declaration."""


def declare(connection: Connection, definition: TaskDefinition, by: str, *, liveness_seconds: float) -> Declared:
    """Insert or update, by name, a task that code declares; or yield to a newer declaration.

    It writes only the fields whose declared value differs from the declaration in force, and never ``status``. So an
    operator's edit survives restarts and rolling deploys. It yields if a newer declaration came into force, or was
    carried by a live worker, within ``liveness_seconds``. The transaction raises Unexpected if the task was changed, or
    made, since it was read.
    """
    declared = definition.declared()
    is_fresh = _task.declared_at >= SecondsBefore(UtcNow(), liveness_seconds)
    live_row = tasks.as_read.add_columns(is_fresh.label("is_fresh")).where(_task.live_name == definition.name)
    row = read_before(connection, live_row, {}).one_or_none()
    if row is None:
        return _declare_new(connection, definition, declared, by)
    before = object_in(row.declared)
    if before == declared:
        return Declared(row.id, row, {})
    seen = _seen(row)
    newer = seen[seen.index(version_of(declared)) + 1 :] if version_of(declared) in seen else []
    fresh = {version_of(before)} if row.is_fresh else set()
    if newer and not (fresh | _carried(connection, definition.name, liveness_seconds)).isdisjoint(newer):
        return Declared(row.id, row, {}, in_force=False)
    changed = _changed(before, declared)
    is_replanned = not calendars.OF_PLAN.isdisjoint(changed)
    if is_replanned:
        calendars.checked(connection, definition.inputs)
    values = _with_edits(row, definition, changed)
    shared_limits.require(connection, values.get("limit_name"))
    is_new_trigger = not TRIGGER_FIELDS.keys().isdisjoint(changed)
    if is_new_trigger:
        chains.checked(connection, row.name, definition.inputs)
    tasks.change(connection, row, {**values, **_in_force(declared, seen)}, by)
    if is_new_trigger:
        chains.link_edited(connection, row, definition.inputs)
    if is_replanned:
        calendars.use_by(connection, row.id, definition.inputs)
    return Declared(row.id, row, values)


def _declare_new(connection: Connection, definition: TaskDefinition, declared: Mapping[str, Any], by: str) -> Declared:
    shared_limits.require(connection, definition.limit_name)
    calendars.checked(connection, definition.inputs)
    chains.checked(connection, definition.name, definition.inputs)
    columns = {**definition.columns(), "status": TaskStatus.ON.value}
    try:
        new = {**columns, **_in_force(declared, [])}
        task_id = tasks.insert_task(connection, new, by)
    except NameTaken:
        raise Unexpected("another worker of the app has just declared it") from None
    calendars.use_by(connection, task_id, definition.inputs)
    chains.link_new(connection, task_id, definition.inputs)
    return Declared(task_id, None, columns)


def _changed(before: Mapping[str, Any], declared: Mapping[str, Any]) -> set[str]:
    """The fields that a new declaration changes. One that an older Rota did not know had its default.

    Of a declaration that SQL has spoiled nothing is known, so all fields are new.
    """
    known = {**defaults(), **before} if before else {}
    return {name for name, value in declared.items() if name not in known or known[name] != value}


def _with_edits(row: Row[Any], definition: TaskDefinition, changed: set[str]) -> dict[str, Any]:
    """The columns of the changed fields. Where several fields share a column, what others edited of them stays."""
    try:
        return edited(row, {name: getattr(definition, name) for name in changed}).columns_of(changed)
    except InvalidInput:  # what SQL wrote, or what does not go with the new fields
        beside = set() if changed & TRIGGER_FIELDS.keys() else changed & set(IN_SPEC)
        columns = definition.columns_of(changed - beside)
        if beside:  # the trigger is not declared anew: it stays as it was edited
            spec = object_in(row.trigger_spec) | {name: getattr(definition, name) for name in beside}
            columns["trigger_spec"] = {name: value for name, value in spec.items() if value} or None
        return columns


def _in_force(declared: Mapping[str, Any], seen: list[str]) -> dict[str, Any]:
    version = version_of(declared)
    versions = seen if version in seen else [*seen, version][-VERSIONS_KEPT:]
    return {"declared": declared, "declared_at": UtcNow(), "declared_versions": versions}


def _seen(row: Row[Any]) -> list[str]:
    """The versions of a task's declarations, the oldest first; only that in force if SQL has spoiled them."""
    in_force = [version_of(row.declared)] if isinstance(row.declared, dict) else []
    return texts_in(row.declared_versions) or in_force


def _carried(connection: Connection, name: str, liveness_seconds: float) -> set[str]:
    """The versions of a task's declaration that workers carry, or carried within this time."""
    carried = read_before(connection, _of_live_workers(_worker.schedules, liveness_seconds), {})
    found = map(object_in, carried.scalars())
    return {str(schedules[name]) for schedules in found if name in schedules}


def _of_live_workers(column: Any, liveness_seconds: float) -> Select[Any]:
    """A column of the workers that are not dead, and of those that have beaten within this time before they died."""
    since = SecondsBefore(UtcNow(), liveness_seconds)
    return (
        select(column)
        .join_from(schedule_worker_beat, schedule_worker_node, OF_ITS_WORKER)
        .where(or_(LIVES, and_(_beat.gmt_dead >= since, _beat.last_beat >= since)))
    )


def apps_carried(connection: Connection, liveness_seconds: float) -> set[str]:
    """The versions of all that their apps declare (``schedules_version``), of workers as in ``declare``."""
    found = connection.scalars(_of_live_workers(_worker.schedules_version, liveness_seconds).distinct())
    return {version for version in found if version is not None}


def carriers(connection: Connection, name: str) -> dict[str, list[str]]:
    """The names of the live workers whose apps declare a task, by the version of the declaration."""
    statement = (
        select(_worker.name, _worker.schedules)
        .join_from(schedule_worker_beat, schedule_worker_node, OF_ITS_WORKER)
        .where(LIVES, ~SILENT)
        .order_by(_worker.name)
    )
    found: dict[str, list[str]] = {}
    for worker, schedules in connection.execute(statement):
        if name in (carried := object_in(schedules)):
            found.setdefault(str(carried[name]), []).append(worker)
    return found
