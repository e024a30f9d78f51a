"""The parent's side of a child process: has it forked, sends it calls, and ends it (other side: process_child)."""

import json
import logging
import signal
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from rota.shared.signals import signal_name
from rota.worker_service import process_groups
from rota.worker_service.executors.base import Call, Failure, Outcome
from rota.worker_service.executors.server_process import ServerProcess

OVERHEAD_BYTES = 524_288
"""How much longer a message may be than a result: it may hold a failure's texts, or a log record."""


class ChildEnded(Exception):
    """The process ended before its call did. ``entered``: when the handler was entered; None if it never was."""

    def __init__(self, sentence: str, kind: str = "ProcessEnded", entered: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind
        self.entered = entered


class ChildProcess:
    """A child, which runs in a session and process group of its own. It is a fork of ``server``."""

    def __init__(self, server: ServerProcess, result_limit_bytes: int) -> None:
        self._server = server
        self._result_limit_bytes = result_limit_bytes
        self._longest = result_limit_bytes + OVERHEAD_BYTES
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._ended = False
        self._status: int | None = None
        self._control, theirs = socket.socketpair()
        self._lines = self._control.makefile("rb")
        with theirs:
            self._token = server.fork(theirs)

    @property
    def was_there(self) -> bool:
        """Whether the child has ever been there."""
        return self._pid is not None

    def run(self, call: Call) -> Outcome:
        """Let the child run a call, and wait for the outcome. The child's log records go to this process's handlers.

        Raises ChildEnded, and OSError when the guard of the process groups cannot be told of the child.
        """
        if self._pid is None:
            self._meet()
        self._send(node=call.node.type, context=_portable(call))
        entered = None
        while (message := self._read()) is not None:
            if "ended" in message:
                ended = message["ended"]
                failure = Failure(**ended["failure"]) if "failure" in ended else None
                return Outcome(ended["entered"], ended["left"], ended.get("result"), failure)
            if "log" in message:
                logging.getLogger().handle(logging.makeLogRecord(message["log"]))
            else:
                entered = message["began"]
        raise ChildEnded(f"the process of {call.node.type} {_described(self.end())}", entered=entered)

    def kill(self) -> None:
        """SIGKILL the child and the processes that it started."""
        with self._lock:
            if self._ended:
                return
            if self._pid is not None:
                process_groups.kill_group(self._pid)
                return
            with suppress(OSError):  # it is not there yet, and ends when it finds nobody to talk to
                self._control.shutdown(socket.SHUT_RDWR)

    def end(self) -> int | None:
        """Kill the rest of the child's process group, and reap the child; returns its exit status (-9: SIGKILL).

        None: the exit status is not known.
        """
        if self._ended:
            return self._status
        self.kill()
        with self._lock:
            self._ended = True
            if self._pid is not None:
                process_groups.forget(self._pid)  # before it is reaped: after that the number may be another process's
        self._status = self._server.end_child(self._token)
        self._lines.close()
        self._control.close()
        return self._status

    def _meet(self) -> None:
        """Wait until the child is there, and register it. It does nothing before it has the answer."""
        message = self._read()
        if message is None:
            raise ChildEnded(f"the process that was to run the node {_described(self.end())}")
        if "refused" in message:
            raise ChildEnded(message["refused"])
        with self._lock:
            self._pid = message["ready"]
        process_groups.register(message["ready"])
        self._send(result_limit_bytes=self._result_limit_bytes, levels=_log_levels())

    def _send(self, **message: Any) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            self._control.sendall(line)
        except OSError:
            return  # the child has ended; the next read finds that

    def _read(self) -> Any:
        """The child's next message. None: the child has ended, or the message is longer than allowed."""
        try:
            line = self._lines.readline(self._longest)
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None


def _described(status: int | None) -> str:
    if status is None:
        return "ended before the handler returned"
    if status >= 0:
        return f"ended by itself with exit code {status} before the handler returned"
    hint = " (out of memory, or by hand)" if -status == signal.SIGKILL else ""
    return f"was killed by {signal_name(-status)}{hint} before the handler returned"


def _log_levels() -> dict[str, int]:
    """The levels that loggers were set to, by their names. "" is the root logger."""
    named = {
        name: one.level for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)
    }
    return {"": logging.root.level, **{name: level for name, level in named.items() if level}}


def _portable(call: Call) -> dict[str, Any]:
    """The context as JSON, without its cancellation."""
    context = call.context
    return {
        "param": context.param,
        "schedule_datetime": _portable_time(context.schedule_datetime),
        "due_at": context.due_at.astimezone(UTC).isoformat(),
        "results": dict(context.results),
        "task_name": context.task_name,
        "node_type": context.node_type,
        "instance_id": context.instance_id,
        "run_number": context.run_number,
        "attempt": context.attempt,
        "origin": context.origin,
    }


def _portable_time(moment: datetime) -> tuple[str, str | float]:
    """The instant in UTC, and its zone: by name, or by its offset in seconds where the zone has no name."""
    offset = moment.utcoffset()
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else offset.total_seconds() if offset else 0.0
    return moment.astimezone(UTC).isoformat(), zone
