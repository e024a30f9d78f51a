"""The first tables.

Revision ID: 0001
Revises:
"""

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Computed,
    Enum,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    UniqueConstraint,
)

from migrations.steps import create_table, is_sqlite
from shared.store.dialects import BigId, Json, UtcNow, UtcTime

revision = "0001"
down_revision: str | None = None

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


def checked_times(table: str, *columns: str) -> list[CheckConstraint]:
    """On SQLite a time is text, held to one written form and real days; elsewhere a DATETIME needs no check."""
    second = "strftime('%Y-%m-%d %H:%M:%S', substr({0}, 1, 19), '+0 days') || '.' IS substr({0}, 1, 20)"
    form = second + " AND substr({0}, 21) GLOB '[0-9][0-9][0-9][0-9][0-9][0-9]'"
    return [on_sqlite(table, f"{column}_form", form.format(column), column) for column in columns if is_sqlite()]


def checked_json(table: str, *columns: str) -> list[CheckConstraint]:
    """On SQLite JSON is text, held to JSON; elsewhere the type sees to it."""
    return [on_sqlite(table, f"{column}_json", f"json_valid({column})", column) for column in columns if is_sqlite()]


def on_sqlite(table: str, name: str, condition: str, column: str) -> CheckConstraint:
    """A CHECK of a column that may be NULL."""
    return CheckConstraint(f"{column} IS NULL OR {condition}", name=f"ck_{table}_{name}")


def distinct(*columns: str) -> str:
    """That one of the columns differs from its ``planned_`` twin, in the dialect's NULL-safe comparison."""
    same = "IS" if is_sqlite() else "<=>"
    return f"NOT ({' AND '.join(f'{column} {same} planned_{column}' for column in columns)})"


def upgrade() -> None:
    create_schedule_task()
    create_schedule_instance()
    create_schedule_task_node_type()
    create_schedule_task_node()
    create_schedule_worker_node()
    create_schedule_task_lock()


