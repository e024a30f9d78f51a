"""The tables, their columns and their indexes: what Rota's processes and its users' SQL agree on.

Alembic's migrations create them in a database; a test proves that both say the same. Column comments are stored in
the database too, because people read it there.

CHECKs refuse what SQL must not write; ``limits`` says which.

Four generated columns carry rules that no program can forget to apply:

``schedule_task.live_name``        unique, NULL once deleted: a live task owns its name, a deleted one frees it.
``schedule_task.plan_stale``       1 while what the plan was made from (``planned_inputs``) differs from what the row
                                   says now (``plan_inputs``), so an edit or an insert by SQL is found by an index.
``schedule_instance.overlap_key``  unique, NULL unless the instance runs: two workers cannot both run one task's
                                   overlap slot.
``schedule_instance.turn_key``     NULL unless the instance waits for others of its task: an index finds the oldest.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Computed,
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
    exists,
    literal_column,
    or_,
    select,
)

from rota.shared.database.added_columns import added
from rota.shared.database.backends import all_backends
from rota.shared.database.constructs import BigId, Json, LongText, UtcNow, UtcTime
from rota.shared.database.words import WordType
from rota.shared.domain.groups import MOST_SHARE
from rota.shared.domain.planning import INPUT_COLUMNS
from rota.shared.domain.spreading import MOST_SHARDS
from rota.shared.domain.states import (
    BackfillStatus,
    Backoff,
    FollowUp,
    InstanceStatus,
    MisfirePolicy,
    NodeStatus,
    OnEnd,
    OnRetry,
    Origin,
    OverlapPolicy,
    SchedulerState,
    SkipReason,
    Spread,
    TaskStatus,
    TriggerKind,
    WorkerLostPolicy,
    WorkerState,
)
from rota.shared.domain.weights import MOST_WEIGHT
from rota.shared.store.limits import YEAR_SECONDS, checks

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

OPTIONS: dict[str, Any] = {name: value for one in all_backends() for name, value in one.table_options.items()}
"""What each database is told of every table; none reads another's."""

OF_QUEUES = "MERGE_THRESHOLD=10"
"""InnoDB reads this in the comment of a table. What waits, runs and ends moves through its indexes and leaves
half-empty pages behind; by default each row purged from one locks the index to try a merge, nearly always in vain."""

MOST_ATTEMPTS = 2**31 - 1
"""No instance is claimed so often. SQL may have written it."""

OVERLAP_SLOTS = 32768
"""``overlap_key`` is the task's id times this, plus the slot."""

PRIORITIES = tuple(range(10))
"""Priority 0 runs first, 9 last; few values, so that a query can take them as equal ranges of one index."""


def enum(states: type[StrEnum], name: str) -> WordType:
    """An SQL enum of the states' values; a text with a CHECK where the database has no enums."""
    return WordType(*map(str, states), name=name, create_constraint=True)


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


PLAN_INPUTS = ("status", "is_deleted", *INPUT_COLUMNS)
"""What a task's plan is made from, in the order of the JSON array that ``plan_inputs`` is."""


def plan_inputs_text() -> str:
    """The expression of ``plan_inputs``, which MariaDB, MySQL and SQLite all read.

    It is JSON because its text is the same whatever session computes it, and no two inputs run into each other. TRIM
    makes a string of ``trigger_spec``: JSON that Python cannot read then spoils one task, and not its batch.

    The inputs of triggers to come go into ``trigger_spec``, so this expression need not change. A migration that does
    change it makes every plan stale. Its first step therefore rewrites the plans that are not, and may be run again:
    ``UPDATE schedule_task SET planned_inputs = <the new expression> WHERE plan_stale IS NULL``.
    """
    return f"JSON_ARRAY({', '.join(PLAN_INPUTS)})".replace("trigger_spec", "TRIM(trigger_spec)")


