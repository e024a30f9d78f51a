"""Rows as JSON documents: the columns by name, with times as ISO 8601 text in UTC."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from rota.shared.database.constructs import stored_time
from rota.shared.domain.calendars.definition import found_calendar
from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import UnreadableJson, object_in
from rota.shared.domain.limits import counted, starts_in
from rota.shared.domain.planning import INPUT_COLUMNS, PlanInputs
from rota.shared.domain.pools import sizes_in
from rota.shared.domain.states import InstanceStatus, TaskStatus
from rota.shared.domain.steering import Written, upcoming
from rota.shared.domain.times import is_time, written_local, written_utc, zone_of
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.versions import version_of
from rota.shared.store.pools import PoolLoad

Document = dict[str, Any]
"""A JSON object, which ``json.dumps`` can write."""

FIRES_SHOWN = 5
NO_NAMES: Mapping[int, str] = {}

TASK_FIELDS = (
    "id", "name", "description", "owner", "tags", "task_group", "group_share", "type", "status", "trigger_kind", "cron",
    "cron_seconds", "timezone", "trigger_spec", "param", "starts_at", "ends_at", "next_fire_at", "misfire_policy",
    "misfire_grace_seconds", "misfire_window_seconds", "misfire_cap", "overlap_policy", "max_instances", "max_waiting",
    "retries", "retry_delay_seconds", "retry_backoff", "max_retry_delay_seconds", "retry_jitter_percent", "retry_on",
    "never_retry", "on_retry", "on_worker_lost", "timeout_seconds", "run_timeout_seconds", "priority",
    "required_labels", "limit_name", "pool", "weight", "spread", "shards", "misfires", "fires_held_back",
    "history_complete_from", "plan_error", "creator", "modifier", "gmt_create", "gmt_modified",
)  # fmt: skip
INSTANCE_FIELDS = (
    "id", "schedule_task_id", "task_name", "owner", "task_group", "tags", "timezone", "status", "reason",
    "schedule_datetime", "due_at", "run_number", "fire_key", "origin", "replay_of", "parent_id", "shard_index",
    "shard_total", "only_worker_node_id", "from_sequence", "follows_id", "again_of", "run_again_at", "priority",
    "param", "schedule_worker_node_id", "worker_name", "attempt", "failures", "worker_losses", "lost_by", "slot_kept",
    "gmt_assigned", "gmt_started", "gmt_completed", "gmt_cancel_requested", "execution_result", "creator", "modifier",
    "gmt_create", "gmt_modified",
)  # fmt: skip
NODE_FIELDS = ("sequence", "type", "status", "param", "failures", "gmt_started", "gmt_completed", "execution_result")
LAST_RUN_FIELDS = ("id", "status", "schedule_datetime", "gmt_started", "gmt_completed")
SKIP_FIELDS = ("reason", "first_fire", "last_fire", "fires")
CATCH_UP_FIELDS = ("next_fire", "last_fire", "fires_left")
BACKFILL_FIELDS = (
    "id", "schedule_task_id", "task_name", "timezone", "status", "from_at", "to_at", "newest_first", "only_missing",
    "concurrency", "priority", "fires", "written", "not_missing", "succeeded", "failed", "canceled", "in_flight",
    "next_fire", "reason", "creator", "gmt_create", "gmt_running", "gmt_completed",
)  # fmt: skip
WORKER_FIELDS = (
    "id", "name", "state", "host", "pid", "version", "capacity", "prefetch", "current_load", "labels", "node_types",
    "type_versions", "gmt_blocked", "blocked_by", "last_heartbeat", "liveness_seconds", "gmt_started", "gmt_dead",
    "reason", "wake_address", "pools",
)  # fmt: skip
SCHEDULER_FIELDS = (
    "id", "name", "state", "host", "pid", "version", "kinds", "last_tick", "liveness_seconds", "gmt_started",
    "wake_address", "lookahead_seconds",
)  # fmt: skip
LIMIT_FIELDS = (
    "id", "name", "max_running", "running", "starts_per_minute", "started", "tasks", "creator", "modifier",
    "gmt_create", "gmt_modified",
)  # fmt: skip
HOLDER_FIELDS = ("slot", "id", "task_name", "attempt", "status", "gmt_started", "worker_name")
WAITER_FIELDS = ("id", "task_name", "status", "priority", "due_at", "worker_name", "reason")
CALENDAR_FIELDS = (
    "id", "name", "country", "subdivision", "weekend", "holidays", "makeup_days", "days_off", "days_on", "first_year",
    "last_year", "creator", "modifier", "gmt_create", "gmt_modified",
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
    """A task: its columns, and its trigger in words as ``trigger_description``."""
    said = {"cron_seconds": bool(row.cron_seconds), "trigger_description": reading(row)}
    return values_of(row, TASK_FIELDS) | said


def task_with_fires(row: Row[Any], now: datetime, written: Mapping[datetime, Written] | None = None) -> Document:
    """A task with its next fires after ``now`` (naive UTC), and a remark if it has none.

    ``written``: those of its fires that have an instance, which tells what was skipped or set by hand.
    """
    fires, remark = next_fires(row, now, written or {})
    return task_document(row) | {"next_fires": [fire_document(fire, row) for fire in fires], "remark": remark}


def last_run_document(row: Row[Any] | None) -> Document | None:
    """The last run of a task, with its ``error`` if it failed; None if it has not run."""
    if row is None:
        return None
    error = row.reason if row.status == InstanceStatus.FAILED else None
    return values_of(row, LAST_RUN_FIELDS) | {"error": error}


def task_in_list(
    row: Row[Any], now: datetime, last_run: Row[Any] | None = None, written: Mapping[datetime, Written] | None = None
) -> Document:
    """A task with its next fire after ``now`` (naive UTC) if it is on, its last run, and a remark if it cannot fire.

    A large param is left out: then the key ``param`` is absent, and ``param_bytes`` is the size of its JSON.
    """
    plan, fire, remark = plan_of(row), None, row.plan_error
    fires = row.status == TaskStatus.ON and remark is None
    try:
        trigger = plan.label()
        found = upcoming(fires_after(row, plan, now), written or {}, now, 1) if fires else []
        fire = found[0].due_at if found else None
    except RotaError as error:
        trigger, remark = row.cron, str(error) if fires else remark
    following = None if fire is None else fire_document(fire, row)
    said = {"trigger": trigger, "next_fire": following, "last_run": last_run_document(last_run), "remark": remark}
    document = task_document(row) | said
    if row.param_bytes is not None:
        del document["param"]
        document["param_bytes"] = row.param_bytes
    return document


def fire_document(fire: datetime, row: Row[Any]) -> Document:
    """A fire of a task: its time, in UTC and in the task's zone."""
    return {"utc": written_utc(fire), "local": written_local(fire, zone_of(row.timezone))}


