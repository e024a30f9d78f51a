"""What follows an end: the trigger fixed_delay, and the marks of what is to be followed up.

Revision ID: 0006
Revises: 0005
"""

from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, SmallInteger, String, UniqueConstraint

from rota.migrations.steps import add_words, checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, UtcNow, UtcTime
from rota.shared.database.words import WordType

revision = "0006"
down_revision: str | None = "0005"
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
KINDS = ["cron", "manual", "interval", "once"]


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
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = "cron; interval; fixed_delay; once; manual: runs only when asked"
    add_words("schedule_task", "trigger_kind", KINDS, ["fixed_delay"], f"NOT NULL DEFAULT 'cron' COMMENT '{said}'")
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
        Column("instance_gmt_create", UtcTime, nullable=False, comment="gmt_create of that instance"),
        Column(
            "what",
            WordType("fixed_delay", name="ck_schedule_follow_up_follow_up_what", create_constraint=True),
            nullable=False,
            comment="fixed_delay: its task fires again so long after its end",
        ),
        *audit(),
    ]
    create_table(
        "schedule_follow_up",
        *checked("schedule_follow_up", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_follow_up"),
        UniqueConstraint("schedule_instance_id", "instance_gmt_create", "what", name="uq_schedule_follow_up_mark"),
        indexes={"ix_schedule_follow_up_task": ["schedule_task_id"]},
        comment="what follows the ends of instances, a row for each: the scheduler removes it with what it writes then",
        **OPTIONS,
    )
