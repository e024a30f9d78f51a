"""Weights: how many slots of its worker, or threads of its pool, a run takes; and the shares of groups in turns.

Revision ID: 0024
Revises: 0023
"""

from typing import Any

from sqlalchemy import Column, SmallInteger

from rota.migrations.steps import add_column, add_index, state_oldest_version
from rota.shared.database.added_columns import added

revision = "0024"
down_revision: str | None = "0023"
oldest_version = "0.1.0"


def from_one(table: str, name: str, most: int, comment: str) -> None:
    column: Column[Any] = Column(name, SmallInteger, nullable=False, server_default="1", comment=comment)
    add_column(table, added(table, column, between=(1, most)))


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    from_one("schedule_task", "weight", 10_000, "how many slots of its worker, or threads of its pool, a run takes")
    counts_as = "where groups take turns, so many of its instances count as one of another group"
    from_one("schedule_task", "group_share", 100, counts_as)
    add_index("schedule_task", "ix_schedule_task_weight_live_name", ["weight", "live_name"])
    taken = "how many threads of the pool it takes; where pool is empty, how many slots of the worker"
    from_one("schedule_pool_place", "weight", 10_000, taken)
