"""Backfills: a table of them, their origin, and from when on a task's history is complete.

Revision ID: 0009
Revises: 0008
"""

from typing import Any

from sqlalchemy import CheckConstraint, Column, PrimaryKeyConstraint, SmallInteger, String

from rota.migrations.steps import add_column, add_words, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, Json, LongText, UtcNow, UtcTime
from rota.shared.database.words import WordType

revision = "0009"
down_revision: str | None = "0008"
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
NAME = "schedule_backfill"
MANY = 1_000_000_000
COUNTERS = ("fires", "written", "not_missing", "succeeded", "failed", "canceled", "revision", "ended_before")
RANGES = {
    "newest_first": (0, 1),
    "only_missing": (0, 1),
    "concurrency": (1, 1000),
    "priority": (0, 9),
    "in_flight": (0, 1000),
    **dict.fromkeys(COUNTERS, (0, MANY)),
}


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    rest = "NOT NULL DEFAULT 'sql' COMMENT 'what asked for it'"
    add_words("schedule_instance", "origin", ["cron", "manual", "replay", "sql"], ["backfill"], rest)
    complete: Column[Any] = Column(
        "history_complete_from", UtcTime, comment="instances of earlier fires were deleted, UTC; NULL: none was"
    )
    add_column("schedule_task", added("schedule_task", complete))
    create_schedule_backfill()


def create_schedule_backfill() -> None:
    ranges = [
        CheckConstraint(f"{name} BETWEEN {least} AND {most}", name=f"ck_{NAME}_{name}_from_{least}_to_{most}")
        for name, (least, most) in RANGES.items()
    ]
    create_table(
        NAME,
        *checked(NAME, *columns()),
        *ranges,
        PrimaryKeyConstraint("id", name=f"pk_{NAME}"),
        indexes={"ix_schedule_backfill_open": ["status", "in_flight"]},
        comment="past fires that somebody asked to run, a row for each range; instances are written as others end",
        **OPTIONS,
    )


def columns() -> list[Column[Any]]:
    return [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column(
            "status",
            WordType(
                "running",
                "paused",
                "canceled",
                "done",
                name="ck_schedule_backfill_backfill_status",
                create_constraint=True,
            ),
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
        Column(
            "priority", SmallInteger, nullable=False, server_default="9", comment="of its instances: 0 first .. 9 last"
        ),
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
    ]


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