def reading(row: Row[Any]) -> str | None:
    """A task's trigger in words; None if the task runs only when asked, or if SQL has made it invalid."""
    try:
        return plan_of(row).describe()
    except RotaError:
        return None


def plan_of(row: Row[Any]) -> PlanInputs:
    """The inputs of a task's plan, with its calendar, of which the row has ``days_text``."""
    inputs = PlanInputs(**{column: getattr(row, column) for column in INPUT_COLUMNS})
    name, text = inputs.named_calendar, row.days_text
    return inputs if name is None or text is None else inputs.on({name: found_calendar(name, text)})


def next_fires(row: Row[Any], now: datetime, written: Mapping[datetime, Written]) -> tuple[list[datetime], str | None]:
    """When a task fires after ``now`` (naive UTC), and the reason if there are none.

    A task that runs only when asked needs no reason: None.
    """
    plan = plan_of(row)
    try:
        fires = [fire.due_at for fire in upcoming(fires_after(row, plan, now), written, now, FIRES_SHOWN)]
        if plan.follows_tasks:
            return [], None
        if not fires and plan.follows_ends and plan.after_end(now) is not None:
            return [], "its next fire follows the end of the run that waits or goes on"
    except RotaError as error:
        return [], f"it cannot fire: {error}"
    has_ended = not fires and reading(row) is not None
    return fires, "it does not fire any more" if has_ended else None


def fires_after(row: Row[Any], plan: PlanInputs, now: datetime) -> Iterator[datetime]:
    """A task's next fires after ``now`` (naive UTC). Of a plan that follows ends nobody knows more than one.

    Raises InvalidInput.
    """
    if not plan.follows_ends:
        yield from plan.fires_after(now)
        return
    trigger_of(plan)
    planned = row.next_fire_at if row.planned_inputs is not None else plan.in_window(now)
    if is_time(planned):
        yield planned if row.planned_inputs is not None else max(planned, now)


def declaration_document(row: Row[Any], carriers: Mapping[str, list[str]]) -> Document:
    """The declaration of a task that is in force: its version, since when, and the live workers that carry it.

    ``others`` has the live workers that carry another version, by that version.
    """
    version = version_of(object_in(row.declared))
    others = {other: names for other, names in carriers.items() if other != version}
    since = plain(row.declared_at)
    return {"version": version, "declared_at": since, "carried_by": carriers.get(version, []), "others": others}