_task_columns: list[Column[Any]] = [
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False, comment="unique among the live tasks"),
    Column(
        "status",
        enum(TaskStatus, "task_status"),
        nullable=False,
        server_default="on",
        comment="off holds back cron fires, those materialized ahead too",
    ),
    Column("type", String(127), nullable=False, comment="the task type: the category of its nodes"),
    Column("param", Json, comment='what its nodes get; may list its own nodes under "nodes"'),
    Column(
        "trigger_kind",
        enum(TriggerKind, "task_trigger_kind"),
        nullable=False,
        server_default="cron",
        comment="cron; interval; fixed_delay; once; combined: any or all of several; after: when other tasks have"
        " ended; manual: runs only when asked",
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
    Column("trigger_spec", Json, comment="what other kinds than cron are made from, a JSON object"),
    Column("starts_at", UtcTime, comment="no fire before this, UTC"),
    Column("ends_at", UtcTime, comment="no fire after this, UTC"),
    Column("next_fire_at", UtcTime, comment="the next fire to materialize, UTC; written by the scheduler"),
    Column(
        "misfire_policy",
        enum(MisfirePolicy, "task_misfire_policy"),
        nullable=False,
        server_default="fire_once",
        comment="fires missed while no scheduler ran: fire_once runs the newest, skip none, fire_all up to misfire_cap",
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
        comment="how often each node is retried, unless its type sets it",
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
    Column("declared", Json, comment="the declaration of code (app.schedule) in force; edits by others survive"),
    Column("declared_at", UtcTime, comment="since when that declaration is in force, UTC"),
    Column("declared_versions", Json, comment="the versions of all its declarations, the oldest first"),
    Column("misfires", BigId, nullable=False, server_default="0", comment="fires missed and not run"),
    Column("fires_held_back", BigId, nullable=False, server_default="0", comment="fires that passed while off"),
    Column("plan_error", String(1023), comment="why the scheduler set this task aside; cleared by an edit"),
    Column("planned_inputs", LongText, comment="plan_inputs when next_fire_at was computed"),
]

schedule_task = Table(
    "schedule_task",
    metadata,
    *_task_columns,
    *audit(),
    comment="what is to run, when, and how; edit it with plain SQL; " + OF_QUEUES,
    **OPTIONS,
)
schedule_task.append_column(
    Column(
        "live_name",
        String(63),
        Computed(case((column("is_deleted") == literal_column("0"), column("name"))), persisted=True),
        comment="the name while it lives: unique",
    )
)
schedule_task.append_column(
    Column(
        "plan_inputs",
        LongText,
        Computed(plan_inputs_text(), persisted=True),
        comment="what a plan is made from, as one JSON array",
    )
)
schedule_task.append_column(
    Column(
        "plan_stale",
        SmallInteger,
        Computed(
            "CASE WHEN (planned_inputs IS NULL OR planned_inputs <> plan_inputs) THEN 1 END",
            persisted=True,
        ),
        comment="1: edited since next_fire_at was computed; the scheduler looks at it",
    )
)
_added_to_tasks: list[tuple[Column[Any], tuple[int, int] | None]] = [
    (
        Column(
            "misfire_window_seconds",
            Integer,
            nullable=False,
            server_default="86400",
            comment="with misfire_policy fire_all: what was missed longer ago does not run",
        ),
        (1, YEAR_SECONDS),
    ),
    (
        Column(
            "misfire_cap",
            SmallInteger,
            nullable=False,
            server_default="100",
            comment="with misfire_policy fire_all: at most so many run, the newest",
        ),
        (1, 1000),
    ),
    (Column("description", String(1023), comment="what it is for, for people"), None),
    (Column("owner", String(127), comment="who answers for it"), None),
    (Column("tags", Json, comment="words to find it by, a JSON list of texts"), None),
    (Column("task_group", String(63), comment="the group that it belongs to"), None),
]
"""The columns that migrations have added, in their order."""

for _added, _between in _added_to_tasks:
    schedule_task.append_column(added("schedule_task", _added, _between))
_list_of_exceptions = "{0} IS NULL OR json_valid({0}) AND upper(json_type({0})) = 'ARRAY' AND length({0}) <= 4000"
_retries_of_tasks: list[tuple[Column[Any], tuple[int, int] | None, tuple[str, str] | None]] = [
    (
        Column(
            "max_retry_delay_seconds",
            Integer,
            comment="no exponential delay is longer; NULL: an hour, or retry_delay_seconds if longer",
        ),
        (1, YEAR_SECONDS),
        None,
    ),
    (
        Column(
            "retry_jitter_percent",
            SmallInteger,
            nullable=False,
            server_default="0",
            comment="each delay is shortened by up to so many percent",
        ),
        (0, 100),
        None,
    ),
    (
        Column("retry_on", Json, comment="a JSON list of exceptions: only these are retried; NULL: all are"),
        None,
        ("retry_on_is_a_list", _list_of_exceptions.format("retry_on")),
    ),
    (
        Column("never_retry", Json, comment="a JSON list of exceptions that are never retried"),
        None,
        ("never_retry_is_a_list", _list_of_exceptions.format("never_retry")),
    ),
    (
        Column(
            "on_retry",
            WordType(*[str(word) for word in OnRetry], name="task_on_retry"),
            nullable=False,
            server_default="resume",
            comment="resume: nodes that succeeded are kept; restart: all run again",
        ),
        None,
        ("task_on_retry", "on_retry IN ('resume', 'restart')"),
    ),
]
"""The columns that a migration has added after those, with the numbers that they may hold and other rules."""

for _added, _between, _rule in _retries_of_tasks:
    schedule_task.append_column(added("schedule_task", _added, _between, _rule))
_history_complete_from: Column[Any] = Column(
    "history_complete_from", UtcTime, comment="instances of earlier fires were deleted, UTC; NULL: none was"
)
schedule_task.append_column(added("schedule_task", _history_complete_from))
schedule_task.append_column(
    added(
        "schedule_task",
        Column("limit_name", String(63), comment="schedule_limit.name: the limit that it shares with other tasks"),
    )
)
_run_timeout: Column[Any] = Column(
    "run_timeout_seconds", Integer, comment="limit for a whole run, from its start to its end; NULL: none"
)
schedule_task.append_column(added("schedule_task", _run_timeout, (1, YEAR_SECONDS)))
_spread: Column[Any] = Column(
    "spread",
    WordType(*map(str, Spread), name="task_spread"),
    comment="a fire runs as several instances. shards: so many; workers: as many as live workers fit; broadcast:"
    " one on each of them; NULL: as one",
)
_shards: Column[Any] = Column("shards", SmallInteger, comment="with spread shards: so many")
schedule_task.append_column(
    added("schedule_task", _spread, rule=("task_spread", "spread IN ('shards', 'workers', 'broadcast')"))
)
schedule_task.append_column(added("schedule_task", _shards, (1, MOST_SHARDS)))
_pool: Column[Any] = Column(
    "pool", String(63), comment="the pool of its workers' threads in which it runs; NULL: their own slots"
)
schedule_task.append_column(added("schedule_task", _pool))


def _from_one(table: str, name: str, most: int, comment: str) -> Column[Any]:
    """A whole number from 1 to ``most`` that a migration has added; 1 if nothing is said."""
    column: Column[Any] = Column(name, SmallInteger, nullable=False, server_default="1", comment=comment)
    return added(table, column, (1, most))


_weight = "how many slots of its worker, or threads of its pool, a run takes"
schedule_task.append_column(_from_one("schedule_task", "weight", MOST_WEIGHT, _weight))
_group_share = "where groups take turns, so many of its instances count as one of another group"
schedule_task.append_column(_from_one("schedule_task", "group_share", MOST_SHARE, _group_share))
_max_waiting: Column[Any] = Column(
    "max_waiting",
    SmallInteger,
    comment="so many fires wait for their turn at most, and a further fire is canceled; NULL: any number",
)
schedule_task.append_column(added("schedule_task", _max_waiting, (1, 1000)))
Index("ix_schedule_task_max_waiting", schedule_task.c.max_waiting)
any_bound: ColumnElement[bool] = exists(select(schedule_task.c.id).where(schedule_task.c.max_waiting.is_not(None)))
"""Whether any task has a line with a bound: a column of what the schedulers read anyway."""

schedule_task.append_constraint(UniqueConstraint("live_name"))
_kinds = (schedule_task.c.trigger_kind, schedule_task.c.misfire_policy)
"""In the indexes, so that a scheduler passes quickly over tasks of kinds that only a newer one knows."""
Index("ix_schedule_task_due", schedule_task.c.status, schedule_task.c.next_fire_at, *_kinds)
Index("ix_schedule_task_stale", schedule_task.c.plan_stale, *_kinds)
Index("ix_schedule_task_name", schedule_task.c.name)
Index("ix_schedule_task_type", schedule_task.c.type)
Index("ix_schedule_task_owner_live_name", schedule_task.c.owner, schedule_task.c.live_name)
Index("ix_schedule_task_task_group_live_name", schedule_task.c.task_group, schedule_task.c.live_name)
Index("ix_schedule_task_limit_name_live_name", schedule_task.c.limit_name, schedule_task.c.live_name)
Index("ix_schedule_task_pool_live_name", schedule_task.c.pool, schedule_task.c.live_name)
Index("ix_schedule_task_weight_live_name", schedule_task.c.weight, schedule_task.c.live_name)

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
    UniqueConstraint(
        "schedule_task_id", "schedule_datetime", "fire_key", "run_number", name="uq_schedule_instance_fire"
    ),
    comment="one run of a task for one time; insert (schedule_task_id, schedule_datetime) to run a missed time; "
    + OF_QUEUES,
    **OPTIONS,
)
_i = schedule_instance.c
occupies_slot = and_(
    column("overlap_slot").is_not(None),
    or_(column("status") == literal_column("'running'"), column("slot_kept") == literal_column("1")),
)
slot_key: ColumnElement[Any] = column("schedule_task_id") * literal_column(str(OVERLAP_SLOTS)) + column("overlap_slot")
schedule_instance.append_column(
    Column(
        "overlap_key",
        BigId,
        Computed(case((occupies_slot, slot_key)), persisted=True),
        comment="unique while it, or its thread, runs: one instance for each overlap slot of a task",
    )
)
schedule_instance.append_constraint(UniqueConstraint("overlap_key"))
waits = or_(column("status") == literal_column("'pending'"), column("status") == literal_column("'assigned'"))
schedule_instance.append_column(
    Column(
        "turn_key",
        BigId,
        Computed(case((and_(waits, column("overlap_slot").is_not(None)), column("schedule_task_id"))), persisted=True),
        comment="its task while it waits for its turn: an index finds which is the oldest",
    )
)
failed_or_canceled = or_(
    column("status") == literal_column("'failed'"), column("status") == literal_column("'canceled'")
)
schedule_instance.append_column(
    Column(
        "unsuccessful",
        String(15),
        Computed(case((failed_or_canceled, column("status"))), persisted=True),
        comment="failed or canceled; NULL otherwise: an index finds the newest of them",
    )
)
_added_to_instances: list[Column[Any]] = [
    Column("replay_of", BigId, comment="the instance that it runs once more"),
    Column(
        "from_sequence", SmallInteger, comment="a replay from this node on: those before keep the results of replay_of"
    ),
    Column("run_again_at", UtcTime, comment="when its handler asked to run again (RunAgain), UTC"),
    Column("follows_id", BigId, comment="the instance whose handler asked for this one"),
    Column("again_of", BigId, comment="the replay that was asked for with its chain, for which this one runs"),
    Column("parent_id", BigId, comment="the instance of which it is a shard"),
    Column("shard_index", SmallInteger, comment="which shard it is, from 0 on"),
    Column("shard_total", SmallInteger, comment="how many shards there are, of an instance that is or has shards"),
    Column("only_worker_node_id", BigId, comment="the only worker that may run it: its shard of a broadcast"),
]
"""The columns that migrations have added, in their order."""

