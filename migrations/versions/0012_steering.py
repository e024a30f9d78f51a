"""Steering: the pause of all scheduling, and fires that a person has skipped.

Revision ID: 0012
Revises: 0011
"""

from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, SmallInteger, String

from rota.migrations.steps import add_words, checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, UtcNow, UtcTime

revision = "0012"
down_revision: str | None = "0011"
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


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = "missed: skip, fire_once, window or cap; off; edited before they were seen; by_hand"
    add_words("schedule_skip", "reason", REASONS, ["by_hand"], f"NOT NULL COMMENT '{said}'")
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("reason", String(1023), comment="why, for people"),
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
    create_table(
        "schedule_pause",
        *checked("schedule_pause", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_pause"),
        comment="while it has a row, no new fire begins; what has begun goes on; delete the row to resume",
        **OPTIONS,
    )
