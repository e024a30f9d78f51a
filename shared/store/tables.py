"""The tables, their columns and their indexes: what Rota's processes and its users' SQL agree on.

Alembic's migrations create them in a database; a test proves that both say the same. Column comments are stored in
the database too, because people read it there.

Three generated columns carry rules that no program can forget to apply:

``schedule_task.live_name``        unique, NULL once deleted: a live task owns its name, a deleted one frees it.
``schedule_task.plan_stale``       1 while what the plan was made from differs from what the row says now, so an edit or
                                   an insert by SQL is found by an index.
``schedule_instance.overlap_key``  unique, NULL unless the instance runs: two workers cannot both run one task's
                                   overlap slot.
"""

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    Enum,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    and_,
    case,
    column,
    literal_column,
    not_,
    or_,
    text,
)

from shared.domain.states import (
    Backoff,
    InstanceStatus,
    MisfirePolicy,
    NodeStatus,
    Origin,
    OverlapPolicy,
    TaskStatus,
    TriggerKind,
    WorkerLostPolicy,
    WorkerState,
)
from shared.store.dialects import BigId, Json, UtcNow, UtcTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

MYSQL_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

OPTIONS: dict[str, Any] = {**MYSQL_OPTIONS, "sqlite_autoincrement": True}
"""SQLite gives the id of a deleted row again unless told otherwise; an id here is an epoch, or names a history."""

OF_QUEUES = "MERGE_THRESHOLD=10"
"""InnoDB reads this in the comment of a table. What waits, runs and ends moves through its indexes and leaves
half-empty pages behind; by default each row purged from one locks the index to try a merge, nearly always in vain."""

OVERLAP_SLOTS = 32768
"""``overlap_key`` is the task's id times this, plus the slot."""

PRIORITIES = tuple(range(10))
"""Priority 0 runs first, 9 last; few values, so that a query can take them as equal ranges of one index."""


def enum(states: type, name: str) -> Enum:
    """An SQL enum of the states' values (on SQLite a VARCHAR with a CHECK)."""
    return Enum(*[str(s) for s in states], name=name, create_constraint=True)  # type: ignore[attr-defined]


def audit() -> list[Column[Any]]:
    """The columns every table ends with: when, by whom, and whether it is deleted."""
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


def checked_times(*columns: str) -> list[CheckConstraint]:
    """On SQLite a time is text: hold it to one written form, or ``T02:00`` and ``02:00:00`` were two fires.

    And to days that there are, or one ``02-30`` spoils every read of the tick.
    """
    second = "strftime('%Y-%m-%d %H:%M:%S', substr({0}, 1, 19), '+0 days') || '.' IS substr({0}, 1, 20)"
    form = second + " AND substr({0}, 21) GLOB '[0-9][0-9][0-9][0-9][0-9][0-9]'"
    return [_on_sqlite(f"{column}_form", form.format(column), column) for column in columns]


def checked_json(*columns: str) -> list[CheckConstraint]:
    """On SQLite JSON is text: hold it to JSON, as MariaDB and MySQL do, or one bad row spoils every read."""
    return [_on_sqlite(f"{column}_json", f"json_valid({column})", column) for column in columns]


def _on_sqlite(name: str, condition: str, column: str) -> CheckConstraint:
    return CheckConstraint(text(f"{column} IS NULL OR {condition}"), name=name).ddl_if(dialect="sqlite")


PLAN_INPUTS = ("trigger_kind", "cron", "cron_seconds", "timezone", "starts_at", "ends_at")
"""What a task's plan is made from; each has a ``planned_`` twin that holds it as it was when the plan was made."""


def plan_is_stale() -> ColumnElement[Any]:
    """What ``plan_stale`` computes: the plan's inputs, as they were and as they are, compared NULL-safely."""
    same = [column(name).is_not_distinct_from(column(f"planned_{name}")) for name in PLAN_INPUTS]
    return case((and_(column("is_deleted") == literal_column("0"), not_(and_(*same))), literal_column("1")))


_task_columns: list[Column[Any]] = [
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False, comment="unique among the live tasks"),
    Column(
        "status",
        enum(TaskStatus, "task_status"),
        nullable=False,
        server_default="on",
        comment="off holds back cron fires at once, those materialized ahead too",
    ),
    Column("type", String(127), nullable=False, comment="the task type: the category of its nodes"),
    Column("param", Json, comment='what its nodes get; may list its own nodes under "nodes"'),
    Column(
        "trigger_kind",
        enum(TriggerKind, "task_trigger_kind"),
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
        enum(MisfirePolicy, "task_misfire_policy"),
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
        enum(OverlapPolicy, "task_overlap_policy"),
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
        enum(Backoff, "task_retry_backoff"),
        nullable=False,
        server_default="exponential",
        comment="how the delay grows",
    ),
    Column(
        "on_worker_lost",
        enum(WorkerLostPolicy, "task_on_worker_lost"),
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
]

_planned_columns: list[Column[Any]] = [
    Column("planned_trigger_kind", String(15), comment="trigger_kind when next_fire_at was computed"),
    Column("planned_cron", String(127), comment="cron when next_fire_at was computed"),
    Column("planned_cron_seconds", SmallInteger, comment="cron_seconds when next_fire_at was computed"),
    Column("planned_timezone", String(63), comment="timezone when next_fire_at was computed"),
    Column("planned_starts_at", UtcTime, comment="starts_at when next_fire_at was computed"),
    Column("planned_ends_at", UtcTime, comment="ends_at when next_fire_at was computed"),
]

