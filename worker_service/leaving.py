"""Leaving: what a process owes to the app when it ends in order: its exit hooks run, what was printed is written."""

import atexit
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

EXIT_SECONDS = 5.0
"""How long the app's exit hooks and the writing of what was printed may take."""


def leave(code: int) -> NoReturn:
    """End the process as Python does, but wait for no thread: handlers that still run there cannot be stopped."""
    late = threading.Timer(EXIT_SECONDS, os._exit, [code])
    late.daemon = True
    late.start()
    run_exit_hooks()
    os._exit(code)


def run_exit_hooks() -> None:
    """Run the hooks given to ``atexit``, as Python does at the end of a program, and write what was printed."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name; logging's own hook is one of them
    flush_output()


def forget_exit_hooks() -> None:
    """Forget the hooks that were given to ``atexit`` so far, but for those of the standard library.

    In a fork they belong to the process that was forked: each of its forks would run them once more.
    """
    atexit._clear()  # noqa: SLF001 - there is no public name
    atexit.register(logging.shutdown)
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        atexit.register(util._exit_function)  # noqa: SLF001 - it ends the processes that a handler leaves


def flush_output() -> None:
    """Write what was printed, as far as there is somebody to read it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
