"""The program of a ``ProcessExecutor``'s child. It runs one call at a time; calls and answers are JSON lines.

A child is a fork of the worker's fork server (``forker``), and so has the app. Its control channel is a socket, not
stdout, since handlers may print. The messages, one JSON object a line:

| from | message | |
| --- | --- | --- |
| server | `{"refused": sentence}` | there is no child |
| child | `{"ready": pid}` | once: it has a session and a process group of its own |
| parent | `{"result_limit_bytes", "levels"}` | once: the parent's settings |
| parent | `{"node", "context"}` | run a node |
| parent | `{"ask": "where"}` | say where the handler stands that runs |
| parent | `{"ask": "stop"}` | the handler that runs is to stop: SIGTERM follows |
| parent | `{"ask": "end"}` | when no handler runs: run the exit hooks, and end |
| child | `{"began": seconds}` | the handler is entered |
| child | `{"stands": place}` | the line in which the handler stands; null: not known |
| child | `{"log": record}` | a log record, for the parent's handlers |
| child | `{"ended": {"entered", "left", "result" or "failure", "again", "noticed"}}` | the next call may come |

A thread reads the channel, also while a handler runs. When the parent dies, the channel ends, and that thread kills the
whole process group.
"""

import json
import logging
import os
import queue
import signal
import socket
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo

from rota.shared.clock import HostTimer
from rota.shared.domain.errors import ConfigurationError, InvalidInput
from rota.worker_service.authoring import Rota
from rota.worker_service.contents import Handler, Node
from rota.worker_service.context import Cancellation, NodeContext
from rota.worker_service.executors import standing
from rota.worker_service.executors.base import ERROR_CHARACTERS, Call, Failure, Refused
from rota.worker_service.leaving import flush_output, forget_exit_hooks, run_exit_hooks
from rota.worker_service.values import result_text
from rota.worker_service.verdicts import EndRun, RunAgain

LOG_CHARACTERS = 30_000

Message = Mapping[str, Any]

monotonic = HostTimer().monotonic


class Channel:
    """The child's end of the control channel; messages may be sent from any thread."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines = control.makefile("rb")
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._disown)

    def read(self) -> Any:
        """The next message; None when the parent is gone."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def send(self, **message: Any) -> None:
        """Send one message. A parent that is gone is no error here: the reading thread notices it."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        with self._lock, suppress(OSError):
            self._control.sendall(line)

    def _disown(self) -> None:
        """In a fork of this process: it must not send messages, nor hold the channel open."""
        self._lock = threading.Lock()
        with suppress(OSError):
            os.close(self._control.detach())


class ForwardedLog(logging.Handler):
    """Sends log records to the parent, whose handlers format and write them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            message = logging.Formatter("%(message)s").format(record)[:LOG_CHARACTERS]
        except Exception:  # noqa: BLE001 - as logging does: a bad log call must not stop the handler
            self.handleError(record)
            return
        fields = ("name", "levelno", "levelname", "created", "msecs", "pathname", "lineno", "funcName", "process")
        known = {name: getattr(record, name) for name in (*fields, "threadName")}
        context = {name: getattr(record, name) for name in ("task", "instance", "node") if hasattr(record, name)}
        self._channel.send(log={**known, **context, "msg": message, "args": None})


def run(app: Rota, control: socket.socket) -> None:
    """Serve calls for an app until the parent says that the child is to end. Runs in the child, on its only thread."""
    for made in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001 - no public list
        made.atexit = False  # the import made it for all children, such as a temporary folder: none may remove it
    forget_exit_hooks()
    channel = Channel(control)
    channel.send(ready=os.getpid())
    greeting = channel.read()
    if greeting is None:
        return
    calls: queue.SimpleQueue[Message] = queue.SimpleQueue()
    present = Present()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the app's import has one of its own
        signal.signal(signal.SIGTERM, present.signaled)
    threading.Thread(target=_read, args=(channel, calls, present), name="control", daemon=True).start()
    _log_like_the_parent(channel, greeting["levels"])
    while "node" in (call := calls.get()):
        channel.send(ended=_run(app, call, channel, present, greeting["result_limit_bytes"]))
    run_exit_hooks()