for _added in _added_to_instances:
    schedule_instance.append_column(added("schedule_instance", _added))
Index("ix_schedule_instance_unsuccessful", _i.unsuccessful)
Index("ix_schedule_instance_turn", _i.turn_key, _i.due_at)
Index("ix_schedule_instance_work", _i.status, _i.schedule_worker_node_id, _i.priority, _i.due_at)

schedule_kept_slot = Table(
    "schedule_kept_slot",
    metadata,
    Column("schedule_instance_id", BigId, primary_key=True, autoincrement=False, comment="schedule_instance.id"),
    Column("schedule_worker_node_id", BigId, nullable=False, comment="the worker on which its thread still runs"),
    *audit(),
    Index("ix_schedule_kept_slot_worker", "schedule_worker_node_id"),
    comment="the instances that have ended and keep their overlap slots, because their threads still run",
    **OPTIONS,
)

kept_for_nothing: ColumnElement[bool] = and_(
    schedule_instance.c.slot_kept == 1,
    schedule_instance.c.status.not_in(["pending", "assigned", "running"]),
    ~exists().where(schedule_kept_slot.c.schedule_instance_id == schedule_instance.c.id),
)
"""The condition that an instance has ended and keeps its slot, and that nobody knows for which thread."""

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
    UniqueConstraint("type"),
    Index("ix_schedule_task_node_type_category", "category", "sequence"),
    comment="the node types that workers can run",
    **OPTIONS,
)

