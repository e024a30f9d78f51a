"""Misfire policies: skip and fire_all, with what is skipped and what is still to run.

Revision ID: 0003
Revises: 0002
"""

from typing import Any

from sqlalchemy import Column, Integer, PrimaryKeyConstraint, SmallInteger, String, UniqueConstraint

from rota.migrations.steps import add_column, add_words, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, LongText, UtcNow, UtcTime
from rota.shared.database.words import WordType

revision = "0003"
down_revision: str | None = "0002"
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
REASONS = ["skip", "fire_once", "window", "cap", "off", "edited"]


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


def upgrade() -> None:
    state_oldest_version(oldest_version)
    said = "fires missed while no scheduler ran: fire_once runs the newest, skip none, fire_all up to misfire_cap"
    rest = f"NOT NULL DEFAULT 'fire_once' COMMENT '{said}'"
    add_words("schedule_task", "misfire_policy", ["fire_once"], ["skip", "fire_all"], rest)
    window: Column[Any] = Column(
        "misfire_window_seconds",
        Integer,
        nullable=False,
        server_default="86400",
        comment="with misfire_policy fire_all: what was missed longer ago does not run",
    )
    cap: Column[Any] = Column(
        "misfire_cap",
        SmallInteger,
        nullable=False,
        server_default="100",
        comment="with misfire_policy fire_all: at most so many run, the newest",
    )
    add_column("schedule_task", added("schedule_task", window, (1, 31_536_000)))
    add_column("schedule_task", added("schedule_task", cap, (1, 1000)))
    create_schedule_skip()
    create_schedule_catch_up()


def create_schedule_skip() -> None:
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column(
            "reason",
            WordType(*REASONS, name="ck_schedule_skip_skip_reason", create_constraint=True),
            nullable=False,
            comment="missed: skip, fire_once, window or cap; off; or edited before they were seen",
        ),
        Column("first_fire", UtcTime, nullable=False, comment="the first of them, UTC"),
        Column("last_fire", UtcTime, nullable=False, comment="the last of them, UTC"),
        Column("fires", BigId, nullable=False, comment="how many they are; beyond 50 by their distances"),
        *audit(),
    ]
    create_table(
        "schedule_skip",
        *checked("schedule_skip", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_skip"),
        UniqueConstraint("schedule_task_id", "last_fire", "reason", name="uq_schedule_skip_stretch"),
        comment="fires of a task that were not run and have no instance, a row for each stretch, and why",
        **OPTIONS,
    )


def create_schedule_catch_up() -> None:
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column("next_fire", UtcTime, nullable=False, comment="the next of them to be written, UTC"),
        Column("last_fire", UtcTime, nullable=False, comment="the last of them, UTC"),
        Column("fires_left", Integer, comment="how many are still to be written; NULL: not counted yet"),
        Column("written_fire", UtcTime, comment="the last that was written, UTC; the next follow when it has begun"),
        Column("plan_inputs", LongText, nullable=False, comment="what they were planned from, as a JSON array"),
        *audit(),
    ]
    create_table(
        "schedule_catch_up",
        *checked("schedule_catch_up", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_catch_up"),
        UniqueConstraint("schedule_task_id", "last_fire", name="uq_schedule_catch_up_stretch"),
        comment="fires that were missed and are still to run, by misfire_policy fire_all, a row for each stretch",
        **OPTIONS,
    )
