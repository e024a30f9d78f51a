"""Leaves nothing behind, even when pytest itself is killed.

Run as a script by `tests.harness.processes.guard`. It reads what is to be undone from its standard input, one JSON
object a line, until the test process closes that pipe, which the kernel does for it however it dies. (PR_SET_PDEATHSIG
would not do: it fires when the *thread* that started the child ends, and mariadbd loses it with its change of user.)
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil


def marked_processes(marker: str) -> Iterator[psutil.Process]:
    """The processes that carry `NAME=value` in the environment they were started with, children included."""
    name, _, value = marker.partition("=")
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(name) == value:
                yield process
        except (psutil.Error, OSError):  # it ended meanwhile, or it is not ours
            continue


def kill_marked(marker: str, deadline_seconds: float = 10) -> None:
    """SIGKILL every process that carries `marker` until none is left: one may fork while we look.

    A zombie carries no environment, so one that nobody reaps, as in a container without an init, counts as gone.
    """
    end = time.monotonic() + deadline_seconds
    while processes := list(marked_processes(marker)):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() > end:
            raise RuntimeError(f"processes {[process.pid for process in processes]} survive SIGKILL")
        time.sleep(0.005)


def main(marker: str) -> None:
    orders = [json.loads(line) for line in sys.stdin]
    kill_marked(marker)
    for order in orders:
        if "remove" in order:
            shutil.rmtree(order["remove"], ignore_errors=True)
        elif "run" in order:
            subprocess.run(order["run"], check=False, capture_output=True, timeout=30)


if __name__ == "__main__":
    main(sys.argv[1])