schedule_task_type_version = Table(
    "schedule_task_type_version",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("category", String(127), nullable=False, comment="the task type"),
    Column("version", String(15), nullable=False, comment="a hash of its list of nodes"),
    Column("nodes", Json, nullable=False, comment="the nodes in order, as a JSON list: type, defaults, param_schema"),
    *audit(),
    UniqueConstraint("category", "version", name="uq_schedule_task_type_version_version"),
    comment="each ordered list of nodes that an app has declared for a task type; gmt_modified: registered last",
    **OPTIONS,
)

schedule_task_node = Table(
    "schedule_task_node",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
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
        enum(NodeStatus, "task_node_status"),
        nullable=False,
        server_default="pending",
        comment="pending, running, then succeed, failed, canceled, or skipped: a node before it has ended the run"
        " early",
    ),
    Column("param", Json, comment="this node's own param, where the task lists its nodes"),
    Column("failures", SmallInteger, nullable=False, server_default="0", comment="how often it failed: its retries"),
    Column("gmt_started", UtcTime, comment="when its handler was entered, UTC"),
    Column("gmt_completed", UtcTime, comment="when it ended, UTC"),
    Column("execution_result", Json, comment="what it returned, or its error with the traceback"),
    *audit(),
    UniqueConstraint("schedule_instance_id", "instance_gmt_create", "sequence", name="uq_schedule_task_node_order"),
    comment="the nodes of an instance, pinned when it is assigned, in order",
    **OPTIONS,
)

