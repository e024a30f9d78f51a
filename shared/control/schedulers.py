"""Schedulers: list them, and check that one of them works."""

from rota.shared.control.documents import Document, scheduler_document
from rota.shared.database.backend import Check
from rota.shared.database.transactions import Database
from rota.shared.domain.jsontext import object_in, texts_in
from rota.shared.domain.planning import known_kinds
from rota.shared.domain.states import SchedulerState
from rota.shared.store import kinds, schedulers

LOOKED_AT = 1000
"""The most schedulers that the check reads, the one with the latest tick first."""


def listed(database: Database, limit: int) -> list[Document]:
    """Schedulers that have not stopped, the one with the latest tick first."""
    return [scheduler_document(row) for row in database.read(lambda connection: schedulers.listed(connection, limit))]


def check_scheduling(database: Database) -> Check:
    """Check that an active scheduler has ticked within its liveness limit. The check only informs."""
    at_work = len(_at_work(database))
    found = f"{at_work} scheduler{'' if at_work == 1 else 's'} at work"
    advice = "" if at_work else "nothing fires and nothing is given to workers: start rota scheduler, or rota up"
    return Check("scheduling", True if at_work else None, found, "at least 1", advice)


def check_kinds(database: Database) -> Check:
    """Check that schedulers at work know the kinds of all tasks that are on. The check only informs."""
    wanted = "known to a scheduler at work"
    rows = _at_work(database)
    if not rows:
        return Check("kinds", ok=None, found="not known: no scheduler is at work", wanted=wanted)
    known = {
        column: sorted({word for row in rows for word in texts_in(object_in(row["kinds"]).get(column))})
        for column in known_kinds()
    }
    others = database.read(lambda connection: kinds.others(connection, known))
    if not others:
        return Check("kinds", ok=True, found=wanted, wanted=wanted)
    told = "; ".join(f"{column} {word!r}: {number} that are on" for (column, word), number in sorted(others.items()))
    advice = "they do not fire, and no scheduler at work knows them: start one of the Rota that migrated the database"
    return Check("kinds", ok=None, found=told, wanted=wanted, help=advice)


def _at_work(database: Database) -> list[Document]:
    return [row for row in listed(database, LOOKED_AT) if row["state"] == SchedulerState.ACTIVE and not row["silent"]]
