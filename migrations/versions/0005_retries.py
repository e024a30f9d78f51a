"""How a task is retried: a longest delay, jitter, which exceptions, and whether nodes that succeeded run again.

Revision ID: 0005
Revises: 0004
"""

from sqlalchemy import Column, Integer, SmallInteger

from rota.migrations.steps import add_column, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import Json
from rota.shared.database.words import WordType

revision = "0005"
down_revision: str | None = "0004"
oldest_version = "0.1.0"

TASK = "schedule_task"


def upgrade() -> None:
    """Take a step again if the migration was killed: each does no harm then."""
    state_oldest_version(oldest_version)
    longest = Column(
        "max_retry_delay_seconds",
        Integer,
        comment="no exponential delay is longer; NULL: an hour, or retry_delay_seconds if longer",
    )
    jitter = Column(
        "retry_jitter_percent",
        SmallInteger,
        nullable=False,
        server_default="0",
        comment="each delay is shortened by up to so many percent",
    )
    add_column(TASK, added(TASK, longest, (1, 31_536_000)))
    add_column(TASK, added(TASK, jitter, (0, 100)))
    for name, comment in (
        ("retry_on", "a JSON list of exceptions: only these are retried; NULL: all are"),
        ("never_retry", "a JSON list of exceptions that are never retried"),
    ):
        is_a_list = f"json_valid({name}) AND upper(json_type({name})) = 'ARRAY' AND length({name}) <= 4000"
        is_a_list = f"{name} IS NULL OR {is_a_list}"
        add_column(TASK, added(TASK, Column(name, Json, comment=comment), rule=(f"{name}_is_a_list", is_a_list)))
    on_retry: Column[str] = Column(
        "on_retry",
        WordType("resume", "restart", name="ck_schedule_task_task_on_retry"),
        nullable=False,
        server_default="resume",
        comment="resume: nodes that succeeded are kept; restart: all run again",
    )
    add_column(TASK, added(TASK, on_retry, rule=("task_on_retry", "on_retry IN ('resume', 'restart')")))
