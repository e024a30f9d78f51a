"""A task describes itself: what it is for, who answers for it, tags and a group.

Revision ID: 0004
Revises: 0003
"""

from sqlalchemy import Column, String

from rota.migrations.steps import add_column, add_index, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import Json

revision = "0004"
down_revision: str | None = "0003"
oldest_version = "0.1.0"


def upgrade() -> None:
    state_oldest_version(oldest_version)
    for column in (
        Column("description", String(1023), comment="what it is for, for people"),
        Column("owner", String(127), comment="who answers for it"),
        Column("tags", Json, comment="words to find it by, a JSON list of texts"),
        Column("task_group", String(63), comment="the group that it belongs to"),
    ):
        add_column("schedule_task", added("schedule_task", column))
    add_index("schedule_task", "ix_schedule_task_owner_live_name", ["owner", "live_name"])
    add_index("schedule_task", "ix_schedule_task_task_group_live_name", ["task_group", "live_name"])
