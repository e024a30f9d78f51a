"""Runs that handlers ask for: when an instance asked, and which one asked for it.

Revision ID: 0010
Revises: 0009
"""

from typing import Any

from sqlalchemy import Column

from rota.migrations.steps import add_column, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId, UtcTime

revision = "0010"
down_revision: str | None = "0009"
oldest_version = "0.1.0"


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    columns: list[Column[Any]] = [
        Column("run_again_at", UtcTime, comment="when its handler asked to run again (RunAgain), UTC"),
        Column("follows_id", BigId, comment="the instance whose handler asked for this one"),
    ]
    for column in columns:
        add_column("schedule_instance", added("schedule_instance", column))
