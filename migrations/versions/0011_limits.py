"""Limits that tasks share: how many run at once, how many start in a minute.

Revision ID: 0011
Revises: 0010
"""

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    UniqueConstraint,
)

from rota.migrations.steps import add_column, add_index, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0011"
down_revision: str | None = "0010"
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
    create_schedule_limit()
    create_schedule_limit_slot()
    comment = "schedule_limit.name: the limit that it shares with other tasks"
    add_column("schedule_task", added("schedule_task", Column("limit_name", String(63), comment=comment)))
    add_index("schedule_task", "ix_schedule_task_limit_name_live_name", ["limit_name", "live_name"])


def create_schedule_limit() -> None:
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("name", String(63), nullable=False, comment="what tasks name in limit_name"),
        Column("max_running", Integer, comment="how many instances of all its tasks run at once; NULL: any number"),
        Column("starts_per_minute", Integer, comment="how many of them start within 60 s; NULL: any number"),
        Column("declared", Json, comment="what code declared last (app.limit); edits by others survive"),
        Column(
            "recent_starts",
            Json,
            comment="[second, starts] of the last minute, for starts_per_minute; Rota writes it",
        ),
        Column("claim_token", String(32), comment="of the claim that wrote recent_starts"),
        *audit(),
    ]
    rules = {
        "max_running_from_0_to_1000": "max_running BETWEEN 0 AND 1000",
        "starts_per_minute_from_0_to_60000": "starts_per_minute BETWEEN 0 AND 60000",
        "name_is_not_empty": "name <> ''",
        "it_limits_something": "max_running IS NOT NULL OR starts_per_minute IS NOT NULL",
    }
    create_table(
        "schedule_limit",
        *checked("schedule_limit", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_limit"),
        UniqueConstraint("name", name="uq_schedule_limit_name"),
        *(CheckConstraint(rule, name=f"ck_schedule_limit_{name}") for name, rule in rules.items()),
        comment="limits that tasks share: how many run at once, how many start in a minute",
        **OPTIONS,
    )


def create_schedule_limit_slot() -> None:
    columns: list[Column[Any]] = [
        Column("limit_name", String(63), nullable=False, comment="schedule_limit.name"),
        Column("slot", Integer, autoincrement=False, nullable=False, comment="0 .. max_running - 1"),
        Column("schedule_instance_id", BigId, comment="the instance that took it last; NULL: none yet"),
        Column("attempt", Integer, comment="in this attempt; it is free unless that instance runs in that attempt"),
        *audit(),
    ]
    create_table(
        "schedule_limit_slot",
        *checked("schedule_limit_slot", *columns),
        PrimaryKeyConstraint("limit_name", "slot", name="pk_schedule_limit_slot"),
        indexes={"ix_schedule_limit_slot_holder": ["schedule_instance_id"]},
        comment="the slots of limits: taken by an update, and free again as soon as the holder does not run any more",
        **OPTIONS,
    )
