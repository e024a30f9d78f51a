"""``python -m rota.migrations "what it changes"`` writes the next migration's file, for a developer of Rota to fill in.

Change ``shared/store/tables.py`` too: tests/store/test_schema.py shows where the two differ. A released migration must
not be changed. Its steps must be safe to run twice (migrations/steps.py).
"""

import sys
from pathlib import Path
from typing import cast

from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory


def new(message: str, folder: Path = Path(__file__).parent) -> Path:
    """Write the next migration and return its file.

    new("add a column")  # migrations/versions/0002_add_a_column.py
    """
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    head = ScriptDirectory.from_config(config).get_current_head()
    script = command.revision(config, message=message, rev_id=f"{int(head or 0) + 1:04d}")
    return Path(cast("Script", script).path)


if __name__ == "__main__":
    new(" ".join(sys.argv[1:]))
