"""The process groups this worker started, so that they can be killed with it."""

import os
import signal
import threading
from contextlib import suppress

_lock = threading.Lock()
_groups: set[int] = set()


def register(group: int) -> None:
    """Remember a process group (the pid of its leader)."""
    with _lock:
        _groups.add(group)


def forget(group: int) -> None:
    """Its processes have ended."""
    with _lock:
        _groups.discard(group)


def kill_group(group: int) -> None:
    """SIGKILL a group; one that is gone already is fine."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_all() -> None:
    """SIGKILL every group: the worker has lost its lease, or stops."""
    with _lock:
        groups = list(_groups)
    for group in groups:
        kill_group(group)
