"""Calendars: named sets of working days and days off, and which tasks were planned with which.

Revision ID: 0013
Revises: 0012
"""

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Computed,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    UniqueConstraint,
)

from rota.migrations.steps import checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0013"
down_revision: str | None = "0012"
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
    create_schedule_calendar()
    create_schedule_calendar_use()


def create_schedule_calendar() -> None:
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
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
        Column(
            "holidays", Json, comment="days off of the country, with their names; rota calendar refresh writes them"
        ),
        Column("makeup_days", Json, comment="days of weekends that are working days in the country, a JSON list"),
        Column("days_off", Json, comment="further days off, a JSON list of dates; they go before all others"),
        Column("days_on", Json, comment="further working days, a JSON list of dates; they go before all others"),
        Column("first_year", SmallInteger, comment="the first year of which the holidays are known"),
        Column("last_year", SmallInteger, comment="the last year of which the holidays are known"),
        *audit(),
    ]
    live_name: Column[Any] = Column(
        "live_name",
        String(63),
        Computed("CASE WHEN (is_deleted = 0) THEN name END", persisted=True),
        comment="the name while it lives: unique",
    )
    short = " AND ".join(
        f"COALESCE(LENGTH({name}), 0) <= 60000" for name in ("holidays", "makeup_days", "days_off", "days_on")
    )
    create_table(
        "schedule_calendar",
        *checked("schedule_calendar", *columns),
        live_name,
        CheckConstraint("first_year BETWEEN 1970 AND 2199", name="ck_schedule_calendar_first_year_from_1970_to_2199"),
        CheckConstraint("last_year BETWEEN 1970 AND 2199", name="ck_schedule_calendar_last_year_from_1970_to_2199"),
        CheckConstraint("name <> ''", name="ck_schedule_calendar_name_is_not_empty"),
        CheckConstraint(short, name="ck_schedule_calendar_dates_are_no_more_than_60000_characters"),
        PrimaryKeyConstraint("id", name="pk_schedule_calendar"),
        UniqueConstraint("live_name", name="uq_schedule_calendar_live_name"),
        comment="named sets of working days and days off, on which tasks may fire; edit it with plain SQL",
        **OPTIONS,
    )


def create_schedule_calendar_use() -> None:
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column("calendar", String(63), nullable=False, comment="the calendar that the task's plan was made with"),
        Column("edition", String(16), nullable=False, comment="that state of the calendar; empty: not planned yet"),
        *audit(),
    ]
    create_table(
        "schedule_calendar_use",
        *checked("schedule_calendar_use", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_calendar_use"),
        UniqueConstraint("schedule_task_id", name="uq_schedule_calendar_use_task"),
        indexes={"ix_schedule_calendar_use_edition": ["calendar", "edition"]},
        comment="which tasks were planned with which calendar; written by Rota, so that an edit of one is found",
        **OPTIONS,
    )
