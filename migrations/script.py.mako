"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from rota.migrations.steps import state_oldest_version

revision = "${up_revision}"
down_revision: str | None = "${down_revision}"
oldest_version = "TODO"
"""The oldest version of Rota that may run on the schema from here on (docs/upgrading.md)."""


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    state_oldest_version(oldest_version)
    ${upgrades if upgrades else "raise NotImplementedError"}