schedule_task = Table(
    "schedule_task",
    metadata,
    *_task_columns,
    *_planned_columns,
    *audit(),
    *checked_times("next_fire_at", "starts_at", "ends_at"),
    *checked_json("param", "required_labels", "declared"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
    comment="what is to run, when, and how; edit it with plain SQL; " + OF_QUEUES,
    **OPTIONS,
)
schedule_task.append_column(
    Column(
        "live_name",
        String(63),
        Computed(case((column("is_deleted") == literal_column("0"), column("name"))), persisted=False),
        comment="the name while it lives: unique",
    )
)
schedule_task.append_column(
    Column(
        "plan_stale",
        SmallInteger,
        Computed(plan_is_stale(), persisted=False),
        comment="1: edited since next_fire_at was computed; the scheduler replans it",
    )
)
schedule_task.append_constraint(UniqueConstraint("live_name"))
Index("ix_schedule_task_due", schedule_task.c.status, schedule_task.c.next_fire_at)
Index("ix_schedule_task_stale", schedule_task.c.plan_stale)

schedule_instance = Table(
    "schedule_instance",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column(
        "status",
        enum(InstanceStatus, "instance_status"),
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
        enum(Origin, "instance_origin"),
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
    *checked_times("schedule_datetime", "due_at"),
    *checked_json("param", "execution_result"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
    UniqueConstraint(
        "schedule_task_id", "schedule_datetime", "fire_key", "run_number", name="uq_schedule_instance_fire"
    ),
    comment="one run of a task for one time; insert (schedule_task_id, schedule_datetime) to run a missed time; "
    + OF_QUEUES,
    **OPTIONS,
)
_i = schedule_instance.c
occupies_slot = and_(column("status") == literal_column("'running'"), column("overlap_slot").is_not(None))
slot_key: ColumnElement[Any] = column("schedule_task_id") * literal_column(str(OVERLAP_SLOTS)) + column("overlap_slot")
schedule_instance.append_column(
    Column(
        "overlap_key",
        BigId,
        Computed(case((occupies_slot, slot_key)), persisted=False),
        comment="unique while it runs: one instance for each overlap slot of a task",
    )
)
schedule_instance.append_constraint(UniqueConstraint("overlap_key"))
failed_or_canceled = or_(
    column("status") == literal_column("'failed'"), column("status") == literal_column("'canceled'")
)
schedule_instance.append_column(
    Column(
        "unsuccessful",
        String(15),
        Computed(case((failed_or_canceled, column("status"))), persisted=False),
        comment="failed or canceled; NULL otherwise: an index finds the newest of them",
    )
)
Index("ix_schedule_instance_unsuccessful", _i.unsuccessful)
Index("ix_schedule_instance_work", _i.status, _i.schedule_worker_node_id, _i.priority, _i.due_at)

schedule_task_node_type = Table(
    "schedule_task_node_type",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("type", String(127), nullable=False, comment="CATEGORY_NODETYPE, as workers register it"),
    Column("category", String(127), nullable=False, comment="the task type this node belongs to"),
    Column("sequence", SmallInteger, nullable=False, server_default="1", comment="its order in the category"),
    Column("defaults", Json, comment="timeout (s), retries, executor"),
    Column("param_schema", Json, comment="JSON schema of the category's param"),
    *audit(),
    *checked_json("defaults", "param_schema"),
    UniqueConstraint("type"),
    Index("ix_schedule_task_node_type_category", "category", "sequence"),
    comment="the node types that workers can run",
    **OPTIONS,
)

schedule_task_node = Table(
    "schedule_task_node",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
    Column("schedule_task_node_type_id", BigId, nullable=False, comment="schedule_task_node_type.id"),
    Column("sequence", SmallInteger, nullable=False, comment="its order in the instance"),
    Column(
        "status",
        enum(NodeStatus, "task_node_status"),
        nullable=False,
        server_default="pending",
        comment="pending, running, then succeed, failed or canceled",
    ),
    Column("param", Json, comment="this node's own param, where the task lists its nodes"),
    Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
    Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
    Column("execution_result", Json, comment="what it returned, or its error with the traceback"),
    *audit(),
    *checked_json("param", "execution_result"),
    UniqueConstraint("schedule_instance_id", "sequence", name="uq_schedule_task_node_order"),
    comment="the nodes of an instance, pinned when it is assigned, in order",
    **OPTIONS,
)

schedule_worker_node = Table(
    "schedule_worker_node",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
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
        enum(WorkerState, "worker_state"),
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
    *checked_json("labels", "node_types"),
    comment="a worker process, once for each start: its epoch",
    **OPTIONS,
)
_w = schedule_worker_node.c
schedule_worker_node.append_column(
    Column(
        "live_name",
        String(255),
        Computed(case((column("state") != literal_column("'dead'"), column("name"))), persisted=False),
        comment="the name while it lives: unique",
    )
)
schedule_worker_node.append_constraint(UniqueConstraint("live_name"))
Index("ix_schedule_worker_node_state", _w.state, _w.last_heartbeat)

schedule_task_lock = Table(
    "schedule_task_lock",
    metadata,
    Column("schedule_task_id", BigId, primary_key=True, autoincrement=False, comment="schedule_task.id"),
    Column("locked_by", String(63), comment="token of the scheduler's batch that leased it last"),
    Column("locked_at", UtcTime, comment="UTC; older than the lease: may be taken over"),
    Column("is_locked", SmallInteger, nullable=False, server_default="0", comment="1: held"),
    *audit(),
    comment="a lease on a task while a scheduler materializes or assigns; for economy, the unique keys are for truth",
    **OPTIONS,
)
