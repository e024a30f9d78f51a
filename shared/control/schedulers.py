"""Schedulers: list them, and check that one of them works."""

from rota.shared.control.documents import Document, scheduler_document
from rota.shared.database.backend import Check
from rota.shared.database.transactions import Database
from rota.shared.domain.states import SchedulerState
from rota.shared.store import schedulers

LOOKED_AT = 1000
"""The most schedulers that the check reads, the one with the latest tick first."""


def listed(database: Database, limit: int) -> list[Document]:
    """Schedulers that have not stopped, the one with the latest tick first."""
    return [scheduler_document(row) for row in database.read(lambda connection: schedulers.listed(connection, limit))]


def check_scheduling(database: Database) -> Check:
    """Check that an active scheduler has ticked within its liveness limit. The check only informs."""
    rows = listed(database, LOOKED_AT)
    at_work = sum(row["state"] == SchedulerState.ACTIVE and not row["silent"] for row in rows)
    found = f"{at_work} scheduler{'' if at_work == 1 else 's'} at work"
    advice = "" if at_work else "nothing fires and nothing is given to workers: start rota scheduler, or rota up"
    return Check("scheduling", True if at_work else None, found, "at least 1", advice)