owns_node: ColumnElement[bool] = and_(
    schedule_task_node.c.schedule_instance_id == schedule_instance.c.id,
    schedule_task_node.c.instance_gmt_create == schedule_instance.c.gmt_create,
)
"""The condition that a node belongs to an instance. The id alone does not prove it, because TRUNCATE begins anew with
the ids: then nodes of old instances are there under the ids of new ones."""

schedule_worker_node = Table(
    "schedule_worker_node",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
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
        enum(WorkerState, "worker_state"),
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
    comment="a worker process, once for each start: its epoch",
    **OPTIONS,
)
_w = schedule_worker_node.c
schedule_worker_node.append_column(
    Column(
        "live_name",
        String(255),
        Computed(case((column("state") != literal_column("'dead'"), column("name"))), persisted=True),
        comment="the name while it lives: unique",
    )
)
schedule_worker_node.append_constraint(UniqueConstraint("live_name"))
WAKE_ADDRESS = "where it listens for wake-ups, as 10.0.0.5:40112; NULL: nowhere"
_wakes_worker: Column[Any] = Column("wake_address", String(63), comment=WAKE_ADDRESS)
schedule_worker_node.append_column(added("schedule_worker_node", _wakes_worker))
_pools: Column[Any] = Column("pools", Json, comment="its pools of threads, each with its size, as a JSON object")
schedule_worker_node.append_column(added("schedule_worker_node", _pools))
Index("ix_schedule_worker_node_state", _w.state)
Index("ix_schedule_worker_node_name", _w.name)
Index("ix_schedule_worker_node_host", _w.host)

schedule_worker_beat = Table(
    "schedule_worker_beat",
    metadata,
    Column("schedule_worker_node_id", BigId, primary_key=True, autoincrement=False, comment="schedule_worker_node.id"),
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
    Index("ix_schedule_worker_beat_gmt_dead", "gmt_dead"),
    comment="the heartbeats of the workers: who lives is decided here; schedule_worker_node shows it to people",
    **OPTIONS,
)

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

schedule_scheduler_node = Table(
    "schedule_scheduler_node",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False, comment="host and process id"),
    Column("host", String(255), nullable=False, comment="host name"),
    Column("pid", Integer, nullable=False, comment="process id"),
    Column("version", String(31), nullable=False, comment="Rota version"),
    Column(
        "state",
        enum(SchedulerState, "scheduler_state"),
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
    Index("ix_schedule_scheduler_node_last_tick", "last_tick"),
    comment="a scheduler process, once for each start; is_deleted = 1 once it has stopped",
    **OPTIONS,
)
_added_to_schedulers: list[Column[Any]] = [
    Column("wake_address", String(63), comment=WAKE_ADDRESS),
    Column("lookahead_seconds", Integer, comment="how far ahead it looks for work, in whole seconds, rounded up"),
]
for _added in _added_to_schedulers:
    schedule_scheduler_node.append_column(added("schedule_scheduler_node", _added))

schedule_skip = Table(
    "schedule_skip",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column(
        "reason",
        enum(SkipReason, "skip_reason"),
        nullable=False,
        comment="missed: skip, fire_once, window or cap; off; edited before they were seen; by_hand",
    ),
    Column("first_fire", UtcTime, nullable=False, comment="the first of them, UTC"),
    Column("last_fire", UtcTime, nullable=False, comment="the last of them, UTC"),
    Column("fires", BigId, nullable=False, comment="how many they are; beyond 50 by their distances"),
    *audit(),
    UniqueConstraint("schedule_task_id", "last_fire", "reason", name="uq_schedule_skip_stretch"),
    Index("ix_schedule_skip_gmt_modified", "gmt_modified"),
    comment="fires of a task that were not run and have no instance, a row for each stretch, and why",
    **OPTIONS,
)

