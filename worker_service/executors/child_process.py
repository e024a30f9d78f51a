"""A child process as its parent sees it: started, given calls, killed, reaped (``process_child`` is its inside)."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from worker_service import children
from worker_service.executors.base import Call, Failure, Outcome

CHILD_MODULE = "worker_service.executors.process_child"
CODE_FOLDER = Path(__file__).resolve().parents[2]

OVERHEAD_BYTES = 524_288
"""What a message may be longer than a result: a failure's texts, a log record."""


class ChildEnded(Exception):
    """The process ended before its call did; ``entered`` is when the handler was, if it was."""

    def __init__(self, sentence: str, kind: str = "ProcessEnded", entered: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind
        self.entered = entered


class ChildProcess:
    """This process's end of a child, in a session and process group of its own."""

    def __init__(self, target: str | None, result_limit_bytes: int) -> None:
        if target is None:
            raise ChildEnded('execution="process" needs an app that a child can import: load it as module:app')
        self._control, theirs = socket.socketpair()
        self._lines = self._control.makefile("rb")
        self._longest = result_limit_bytes + OVERHEAD_BYTES
        self._lock = threading.Lock()
        self._ended = False
        python_path = os.environ.get("PYTHONPATH")
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", CHILD_MODULE, target, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(CODE_FOLDER), python_path]))},
            )
        children.register(self._process.pid)
        self._send(
            parent=os.getpid(),
            path=sys.path,
            python_path=python_path,
            result_limit_bytes=result_limit_bytes,
            levels=_log_levels(),
        )

    def run(self, call: Call) -> Outcome:
        """Have it run a call, and wait for the outcome; its log records go to this process's handlers.

        Raises ChildEnded.
        """
        self._send(node=call.node.type, context=_portable(call))
        entered = None
        while (message := self._read()) is not None:
            if "ended" in message:
                ended = message["ended"]
                failure = Failure(**ended["failure"]) if "failure" in ended else None
                return Outcome(ended["entered"], ended["left"], ended.get("result"), failure)
            if "log" in message:
                logging.getLogger().handle(logging.makeLogRecord(message["log"]))
            elif "refused" in message:
                raise ChildEnded(message["refused"], "ConfigurationError")
            else:
                entered = message["began"]
        raise ChildEnded(f"the process of {call.node.type} {_described(self.end())}", entered=entered)

    def kill(self) -> None:
        """SIGKILL it and what it started."""
        with self._lock:
            if not self._ended:
                children.kill_group(self._process.pid)

    def end(self) -> int:
        """Kill what is left of its process group and reap it; returns its exit status, negative for a signal."""
        self.kill()
        with self._lock:
            self._ended = True
            children.forget(self._process.pid)  # before it is reaped: then the number may be another's
        status = self._process.wait()
        self._lines.close()
        self._control.close()
        return status

    def _send(self, **message: Any) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            self._control.sendall(line)
        except OSError:
            return  # it has ended, as reading will tell

    def _read(self) -> Any:
        """Its next message; None when it has ended, or sends what is longer than any message may be."""
        try:
            line = self._lines.readline(self._longest)
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None


def _described(status: int) -> str:
    if status >= 0:
        return f"ended by itself with exit code {status} before the handler returned"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    hint = " (out of memory, or by hand)" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint} before the handler returned"


def _log_levels() -> dict[str, int]:
    """The levels that loggers were set to, by name; "" is the root."""
    named = {
        name: one.level for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)
    }
    return {"": logging.root.level, **{name: level for name, level in named.items() if level}}


def _portable(call: Call) -> dict[str, Any]:
    """The context as JSON: all of it but the cancel event."""
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
    """The instant in UTC, and its zone by name, or the offset in seconds of a zone that has none."""
    offset = moment.utcoffset()
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else offset.total_seconds() if offset else 0.0
    return moment.astimezone(UTC).isoformat(), zone
