"""How a child of ``rota up`` notices that the supervisor is gone, even by SIGKILL.

The supervisor holds the only writing end of a pipe; the kernel closes it however the supervisor dies, and the child
reads the end. (PR_SET_PDEATHSIG would do it on Linux alone, and has a moment between fork and prctl.)
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
LAST_SECONDS = 5
"""After the grace time: how long until the child kills itself."""


def parent_option(command: F) -> F:
    """The hidden option by which ``rota up`` hands the pipe to a child."""
    return click.option("--parent-pipe", type=int, hidden=True)(command)


def watch_parent(pipe: int | None, grace_seconds: float) -> None:
    """Stop this process as SIGTERM does when the other end of ``pipe`` is closed (None: nobody's child)."""
    if pipe is not None:
        threading.Thread(target=_watch, args=(pipe, grace_seconds), name="parent", daemon=True).start()


def _watch(pipe: int, grace_seconds: float) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds + LAST_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