schedule_catch_up = Table(
    "schedule_catch_up",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column("next_fire", UtcTime, nullable=False, comment="the next of them to be written, UTC"),
    Column("last_fire", UtcTime, nullable=False, comment="the last of them, UTC"),
    Column("fires_left", Integer, comment="how many are still to be written; NULL: not counted yet"),
    Column("written_fire", UtcTime, comment="the last that was written, UTC; the next follow when it has begun"),
    Column("plan_inputs", LongText, nullable=False, comment="what they were planned from, as a JSON array"),
    *audit(),
    UniqueConstraint("schedule_task_id", "last_fire", name="uq_schedule_catch_up_stretch"),
    comment="fires that were missed and are still to run, by misfire_policy fire_all, a row for each stretch",
    **OPTIONS,
)

schedule_follow_up = Table(
    "schedule_follow_up",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
    Column("instance_gmt_create", UtcTime, nullable=False, comment="gmt_create of that instance"),
    Column(
        "what",
        enum(FollowUp, "follow_up_what"),
        nullable=False,
        comment="fixed_delay: its task fires again so long after its end",
    ),
    *audit(),
    UniqueConstraint("schedule_instance_id", "instance_gmt_create", "what", name="uq_schedule_follow_up_mark"),
    Index("ix_schedule_follow_up_task", "schedule_task_id"),
    comment="what follows the ends of instances, a row for each: the scheduler removes it with what it writes then",
    **OPTIONS,
)

schedule_backfill = Table(
    "schedule_backfill",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column(
        "status",
        enum(BackfillStatus, "backfill_status"),
        nullable=False,
        server_default="running",
        comment="running; paused: nothing more is written; canceled: nor does run what waits; done",
    ),
    Column("from_at", UtcTime, nullable=False, comment="it runs the fires from this time on, UTC"),
    Column("to_at", UtcTime, nullable=False, comment="up to this time, UTC"),
    Column(
        "newest_first", SmallInteger, nullable=False, server_default="0", comment="1: from the newest to the oldest"
    ),
    Column(
        "only_missing",
        SmallInteger,
        nullable=False,
        server_default="0",
        comment="1: it passes over fires that have an instance which is not canceled",
    ),
    Column("concurrency", SmallInteger, nullable=False, server_default="1", comment="so many wait or run at once"),
    Column("priority", SmallInteger, nullable=False, server_default="9", comment="of its instances: 0 first .. 9 last"),
    Column("param", Json, comment="what its instances get instead of the task's param"),
    Column(
        "plan_inputs", LongText, comment="what its fires are computed from, as a JSON array; NULL: as the task says"
    ),
    Column("next_fire", UtcTime, comment="the next fire to be written, UTC; NULL: none is left"),
    Column(
        "fires", BigId, nullable=False, server_default="0", comment="in the range; beyond 20,000 by their distances"
    ),
    Column("written", BigId, nullable=False, server_default="0", comment="how many have an instance"),
    Column("not_missing", BigId, nullable=False, server_default="0", comment="with only_missing: had run before"),
    Column("succeeded", BigId, nullable=False, server_default="0", comment="how many of those written succeeded"),
    Column("failed", BigId, nullable=False, server_default="0", comment="how many failed"),
    Column("canceled", BigId, nullable=False, server_default="0", comment="how many were canceled"),
    Column("in_flight", SmallInteger, nullable=False, server_default="0", comment="how many have not ended"),
    Column("in_flight_fires", Json, comment="which: their times, UTC, as a JSON list"),
    Column("revision", BigId, nullable=False, server_default="0", comment="grows with each step: the fence"),
    Column(
        "gmt_running", UtcTime, nullable=False, server_default=UtcNow(), comment="when it began or was resumed, UTC"
    ),
    Column("ended_before", BigId, nullable=False, server_default="0", comment="how many had ended by then"),
    Column("gmt_completed", UtcTime, comment="when it was done or canceled, UTC"),
    Column("reason", String(1023), comment="why it is paused or canceled"),
    *audit(),
    Index("ix_schedule_backfill_open", "status", "in_flight"),
    comment="past fires that somebody asked to run, a row for each range; instances are written as others end",
    **OPTIONS,
)

schedule_limit = Table(
    "schedule_limit",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False, comment="what tasks name in limit_name"),
    Column("max_running", Integer, comment="how many instances of all its tasks run at once; NULL: any number"),
    Column("starts_per_minute", Integer, comment="how many of them start within 60 s; NULL: any number"),
    Column("declared", Json, comment="what code declared last (app.limit); edits by others survive"),
    Column("recent_starts", Json, comment="[second, starts] of the last minute, for starts_per_minute; Rota writes it"),
    Column("claim_token", String(32), comment="of the claim that wrote recent_starts"),
    *audit(),
    UniqueConstraint("name"),
    comment="limits that tasks share: how many run at once, how many start in a minute",
    **OPTIONS,
)

