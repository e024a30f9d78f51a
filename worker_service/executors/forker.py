"""The program of a worker's fork server: imports the app, and forks a child of itself for each that is asked for.

It runs no handler, and has one thread, unless the app's import starts others. The messages go over a socket, one JSON
object a line; with ``fork`` comes the child's own socket. The server ends when the worker hangs up.

| from | message | |
| --- | --- | --- |
| worker | `{"load", "path", "python_path", "sources"}` | once: the app, its place, the files that the worker read |
| server | `{"refused": sentence}` | the app cannot be imported; the server ends |
| server | `{"loaded": {"threads", "sockets", "changed"}}` | what the import left, which files had changed |
| worker | `{"fork": token}` | make a child (its program: process_child) |
| worker | `{"end": token}` | kill a child with its process group, and reap it |
| server | `{"ended": [token, status]}` | the child's exit status; null: there is no such child |

A child that has ended stays a zombie until the worker asks for its end. So its number is no other process's before.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rota.shared.domain.errors import ConfigurationError
from rota.worker_service.executors import process_child
from rota.worker_service.leaving import flush_output
from rota.worker_service.loading import load_app
from rota.worker_service.sources import changed

REAP_MILLISECONDS = 2
"""How often it looks whether a child that it has killed has ended."""

SPARED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a service manager may send to all processes of the worker. The worker says when its server ends."""

READ_BYTES, MOST_SOCKETS = 65_536, 16


def run_forked(control: socket.socket) -> NoReturn:
    """Run in a fork of the worker. It never returns into the worker's code."""
    try:
        os.setsid()
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        run(control)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as a second worker
        traceback.print_exc()
    finally:
        os._exit(1)


def run(control: socket.socket) -> None:
    """Serve until the worker hangs up."""
    forker = Forker(control)
    if forker.load():
        forker.serve()


class Forker:
    """One fork server, over its end of the control channel."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = b""
        self._sockets: deque[int] = deque()
        self._children: dict[int, int] = {}
        self._ending: dict[int, int] = {}

    def load(self) -> bool:
        """Import the app that the worker names. False: there is nothing to serve."""
        while not (messages := self._receive()):
            if messages is None:
                return False
        (order,) = messages
        show_as("rota-forks")
        _import_like_the_worker(order["path"], order["python_path"])
        before = open_sockets()
        try:
            self._app = load_app(order["load"])
        except ConfigurationError as error:
            self._send(refused=str(error))
            return False
        flush_output()  # else each child would write again what the import has printed
        gc.collect()
        gc.freeze()  # the children's collectors would write to memory that all share
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, SPARED)
        left = [described(number) for number, one in open_sockets().items() if before.get(number) != one]
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        self._send(
            loaded={"threads": threads, "sockets": left, "changed": changed(order["sources"], self._app.sources)}
        )
        return True

    def serve(self) -> None:
        """Fork and reap children, until the worker hangs up."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            if poll.poll(REAP_MILLISECONDS if self._ending else None):
                if (messages := self._receive()) is None:
                    return
                for message in messages:
                    if "fork" in message:
                        self._fork(message["fork"])
                    else:
                        self._end(message["end"])
            self._reap()

    def _receive(self) -> list[Any] | None:
        """The messages that have come; a socket comes with the first byte of its message. None: the worker hung up."""
        try:
            data, sockets, _, _ = socket.recv_fds(self._control, READ_BYTES, MOST_SOCKETS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it was killed before it had read all that was sent to it
            return None
        if not data:
            return None
        self._sockets.extend(sockets)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _fork(self, token: int) -> None:
        channel = self._sockets.popleft()
        try:
            pid = os.fork()
        except OSError as error:
            with socket.socket(fileno=channel) as waiting:
                send(waiting, refused=f"the machine refuses a process: {error}")
            return
        if pid == 0:
            self._become_child(channel)
        os.close(channel)
        self._children[token] = pid

    def _become_child(self, channel: int) -> NoReturn:
        try:
            os.setsid()
            self._control.close()
            for number in self._sockets:
                os.close(number)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            show_as("rota-node")
            process_child.run(self._app, socket.socket(fileno=channel))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever it is, it must not go on as a second server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _end(self, token: int) -> None:
        pid = self._children.pop(token, None)
        if pid is None:
            self._send(ended=[token, None])
            return
        for kill in (os.killpg, os.kill):  # it may have no group of its own yet
            with suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        self._ending[token] = pid

    def _reap(self) -> None:
        for token, pid in list(self._ending.items()):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # the app lets the kernel reap (SIGCHLD is ignored)
                found, status = pid, None
            if found:
                del self._ending[token]
                self._send(ended=[token, None if status is None else os.waitstatus_to_exitcode(status)])

    def _send(self, **message: Any) -> None:
        send(self._control, **message)


def send(to: socket.socket, **message: Any) -> None:
    """Send a line of JSON. A reader that has ended is no error here: the next read finds that."""
    with suppress(OSError):
        to.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _import_like_the_worker(path: list[str], python_path: str | None) -> None:
    sys.path[:] = path
    os.environ.pop("PYTHONPATH", None)  # it may be there only to find this module
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path


def show_as(name: str) -> None:
    """Let ps -e and top show this name."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def open_sockets() -> dict[int, str]:
    """The sockets that this process has open: their numbers, and what the kernel calls them."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if (link := str(entry.readlink())).startswith("socket:"):
                found[int(entry.name)] = link
    return found


def described(number: int) -> str:
    """A socket in words: its kind, and the addresses of its ends."""
    with socket.socket(fileno=os.dup(number)) as one:
        ends = []
        for asked in (one.getsockname, one.getpeername):
            with suppress(OSError):
                ends.append(asked())
        shown = [f"{end[0]}:{end[1]}" for end in ends if isinstance(end, tuple) and len(end) > 1]
        return f"{one.family.name} {' to '.join(shown)}".strip()


if __name__ == "__main__":
    spawned = socket.socket(fileno=int(sys.argv[1]))
    spawned.set_inheritable(False)
    run(spawned)
