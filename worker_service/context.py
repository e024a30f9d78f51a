"""The argument of every handler: the fire's nominal time, the param, the results of earlier nodes, a log."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from rota.shared.domain.sentences import printable

P_co = TypeVar("P_co", covariant=True, default=dict[str, Any])

_log = logging.getLogger("rota.task")


class Cancellation:
    """Whether a run is to stop. (Making a ``threading.Event`` would take as long as making the rest of a context.)"""

    __slots__ = ("noticed", "requested")

    def __init__(self) -> None:
        self.requested = False
        self.noticed = False
        """Whether the handler has asked, and was told that it is to stop."""

    def request(self) -> None:
        """Ask the run to stop."""
        self.requested = True

    def look(self) -> bool:
        """Whether the run is to stop, for the handler."""
        self.noticed = self.requested
        return self.requested


@dataclass(frozen=True, kw_only=True)
class NodeContext(Generic[P_co]):
    """The context of one run of one node; ``P_co`` is the type of its param: the declared model, otherwise a dict.

    Every field has a default, so that a handler is tested by calling it:

        assert extract(NodeContext(param=ReportParam(region="eu"))) == {"rows": 42}
    """

    param: P_co = field(default_factory=dict)  # type: ignore[assignment]
    """The param, as the declared pydantic model, or a dict where none is declared."""

    schedule_datetime: datetime = field(default_factory=lambda: datetime(1970, 1, 1, tzinfo=UTC))
    """The fire's nominal time, aware, in the task's zone. A replay sees the same time."""

    due_at: datetime = field(default_factory=lambda: datetime(1970, 1, 1, tzinfo=UTC))
    """When this run was due, aware, in UTC. For a retry or a replay it is later than ``schedule_datetime``."""

    results: Mapping[str, Any] = field(default_factory=dict)
    """Results of the nodes before this one, by short name (``EXTRACT``) and by type (``REPORT_EXTRACT``)."""

    task_name: str = ""
    node_type: str = ""
    instance_id: int = 0
    run_number: int = 0
    """0 for the fire itself, 1 and more for replays and other runs for the same time."""

    attempt: int = 1
    """1 for the first claim of the instance; one more for each later claim."""

    origin: str = "cron"
    """Where this run came from: cron, manual, replay, sql, backfill, shard."""

    shard_index: int = 0
    shard_total: int = 1
    """Which shard of its fire this run is, from 0 on, of how many; 0 of 1 where the task is not spread."""

    run_status: str = "running"
    """How the run has ended before this node, which runs always: failed, canceled, or succeed (``EndRun``).

    ``running``: no node before it has ended the run."""

    run_reason: str | None = None
    """Why the run has failed or was canceled."""

    cancellation: Cancellation = field(default_factory=Cancellation, repr=False)

    @property
    def cancel_requested(self) -> bool:
        """Whether this run is to stop: canceled, or timed out. Long loops on threads and in processes check it."""
        return self.cancellation.look()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A log whose records carry ``task``, ``instance`` and ``node``."""
        extra = {"task": self.task_name, "instance": self.instance_id, "node": self.node_type}
        return _ContextLog(_log, extra)


class _ContextLog(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a record that begins with the task, the instance and the node."""
        if not self.isEnabledFor(level):
            return
        extra = self.extra or {}
        where = printable(f"[{extra.get('task')} #{extra.get('instance')} {extra.get('node')}]")
        text = f"{where.replace('%', '%%') if args else where} {msg}"  # with arguments, logging formats all of it
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, text, *args, **kwargs)
