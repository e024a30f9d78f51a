"""The first tables.

Revision ID: 0001
Revises:
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    Constraint,
    Enum,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    UniqueConstraint,
    text,
)

from rota.migrations.steps import add_column, create_table, runs_on
from rota.shared.database.checks import VERSION_TABLE
from rota.shared.database.constructs import BigId, Json, LongText, UtcNow, UtcTime, UtcTimeType

revision = "0001"
down_revision: str | None = None
oldest_version = "0.1.0"

OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "sqlite_autoincrement": True,
}

OF_QUEUES = "MERGE_THRESHOLD=10"


def audit() -> list[Column[Any]]:
    return [
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column(
            "is_deleted",
            SmallInteger,
            nullable=False,
            server_default="0",
            comment="1: deleted, kept as history",
        ),
    ]


EARLIEST, LATEST = "1970-01-01 00:00:00.000000", "9999-11-30 23:59:59.999999"
YEAR_SECONDS, MANY = 31_536_000, 1_000_000_000
RANGES = {
    "schedule_task": {
        "cron_seconds": (0, 1),
        "misfire_grace_seconds": (1, YEAR_SECONDS),
        "max_instances": (1, 1000),
        "retries": (0, 1000),
        "retry_delay_seconds": (0, 86_400),
        "timeout_seconds": (1, YEAR_SECONDS),
        "priority": (0, 9),
    },
    "schedule_instance": {
        "run_number": (0, MANY),
        "priority": (0, 9),
        "attempt": (0, MANY),
        "failures": (0, 30_000),
        "worker_losses": (0, 30_000),
    },
    "schedule_worker_node": {
        "capacity": (1, 10_000),
        "prefetch": (0, 100_000),
    },
    "schedule_worker_beat": {"liveness_seconds": (1, YEAR_SECONDS)},
    "schedule_scheduler_node": {"liveness_seconds": (1, YEAR_SECONDS)},
    "schedule_task_lock": {"is_locked": (0, 1)},
}
RULES = {
    "schedule_task": {"name_is_not_empty": "name <> ''", "type_is_not_empty": "type <> ''"},
    "schedule_instance": {
        "pending_has_no_worker": "status <> 'pending' OR schedule_worker_node_id IS NULL",
        "assigned_has_a_worker": "status <> 'assigned' OR schedule_worker_node_id IS NOT NULL",
        "running_has_a_worker": "status <> 'running' OR schedule_worker_node_id IS NOT NULL",
        "gmt_completed_only_when_ended": "gmt_completed IS NULL OR status IN ('failed', 'canceled', 'succeed')",
        "assigned_has_due_at_and_run_number": "status NOT IN ('assigned', 'running')"
        " OR (due_at IS NOT NULL AND run_number IS NOT NULL)",
        "slot_kept_only_after_a_failure": "slot_kept = 0 OR status IN ('running', 'failed', 'canceled')",
    },
    "schedule_task_lock": {"a_lock_has_locked_at": "is_locked = 0 OR locked_at IS NOT NULL"},
}
WHOLE_NUMBERS: tuple[tuple[type[Integer], int, int], ...] = (
    (SmallInteger, -(2**15), 2**15 - 1),
    (BigInteger, 0, 2**63 - 1),
    (Integer, -(2**31), 2**31 - 1),
)


def create(name: str, *elements: Column[Any] | Constraint, **options: Any) -> None:
    """Create a table with the CHECKs of what SQL may write."""
    conditions = dict(RULES.get(name, {}))
    for column, (least, most) in RANGES.get(name, {}).items():
        conditions[f"{column}_from_{least}_to_{most}"] = f"{column} BETWEEN {least} AND {most}"
    for element in elements:
        if isinstance(element, Column) and element.computed is None:
            conditions |= on_sqlite(element) if runs_on("sqlite") else elsewhere(element)
    checks = [CheckConstraint(text(condition), name=f"ck_{name}_{check}") for check, condition in conditions.items()]
    create_table(name, *elements, *checks, **options)


def elsewhere(column: Column[Any]) -> dict[str, str]:
    """A time is in range, and has no zero day or month; an enum is no ''; the types see to the rest."""
    name = column.name
    if isinstance(column.type, UtcTimeType):
        in_range = f"{name} BETWEEN '{EARLIEST}' AND '{LATEST}'"
        return {f"{name}_from_1970_to_9999": f"{in_range} AND DAYOFMONTH({name}) > 0 AND MONTH({name}) > 0"}
    return {f"{name}_is_known": f"{name} <> ''"} if isinstance(column.type, Enum) else {}


def on_sqlite(column: Column[Any]) -> dict[str, str]:
    """SQLite takes any value in any column. A time is held to one written form and real days, JSON to JSON."""
    name, checks = column.name, dict[str, str]()
    if isinstance(column.type, UtcTimeType):
        second = f"strftime('%Y-%m-%d %H:%M:%S', substr({name}, 1, 19), '+0 days') || '.' IS substr({name}, 1, 20)"
        checks[f"{name}_form"] = f"{second} AND substr({name}, 21) GLOB '[0-9][0-9][0-9][0-9][0-9][0-9]'"
        checks[f"{name}_from_1970_to_9999"] = f"{name} BETWEEN '{EARLIEST}' AND '{LATEST}'"
    elif isinstance(column.type, JSON):
        checks[f"{name}_json"] = f"json_valid({name})"
    elif isinstance(column.type, Integer):
        least, most = next(limits for kind, *limits in WHOLE_NUMBERS if isinstance(column.type, kind))
        is_whole = f"typeof({name}) = 'integer'"
        checks[f"{name}_is_a_whole_number"] = f"{is_whole} AND {name} BETWEEN {least} AND {most}"
    elif isinstance(column.type, String) and not isinstance(column.type, Enum):
        checks[f"{name}_is_text"] = f"typeof({name}) = 'text'"
    return {check: f"{name} IS NULL OR {condition}" for check, condition in checks.items()}


def upgrade() -> None:
    add_column(VERSION_TABLE, Column("oldest_version", String(31), nullable=False, server_default=oldest_version))
    create_schedule_task()
    create_schedule_instance()
    create_schedule_kept_slot()
    create_schedule_task_node_type()
    create_schedule_task_type_version()
    create_schedule_task_node()
    create_schedule_worker_node()
    create_schedule_worker_beat()
    create_schedule_task_lock()
    create_schedule_scheduler_node()
    create_schedule_audit()


def create_schedule_task() -> None:
    create(
        "schedule_task",
        Column("id", BigId, autoincrement=True),
        Column("name", String(63), nullable=False, comment="unique among the live tasks"),
        Column(
            "status",
            Enum("on", "off", name="ck_schedule_task_task_status", create_constraint=True),
            nullable=False,
            server_default="on",
            comment="off holds back cron fires, those materialized ahead too",
        ),
        Column("type", String(127), nullable=False, comment="the task type: the category of its nodes"),
        Column("param", Json, comment='what its nodes get; may list its own nodes under "nodes"'),
        Column(
            "trigger_kind",
            Enum("cron", "manual", name="ck_schedule_task_task_trigger_kind", create_constraint=True),
            nullable=False,
            server_default="cron",
            comment="cron, or manual: runs only when asked",
        ),
        Column("cron", String(127), comment="cron expression: 5 fields, 6 with cron_seconds"),
        Column(
            "cron_seconds",
            SmallInteger,
            nullable=False,
            server_default="0",
            comment="1: the first of six cron fields is seconds",
        ),
        Column(
            "timezone",
            String(63),
            nullable=False,
            server_default="UTC",
            comment="IANA zone in which cron is read",
        ),
        Column("trigger_spec", Json, comment="what other kinds of triggers are made from, as JSON; none is there yet"),
        Column("starts_at", UtcTime, comment="no fire before this, UTC"),
        Column("ends_at", UtcTime, comment="no fire after this, UTC"),
        Column("next_fire_at", UtcTime, comment="the next fire to materialize, UTC; written by the scheduler"),
        Column(
            "misfire_policy",
            Enum("fire_once", name="ck_schedule_task_task_misfire_policy", create_constraint=True),
            nullable=False,
            server_default="fire_once",
            comment="fires missed while no scheduler ran: fire_once runs the newest",
        ),
        Column(
            "misfire_grace_seconds",
            Integer,
            nullable=False,
            server_default="10",
            comment="a fire late by no more than this is late, not missed",
        ),
        Column(
            "overlap_policy",
            Enum(
                "skip", "queue", "replace", "allow", name="ck_schedule_task_task_overlap_policy", create_constraint=True
            ),
            nullable=False,
            server_default="skip",
            comment="while the previous still runs: skip, queue, replace it, or allow",
        ),
        Column(
            "max_instances",
            SmallInteger,
            comment="with overlap allow: how many may run at once; NULL: any number",
        ),
        Column(
            "retries",
            SmallInteger,
            nullable=False,
            server_default="0",
            comment="how often each node is retried, unless its type sets it",
        ),
        Column("retry_delay_seconds", Integer, nullable=False, server_default="10", comment="before the first retry"),
        Column(
            "retry_backoff",
            Enum("fixed", "exponential", name="ck_schedule_task_task_retry_backoff", create_constraint=True),
            nullable=False,
            server_default="exponential",
            comment="how the delay grows",
        ),
        Column(
            "on_worker_lost",
            Enum("retry", "fail", name="ck_schedule_task_task_on_worker_lost", create_constraint=True),
            nullable=False,
            server_default="retry",
            comment="fail: at most once; retry: at least once",
        ),
        Column("timeout_seconds", Integer, comment="limit for one node's run, unless its type sets one"),
        Column("priority", SmallInteger, nullable=False, server_default="5", comment="0 first .. 9 last"),
        Column("required_labels", Json, comment="labels a worker must carry, as a JSON object"),
        Column("declared", Json, comment="the declaration of code (app.schedule) in force; edits by others survive"),
        Column("declared_at", UtcTime, comment="since when that declaration is in force, UTC"),
        Column("declared_versions", Json, comment="the versions of all its declarations, the oldest first"),
        Column("misfires", BigId, nullable=False, server_default="0", comment="fires missed and not run"),
        Column("fires_held_back", BigId, nullable=False, server_default="0", comment="fires that passed while off"),
        Column("plan_error", String(1023), comment="why the scheduler set this task aside; cleared by an edit"),
        Column("planned_inputs", LongText, comment="plan_inputs when next_fire_at was computed"),
        *audit(),
        Column(
            "live_name",
            String(63),
            Computed("CASE WHEN (is_deleted = 0) THEN name END", persisted=True),
            comment="the name while it lives: unique",
        ),
        Column(
            "plan_inputs",
            LongText,
            Computed(
                "JSON_ARRAY(status, is_deleted, trigger_kind, cron, cron_seconds, timezone, TRIM(trigger_spec),"
                " starts_at, ends_at)",
                persisted=True,
            ),
            comment="what a plan is made from, as one JSON array",
        ),
        Column(
            "plan_stale",
            SmallInteger,
            Computed("CASE WHEN (planned_inputs IS NULL OR planned_inputs <> plan_inputs) THEN 1 END", persisted=True),
            comment="1: edited since next_fire_at was computed; the scheduler looks at it",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_task"),
        UniqueConstraint("live_name", name="uq_schedule_task_live_name"),
        comment="what is to run, when, and how; edit it with plain SQL; " + OF_QUEUES,
        indexes={
            "ix_schedule_task_due": ["status", "next_fire_at", "trigger_kind", "misfire_policy"],
            "ix_schedule_task_stale": ["plan_stale", "trigger_kind", "misfire_policy"],
            "ix_schedule_task_name": ["name"],
            "ix_schedule_task_type": ["type"],
        },
        **OPTIONS,
    )


def create_schedule_instance() -> None:
    create(
        "schedule_instance",
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column(
            "status",
            Enum(
                "pending",
                "assigned",
                "running",
                "failed",
                "canceled",
                "succeed",
                name="ck_schedule_instance_instance_status",
                create_constraint=True,
            ),
            nullable=False,
            server_default="pending",
            comment="pending, assigned, running, then failed, canceled or succeed",
        ),
        Column(
            "schedule_datetime",
            UtcTime,
            nullable=False,
            comment="the fire's own (nominal) time, UTC; a replay keeps it",
        ),
        Column("due_at", UtcTime, comment="when it may run, UTC; NULL: at schedule_datetime"),
        Column("fire_key", String(63), nullable=False, server_default="", comment="tells fires of one time apart"),
        Column("run_number", Integer, comment="0: the fire itself; 1..: replays; NULL: the scheduler gives the next"),
        Column(
            "origin",
            Enum(
                "cron", "manual", "replay", "sql", name="ck_schedule_instance_instance_origin", create_constraint=True
            ),
            nullable=False,
            server_default="sql",
            comment="what asked for it",
        ),
        Column("priority", SmallInteger, nullable=False, server_default="5", comment="0 first .. 9 last"),
        Column("param", Json, comment="the task's param, pinned; NULL: pinned when assigned"),
        Column("schedule_worker_node_id", BigId, comment="the worker it was given to"),
        Column("attempt", Integer, nullable=False, server_default="0", comment="grows at every claim: the fence"),
        Column("failures", SmallInteger, nullable=False, server_default="0", comment="how often it ran and failed"),
        Column("worker_losses", SmallInteger, nullable=False, server_default="0", comment="how often its worker died"),
        Column("lost_by", String(255), comment="the worker that lost it, or did not start it: avoided"),
        Column(
            "overlap_slot",
            SmallInteger,
            comment="the slot of its task it runs in; 0: it waits for its turn",
        ),
        Column(
            "slot_kept",
            SmallInteger,
            nullable=False,
            server_default="0",
            comment="1: it has ended, and keeps its slot until its thread returns",
        ),
        Column("gmt_assigned", UtcTime, comment="when it was given to its worker, UTC"),
        Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
        Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
        Column("gmt_cancel_requested", UtcTime, comment="when somebody asked to cancel it, UTC"),
        Column("reason", String(1023), comment="why it is where it is: no worker, overlap, off, the failure"),
        Column("execution_result", Json, comment="the last node's result, or what went wrong and where"),
        Column("failed_attempts", Json, comment="how its newest attempts failed, a JSON list, the oldest first"),
        *audit(),
        Column(
            "overlap_key",
            BigId,
            Computed(
                "CASE WHEN (overlap_slot IS NOT NULL AND (status = 'running' OR slot_kept = 1))"
                " THEN schedule_task_id * 32768 + overlap_slot END",
                persisted=True,
            ),
            comment="unique while it, or its thread, runs: one instance for each overlap slot of a task",
        ),
        Column(
            "turn_key",
            BigId,
            Computed(
                "CASE WHEN ((status = 'pending' OR status = 'assigned') AND overlap_slot IS NOT NULL)"
                " THEN schedule_task_id END",
                persisted=True,
            ),
            comment="its task while it waits for its turn: an index finds which is the oldest",
        ),
        Column(
            "unsuccessful",
            String(15),
            Computed("CASE WHEN (status = 'failed' OR status = 'canceled') THEN status END", persisted=True),
            comment="failed or canceled; NULL otherwise: an index finds the newest of them",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_instance"),
        UniqueConstraint(
            "schedule_task_id", "schedule_datetime", "fire_key", "run_number", name="uq_schedule_instance_fire"
        ),
        UniqueConstraint("overlap_key", name="uq_schedule_instance_overlap_key"),
        comment="one run of a task for one time; insert (schedule_task_id, schedule_datetime) to run a missed time; "
        + OF_QUEUES,
        indexes={
            "ix_schedule_instance_unsuccessful": ["unsuccessful"],
            "ix_schedule_instance_turn": ["turn_key", "due_at"],
            "ix_schedule_instance_work": ["status", "schedule_worker_node_id", "priority", "due_at"],
        },
        **OPTIONS,
    )


def create_schedule_kept_slot() -> None:
    create(
        "schedule_kept_slot",
        Column("schedule_instance_id", BigId, autoincrement=False, comment="schedule_instance.id"),
        Column("schedule_worker_node_id", BigId, nullable=False, comment="the worker on which its thread still runs"),
        *audit(),
        PrimaryKeyConstraint("schedule_instance_id", name="pk_schedule_kept_slot"),
        comment="the instances that have ended and keep their overlap slots, because their threads still run",
        indexes={"ix_schedule_kept_slot_worker": ["schedule_worker_node_id"]},
        **OPTIONS,
    )


def create_schedule_task_node_type() -> None:
    create(
        "schedule_task_node_type",
        Column("id", BigId, autoincrement=True),
        Column("type", String(127), nullable=False, comment="CATEGORY_NODETYPE, as workers register it"),
        Column("category", String(127), nullable=False, comment="the task type this node belongs to"),
        Column("sequence", SmallInteger, nullable=False, server_default="1", comment="its order in the category"),
        Column("defaults", Json, comment="timeout (s), retries, executor"),
        Column("param_schema", Json, comment="JSON schema of the category's param"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_task_node_type"),
        UniqueConstraint("type", name="uq_schedule_task_node_type_type"),
        comment="the node types that workers can run",
        indexes={"ix_schedule_task_node_type_category": ["category", "sequence"]},
        **OPTIONS,
    )


def create_schedule_task_type_version() -> None:
    create(
        "schedule_task_type_version",
        Column("id", BigId, autoincrement=True),
        Column("category", String(127), nullable=False, comment="the task type"),
        Column("version", String(15), nullable=False, comment="a hash of its list of nodes"),
        Column(
            "nodes", Json, nullable=False, comment="the nodes in order, as a JSON list: type, defaults, param_schema"
        ),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_task_type_version"),
        UniqueConstraint("category", "version", name="uq_schedule_task_type_version_version"),
        comment="each ordered list of nodes that an app has declared for a task type; gmt_modified: registered last",
        **OPTIONS,
    )


def create_schedule_task_node() -> None:
    create(
        "schedule_task_node",
        Column("id", BigId, autoincrement=True),
        Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
        Column(
            "instance_gmt_create",
            UtcTime,
            nullable=False,
            comment="gmt_create of its instance: after TRUNCATE ids are given again, to other instances",
        ),
        Column("schedule_task_node_type_id", BigId, nullable=False, comment="schedule_task_node_type.id"),
        Column("sequence", SmallInteger, nullable=False, comment="its order in the instance"),
        Column(
            "status",
            Enum(
                "pending",
                "running",
                "succeed",
                "failed",
                "canceled",
                name="ck_schedule_task_node_task_node_status",
                create_constraint=True,
            ),
            nullable=False,
            server_default="pending",
            comment="pending, running, then succeed, failed or canceled",
        ),
        Column("param", Json, comment="this node's own param, where the task lists its nodes"),
        Column(
            "failures", SmallInteger, nullable=False, server_default="0", comment="how often it failed: its retries"
        ),
        Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
        Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
        Column("execution_result", Json, comment="what it returned, or its error with the traceback"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_task_node"),
        UniqueConstraint("schedule_instance_id", "instance_gmt_create", "sequence", name="uq_schedule_task_node_order"),
        comment="the nodes of an instance, pinned when it is assigned, in order",
        **OPTIONS,
    )


def create_schedule_worker_node() -> None:
    create(
        "schedule_worker_node",
        Column("id", BigId, autoincrement=True),
        Column("name", String(255), nullable=False, comment="unique among the live"),
        Column("host", String(255), nullable=False, comment="host name"),
        Column(
            "last_heartbeat",
            UtcTime,
            nullable=False,
            server_default=UtcNow(),
            comment="UTC; copied from its beat every few seconds, for people",
        ),
        Column(
            "current_load",
            Integer,
            nullable=False,
            server_default="0",
            comment="slots taken at that heartbeat; copied, too",
        ),
        Column(
            "state",
            Enum("live", "draining", "dead", name="ck_schedule_worker_node_worker_state", create_constraint=True),
            nullable=False,
            server_default="live",
            comment="live; draining: takes no more; dead is final, a restart is a new row",
        ),
        Column("pid", Integer, nullable=False, comment="process id"),
        Column(
            "process_identity",
            String(255),
            nullable=False,
            comment="boot, pid namespace and start of the process: tells whether it is provably gone",
        ),
        Column("version", String(31), nullable=False, comment="Rota version"),
        Column("capacity", Integer, nullable=False, comment="how many instances it runs at once"),
        Column("prefetch", Integer, nullable=False, comment="how many more it may be assigned ahead"),
        Column("labels", Json, comment="what it carries, as a JSON object"),
        Column("node_types", Json, nullable=False, comment="the node types it can run, as a JSON list"),
        Column("type_versions", Json, comment="the version it carries of each task type, as a JSON object"),
        Column("schedules", Json, comment="the version of each task that its app declares, as a JSON object"),
        Column("schedules_version", String(15), comment="a hash of schedules"),
        Column("gmt_started", UtcTime, nullable=False, server_default=UtcNow(), comment="when it registered, UTC"),
        Column("gmt_dead", UtcTime, comment="when it stopped or was declared dead, UTC"),
        Column("gmt_blocked", UtcTime, comment="since when its process does not answer, UTC; NULL: it answers"),
        Column("blocked_by", String(1023), comment="the runs that may hold its process up"),
        Column("reason", String(1023), comment="why it is dead or draining"),
        *audit(),
        Column(
            "live_name",
            String(255),
            Computed("CASE WHEN (state != 'dead') THEN name END", persisted=True),
            comment="the name while it lives: unique",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_worker_node"),
        UniqueConstraint("live_name", name="uq_schedule_worker_node_live_name"),
        comment="a worker process, once for each start: its epoch",
        indexes={
            "ix_schedule_worker_node_state": ["state"],
            "ix_schedule_worker_node_name": ["name"],
            "ix_schedule_worker_node_host": ["host"],
        },
        **OPTIONS,
    )


def create_schedule_worker_beat() -> None:
    create(
        "schedule_worker_beat",
        Column("schedule_worker_node_id", BigId, autoincrement=False, comment="schedule_worker_node.id"),
        Column("last_beat", UtcTime, nullable=False, server_default=UtcNow(), comment="UTC"),
        Column(
            "liveness_seconds",
            Integer,
            nullable=False,
            server_default="15",
            comment="silent for longer than this, it is declared dead and stops itself",
        ),
        Column("busy", Integer, nullable=False, server_default="0", comment="slots taken"),
        Column(
            "abandoned",
            Integer,
            nullable=False,
            server_default="0",
            comment="slots taken by threads that were to stop and still run",
        ),
        Column("started", BigId, nullable=False, server_default="0", comment="how many instances it has started"),
        Column("gmt_progress", UtcTime, comment="when it last told that it had started one more, UTC"),
        Column("gmt_dead", UtcTime, comment="when it stopped or was declared dead, UTC; NULL: it lives"),
        Column("reason", String(1023), comment="why it is dead"),
        Column("culprits", Json, comment="ids of the runs it was killed for; NULL: unknown, any of what it ran"),
        *audit(),
        PrimaryKeyConstraint("schedule_worker_node_id", name="pk_schedule_worker_beat"),
        comment="the heartbeats of the workers: who lives is decided here; schedule_worker_node shows it to people",
        indexes={"ix_schedule_worker_beat_gmt_dead": ["gmt_dead"]},
        **OPTIONS,
    )


def create_schedule_task_lock() -> None:
    create(
        "schedule_task_lock",
        Column("schedule_task_id", BigId, autoincrement=False, comment="schedule_task.id"),
        Column("locked_by", String(63), comment="token of the scheduler's batch that leased it last"),
        Column("locked_at", UtcTime, comment="UTC; older than the lease: may be taken over"),
        Column("is_locked", SmallInteger, nullable=False, server_default="0", comment="1: held"),
        *audit(),
        PrimaryKeyConstraint("schedule_task_id", name="pk_schedule_task_lock"),
        comment="a lease on a task while a scheduler materializes or assigns; "
        "for economy, the unique keys are for truth",
        **OPTIONS,
    )


def create_schedule_scheduler_node() -> None:
    create(
        "schedule_scheduler_node",
        Column("id", BigId, autoincrement=True),
        Column("name", String(255), nullable=False, comment="host and process id"),
        Column("host", String(255), nullable=False, comment="host name"),
        Column("pid", Integer, nullable=False, comment="process id"),
        Column("version", String(31), nullable=False, comment="Rota version"),
        Column(
            "state",
            Enum("active", "paused", name="ck_schedule_scheduler_node_scheduler_state", create_constraint=True),
            nullable=False,
            server_default="active",
            comment="active, or paused: it materializes nothing",
        ),
        Column(
            "last_tick",
            UtcTime,
            nullable=False,
            server_default=UtcNow(),
            comment="when it last looked for due tasks, UTC; written every few seconds",
        ),
        Column(
            "liveness_seconds",
            Integer,
            nullable=False,
            server_default="15",
            comment="silent for longer than this, it schedules nothing",
        ),
        Column("kinds", Json, comment="the kinds of tasks that it can plan, as a JSON object; it leaves others alone"),
        Column("gmt_started", UtcTime, nullable=False, server_default=UtcNow(), comment="when it registered, UTC"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_scheduler_node"),
        comment="a scheduler process, once for each start; is_deleted = 1 once it has stopped",
        indexes={"ix_schedule_scheduler_node_last_tick": ["last_tick"]},
        **OPTIONS,
    )


def create_schedule_audit() -> None:
    create(
        "schedule_audit",
        Column("id", BigId, autoincrement=True),
        Column("act_key", String(32), nullable=False, comment="the same in all rows of one act"),
        Column("actor", String(127), nullable=False, comment="who did it"),
        Column("face", String(15), nullable=False, comment="by what: cli, or code (app.schedule)"),
        Column("action", String(31), nullable=False, comment="what was done: task.set, instance.cancel, …"),
        Column("object_type", String(31), nullable=False, comment="the table of the row that was changed or made"),
        Column("object_id", BigId, nullable=False, comment="the id of that row"),
        Column("object_name", String(63), comment="the name of the task that it is, or belongs to, at that time"),
        Column("why", String(1023), comment="the reason that was given"),
        Column("old_values", Json, comment="what was changed, as it was before; NULL: the row is new"),
        Column("new_values", Json, comment="what was changed, as it is since"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_audit"),
        comment="who changed what, when and why; written in the transaction of the change",
        indexes={
            "ix_schedule_audit_act_key": ["act_key"],
            "ix_schedule_audit_object": ["object_type", "object_id"],
            "ix_schedule_audit_object_name": ["object_name"],
        },
        **OPTIONS,
    )