def skip_document(row: Row[Any]) -> Document:
    """A stretch of fires that were not run."""
    return values_of(row, SKIP_FIELDS)


def catch_up_document(row: Row[Any]) -> Document:
    """A stretch of missed fires that are still to run; ``fires_left`` is None until they are counted."""
    return values_of(row, CATCH_UP_FIELDS)


def instance_document(
    row: Row[Any], nodes: Iterable[Row[Any]] | None = None, workers: Mapping[int, str] = NO_NAMES
) -> Document:
    """An instance: its columns; with its nodes, if they are given, and how its newest attempts failed.

    ``workers`` has the names of the workers of these attempts.
    """
    document = values_of(row, INSTANCE_FIELDS)
    if nodes is None:
        return document
    failed = row.failed_attempts if isinstance(row.failed_attempts, list) else []
    attempts = [_failed_attempt(one, workers) if isinstance(one, dict) else one for one in failed]
    return document | {"nodes": [values_of(node, NODE_FIELDS) for node in nodes], "failed_attempts": attempts}


def _failed_attempt(attempt: Document, workers: Mapping[int, str]) -> Document:
    """How an attempt failed, with its times as all others, and with the name of its worker. SQL may write anything."""
    times = {
        name: plain(stored_time(text))
        for name in ("gmt_started", "gmt_completed")
        if isinstance(text := attempt.get(name), str)
    }
    worker = attempt.get("worker_id")
    name = workers.get(worker) if isinstance(worker, int) else None
    return attempt | times | ({} if name is None else {"worker_name": name})


def instance_in_list(row: Row[Any]) -> Document:
    """An instance of a list. Of a large param or result the key is absent, and there is ``param_bytes`` or
    ``result_bytes``, the size of its JSON, and ``result_begins``, the beginning of the result's JSON."""
    document = instance_document(row)
    if row.param_bytes is not None:
        del document["param"]
        document["param_bytes"] = row.param_bytes
    if row.result_bytes is not None:
        del document["execution_result"]
        document |= {"result_bytes": row.result_bytes, "result_begins": row.result_begins}
    return document


def _pool(size: int, holds: PoolLoad) -> Document:
    return {"size": size, "assigned": holds.assigned, "running": holds.running, "taken": holds.taken}


def worker_document(row: Row[Any], held: Mapping[str, PoolLoad]) -> Document:
    """A worker: its columns, and of each of its pools the ``size`` and what it holds.

    ``running`` and ``assigned`` are numbers of instances; ``taken`` is how many threads those take that run.
    """
    pools = {name: _pool(size, held.get(name, PoolLoad())) for name, size in sizes_in(row.pools).items()}
    return values_of(row, WORKER_FIELDS) | {"labels": object_in(row.labels), "pools": pools}


def scheduler_document(row: Row[Any]) -> Document:
    """A scheduler: its columns, and whether it is silent for longer than its liveness limit."""
    return values_of(row, SCHEDULER_FIELDS) | {"silent": bool(row.is_silent)}


def limit_document(row: Row[Any]) -> Document:
    """A limit: its columns, how many instances hold it, and how many have ``started`` in the last minute."""
    started = sum(number for _, number in counted(starts_in(row.recent_starts), row.now))
    known = {"started": None if row.starts_per_minute is None else started}
    return {name: known[name] if name in known else plain(getattr(row, name)) for name in LIMIT_FIELDS}


def limit_holder_document(row: Row[Any]) -> Document:
    """An instance that holds a slot of a limit."""
    return values_of(row, HOLDER_FIELDS)


def limit_waiter_document(row: Row[Any]) -> Document:
    """An instance that waits for a limit."""
    return values_of(row, WAITER_FIELDS)


def pause_document(row: Row[Any]) -> Document:
    """The pause of all scheduling: since when, by whom, and why."""
    return {"paused": True, "since": plain(row.gmt_create), "by": row.creator, "reason": row.reason}


def calendar_document(row: Row[Any]) -> Document:
    """A calendar: its columns, and a ``remark`` if SQL has written there what no calendar has."""
    found = found_calendar(row.name, row.days_text)
    return values_of(row, CALENDAR_FIELDS) | {"remark": str(found) if isinstance(found, RotaError) else None}


def key_document(row: Row[Any]) -> Document:
    """A business key: its columns, and the ``status`` and the small ``param`` of what waits or runs under it."""
    names = ("id", "type", "code", "status", "next_at", "task_name", "timezone", "param")
    own = {"key": row.number, "at": plain(row.due_at), "instance_id": row.schedule_instance_id}
    return values_of(row, names) | own


def audit_document(row: Row[Any]) -> Document:
    """An act: its columns."""
    return values_of(row, AUDIT_FIELDS)
