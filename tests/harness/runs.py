"""Claimed instances as the tests of the worker make them, and a stand-in for the reporter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import datetime
from typing import Any

from rota.shared.domain.retry import RetryPolicy
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run

RETRY_FIELDS = [one.name for one in fields_of(RetryPolicy)]
NOON = datetime.fromisoformat("2026-11-19T12:00:00")


def run(*names: str, nodes: tuple[NodeRun, ...] | None = None, **fields: Any) -> Run:
    """A run of type REPORT at noon, with these nodes; ``fields`` are those of `Run` and of its `RetryPolicy`."""
    planned = nodes or tuple(
        NodeRun(100 + at, f"REPORT_{name}", "REPORT", at, "pending", None, None)
        for at, name in enumerate(names or ("EXTRACT", "SEND"), start=1)
    )
    values: dict[str, Any] = {
        "id": 7, "attempt": 1, "task_id": 3, "task_name": "daily", "timezone": "Asia/Shanghai",
        "schedule_datetime": NOON, "due_at": NOON, "run_number": 0, "origin": "cron", "param": None, "failures": 0,
        "on_worker_lost": "retry", "timeout_seconds": None,
    }  # fmt: skip
    of_retries = {name: fields.pop(name) for name in RETRY_FIELDS if name in fields}
    return Run(**{**values, **fields}, nodes=planned, retry=RetryPolicy(**of_retries))


@dataclass
class Reports:
    """Keeps what is reported until the test commits it."""

    waiting: list[tuple[Report, Callable[[bool], None]]] = field(default_factory=list)
    seen: list[Report] = field(default_factory=list)

    def put(self, report: Report, written: Callable[[bool], None]) -> None:
        self.waiting.append((report, written))
        self.seen.append(report)

    def commit(self, *, ours: bool = True) -> Report:
        report, written = self.waiting.pop(0)
        written(ours)
        return report
