"""Shards and broadcasts: how a task spreads its fires, and of which instance another is a part.

Revision ID: 0022
Revises: 0021
"""

from typing import Any

from sqlalchemy import Column, SmallInteger

from rota.migrations.steps import add_column, add_words, state_oldest_version
from rota.shared.database.added_columns import added
from rota.shared.database.constructs import BigId
from rota.shared.database.words import WordType

revision = "0022"
down_revision: str | None = "0021"
oldest_version = "0.1.0"

TASK, INSTANCE = "schedule_task", "schedule_instance"
ORIGINS = ["cron", "manual", "replay", "sql", "backfill"]


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    add_words(INSTANCE, "origin", ORIGINS, ["shard"], "NOT NULL DEFAULT 'sql' COMMENT 'what asked for it'")
    columns: list[Column[Any]] = [
        Column("parent_id", BigId, comment="the instance of which it is a shard"),
        Column("shard_index", SmallInteger, comment="which shard it is, from 0 on"),
        Column("shard_total", SmallInteger, comment="how many shards there are, of an instance that is or has shards"),
        Column("only_worker_node_id", BigId, comment="the only worker that may run it: its shard of a broadcast"),
    ]
    for column in columns:
        add_column(INSTANCE, added(INSTANCE, column))
    spread: Column[Any] = Column(
        "spread",
        WordType("shards", "workers", "broadcast", name="ck_schedule_task_task_spread"),
        comment="a fire runs as several instances. shards: so many; workers: as many as live workers fit; broadcast:"
        " one on each of them; NULL: as one",
    )
    add_column(TASK, added(TASK, spread, rule=("task_spread", "spread IN ('shards', 'workers', 'broadcast')")))
    shards: Column[Any] = Column("shards", SmallInteger, comment="with spread shards: so many")
    add_column(TASK, added(TASK, shards, (1, 1000)))