def create_schedule_task() -> None:
    stale = distinct("trigger_kind", "cron", "cron_seconds", "timezone", "starts_at", "ends_at")
    create_table(
        "schedule_task",
        Column("id", BigId, autoincrement=True),
        Column("name", String(63), nullable=False, comment="unique among the live tasks"),
        Column(
            "status",
            Enum("on", "off", name="ck_schedule_task_task_status", create_constraint=True),
            nullable=False,
            server_default="on",
            comment="off holds back cron fires at once, those materialized ahead too",
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
            comment="how often a failed run is retried",
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
        Column("declared", Json, comment="what code declared last (app.schedule); edits by others survive"),
        Column("misfires", BigId, nullable=False, server_default="0", comment="fires missed and not run"),
        Column("fires_held_back", BigId, nullable=False, server_default="0", comment="fires that passed while off"),
        Column("plan_error", String(1023), comment="why the scheduler set this task aside; cleared by an edit"),
        Column("planned_trigger_kind", String(15), comment="trigger_kind when next_fire_at was computed"),
        Column("planned_cron", String(127), comment="cron when next_fire_at was computed"),
        Column("planned_cron_seconds", SmallInteger, comment="cron_seconds when next_fire_at was computed"),
        Column("planned_timezone", String(63), comment="timezone when next_fire_at was computed"),
        Column("planned_starts_at", UtcTime, comment="starts_at when next_fire_at was computed"),
        Column("planned_ends_at", UtcTime, comment="ends_at when next_fire_at was computed"),
        *audit(),
        Column(
            "live_name",
            String(63),
            Computed("CASE WHEN (is_deleted = 0) THEN name END", persisted=False),
            comment="the name while it lives: unique",
        ),
        Column(
            "plan_stale",
            SmallInteger,
            Computed(f"CASE WHEN (is_deleted = 0 AND {stale}) THEN 1 END", persisted=False),
            comment="1: edited since next_fire_at was computed; the scheduler replans it",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_task"),
        *checked_times("schedule_task", "next_fire_at", "starts_at", "ends_at"),
        *checked_json("schedule_task", "param", "required_labels", "declared"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="ck_schedule_task_priority"),
        UniqueConstraint("live_name", name="uq_schedule_task_live_name"),
        comment="what is to run, when, and how; edit it with plain SQL; " + OF_QUEUES,
        indexes={
            "ix_schedule_task_due": ["status", "next_fire_at"],
            "ix_schedule_task_stale": ["plan_stale"],
        },
        **OPTIONS,
    )


def create_schedule_instance() -> None:
    create_table(
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
        Column("lost_by", String(255), comment="name of the worker that lost it last: avoided"),
        Column("overlap_slot", SmallInteger, comment="the slot of its task it runs in; NULL: overlap is allowed"),
        Column("gmt_assigned", UtcTime, comment="when it was given to its worker, UTC"),
        Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
        Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
        Column("gmt_cancel_requested", UtcTime, comment="when somebody asked to cancel it, UTC"),
        Column("reason", String(1023), comment="why it is where it is: no worker, overlap, off, the failure"),
        Column("execution_result", Json, comment="the last node's result, or what went wrong and where"),
        *audit(),
        Column(
            "overlap_key",
            BigId,
            Computed(
                "CASE WHEN (status = 'running' AND overlap_slot IS NOT NULL)"
                " THEN schedule_task_id * 32768 + overlap_slot END",
                persisted=False,
            ),
            comment="unique while it runs: one instance for each overlap slot of a task",
        ),
        Column(
            "unsuccessful",
            String(15),
            Computed("CASE WHEN (status = 'failed' OR status = 'canceled') THEN status END", persisted=False),
            comment="failed or canceled; NULL otherwise: an index finds the newest of them",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_instance"),
        *checked_times("schedule_instance", "schedule_datetime", "due_at"),
        *checked_json("schedule_instance", "param", "execution_result"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="ck_schedule_instance_priority"),
        UniqueConstraint(
            "schedule_task_id", "schedule_datetime", "fire_key", "run_number", name="uq_schedule_instance_fire"
        ),
        UniqueConstraint("overlap_key", name="uq_schedule_instance_overlap_key"),
        comment="one run of a task for one time; insert (schedule_task_id, schedule_datetime) to run a missed time; "
        + OF_QUEUES,
        indexes={
            "ix_schedule_instance_unsuccessful": ["unsuccessful"],
            "ix_schedule_instance_work": ["status", "schedule_worker_node_id", "priority", "due_at"],
        },
        **OPTIONS,
    )


def create_schedule_task_node_type() -> None:
    create_table(
        "schedule_task_node_type",
        Column("id", BigId, autoincrement=True),
        Column("type", String(127), nullable=False, comment="CATEGORY_NODETYPE, as workers register it"),
        Column("category", String(127), nullable=False, comment="the task type this node belongs to"),
        Column("sequence", SmallInteger, nullable=False, server_default="1", comment="its order in the category"),
        Column("defaults", Json, comment="timeout (s), retries, executor"),
        Column("param_schema", Json, comment="JSON schema of the category's param"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_task_node_type"),
        *checked_json("schedule_task_node_type", "defaults", "param_schema"),
        UniqueConstraint("type", name="uq_schedule_task_node_type_type"),
        comment="the node types that workers can run",
        indexes={"ix_schedule_task_node_type_category": ["category", "sequence"]},
        **OPTIONS,
    )


def create_schedule_task_node() -> None:
    create_table(
        "schedule_task_node",
        Column("id", BigId, autoincrement=True),
        Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
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
        Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
        Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
        Column("execution_result", Json, comment="what it returned, or its error with the traceback"),
        *audit(),
        PrimaryKeyConstraint("id", name="pk_schedule_task_node"),
        *checked_json("schedule_task_node", "param", "execution_result"),
        UniqueConstraint("schedule_instance_id", "sequence", name="uq_schedule_task_node_order"),
        comment="the nodes of an instance, pinned when it is assigned, in order",
        **OPTIONS,
    )


def create_schedule_worker_node() -> None:
    create_table(
        "schedule_worker_node",
        Column("id", BigId, autoincrement=True),
        Column("name", String(255), nullable=False, comment="unique among the live"),
        Column("host", String(255), nullable=False, comment="host name"),
        Column("last_heartbeat", UtcTime, nullable=False, server_default=UtcNow(), comment="UTC"),
        Column(
            "current_load",
            Integer,
            nullable=False,
            server_default="0",
            comment="what it was running at its heartbeat",
        ),
        Column(
            "state",
            Enum("live", "draining", "dead", name="ck_schedule_worker_node_worker_state", create_constraint=True),
            nullable=False,
            server_default="live",
            comment="live; draining: takes no more; dead is final, a restart is a new row",
        ),
        Column(
            "liveness_seconds",
            Integer,
            nullable=False,
            server_default="15",
            comment="silent for longer than this, it is declared dead and stops itself",
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
        Column("gmt_started", UtcTime, nullable=False, server_default=UtcNow(), comment="when it registered, UTC"),
        Column("gmt_dead", UtcTime, comment="when it stopped or was declared dead, UTC"),
        Column("reason", String(1023), comment="why it is dead or draining"),
        *audit(),
        Column(
            "live_name",
            String(255),
            Computed("CASE WHEN (state != 'dead') THEN name END", persisted=False),
            comment="the name while it lives: unique",
        ),
        PrimaryKeyConstraint("id", name="pk_schedule_worker_node"),
        *checked_json("schedule_worker_node", "labels", "node_types"),
        UniqueConstraint("live_name", name="uq_schedule_worker_node_live_name"),
        comment="a worker process, once for each start: its epoch",
        indexes={"ix_schedule_worker_node_state": ["state", "last_heartbeat"]},
        **OPTIONS,
    )


def create_schedule_task_lock() -> None:
    create_table(
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