schedule_limit_slot = Table(
    "schedule_limit_slot",
    metadata,
    Column("limit_name", String(63), primary_key=True, comment="schedule_limit.name"),
    Column("slot", Integer, primary_key=True, autoincrement=False, comment="0 .. max_running - 1"),
    Column("schedule_instance_id", BigId, comment="the instance that took it last; NULL: none yet"),
    Column("attempt", Integer, comment="in this attempt; it is free unless that instance runs in that attempt"),
    *audit(),
    Index("ix_schedule_limit_slot_holder", "schedule_instance_id"),
    comment="the slots of limits: taken by an update, and free again as soon as the holder does not run any more",
    **OPTIONS,
)

schedule_pause = Table(
    "schedule_pause",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("reason", String(1023), comment="why, for people"),
    *audit(),
    comment="while it has a row, no new fire begins; what has begun goes on; delete the row to resume",
    **OPTIONS,
)

is_paused: ColumnElement[bool] = exists(select(schedule_pause.c.id).where(schedule_pause.c.is_deleted == 0))
"""Whether all scheduling is paused: a column of what the schedulers read anyway."""

schedule_calendar = Table(
    "schedule_calendar",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False, comment="unique among the live calendars"),
    Column("country", String(15), comment="whose public holidays it has: a code of ISO 3166"),
    Column("subdivision", String(31), comment="a part of the country"),
    Column(
        "weekend",
        String(31),
        nullable=False,
        server_default="sat,sun",
        comment="the days of the week that are off; none; or all",
    ),
    Column("holidays", Json, comment="days off of the country, with their names; rota calendar refresh writes them"),
    Column("makeup_days", Json, comment="days of weekends that are working days in the country, a JSON list"),
    Column("days_off", Json, comment="further days off, a JSON list of dates; they go before all others"),
    Column("days_on", Json, comment="further working days, a JSON list of dates; they go before all others"),
    Column("first_year", SmallInteger, comment="the first year of which the holidays are known"),
    Column("last_year", SmallInteger, comment="the last year of which the holidays are known"),
    *audit(),
    Column(
        "live_name",
        String(63),
        Computed(case((column("is_deleted") == literal_column("0"), column("name"))), persisted=True),
        comment="the name while it lives: unique",
    ),
    UniqueConstraint("live_name"),
    comment="named sets of working days and days off, on which tasks may fire; edit it with plain SQL",
    **OPTIONS,
)

schedule_calendar_use = Table(
    "schedule_calendar_use",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column("calendar", String(63), nullable=False, comment="the calendar that the task's plan was made with"),
    Column("edition", String(16), nullable=False, comment="that state of the calendar; empty: not planned yet"),
    *audit(),
    UniqueConstraint("schedule_task_id", name="uq_schedule_calendar_use_task"),
    Index("ix_schedule_calendar_use_edition", "calendar", "edition"),
    comment="which tasks were planned with which calendar; written by Rota, so that an edit of one is found",
    **OPTIONS,
)

schedule_deadline = Table(
    "schedule_deadline",
    metadata,
    Column("schedule_instance_id", BigId, primary_key=True, autoincrement=False, comment="schedule_instance.id"),
    Column(
        "run_timeout_seconds", Integer, nullable=False, comment="the limit of its task when it was given to a worker"
    ),
    Column("check_at", UtcTime, nullable=False, comment="when the scheduler looks whether it is overdue, UTC"),
    *audit(),
    Index("ix_schedule_deadline_check_at", "check_at"),
    comment="the instances of tasks with run_timeout_seconds: the scheduler ends those that their workers do not",
    **OPTIONS,
)

schedule_pool_place = Table(
    "schedule_pool_place",
    metadata,
    Column("schedule_instance_id", BigId, primary_key=True, autoincrement=False, comment="schedule_instance.id"),
    Column("schedule_worker_node_id", BigId, nullable=False, comment="the worker that it was given to"),
    Column("pool", String(63), nullable=False, comment="the pool of that worker in which it runs"),
    Column("gmt_assigned", UtcTime, nullable=False, comment="gmt_assigned of its instance: the row is of that time"),
    *audit(),
    Index("ix_schedule_pool_place_worker", "schedule_worker_node_id", "pool"),
    comment="the instances that workers were given for their pools: the pool of the task at that time",
    **OPTIONS,
)
_place_weight = "how many threads of the pool it takes; where pool is empty, how many slots of the worker"
schedule_pool_place.append_column(_from_one("schedule_pool_place", "weight", MOST_WEIGHT, _place_weight))

