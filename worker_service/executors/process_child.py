"""The program of a ``ProcessExecutor``'s child. It runs one call at a time; calls and answers are JSON lines.

A child is a fork of the worker's fork server (``forker``), and so has the app. Its control channel is a socket, not
stdout, since handlers may print. The messages, one JSON object a line:

| from | message | |
| --- | --- | --- |
| server | `{"refused": sentence}` | there is no child |
| child | `{"ready": pid}` | once: it has a session and a process group of its own |
| parent | `{"result_limit_bytes", "levels"}` | once: the parent's settings |
| parent | `{"node", "context"}` | run a node |
| child | `{"began": seconds}` | the handler is entered |
| child | `{"log": record}` | a log record, for the parent's handlers |
| child | `{"ended": {"entered", "left", "result" or "failure"}}` | the call has ended; the next may come |

A thread reads the channel, also while a handler runs. When the parent dies, the channel ends, and that thread kills the
whole process group.
"""

import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from rota.shared.clock import HostTimer
from rota.shared.domain.errors import ConfigurationError, InvalidInput
from rota.worker_service.authoring import Node, Rota
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import ERROR_CHARACTERS, Call, Failure, Refused
from rota.worker_service.values import result_text

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
    """Serve calls for an app until the parent is gone. Runs in the child, on its only thread."""
    channel = Channel(control)
    channel.send(ready=os.getpid())
    greeting = channel.read()
    if greeting is None:
        return
    calls: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, calls), name="control", daemon=True).start()
    _log_like_the_parent(channel, greeting["levels"])
    while True:
        call = calls.get()
        channel.send(ended=_run(app, call, channel, greeting["result_limit_bytes"]))


def _read(channel: Channel, calls: "queue.SimpleQueue[Message]") -> None:
    while (message := channel.read()) is not None:
        calls.put(message)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _log_like_the_parent(channel: Channel, levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers[:] = [ForwardedLog(channel)]


def _run(app: Rota, call: Message, channel: Channel, limit: int) -> dict[str, Any]:
    """Run one call; returns how it ended, as the message to the parent."""
    entered = monotonic()
    try:
        prepared = _prepared(app, call)
        node, context = prepared.node, prepared.checked()
        entered = monotonic()
        channel.send(began=entered)
        result = node.handler(context)
        left = monotonic()
        answer = {"result": _plain(node, result, limit)}
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
        left = monotonic()
        answer = {"failure": _failure(error)}
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return {"entered": entered, "left": left, **answer}


def _plain(node: Node, result: Any, limit: int) -> Any:
    try:
        return json.loads(result_text(node.type, result, limit))
    except InvalidInput as error:
        raise Refused(error) from None


def _prepared(app: Rota, call: Message) -> Call:
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
