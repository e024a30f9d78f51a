"""The processes that are at work on the database: schedulers and workers, each with the version of its Rota.

A newer Rota reads this before it migrates. So the statements name only columns that each released schema has.
"""

from typing import NamedTuple

from sqlalchemy import Connection, select

from rota.shared.store.schedulers import SILENT as SILENT_SCHEDULER
from rota.shared.store.tables import schedule_scheduler_node, schedule_worker_beat, schedule_worker_node
from rota.shared.store.workers import LIVES, OF_ITS_WORKER, SHOWN_ALIVE, SILENT

_scheduler = schedule_scheduler_node.c
_worker = schedule_worker_node.c

_schedulers = select(_scheduler.name, _scheduler.version).where(_scheduler.is_deleted == 0, ~SILENT_SCHEDULER)
_workers = (
    select(_worker.name, _worker.version)
    .join_from(schedule_worker_node, schedule_worker_beat, OF_ITS_WORKER)
    .where(SHOWN_ALIVE, LIVES, ~SILENT)
)


class Process(NamedTuple):
    """A scheduler or a worker that is at work."""

    kind: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} (Rota {self.version})"


def at_work(connection: Connection) -> list[Process]:
    """The schedulers and workers that have beaten within their liveness limits, by name."""
    found = [Process("scheduler", *row) for row in connection.execute(_schedulers)]
    found += [Process("worker", *row) for row in connection.execute(_workers)]
    return sorted(found)