class Present:
    """The call that runs on this thread: where its handler stands, and how it is stopped."""

    def __init__(self) -> None:
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self.handler: Handler | None = None
        self._told = False
        self.cancellation: Cancellation | None = None
        """Set while a call runs. Then SIGTERM is for its handler."""

    def stands(self) -> str | None:
        """The line of its own code. None: no handler runs, or it is not known."""
        handler = self.handler
        return None if handler is None else standing.in_thread(self._thread, handler)

    def stop(self) -> None:
        """Let the handler see ``cancel_requested``."""
        if (cancellation := self.cancellation) is not None:
            cancellation.request()

    def signaled(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: raise SystemExit in the handler, once. Without a call, or in a fork of this process, end."""
        if self.cancellation is None or os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._told:
            self._told = True
            self.cancellation.request()
            raise SystemExit("its process got SIGTERM")

    def begin(self, cancellation: Cancellation) -> None:
        """A call begins."""
        self._told, self.cancellation = False, cancellation

    def end(self) -> None:
        """It has ended."""
        self.handler = self.cancellation = None


def _read(channel: Channel, calls: "queue.SimpleQueue[Message]", present: Present) -> None:
    while (message := channel.read()) is not None:
        if message.get("ask") == "where":
            channel.send(stands=present.stands())
        elif message.get("ask") == "stop":
            present.stop()
        else:
            calls.put(message)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _log_like_the_parent(channel: Channel, levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers[:] = [ForwardedLog(channel)]


def _run(app: Rota, call: Message, channel: Channel, present: Present, limit: int) -> dict[str, Any]:
    """Run one call; returns how it ended, as the message to the parent."""
    entered, cancellation = monotonic(), Cancellation()
    try:
        present.begin(cancellation)
        prepared = _prepared(app, call, cancellation)
        node, context = prepared.node, prepared.checked()
        entered = monotonic()
        present.handler = node.handler
        channel.send(began=entered)
        result = node.handler(context)
        left = monotonic()
        answer = _returned(node, result, limit)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
        left = monotonic()
        answer = {"failure": _failure(error)}
    present.end()
    flush_output()
    return {"entered": entered, "left": left, "noticed": cancellation.noticed, **answer}


def _returned(node: Node, result: Any, limit: int) -> dict[str, Any]:
    if isinstance(result, EndRun):
        return {"result": _plain(node, result.result, limit), "ends_run": True}
    if not isinstance(result, RunAgain):
        return {"result": _plain(node, result, limit)}
    at = None if result.at is None else result.at.isoformat()
    return {"result": _plain(node, result.result, limit), "again": {"at": at, "in_": result.in_seconds}}


def _plain(node: Node, result: Any, limit: int) -> Any:
    try:
        return json.loads(result_text(node.type, result, limit))
    except InvalidInput as error:
        raise Refused(error) from None


def _prepared(app: Rota, call: Message, cancellation: Cancellation) -> Call:
    node = app.nodes.get(call["node"])
    if node is None:
        raise ConfigurationError(
            f"app {app.target!r}, imported in a process of its own, declares no {call['node']}: "
            "declare nodes when the module is imported, whatever the process"
        )
    fields = dict(call["context"])
    moment, zone = fields.pop("schedule_datetime")
    context: NodeContext[Any] = NodeContext(
        schedule_datetime=datetime.fromisoformat(moment).astimezone(_zone(zone)),
        due_at=datetime.fromisoformat(fields.pop("due_at")).astimezone(UTC),
        cancellation=cancellation,
        **fields,
    )
    return Call(node, context)


def _zone(zone: str | float) -> tzinfo:
    return ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))


def _failure(error: BaseException) -> dict[str, Any]:
    failure = asdict(Failure.of(error))
    if isinstance(error, ConfigurationError):
        failure["error"] = str(error)[:ERROR_CHARACTERS]
    return failure
