"""The fork server of a worker: the process that its children are forked from. It imports the app once for all of them.

A child that is forked is there in a few milliseconds, where one that starts anew and imports the app takes seconds. And
all children have the app as it was when the worker began, also after its files were edited.

``rota worker`` forks the server before it imports the app: then there are no threads, no database connections and no
event loop that the server could have copies of. Nobody else uses it, unlike the fork server of ``multiprocessing``.
"""

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rota.shared.domain.errors import ConfigurationError
from rota.shared.signals import signal_name
from rota.worker_service.authoring import Rota
from rota.worker_service.executors.base import start_thread
from rota.worker_service.executors.server_process import ServerProcess
from rota.worker_service.sources import FileState

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a call that waits for the server looks whether it was stopped."""

NAMED = 5
"""How many threads, sockets or files a warning names at most."""


class NoServer(Exception):
    """There is no process to fork children from. The text is a sentence."""


class ForkServer:
    """Keeps a process from which children can be forked.

        fork_server = ForkServer.forked()   # first: before the app is imported, and before any thread is started
        fork_server.prepare(app)
        fork_server.wait()

    Without a forked process, ``begin`` starts one as a new program. If the process is killed, another is started. If
    that imports other files than the worker did, or fails, the server is unusable: the worker should end.
    """

    def __init__(self, process: ServerProcess | None = None) -> None:
        self._unusable: Callable[[], None] = lambda: None
        self._process = process
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._fault: str | None = None
        self._begun = self._closed = False

    @classmethod
    def forked(cls) -> "ForkServer":
        """A server whose process is a fork of this one, as it is now. It waits, and costs next to nothing."""
        return cls(ServerProcess.forked())

    def prepare(self, app: Rota) -> None:
        """Let the server import the app; returns at once. If the app has no node for a process, end the server."""
        if app.target is not None and any(node.execution == "process" for node in app.nodes.values()):
            self.begin(app.target, app.sources)
        else:
            self.close()

    def begin(self, target: str, sources: Mapping[str, FileState] | None = None) -> None:
        """Let the server import the app that ``module:app`` names; returns at once. Again it does nothing.

        ``sources`` are the files that the worker's own import read. Raises NoThread.
        """
        with self._lock:
            if self._begun or self._closed:
                return
            keep = threading.Thread(target=self._keep, args=(target, sources or {}), name="fork-server", daemon=True)
            start_thread(keep)
            self._begun = True

    def wait(self) -> None:
        """Wait until the server can fork. Raises ConfigurationError when its import of the app failed."""
        if self._begun:
            self._settled.wait()
        if self._fault is not None:
            raise ConfigurationError(self._fault)

    def when_unusable(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when children can be forked no more, at once if it is so already."""
        with self._lock:
            self._unusable = tell
            is_late = self._fault is not None
        if is_late:
            tell()

    def process(self, stopping: Callable[[], bool]) -> ServerProcess:
        """The process to fork from; waits until there is one, or until ``stopping``. Raises NoServer."""
        while not self._settled.wait(LOOK_SECONDS):
            if stopping():
                raise NoServer("the call was stopped before there was a process to run it")
        with self._lock:
            if self._fault is not None or self._process is None:
                raise NoServer(self._fault or "the worker's fork server is closed")
            return self._process

    def close(self) -> None:
        """End the server. Children that were forked go on."""
        with self._lock:
            self._closed = True
            process, begun = self._process, self._begun
            self._process = process if begun else None
        if process is not None:
            process.hang_up()
            if not begun:
                process.end()
        self._settled.set()

    def _keep(self, target: str, sources: Mapping[str, FileState]) -> None:
        """Keep a process running until the server is closed. Runs on a thread of its own."""
        again = False
        while (process := self._loaded(target, sources, again=again)) is not None:
            again = True
            process.read()
            self._over(process)

    def _loaded(self, target: str, sources: Mapping[str, FileState], *, again: bool) -> ServerProcess | None:
        """A process that has the app, to fork from. None: there is none, or the server was closed."""
        if self._closed:
            return None
        try:
            process = self._process or ServerProcess.spawned()
        except OSError as error:
            self._fail(f"app {target!r}: its fork server cannot be started: {error}", again=again)
            return None
        fault = _load(process, target, sources, again=again)
        if fault is None and self._take(process):
            return process
        process.end()
        self._fail(fault or "the worker's fork server is closed", again=again)
        return None

    def _take(self, process: ServerProcess) -> bool:
        """Let children be forked from a process that has the app. False: the server was closed meanwhile."""
        with self._lock:
            if not self._closed:
                self._process = process
                self._settled.set()
            return not self._closed

    def _over(self, process: ServerProcess) -> None:
        """The process has ended. Whoever asks for one from now on waits for the next."""
        with self._lock:
            self._process = None
            if not self._closed:
                self._settled.clear()
        status = process.end()
        if not self._closed:
            log.warning("worker: its fork server %s; it starts another", _ending(status))

    def _fail(self, fault: str, *, again: bool) -> None:
        with self._lock:
            self._fault, self._process = fault, None
            tell = self._unusable
        self._settled.set()
        if again and not self._closed:
            log.error("worker: %s; the worker stops", fault)
            tell()


def _load(process: ServerProcess, target: str, sources: Mapping[str, FileState], *, again: bool) -> str | None:
    """Let a process import the app. Returns why it cannot be used; None: it can."""
    try:
        process.load(target, sources)
    except OSError as error:
        return f"app {target!r}: its fork server cannot be guarded: {error}"
    message = process.read()
    if message is None:
        return f'app {target!r}: the process that imports it for execution="process" {_ending(process.end())}'
    if "refused" in message:
        return str(message["refused"])
    loaded = message["loaded"]
    if changed := loaded["changed"]:
        if again:
            return f"app {target!r}: its files have changed since the worker imported them ({_named(changed)})"
        log.warning(
            "worker: the files of app %r changed while it was imported (%s): the worker's threads and coroutines may"
            " run another version than its processes; start the worker again",
            target,
            _named(changed),
        )
    _warn_of_what_is_left(target, loaded)
    return None


def _warn_of_what_is_left(target: str, loaded: Mapping[str, Any]) -> None:
    for kind, fate in (
        ("threads", "do not run in the processes of its nodes"),
        ("sockets", "are shared by all processes of its nodes"),
    ):
        if left := loaded[kind]:
            log.warning(
                "worker: the import of app %r left %s (%s), which %s; begin them in the handler instead",
                target,
                kind,
                _named(left),
                fate,
            )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _ending(status: int | None) -> str:
    if status is None:
        return "has ended"
    if status >= 0:
        return f"ended by itself with exit code {status}"
    hint = " (out of memory, or by hand)" if -status == signal.SIGKILL else ""
    return f"was killed by {signal_name(-status)}{hint}"
