"""The worker's side of one process of its fork server (other side: forker). It has the app, and forks children."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from rota.worker_service import process_groups
from rota.worker_service.executors import forker
from rota.worker_service.sources import FileState

CODE_FOLDER = Path(__file__).absolute().parents[3]
"""The folder that holds the package ``rota``. Links are not resolved: in a checkout they lead out of the package."""

REAP_SECONDS = 5.0
"""How long a killed child may take to end. After that, its exit status stays unknown."""


class ServerProcess:
    """One process from which children are forked. It has a session and a process group of its own.

    process = ServerProcess.forked()
    process.load("jobs:app", sources)
    process.read()                       # {"loaded": …}
    token = process.fork(socket); process.end_child(token)
    process.end()
    """

    def __init__(self, pid: int, control: socket.socket, reap: Callable[[], int]) -> None:
        self.pid = pid
        self._control = control
        self._lines = control.makefile("rb")
        self._reap = reap
        self._lock = threading.Lock()
        self._registered = self._ended = False
        self._status: int | None = None
        self._tokens = 0
        self._ends: dict[int, Future[int | None]] = {}

    @classmethod
    def forked(cls) -> "ServerProcess":
        """Fork one off this process, which must have a single thread."""
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            forker.run_forked(theirs)
        theirs.close()
        return cls(pid, ours, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    @classmethod
    def spawned(cls) -> "ServerProcess":
        """Start one as a new program. Raises OSError."""
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(CODE_FOLDER), os.environ.get("PYTHONPATH")]))
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", forker.__name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        return cls(process.pid, ours, process.wait)

    def load(self, target: str, sources: Mapping[str, FileState]) -> None:
        """Let it import the app. From now on it ends with the worker, however the worker ends.

        Raises OSError when the guard of the process groups cannot be told.
        """
        process_groups.register(self.pid)
        self._registered = True
        self._send(load=target, path=sys.path, python_path=os.environ.get("PYTHONPATH"), sources=sources)

    def read(self) -> dict[str, Any] | None:
        """Its next message that is not about a child. None: it has ended, or says nothing any more."""
        while (message := self._read()) is not None:
            if "ended" not in message:
                return message
            token, status = message["ended"]
            with self._lock:
                future = self._ends.pop(token, None)
            if future is not None:
                future.set_result(status)
        return None

    def fork(self, channel: socket.socket) -> int:
        """Ask for a child that has this socket as its control channel. Returns the number by which it can be ended.

        A process that has ended makes no child; then the other end of the socket reads the end of the file.
        """
        with self._lock:
            self._tokens += 1
            token = self._tokens
        self._send(channel, fork=token)
        return token

    def end_child(self, token: int) -> int | None:
        """Kill a child and reap it; returns its exit status (-9: SIGKILL).

        None: nobody knows. The child never was, or this process ended before it.
        """
        future: Future[int | None] = Future()
        with self._lock:
            if self._ended:
                return None
            self._ends[token] = future
        self._send(end=token)
        try:
            return future.result(REAP_SECONDS)
        except TimeoutError:
            with self._lock:
                self._ends.pop(token, None)
            return None

    def hang_up(self) -> None:
        """Say nothing more to it: it then ends, and ``read`` returns None."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._registered:
            self._kill()

    def end(self) -> int | None:
        """Kill it, and reap it; its children live on. Returns its exit status. None: another has reaped it.

        Call it on the thread that reads.
        """
        if self._ended:
            return self._status
        self._kill()
        with self._lock:
            self._lines.close()
            self._control.close()
            self._ended = True
            futures, self._ends = list(self._ends.values()), {}
        if self._registered:
            process_groups.forget(self.pid)
        with suppress(ChildProcessError):
            self._status = self._reap()
        for future in futures:
            future.set_result(None)
        return self._status

    def _kill(self) -> None:
        with self._lock:
            if not self._ended:
                process_groups.kill_group(self.pid)

    def _send(self, channel: socket.socket | None = None, **message: Any) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock, suppress(OSError):  # it has ended: the next read finds that
            sent = socket.send_fds(self._control, [line], [] if channel is None else [channel.fileno()])
            self._control.sendall(line[sent:])

    def _read(self) -> dict[str, Any] | None:
        try:
            line = self._lines.readline()
        except OSError:
            return None
        message: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return message
