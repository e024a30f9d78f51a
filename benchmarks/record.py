"""What every handler does: write down what ran and when it was entered. No imports beyond the standard library, so that
a peer's handler in an environment of its own can do the same."""

import os
import time
from pathlib import Path

FOLDER = "BENCH_RECORDS"
"""The environment variable that names the folder; each process appends to a file of its own there."""

_file: tuple[int, int] | None = None


def record(key: str, due: float = 0.0) -> None:
    """Append a line: what ran, when it was due (seconds since the epoch; 0: at no time), when its handler was entered.

    record("task-17@2026-11-21T00:00:00", due=1795219200.0)
    """
    global _file  # noqa: PLW0603 - one open file for each process, also after a fork
    entered = time.time()
    if _file is None or _file[0] != os.getpid():
        path = Path(os.environ[FOLDER]) / str(os.getpid())
        _file = (os.getpid(), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    os.write(_file[1], b"%s %.6f %.6f\n" % (key.encode(), due, entered))
