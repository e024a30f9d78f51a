"""Replays name the instance that they run once more, and the node that they begin with.

Revision ID: 0007
Revises: 0006
"""

from typing import Any

from sqlalchemy import Column, SmallInteger

from rota.migrations.steps import add_column, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId

revision = "0007"
down_revision: str | None = "0006"
oldest_version = "0.1.0"

INSTANCE = "schedule_instance"


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    replay_of: Column[Any] = Column("replay_of", BigId, comment="the instance that it runs once more")
    start: Column[Any] = Column(
        "from_sequence", SmallInteger, comment="a replay from this node on: those before keep the results of replay_of"
    )
    for column in (replay_of, start):
        add_column(INSTANCE, added(INSTANCE, column))
