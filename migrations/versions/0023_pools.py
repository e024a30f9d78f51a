"""Pools of threads: in which one a task runs, which ones a worker has, and what workers were given for them.

Revision ID: 0023
Revises: 0022
"""

from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, SmallInteger, String

from rota.migrations.steps import add_column, add_index, checked, create_table, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0023"
down_revision: str | None = "0022"
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
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    pool: Column[Any] = Column(
        "pool", String(63), comment="the pool of its workers' threads in which it runs; NULL: their own slots"
    )
    add_column("schedule_task", added("schedule_task", pool))
    add_index("schedule_task", "ix_schedule_task_pool_live_name", ["pool", "live_name"])
    pools: Column[Any] = Column("pools", Json, comment="its pools of threads, each with its size, as a JSON object")
    add_column("schedule_worker_node", added("schedule_worker_node", pools))
    columns: list[Column[Any]] = [
        Column("schedule_instance_id", BigId, autoincrement=False, comment="schedule_instance.id"),
        Column("schedule_worker_node_id", BigId, nullable=False, comment="the worker that it was given to"),
        Column("pool", String(63), nullable=False, comment="the pool of that worker in which it runs"),
        Column(
            "gmt_assigned", UtcTime, nullable=False, comment="gmt_assigned of its instance: the row is of that time"
        ),
        *audit(),
    ]
    create_table(
        "schedule_pool_place",
        *checked("schedule_pool_place", *columns),
        PrimaryKeyConstraint("schedule_instance_id", name="pk_schedule_pool_place"),
        indexes={"ix_schedule_pool_place_worker": ["schedule_worker_node_id", "pool"]},
        comment="the instances that workers were given for their pools: the pool of the task at that time",
        **OPTIONS,
    )
