"""Kills a child of ``rota up`` with all that it has started: a worker, its guardian's child, and what handlers fork.

The kernel kills a worker whose guardian was killed, but not what its handlers have forked. These are in the worker's
process group, unless they have left it on purpose.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_family(pid: int) -> None:
    """SIGKILL a child of this process that is not reaped yet, and the process groups that its own children lead."""
    os.kill(pid, signal.SIGSTOP)  # it reaps nobody from now on: the numbers of its children stay theirs
    for group in _groups_led_by_children(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def _groups_led_by_children(pid: int) -> list[int]:
    """From fields 4 and 5 of stat: the parent, and the process group (proc(5))."""
    led = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                _, parent, group, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                if int(parent) == pid and group == folder.name.encode():
                    led.append(int(group))
    return led
