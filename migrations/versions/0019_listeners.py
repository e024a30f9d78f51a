"""Who tells the listeners of what the rows say, and how far they have been told.

Revision ID: 0019
Revises: 0018
"""

from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, SmallInteger, String, UniqueConstraint

from rota.migrations.steps import add_index, checked, create_table, state_oldest_version
from rota.shared.database.constructs import BigId, Json, UtcNow, UtcTime

revision = "0019"
down_revision: str | None = "0018"
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
    told = "how far it has been told of each event, as a JSON object; NULL: of nothing yet"
    columns: list[Column[Any]] = [
        Column("id", BigId, autoincrement=True),
        Column("name", String(255), nullable=False, comment="module and name of the function"),
        Column("holder", String(127), comment="the process that tells it of events, as host:pid:…"),
        Column("held_at", UtcTime, comment="when its holder last said so, UTC; NULL: nobody holds it"),
        Column("told", Json, comment=told),
        Column("gmt_create", UtcTime, nullable=False, server_default=UtcNow(), comment="when created, UTC"),
        Column("gmt_modified", UtcTime, nullable=False, server_default=UtcNow(), comment="last changed, UTC"),
        Column("creator", String(127), nullable=False, server_default="sql", comment="who created it"),
        Column("modifier", String(127), nullable=False, server_default="sql", comment="who changed it last"),
        Column("is_deleted", SmallInteger, nullable=False, server_default="0", comment="1: deleted, kept as history"),
    ]
    create_table(
        "schedule_listener",
        *checked("schedule_listener", *columns),
        PrimaryKeyConstraint("id", name="pk_schedule_listener"),
        UniqueConstraint("name", name="uq_schedule_listener_name"),
        comment="the functions that hear what the rows say (@app.on): who tells them, and how far they have been told",
        **OPTIONS,
    )
    add_index("schedule_skip", "ix_schedule_skip_gmt_modified", ["gmt_modified"])
