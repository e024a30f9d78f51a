"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

revision = "${up_revision}"
down_revision: str | None = "${down_revision}"


def upgrade() -> None:
    """Run it twice and it must do no harm: on MySQL a killed migration leaves its first half (migrations/steps.py)."""
    ${upgrades if upgrades else "raise NotImplementedError"}
