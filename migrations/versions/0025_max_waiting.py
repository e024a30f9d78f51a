"""A bound on how many fires of a task wait for their turn.

Revision ID: 0025
Revises: 0024
"""

from typing import Any

from sqlalchemy import Column, SmallInteger

from rota.migrations.steps import add_column, add_index, state_oldest_version
from rota.shared.database.added_columns import added

revision = "0025"
down_revision: str | None = "0024"
oldest_version = "0.1.0"


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    comment = "so many fires wait for their turn at most, and a further fire is canceled; NULL: any number"
    column: Column[Any] = Column("max_waiting", SmallInteger, comment=comment)
    add_column("schedule_task", added("schedule_task", column, between=(1, 1000)))
    add_index("schedule_task", "ix_schedule_task_max_waiting", ["max_waiting"])
