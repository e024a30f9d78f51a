"""The business keys of one-off work.

Revision ID: 0015
Revises: 0014
"""

from typing import Any

from sqlalchemy import CheckConstraint, Column, PrimaryKeyConstraint, SmallInteger, String, UniqueConstraint

from rota.migrations.steps import checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0015"
down_revision: str | None = "0014"
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
    of_instance = "gmt_create of its instance: after TRUNCATE ids are given again, to other instances"
    next_at = "the time of the call that waits for the end of what runs, UTC; NULL: none"
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("type", String(127), nullable=False, comment="the task type"),
        Column(
            "code", String(64), nullable=False, server_default="", comment="what kind of number it is; may be empty"
        ),
        Column("number", String(128), nullable=False, comment="the key: product-42"),
        Column("schedule_task_id", BigId, nullable=False, comment="schedule_task.id"),
        Column("schedule_instance_id", BigId, nullable=False, comment="what waits or runs: schedule_instance.id"),
        Column("instance_gmt_create", UtcTime, nullable=False, comment=of_instance),
        Column("due_at", UtcTime, nullable=False, comment="the time that was asked for, UTC"),
        Column("next_at", UtcTime, comment=next_at),
        Column("next_param", Json, comment="the param of that call"),
        Column("revision", BigId, nullable=False, server_default="0", comment="grows with each change: the fence"),
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column("is_deleted", SmallInteger, nullable=False, server_default="0", comment="1: deleted, kept as history"),
    ]
    create_table(
        "schedule_business_key",
        *checked("schedule_business_key", *columns),
        CheckConstraint(
            "revision BETWEEN 0 AND 1000000000", name="ck_schedule_business_key_revision_from_0_to_1000000000"
        ),
        CheckConstraint("type <> ''", name="ck_schedule_business_key_type_is_not_empty"),
        CheckConstraint("number <> ''", name="ck_schedule_business_key_number_is_not_empty"),
        PrimaryKeyConstraint("id", name="pk_schedule_business_key"),
        UniqueConstraint("type", "code", "number", name="uq_schedule_business_key_key"),
        indexes={
            "ix_schedule_business_key_type_due_at": ["type", "due_at"],
            "ix_schedule_business_key_due_at": ["due_at"],
        },
        comment="the live run of each business key; the scheduler removes a row some time after the run has ended",
        **OPTIONS,
    )
