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


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    weight: Column[Any] = Column(
        "weight",
        SmallInteger,
        nullable=False,
        server_default="1",
        comment="how many slots of its worker, or threads of its pool, a run takes",
    )
    add_column("schedule_task", added("schedule_task", weight, between=(1, 10_000)))
    share: Column[Any] = Column(
        "group_share",
        SmallInteger,
        nullable=False,
        server_default="1",
        comment="where groups take turns, so many of its instances count as one of another group",
    )
    add_column("schedule_task", added("schedule_task", share, between=(1, 100)))
    add_index("schedule_task", "ix_schedule_task_weight_live_name", ["weight", "live_name"])
    taken: Column[Any] = Column(
        "weight",
        SmallInteger,
        nullable=False,
        server_default="1",
        comment="how many threads of the pool it takes; where pool is empty, how many slots of the worker",
    )
    add_column("schedule_pool_place", added("schedule_pool_place", taken, between=(1, 10_000)))
