"""Schedulers: list them, pause and resume all scheduling, and check that one of them works."""

from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, pause_document, scheduler_document
from rota.shared.database.backend import Check
from rota.shared.database.transactions import Database
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import object_in, texts_in
from rota.shared.domain.states import REASON_LIMIT, SchedulerState
from rota.shared.store import kinds, pauses, schedulers

LOOKED_AT = 1000
"""The most schedulers that the check reads, the one with the latest tick first."""


GOES_ON: Document = {"paused": False, "since": None, "by": None, "reason": None, "ignored_by": []}
"""The document of the pause while there is none."""


def listed(database: Database, limit: int) -> list[Document]:
    """Schedulers that have not stopped, the one with the latest tick first."""
    return [scheduler_document(row) for row in database.read(lambda connection: schedulers.listed(connection, limit))]


def paused(database: Database) -> Document:
    """Whether all scheduling is paused: ``{"paused": True, "since": …, "by": "ann", "reason": …, "ignored_by": []}``.

    ``ignored_by``: the schedulers at work that are older than pauses. They let fires begin all the same.
    """
    return database.read(_pause)


def pause(database: Database, actor: Actor, reason: str | None = None) -> Document:
    """Pause all scheduling: no new fire begins, and what has begun goes on. Returns the pause, and whether it is new.

    Raises InvalidInput for a reason that is too long.
    """
    if reason is not None and len(reason) > REASON_LIMIT:
        raise InvalidInput(f"a reason of {len(reason):,} characters is too long; at most {REASON_LIMIT:,} are kept")

    def work(connection: Connection, act: Act) -> bool:
        if pauses.current(connection):
            return False
        number = pauses.begin(connection, reason or None, actor.name)
        audit.on_pause(connection, act, "scheduler.pause", number, old=None, new={"reason": reason or None})
        return True

    changed = perform(database, actor, reason, work)
    return paused(database) | {"changed": changed}


def resume(database: Database, actor: Actor, why: str | None = None) -> Document:
    """End the pause: each task's misfire policy decides about the fires that were missed in it."""

    def work(connection: Connection, act: Act) -> Document | None:
        rows = pauses.current(connection)
        if not rows:
            return None
        pauses.end(connection, [row.id for row in rows])
        ended = pause_document(rows[0])
        audit.on_pause(connection, act, "scheduler.resume", rows[0].id, old=ended, new={"paused": False})
        return ended

    ended = perform(database, actor, why, work)
    return GOES_ON | {"changed": ended is not None}


def _pause(connection: Connection) -> Document:
    rows = pauses.current(connection)
    if not rows:
        return dict(GOES_ON)
    ignored_by = [row["name"] for row in _active(connection) if not _heeds_pause(row)]
    return pause_document(rows[0]) | {"ignored_by": ignored_by}


def check_scheduling(database: Database) -> Check:
    """Check that an active scheduler has ticked within its liveness limit. The check only informs."""
    at_work = len(_at_work(database))
    found = f"{at_work} scheduler{'' if at_work == 1 else 's'} at work"
    if (pause := paused(database))["paused"]:
        said = f", {pause['reason']}" if pause["reason"] else ""
        found = f"paused since {pause['since']} by {pause['by']}{said}; {found}"
        advice = "no new fire begins: rota scheduler resume"
        if others := ", ".join(pause["ignored_by"]):
            advice = f"fires begin all the same: stop {others}, which is older than pauses"
        return Check("scheduling", None, found, "at least 1, and no pause", advice)
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


def obstacles(connection: Connection, task: Row[Any]) -> tuple[str | None, str | None]:
    """Why no scheduler writes the fires of a task, and why none gives what waits to workers; None: one does."""
    alive = [scheduler_document(row) for row in schedulers.listed(connection, LOOKED_AT) if not row.is_silent]
    if not alive:
        nobody = "no scheduler is at work; start rota scheduler, or rota up"
        return nobody, nobody
    active = [row for row in alive if row["state"] == SchedulerState.ACTIVE]
    if (rows := pauses.current(connection)) and all(map(_heeds_pause, active)):
        said = f": {rows[0].reason}" if rows[0].reason else ""
        return f"all scheduling is paused by {rows[0].creator}{said}; rota scheduler resume ends that", None
    if not active:
        return "every scheduler that is at work is paused", None
    for column in known_kinds():
        word = getattr(task, column)
        if not any(word in texts_in(object_in(row["kinds"]).get(column)) for row in active):
            return f"no scheduler at work knows {column} {word!r}", None
    return None, None


def _at_work(database: Database) -> list[Document]:
    return database.read(_active)


def _active(connection: Connection) -> list[Document]:
    rows = map(scheduler_document, schedulers.listed(connection, LOOKED_AT))
    return [row for row in rows if row["state"] == SchedulerState.ACTIVE and not row["silent"]]


def _heeds_pause(scheduler: Document) -> bool:
    return schedulers.PAUSE in texts_in(object_in(scheduler["kinds"]).get(schedulers.HEEDS))
