"""Rows as JSON documents: the columns by name, with times as ISO 8601 text in UTC."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Row

from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import UnreadableJson, object_in
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.times import written_local, written_utc, zone_of
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.versions import version_of

Document = dict[str, Any]
"""A JSON object, which ``json.dumps`` can write."""

FIRES_SHOWN = 5

TASK_FIELDS = (
    "id", "name", "type", "status", "trigger_kind", "cron", "cron_seconds", "timezone", "trigger_spec", "param",
    "starts_at", "ends_at", "next_fire_at", "misfire_policy", "misfire_grace_seconds", "overlap_policy",
    "max_instances", "retries", "retry_delay_seconds", "retry_backoff", "on_worker_lost", "timeout_seconds",
    "priority", "required_labels", "misfires", "fires_held_back", "plan_error", "creator", "modifier", "gmt_create",
    "gmt_modified",
)  # fmt: skip
INSTANCE_FIELDS = (
    "id", "schedule_task_id", "task_name", "timezone", "status", "reason", "schedule_datetime", "due_at", "run_number",
    "fire_key", "origin", "priority", "param", "schedule_worker_node_id", "worker_name", "attempt", "failures",
    "worker_losses", "lost_by", "slot_kept", "gmt_assigned", "gmt_started", "gmt_completed", "gmt_cancel_requested",
    "execution_result", "creator", "modifier", "gmt_create", "gmt_modified",
)  # fmt: skip
NODE_FIELDS = ("sequence", "type", "status", "param", "failures", "gmt_started", "gmt_completed", "execution_result")
WORKER_FIELDS = (
    "id", "name", "state", "host", "pid", "version", "capacity", "prefetch", "current_load", "labels", "node_types",
    "type_versions", "gmt_blocked", "blocked_by", "last_heartbeat", "liveness_seconds", "gmt_started", "gmt_dead",
    "reason",
)  # fmt: skip
SCHEDULER_FIELDS = (
    "id", "name", "state", "host", "pid", "version", "kinds", "last_tick", "liveness_seconds", "gmt_started",
)  # fmt: skip
AUDIT_FIELDS = (
    "id", "act_key", "gmt_create", "actor", "face", "action", "object_type", "object_id", "object_name", "why",
    "old_values", "new_values",
)  # fmt: skip


def values_of(row: Row[Any], names: Iterable[str]) -> Document:
    """The values of these columns of a row, by name."""
    return {name: plain(getattr(row, name)) for name in names}


def plain(value: Any) -> Any:
    """A column's value as JSON: a time becomes text, and JSON that Python cannot read becomes a text that says so."""
    if isinstance(value, datetime):
        return written_utc(value)
    return str(value) if isinstance(value, UnreadableJson) else value


def task_document(row: Row[Any]) -> Document:
    """A task: its columns, and its trigger in words as ``description``."""
    return values_of(row, TASK_FIELDS) | {"cron_seconds": bool(row.cron_seconds), "description": reading(row)}


def task_with_fires(row: Row[Any], now: datetime) -> Document:
    """A task with its next fires after ``now`` (naive UTC), and a remark if it has none."""
    fires, remark = next_fires(row, now)
    return task_document(row) | {"next_fires": [_fire(fire, row) for fire in fires], "remark": remark}


def task_in_list(row: Row[Any], now: datetime) -> Document:
    """A task with its next fire after ``now`` (naive UTC) if it is on, and a remark if it cannot fire.

    A large param is left out: then the key ``param`` is absent, and ``param_bytes`` is the size of its JSON.
    """
    plan, fire, remark = plan_of(row), None, row.plan_error
    fires = row.status == TaskStatus.ON and remark is None
    try:
        trigger = trigger_of(plan).label()
        fire = plan.next_after(now) if fires else None
    except RotaError as error:
        trigger, remark = row.cron, str(error) if fires else remark
    following = None if fire is None else _fire(fire, row)
    document = task_document(row) | {"trigger": trigger, "next_fire": following, "remark": remark}
    if row.param_bytes is not None:
        del document["param"]
        document["param_bytes"] = row.param_bytes
    return document


def _fire(fire: datetime, row: Row[Any]) -> Document:
    return {"utc": written_utc(fire), "local": written_local(fire, zone_of(row.timezone))}


def reading(row: Row[Any]) -> str | None:
    """A task's trigger in words; None if the task runs only when asked, or if SQL has made it invalid."""
    try:
        return trigger_of(plan_of(row)).describe()
    except RotaError:
        return None


def plan_of(row: Row[Any]) -> PlanInputs:
    """The inputs of a task's plan."""
    return PlanInputs(**{field.name: getattr(row, field.name) for field in fields(PlanInputs)})


def next_fires(row: Row[Any], now: datetime) -> tuple[list[datetime], str | None]:
    """A task's next fires after ``now`` (naive UTC), and the reason if there are none.

    A task that runs only when asked needs no reason: None.
    """
    try:
        fires = list(islice(plan_of(row).fires_after(now), FIRES_SHOWN))
    except RotaError as error:
        return [], f"it cannot fire: {error}"
    has_ended = not fires and reading(row) is not None
    return fires, "it does not fire any more" if has_ended else None


def declaration_document(row: Row[Any], carriers: Mapping[str, list[str]]) -> Document:
    """The declaration of a task that is in force: its version, since when, and the live workers that carry it.

    ``others`` has the live workers that carry another version, by that version.
    """
    version = version_of(object_in(row.declared))
    others = {other: names for other, names in carriers.items() if other != version}
    since = plain(row.declared_at)
    return {"version": version, "declared_at": since, "carried_by": carriers.get(version, []), "others": others}


def instance_document(row: Row[Any], nodes: Iterable[Row[Any]] | None = None) -> Document:
    """An instance: its columns; with its nodes, if they are given, and how its newest attempts failed."""
    document = values_of(row, INSTANCE_FIELDS)
    if nodes is None:
        return document
    failed = row.failed_attempts if isinstance(row.failed_attempts, list) else []
    return document | {"nodes": [values_of(node, NODE_FIELDS) for node in nodes], "failed_attempts": failed}


def instance_in_list(row: Row[Any]) -> Document:
    """An instance of a list: a large param or result is None, and ``result_begins`` is the beginning of the result."""
    return instance_document(row) | {"result_begins": row.result_begins}


def worker_document(row: Row[Any]) -> Document:
    """A worker: its columns."""
    return values_of(row, WORKER_FIELDS) | {"labels": object_in(row.labels)}


def scheduler_document(row: Row[Any]) -> Document:
    """A scheduler: its columns, and whether it is silent for longer than its liveness limit."""
    return values_of(row, SCHEDULER_FIELDS) | {"silent": bool(row.is_silent)}


def audit_document(row: Row[Any]) -> Document:
    """An act: its columns."""
    return values_of(row, AUDIT_FIELDS)
