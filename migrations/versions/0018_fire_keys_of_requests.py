"""By which fire key a program finds the run that it asks for in a transaction of its own.

Revision ID: 0018
Revises: 0017
"""

from typing import Any

from sqlalchemy import Column, String

from rota.migrations.steps import add_column, add_index, state_oldest_version
from rota.shared.database.added_columns import added

revision = "0018"
down_revision: str | None = "0017"
oldest_version = "0.1.0"


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    said = "schedule_instance.fire_key of the run; NULL: the scheduler gives one"
    fire_key: Column[Any] = Column("fire_key", String(63), comment=said)
    add_column("schedule_request", added("schedule_request", fire_key))
    add_index("schedule_request", "ix_schedule_request_fire_key", ["fire_key"])
