"""More kinds of triggers.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

from rota.migrations.steps import add_words, runs_on, state_oldest_version

revision = "0002"
down_revision: str | None = "0001"
oldest_version = "0.1.0"


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    kinds = "NOT NULL DEFAULT 'cron' COMMENT 'cron; interval; once; manual: runs only when asked'"
    add_words("schedule_task", "trigger_kind", ["cron", "manual"], ["interval", "once"], kinds)
    if not runs_on("sqlite"):
        spec = "what other kinds than cron are made from, a JSON object"
        op.execute(f"ALTER TABLE schedule_task MODIFY trigger_spec JSON COMMENT '{spec}' /*M!, ALGORITHM=INSTANT*/")
