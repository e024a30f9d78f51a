"""The parent's side of a child process: has it forked, sends it calls, and ends it (other side: process_child)."""

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from rota.shared.clock import boottime
from rota.shared.signals import signal_name
from rota.worker_service import process_groups
from rota.worker_service.executors.base import Call, Failure, Outcome
from rota.worker_service.executors.server_process import ServerProcess
from rota.worker_service.verdicts import EndRun, RunAgain

OVERHEAD_BYTES = 524_288
"""How much longer a message may be than a result: it may hold a failure's texts, or a log record."""

GONE_SECONDS = 0.01
"""How often it looks whether the processes that it has killed are gone."""


class ChildEnded(Exception):
    """The process ended before its call did. ``entered``: when the handler was entered; None if it never was."""

    def __init__(self, sentence: str, kind: str = "ProcessEnded", entered: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind
        self.entered = entered


class Hears(Protocol):
    """Hears from the child what becomes of a call."""

    entered: float | None
    """When the handler was entered."""

    def stands(self, place: str | None) -> None:
        """The answer to ``ask``: the line in which the handler stands."""
        ...


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

    def run(self, call: Call, hears: "Hears") -> Outcome:
        """Let the child run a call, and wait for the outcome. The child's log records go to this process's handlers.

        Raises ChildEnded, and OSError when the guard of the process groups cannot be told of the child.
        """
        if self._pid is None:
            self._meet()
        self._send(node=call.node.type, context=_portable(call))
        while (message := self._heard()) is not None:
            if "ended" in message:
                ended = message["ended"]
                failure = Failure(**ended["failure"]) if "failure" in ended else None
                stopped = ended.get("noticed", False)
                return Outcome(ended["entered"], ended["left"], _result(ended), failure, stopped=stopped)
            if "began" in message:
                hears.entered = message["began"]
            else:
                hears.stands(message["stands"])
        raise ChildEnded(f"the process of {call.node.type} {_described(self.end())}", entered=hears.entered)

    def ask(self) -> None:
        """Ask the child where the handler stands that it is in. It answers unless the handler holds Python's lock."""
        self._send(ask="where")

    def finish(self, seconds: float) -> None:
        """Let an idle child end by itself: it runs the exit hooks of the app, for so many seconds at most."""
        deadline = boottime() + seconds
        self._send(ask="end")
        while (left := deadline - boottime()) > 0:
            self._control.settimeout(left)
            if self._heard() is None:
                return

    def terminate(self) -> None:
        """SIGTERM the child and the processes that it started: its handler may tidy up.

        A child that is not there yet ends at once.
        """
        with self._lock:
            if self._pid is not None and not self._ended:
                process_groups.kill_group(self._pid, signal.SIGTERM)
                with suppress(OSError):  # nobody waits for a child that does not read
                    self._control.send(_line({"ask": "stop"}), socket.MSG_DONTWAIT)
                return
        self.kill()

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

        It returns when no process of the group is left. None: the exit status is not known.
        """
        if self._ended:
            return self._status
        self.kill()
        while self._pid is not None and process_groups.lives(self._pid):
            time.sleep(GONE_SECONDS)
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

    def _heard(self) -> Any:
        """The child's next message that is not a log record. None: as of ``_read``."""
        while (message := self._read()) is not None and "log" in message:
            with suppress(Exception):  # a log handler of the app may raise: the call goes on all the same
                logging.getLogger().handle(logging.makeLogRecord(message["log"]))
        return message

    def _send(self, **message: Any) -> None:
        try:
            self._control.sendall(_line(message))
        except OSError:
            return  # the child has ended; the next read finds that

    def _read(self) -> Any:
        """The child's next message. None: the child has ended, or the message is longer than allowed."""
        try:
            line = self._lines.readline(self._longest)
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None


def _result(ended: Mapping[str, Any]) -> Any:
    """What the handler returned, but that its result is plain JSON."""
    result, again = ended.get("result"), ended.get("again")
    if ended.get("ends_run"):
        return EndRun(result)
    if again is None:
        return result
    at = None if again["at"] is None else datetime.fromisoformat(again["at"])
    return RunAgain(at=at, in_=again["in_"], result=result)


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
        "shard_index": context.shard_index,
        "shard_total": context.shard_total,
        "run_status": context.run_status,
        "run_reason": context.run_reason,
    }


def _portable_time(moment: datetime) -> tuple[str, str | float]:
    """The instant in UTC, and its zone: by name, or by its offset in seconds where the zone has no name."""
    offset = moment.utcoffset()
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else offset.total_seconds() if offset else 0.0
    return moment.astimezone(UTC).isoformat(), zone


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
