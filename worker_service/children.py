"""The process groups this worker started, so that they are killed with it, however it ends.

A worker that ends by itself calls ``kill_all``. For one that is killed (SIGKILL, out of memory) there is a guardian: a
small process, started with the first group, that reads from a pipe which groups there are. The kernel closes the pipe
when the worker dies, whatever of; then the guardian kills them. (PR_SET_PDEATHSIG would reach the leader of a group
only, and fires when the *thread* ends that started it.)

The guardian is this file run as a script: it imports nothing but the standard library.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_lock = threading.Lock()
_groups: set[int] = set()


def register(group: int) -> None:
    """Remember a process group (the pid of its leader)."""
    with _lock:
        _groups.add(group)
    _guardian.tell(f"+{group}\n")


def forget(group: int) -> None:
    """Its processes have ended. Call it before its leader is reaped: from then on the number may be another's."""
    with _lock:
        _groups.discard(group)
    _guardian.tell(f"-{group}\n")


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a group; one that is gone already is fine."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_all() -> None:
    """SIGKILL every group: the worker has lost its lease, or stops."""
    with _lock:  # held meanwhile, or a group could be forgotten, reaped, and its number another's when it is killed
        for group in _groups:
            kill_group(group)


class _Guardian:
    """This process's line to the guardian; started with the first group, and again if somebody killed it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._disown)

    def tell(self, order: str) -> None:
        """Pass on an order; a guardian that is new is told all groups."""
        with self._lock:
            if self._process is not None and self._write(order):
                return
            self._start()
            with _lock:
                orders = "".join(f"+{group}\n" for group in _groups)
            self._write(orders)

    def _start(self) -> None:
        if self._process is not None:
            self._process.wait()
        self._process = subprocess.Popen(  # noqa: S603 - this very file
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
            start_new_session=True,  # what is sent to the worker's group or terminal is not meant for it
        )

    def _write(self, orders: str) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            os.write(self._process.stdin.fileno(), orders.encode())
        except BrokenPipeError:
            return False
        return True

    def _disown(self) -> None:
        """A fork of the worker owns no groups, and must not keep the guardian's pipe open."""
        self._lock = threading.Lock()
        _groups.clear()
        if self._process is not None and self._process.stdin is not None:
            os.close(self._process.stdin.fileno())
            self._process.returncode, self._process = 0, None


_guardian = _Guardian()


def guard() -> None:
    """What the guardian does: wait for the worker's end, and kill what it left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for order in sys.stdin:
        (groups.add if order[0] == "+" else groups.discard)(int(order[1:]))
    for group in groups:
        kill_group(group)


if __name__ == "__main__":
    guard()
