"""Chains: the trigger after, which task follows which, and the runs that are followed.

Revision ID: 0020
Revises: 0019
"""

from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, SmallInteger, String, UniqueConstraint

from rota.migrations.steps import add_column, add_words, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, UtcNow, UtcTime
from rota.shared.database.words import WordType

revision = "0020"
down_revision: str | None = "0019"
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
KINDS = ["cron", "manual", "interval", "once", "fixed_delay", "combined"]


def audit() -> list[Column[Any]]:
    return [
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column("is_deleted", SmallInteger, nullable=False, server_default="0", comment="1: deleted, kept as history"),
    ]


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = (
        "cron; interval; fixed_delay; once; combined: any or all of several; after: when other tasks have ended;"
        " manual: runs only when asked"
    )
    add_words("schedule_task", "trigger_kind", KINDS, ["after"], f"NOT NULL DEFAULT 'cron' COMMENT '{said}'")
    ends = WordType("success", "failure", "always", name="ck_schedule_chain_chain_on_end", create_constraint=True)
    links: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id of the task that follows"),
        Column("after_name", String(63), nullable=False, comment="the name of the task that it follows"),
        Column("on_end", ends, nullable=False, comment="after which end: success, failure, always"),
        *audit(),
    ]
    create_table(
        "schedule_chain",
        *checked("schedule_chain", *links),
        PrimaryKeyConstraint("id", name="pk_schedule_chain"),
        UniqueConstraint("schedule_task_id", "after_name", name="uq_schedule_chain_link"),
        indexes={"ix_schedule_chain_after_name": ["after_name"]},
        comment="which task follows which: Rota writes it from the trigger_spec of the one that follows, so edit that",
        **OPTIONS,
    )
    runs: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("schedule_instance_id", BigId, nullable=False, comment="schedule_instance.id"),
        Column("instance_gmt_create", UtcTime, nullable=False, comment="gmt_create of that instance"),
        Column(
            "again_of", BigId, comment="the replay for which what follows runs once more; NULL: it runs the first time"
        ),
        *audit(),
    ]
    create_table(
        "schedule_chain_run",
        *checked("schedule_chain_run", *runs),
        PrimaryKeyConstraint("id", name="pk_schedule_chain_run"),
        UniqueConstraint("schedule_instance_id", "instance_gmt_create", name="uq_schedule_chain_run_instance"),
        comment="the runs that other tasks follow, a row for each: the scheduler removes it with what it writes at its"
        " end",
        **OPTIONS,
    )
    again_of = Column(
        "again_of", BigId, comment="the replay that was asked for with its chain, for which this one runs"
    )
    add_column("schedule_instance", added("schedule_instance", again_of))
