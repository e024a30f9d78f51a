"""A later Rota as a process: this code with a later version, one more kind of trigger and more migrations.

    python -m tests.harness.later 0.2.0 <folder of migrations> scheduler -v

It is what tests of rolling upgrades start beside the present Rota.
"""

import importlib.metadata
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import TYPE_CHECKING, Self

from tests.harness.processes import ROOT

if TYPE_CHECKING:
    from rota.shared.domain.triggers.inputs import TriggerInputs

VERSION = "0.2.0"
KIND = "solar"
"""The kind of trigger that the later Rota adds."""

BEGIN = datetime.fromisoformat("1970-01-01")

ADDS_A_KIND, TAKES_NO_OLDER = "9001", "9002"
"""The revisions of the later Rota: the first adds the kind and a column, the second takes no older Rota."""

_ADD_A_KIND = """
from alembic import op
from sqlalchemy import Column, String
from rota.migrations.steps import add_column, runs_on, state_oldest_version

revision, down_revision = "9001", "{before}"
oldest_version = "0.1.0"


def upgrade():
    state_oldest_version(oldest_version)
    add_column("schedule_task", Column("colour", String(31), nullable=False, server_default="blue"))
    if not runs_on("sqlite"):
        words = "ENUM({words},'solar') NOT NULL DEFAULT 'cron'"
        op.execute(f"ALTER TABLE schedule_task MODIFY trigger_kind {{words}} /*M!, ALGORITHM=INSTANT*/")
        return
    op.execute("PRAGMA writable_schema = ON")
    op.execute(
        "UPDATE sqlite_master SET sql = replace(sql, '(trigger_kind IN (', '(trigger_kind IN (''solar'', ')"
        " WHERE name = 'schedule_task'"
    )
    version = op.get_bind().exec_driver_sql("PRAGMA schema_version").scalar_one()
    op.execute(f"PRAGMA schema_version = {{version + 1}}")
    op.execute("PRAGMA writable_schema = RESET")
"""
_TAKE_NO_OLDER = """
from rota.migrations.steps import state_oldest_version

revision, down_revision = "9002", "9001"
oldest_version = "0.2.0"


def upgrade():
    state_oldest_version(oldest_version)
"""


@dataclass(frozen=True)
class SolarTrigger:
    """Fires every so many seconds: ``{"seconds": 1}``."""

    seconds: int

    @classmethod
    def of(cls, inputs: "TriggerInputs") -> Self:
        """The trigger that ``trigger_spec`` describes."""
        return cls(inputs.trigger_spec["seconds"])

    def next_after(self, moment: datetime) -> datetime:
        """The next whole number of intervals."""
        interval = timedelta(seconds=self.seconds)
        return BEGIN + interval * ((moment - BEGIN) // interval + 1)

    def latest_at_or_before(self, moment: datetime) -> datetime:
        """The last whole number of intervals."""
        interval = timedelta(seconds=self.seconds)
        return BEGIN + interval * ((moment - BEGIN) // interval)

    def describe(self) -> str:
        """In words."""
        return f"every {self.seconds} s"

    def label(self) -> str:
        """The same."""
        return self.describe()


def migrations_until(revision: str, folder: Path) -> Path:
    """A folder with this Rota's migrations, and the later one's up to a revision."""
    from rota import migrations  # noqa: PLC0415 - main() sets the version before anything asks for it
    from rota.shared.domain.states import TriggerKind  # noqa: PLC0415

    words = ",".join(f"'{kind}'" for kind in TriggerKind)
    sources = {ADDS_A_KIND: _ADD_A_KIND.format(before=migrations.head(), words=words), TAKES_NO_OLDER: _TAKE_NO_OLDER}
    copied = copytree(ROOT / "migrations", folder, ignore=ignore_patterns("__pycache__"))
    for later, source in sources.items():
        if later <= revision:
            (copied / "versions" / f"{later}_later.py").write_text(source)
    return copied


def command(version: str, folder: Path) -> tuple[str, ...]:
    """The command that is a later Rota's ``rota``."""
    return (sys.executable, "-m", "tests.harness.later", version, str(folder))


def main(version: str, folder: str, *arguments: str) -> None:
    """Run the command of the later Rota."""
    found = importlib.metadata.version

    def later_version(distribution_name: str) -> str:
        return version if distribution_name == "rota" else found(distribution_name)

    importlib.metadata.version = later_version
    from rota.shared.domain.triggers import base  # noqa: PLC0415 - before anything that asks which kinds there are

    base.TRIGGERS[KIND] = SolarTrigger
    from rota import cli, migrations  # noqa: PLC0415

    migrations.FOLDER = Path(folder)
    sys.argv[1:] = arguments
    cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
