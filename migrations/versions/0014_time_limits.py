"""A limit for whole runs, and when the scheduler looks at the runs that have one.

Revision ID: 0014
Revises: 0013
"""

from typing import Any

from sqlalchemy import Column, Integer, PrimaryKeyConstraint, SmallInteger, String

from rota.migrations.steps import add_column, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, UtcNow, UtcTime

revision = "0014"
down_revision: str | None = "0013"
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


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = "limit for a whole run, from its start to its end; NULL: none"
    limit: Column[Any] = Column("run_timeout_seconds", Integer, comment=said)
    add_column("schedule_task", added("schedule_task", limit, (1, 31_536_000)))
    noted = "the limit of its task when it was given to a worker"
    columns: list[Column[Any]] = [
        Column("schedule_instance_id", BigId, autoincrement=False, comment="schedule_instance.id"),
        Column("run_timeout_seconds", Integer, nullable=False, comment=noted),
        Column("check_at", UtcTime, nullable=False, comment="when the scheduler looks whether it is overdue, UTC"),
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column("is_deleted", SmallInteger, nullable=False, server_default="0", comment="1: deleted, kept as history"),
    ]
    create_table(
        "schedule_deadline",
        *checked("schedule_deadline", *columns),
        PrimaryKeyConstraint("schedule_instance_id", name="pk_schedule_deadline"),
        indexes={"ix_schedule_deadline_check_at": ["check_at"]},
        comment="the instances of tasks with run_timeout_seconds: the scheduler ends those that their workers do not",
        **OPTIONS,
    )
