"""Combined triggers.

Revision ID: 0008
Revises: 0007
"""

from rota.migrations.steps import add_words, state_oldest_version

revision = "0008"
down_revision: str | None = "0007"
oldest_version = "0.1.0"

KINDS = ["cron", "manual", "interval", "once", "fixed_delay"]


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    said = "cron; interval; fixed_delay; once; combined: any or all of several; manual: runs only when asked"
    rest = f"NOT NULL DEFAULT 'cron' COMMENT '{said}'"
    add_words("schedule_task", "trigger_kind", KINDS, ["combined"], rest)
