"""What programs ask for in transactions of their own.

Revision ID: 0016
Revises: 0015
"""

from typing import Any

from sqlalchemy import CheckConstraint, Column, PrimaryKeyConstraint, SmallInteger, String

from rota.migrations.steps import checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0016"
down_revision: str | None = "0015"
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
    refused = "why it was refused; then is_deleted is 1, and it stays for people"
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("what", String(15), nullable=False, server_default="once", comment="once, or cancel"),
        Column("type", String(127), nullable=False, comment="the task type"),
        Column("code", String(64), nullable=False, server_default="", comment="of the business key"),
        Column("number", String(128), nullable=False, comment="the business key: product-42"),
        Column("due_at", UtcTime, comment="when it is to run, UTC; NULL: at once"),
        Column("param", Json, comment="the param of the run; NULL: that of the task"),
        Column("why", String(1023), comment="the reason that was given, for the audit"),
        Column("reason", String(1023), comment=refused),
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column("is_deleted", SmallInteger, nullable=False, server_default="0", comment="1: deleted, kept as history"),
    ]
    create_table(
        "schedule_request",
        *checked("schedule_request", *columns),
        CheckConstraint("what IN ('once', 'cancel')", name="ck_schedule_request_what_is_once_or_cancel"),
        PrimaryKeyConstraint("id", name="pk_schedule_request"),
        indexes={"ix_schedule_request_open": ["is_deleted", "id"]},
        comment="what programs ask for in transactions of their own; the scheduler does it and removes the row",
        **OPTIONS,
    )
