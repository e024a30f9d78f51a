"""Nodes that are skipped, since one before them has ended the run early.

Revision ID: 0021
Revises: 0020
"""

from rota.migrations.steps import add_words, state_oldest_version

revision = "0021"
down_revision: str | None = "0020"
oldest_version = "0.1.0"

STATUSES = ["pending", "running", "succeed", "failed", "canceled"]


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    said = "pending, running, then succeed, failed, canceled, or skipped: a node before it has ended the run early"
    add_words("schedule_task_node", "status", STATUSES, ["skipped"], f"NOT NULL DEFAULT 'pending' COMMENT '{said}'")
