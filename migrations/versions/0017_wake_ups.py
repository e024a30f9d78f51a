"""Where processes listen for wake-ups, and the look-ahead of schedulers.

Revision ID: 0017
Revises: 0016
"""

from typing import Any

from sqlalchemy import Column, Integer, String

from rota.migrations.steps import add_column, state_oldest_version
from rota.shared.database.added_columns import added

revision = "0017"
down_revision: str | None = "0016"
oldest_version = "0.1.0"


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = "where it listens for wake-ups, as 10.0.0.5:40112; NULL: nowhere"
    ahead = "how far ahead it looks for work, in whole seconds, rounded up"
    seconds: Column[Any] = Column("lookahead_seconds", Integer, comment=ahead)
    for table in ("schedule_scheduler_node", "schedule_worker_node"):
        address: Column[Any] = Column("wake_address", String(63), comment=said)
        add_column(table, added(table, address))
    add_column("schedule_scheduler_node", added("schedule_scheduler_node", seconds))
