"""Stops a child of ``rota up`` when its supervisor is gone, even after a SIGKILL.

The supervisor holds the only writing end of a pipe. However the supervisor dies, the kernel closes that end, and the
child reads the end of the file. (PR_SET_PDEATHSIG exists only on Linux, and misses a death between fork and prctl.)
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
AFTER_GRACE_SECONDS = 20.0
"""How long a service may need after its grace time: it hands back and reports what it ran. Then it is killed."""


def parent_option(command: F) -> F:
    """The hidden option by which ``rota up`` hands the pipe to a child."""
    return click.option("--parent-pipe", type=int, hidden=True)(command)


def watch_parent(pipe: int | None, grace_seconds: float, told: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to this process when the other end of ``pipe`` is closed. None: it has no supervisor to watch."""
    if pipe is not None:
        threading.Thread(target=_watch, args=(pipe, grace_seconds, told), name="parent", daemon=True).start()


def _watch(pipe: int, grace_seconds: float, told: signal.Signals) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), told)
    time.sleep(grace_seconds + AFTER_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
