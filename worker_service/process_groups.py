"""The process groups that this worker started. They are killed when the worker ends, however it ends.

A worker that ends by itself calls ``kill_all``. A worker that is killed (SIGKILL, out of memory) cannot. For that case
there is a guard: a small process that is started with the first group. The worker writes its groups into a pipe, and
the guard reads them. When the worker dies, the kernel closes the pipe, and the guard kills the groups.
(PR_SET_PDEATHSIG would reach only the leader of a group. It also fires when the *thread* ends that started the leader.)

What the worker has written is in the pipe, even if the guard has not read it yet. So a group whose ``register`` has
returned ends with the worker. Its leader waits until then, before it does anything of its own (``builtin/gate``).

The guard is not the worker's guardian, because it must outlive that, too: if the guardian is killed, the kernel kills
the worker, and somebody must kill the groups. The guard is this file, run as a script. So this file imports nothing
but the standard library.
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
    """Remember a process group (the pid of its leader). Raises OSError when the guard cannot be told."""
    with _lock:
        _groups.add(group)
    try:
        _guard.tell(f"+{group}\n")
    except OSError:
        with _lock:
            _groups.discard(group)
        raise


def forget(group: int) -> None:
    """Forget a group whose processes have ended.

    Call it before the group's leader is reaped: after that the kernel may give the number to another process.
    """
    with _lock:
        _groups.discard(group)
    with suppress(OSError):  # a guard that cannot be started now is started for the next group, and told all then
        _guard.tell(f"-{group}\n")


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a group. A group that is gone already is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_all() -> None:
    """SIGKILL every group: the worker has lost its lease, or is stopping."""
    with _lock:  # else a group could be forgotten and reaped, and its number be another process's
        for group in _groups:
            kill_group(group)


def lives(group: int) -> bool:
    """Whether a process of the group runs. It reads /proc, because signal 0 finds an unreaped leader, too."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, of_group, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                if int(of_group) == group and state not in b"ZX":
                    return True
    return False


def environment() -> dict[str, str]:
    """The worker's environment without Rota's settings, which hold the database's password."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}


def hold(pipe: int) -> None:
    """Let the guard hold this end of a pipe, too: whoever reads the other end sees that the groups are killed."""
    _guard.held.append(pipe)


class _Guard:
    """The worker's end of the pipe to the guard. Starts the guard, and starts it again if somebody killed it."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._disown)

    def tell(self, order: str) -> None:
        """Send an order to the guard. A new guard gets all groups instead."""
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
            env=environment(),
            start_new_session=True,  # signals to the worker's group or terminal must not reach the guard
            pass_fds=self.held,
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
        """In a fork of the worker: it owns no groups, and must not keep the pipes open."""
        self._lock = threading.Lock()
        _groups.clear()
        while self.held:
            os.close(self.held.pop())
        if self._process is not None and self._process.stdin is not None:
            os.close(self._process.stdin.fileno())
            self._process.returncode, self._process = 0, None


_guard = _Guard()


def guard() -> None:
    """Run as the guard: wait until the worker has ended, and kill the groups that it left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for order in sys.stdin:
        (groups.add if order[0] == "+" else groups.discard)(int(order[1:]))
    for group in groups:
        kill_group(group)


if __name__ == "__main__":
    guard()
