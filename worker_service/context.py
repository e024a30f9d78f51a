"""What a handler is given: the fire's own time, its param, the results of earlier nodes, a log."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

P = TypeVar("P")

_log = logging.getLogger("rota.task")


class Cancellation:
    """Whether a run is to stop. (A ``threading.Event`` would take as long as the rest of a context.)"""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def request(self) -> None:
        """Ask it to stop."""
        self.requested = True


@dataclass(frozen=True, kw_only=True)
class NodeContext(Generic[P]):
    """The context of one run of one node; ``P`` is the type of its param.

    Every field has a default, so that a handler is tested by calling it:

        assert extract(NodeContext(param=ReportParam(region="eu"))) == {"rows": 42}
    """

    param: P = None  # type: ignore[assignment]
    """The param, as the declared pydantic model, or a dict where none is declared."""

    schedule_datetime: datetime = field(default_factory=lambda: datetime(1970, 1, 1, tzinfo=UTC))
    """The fire's own (nominal) time, aware, in the task's zone; a replay sees the same."""

    due_at: datetime = field(default_factory=lambda: datetime(1970, 1, 1, tzinfo=UTC))
    """When this run was due, aware, UTC; later than ``schedule_datetime`` for a retry or a replay."""

    results: Mapping[str, Any] = field(default_factory=dict)
    """Results of the nodes before this one, by short name (``EXTRACT``) and by type (``REPORT_EXTRACT``)."""

    task_name: str = ""
    node_type: str = ""
    instance_id: int = 0
    run_number: int = 0
    """0: the fire itself; 1 and more: replays and other runs for the same time."""

    attempt: int = 1
    """Grows each time the instance is claimed: 1 for the first."""

    origin: str = "cron"
    """What asked for this run: cron, manual, replay, sql."""

    cancellation: Cancellation = field(default_factory=Cancellation, repr=False)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel this run, or its time is over: long loops on threads look at it."""
        return self.cancellation.requested

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A log whose records carry ``task``, ``instance`` and ``node``."""
        extra = {"task": self.task_name, "instance": self.instance_id, "node": self.node_type}
        return _ContextLog(_log, extra)


class _ContextLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = self.extra or {}
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return f"[{extra.get('task')} #{extra.get('instance')} {extra.get('node')}] {msg}", kwargs