schedule_business_key = Table(
    "schedule_business_key",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("type", String(127), nullable=False, comment="the task type"),
    Column("code", String(64), nullable=False, server_default="", comment="what kind of number it is; may be empty"),
    Column("number", String(128), nullable=False, comment="the key: product-42"),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
    Column("schedule_instance_id", BigId, nullable=False, comment="what waits or runs: schedule_instance.id"),
    Column(
        "instance_gmt_create",
        UtcTime,
        nullable=False,
        comment="gmt_create of its instance: after TRUNCATE ids are given again, to other instances",
    ),
    Column("due_at", UtcTime, nullable=False, comment="the time that was asked for, UTC"),
    Column("next_at", UtcTime, comment="the time of the call that waits for the end of what runs, UTC; NULL: none"),
    Column("next_param", Json, comment="the param of that call"),
    Column("revision", BigId, nullable=False, server_default="0", comment="grows with each change: the fence"),
    *audit(),
    UniqueConstraint("type", "code", "number", name="uq_schedule_business_key_key"),
    Index("ix_schedule_business_key_type_due_at", "type", "due_at"),
    Index("ix_schedule_business_key_due_at", "due_at"),
    comment="the live run of each business key; the scheduler removes a row some time after the run has ended",
    **OPTIONS,
)

schedule_request = Table(
    "schedule_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("what", String(15), nullable=False, server_default="once", comment="once, or cancel"),
    Column("type", String(127), nullable=False, comment="the task type"),
    Column("code", String(64), nullable=False, server_default="", comment="of the business key"),
    Column("number", String(128), nullable=False, comment="the business key: product-42"),
    Column("due_at", UtcTime, comment="when it is to run, UTC; NULL: at once"),
    Column("param", Json, comment="the param of the run; NULL: that of the task"),
    Column("why", String(1023), comment="the reason that was given, for the audit"),
    Column("reason", String(1023), comment="why it was refused; then is_deleted is 1, and it stays for people"),
    *audit(),
    Index("ix_schedule_request_open", "is_deleted", "id"),
    comment="what programs ask for in transactions of their own; the scheduler does it and removes the row",
    **OPTIONS,
)

schedule_request.append_column(
    added(
        "schedule_request",
        Column("fire_key", String(63), comment="schedule_instance.fire_key of the run; NULL: the scheduler gives one"),
    )
)

Index("ix_schedule_request_fire_key", schedule_request.c.fire_key)

schedule_audit = Table(
    "schedule_audit",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
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
    Index("ix_schedule_audit_act_key", "act_key"),
    Index("ix_schedule_audit_object", "object_type", "object_id"),
    Index("ix_schedule_audit_object_name", "object_name"),
    comment="who changed what, when and why; written in the transaction of the change",
    **OPTIONS,
)

schedule_listener = Table(
    "schedule_listener",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False, comment="module and name of the function"),
    Column("holder", String(127), comment="the process that tells it of events, as host:pid:…"),
    Column("held_at", UtcTime, comment="when its holder last said so, UTC; NULL: nobody holds it"),
    Column("told", Json, comment="how far it has been told of each event, as a JSON object; NULL: of nothing yet"),
    *audit(),
    UniqueConstraint("name"),
    comment="the functions that hear what the rows say (@app.on): who tells them, and how far they have been told",
    **OPTIONS,
)

schedule_chain = Table(
    "schedule_chain",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id of the task that follows"),
    Column("after_name", String(63), nullable=False, comment="the name of the task that it follows"),
    Column("on_end", enum(OnEnd, "chain_on_end"), nullable=False, comment="after which end: success, failure, always"),
    *audit(),
    UniqueConstraint("schedule_task_id", "after_name", name="uq_schedule_chain_link"),
    Index("ix_schedule_chain_after_name", "after_name"),
    comment="which task follows which: Rota writes it from the trigger_spec of the one that follows, so edit that",
    **OPTIONS,
)

schedule_chain_run = Table(
    "schedule_chain_run",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
    Column("instance_gmt_create", UtcTime, nullable=False, comment="gmt_create of that instance"),
    Column("again_of", BigId, comment="the replay for which what follows runs once more; NULL: it runs the first time"),
    *audit(),
    UniqueConstraint("schedule_instance_id", "instance_gmt_create", name="uq_schedule_chain_run_instance"),
    comment="the runs that other tasks follow, a row for each: the scheduler removes it with what it writes at its end",
    **OPTIONS,
)

any_chain: ColumnElement[bool] = exists(select(schedule_chain.c.id))
"""Whether any task follows another: a column of what the schedulers read anyway."""

for _table in metadata.tables.values():
    for _check in list(checks(_table)):
        _table.append_constraint(_check)
