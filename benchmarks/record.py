"""What every handler does: write down what ran and when it was entered. No imports beyond the standard library, so that
a peer's handler in an environment of its own can do the same."""

import mmap
import os
import threading
import time
from pathlib import Path

FOLDER = "BENCH_RECORDS"
"""The environment variable that names the folder; each process has a file of its own there."""

ROOM = 64 * 1024 * 1024
"""The size of a file: sparse, mapped into memory, so that a line costs no system call and outlives a killed process."""


class _File:
    def __init__(self) -> None:
        self.at = 0
        path = Path(os.environ[FOLDER]) / str(os.getpid())
        with path.open("w+b") as file:
            file.truncate(ROOM)
            self.map = mmap.mmap(file.fileno(), ROOM)


_lock = threading.Lock()
_file: _File | None = None


def _forget() -> None:
    """A child writes to a file of its own."""
    global _file  # noqa: PLW0603
    _file = None


os.register_at_fork(after_in_child=_forget)


def record(key: str, due: float = 0.0) -> None:
    """Append a line: what ran, when it was due (seconds since the epoch; 0: at no time), when its handler was entered.

    record("task-17@2026-11-21T00:00:00", due=1795219200.0)
    """
    global _file  # noqa: PLW0603 - one file for each process, also after a fork
    entered = time.time()
    line = f"{key} {due} {entered}\n".encode()
    with _lock:
        if _file is None:
            _file = _File()
        end = _file.at + len(line)
        _file.map[_file.at : end] = line
        _file.at = end
