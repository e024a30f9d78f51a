"""Backfills: look at what one would run, start it, list, show, pause, resume, cancel."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import BACKFILL_FIELDS, Document, plain, plan_of, values_of
from rota.shared.database.transactions import Database
from rota.shared.domain.backfilling import LOOKED_AT, Range, fires_in, why_not_only_missing
from rota.shared.domain.errors import InvalidInput, NotPossible
from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.domain.states import BackfillStatus
from rota.shared.domain.times import read_time, written_local, written_utc, zone_of
from rota.shared.store import backfills, node_types, tasks

FIRES_SHOWN = 3
"""A preview shows so many of the first fires, and of the last."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants to backfill. Times are texts; without an offset they are local times in the task's zone.

    Wanted("nightly", "2026-10-01", "2026-10-31", concurrency=4)
    """

    name: str
    from_at: str
    to_at: str | None = None
    """None: now."""

    concurrency: int = 1
    priority: int = CATCH_UP_PRIORITY
    newest_first: bool = False
    only_missing: bool = False
    param: Any = None
    """Instead of the task's param."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A backfill that may be started: the task's row, the two times as they were read, the fires between them."""

    task: Row[Any]
    from_at: datetime
    to_at: datetime
    fires: Range
    remarks: Sequence[str]


def preview(database: Database, wanted: Wanted) -> tuple[Document, Sequence[str]]:
    """What a backfill would run, and remarks on how its times were read; nothing is written.

    ``fires`` are how many it would run, ``not_missing`` those that it would pass over. Of a range with many fires both
    are ``is_exact`` False: the first are counted, and the others estimated. Raises as ``start`` does.
    """

    def read(connection: Connection) -> tuple[Plan, list[datetime]]:
        plan = _plan(connection, wanted, database.clock.now())
        return plan, _to_run(connection, wanted, plan)

    plan, fires = database.read(read)
    passed_over = len(plan.fires.counted) - len(fires)
    number = plan.fires.number - passed_over
    first, last = fires[:FIRES_SHOWN], fires[FIRES_SHOWN:][-FIRES_SHOWN:]
    if not plan.fires.is_exact:
        last = [plan.fires.last]
    said = {
        "task_name": plan.task.name,
        "timezone": plan.task.timezone,
        "fires": number,
        "not_missing": passed_over,
        "is_exact": plan.fires.is_exact,
        "first": [_fire(fire, plan.task) for fire in first],
        "last": [_fire(fire, plan.task) for fire in last],
    }
    return said | _asked(wanted, plan), plan.remarks


def start(database: Database, actor: Actor, wanted: Wanted, why: str | None = None) -> tuple[Document, Sequence[str]]:
    """Start a backfill; returns it, and remarks on how its times were read. The scheduler writes its instances.

    Raises NotFound for a task that does not exist, InvalidParam, and InvalidInput for a range that is backwards, or not
    over yet, or has no fire or too many, or in which nobody can tell what is missing.
    """

    plan = database.read(lambda connection: _plan(connection, wanted, database.clock.now()))

    def work(connection: Connection, act: Act) -> int:
        backfill_id = backfills.add(connection, plan.task, actor.name, **_columns(wanted, plan))
        new = {name: value for name, value in _asked(wanted, plan).items() if value is not None}
        audit.on_backfill(connection, act, "backfill.start", (backfill_id, plan.task.name), old=None, new=new)
        return backfill_id

    return show(database, perform(database, actor, why, work)), plan.remarks


def listed(database: Database, limit: int, *, task: str | None = None, status: str | None = None) -> list[Document]:
    """At most ``limit`` backfills, the newest first.

    Raises NotFound for a task that does not exist.
    """

    def read(connection: Connection) -> list[Row[Any]]:
        task_id = None if task is None else tasks.find(connection, task).id
        return backfills.listed(connection, limit, task_id=task_id, status=status)

    now = database.clock.now()
    return [_document(row, now) for row in database.read(read)]


def show(database: Database, backfill_id: int) -> Document:
    """A backfill, with its param and how far it is.

    ``ended`` is how many fires have ended or need not run, and ``seconds_left`` an estimate, None while nobody can
    tell. Raises NotFound.
    """
    row = database.read(lambda connection: backfills.find(connection, backfill_id))
    return _document(row, database.clock.now()) | {"param": plain(row.param)}


def pause(database: Database, actor: Actor, backfill_id: int, why: str | None = None) -> Document:
    """Let a backfill write no more; what it has written runs. Returns it.

    Raises NotFound, or NotPossible if it does not run.
    """
    return _switch(database, actor, (backfill_id, BackfillStatus.PAUSED), why)


def resume(database: Database, actor: Actor, backfill_id: int, why: str | None = None) -> Document:
    """Let a paused backfill go on. Returns it.

    Raises NotFound, or NotPossible if it is not paused.
    """
    return _switch(database, actor, (backfill_id, BackfillStatus.RUNNING), why)


def cancel(database: Database, actor: Actor, backfill_id: int, why: str | None = None) -> Document:
    """End a backfill: what it has written and what has not begun is canceled, what runs goes on. Returns it.

    Raises NotFound, or NotPossible if it has ended.
    """
    return _switch(database, actor, (backfill_id, BackfillStatus.CANCELED), why)


_FROM = {
    BackfillStatus.PAUSED: ("pause", "paused", (BackfillStatus.RUNNING,)),
    BackfillStatus.RUNNING: ("resume", "resumed", (BackfillStatus.PAUSED,)),
    BackfillStatus.CANCELED: ("cancel", "canceled", (BackfillStatus.RUNNING, BackfillStatus.PAUSED)),
}
"""By the status that somebody wants: the words for it, and the statuses from which it may be reached."""


def _switch(database: Database, actor: Actor, wanted: tuple[int, BackfillStatus], why: str | None) -> Document:
    backfill_id, status = wanted
    verb, done, sources = _FROM[status]

    def work(connection: Connection, act: Act) -> None:
        row = backfills.find(connection, backfill_id)
        if row.status not in sources:
            needed = " or ".join(sources)
            raise NotPossible(f"backfill {backfill_id} is {row.status}; only one that is {needed} can be {done}")
        backfills.switch(connection, row, status, actor.name, why)
        old, new = {"status": row.status}, {"status": status.value}
        audit.on_backfill(connection, act, f"backfill.{verb}", (row.id, row.task_name), old=old, new=new)

    perform(database, actor, why, work)
    return show(database, backfill_id)


def _plan(connection: Connection, wanted: Wanted, now: datetime) -> Plan:
    task = tasks.find(connection, wanted.name)
    zone = zone_of(task.timezone)
    from_at, said = read_time(wanted.from_at, zone)
    to_at, also_said = (now.replace(microsecond=0), None) if wanted.to_at is None else read_time(wanted.to_at, zone)
    if wanted.param is not None:
        node_types.catalog(connection).check(task.type, wanted.param)
    fires = fires_in(plan_of(task), from_at, to_at, now)
    if wanted.only_missing and (unknown := why_not_only_missing(task.history_complete_from, from_at)):
        raise InvalidInput(unknown)
    return Plan(task, from_at, to_at, fires, [remark for remark in (said, also_said) if remark])


def _to_run(connection: Connection, wanted: Wanted, plan: Plan) -> list[datetime]:
    """Of the fires that were counted, those that would run, the oldest first."""
    if not wanted.only_missing:
        return list(plan.fires.counted)
    fires, ran = plan.fires.counted, set[datetime]()
    for begin in range(0, len(fires), LOOKED_AT):
        ran |= backfills.ran_of(connection, plan.task.id, fires[begin : begin + LOOKED_AT])
    return [fire for fire in fires if fire not in ran]


def _columns(wanted: Wanted, plan: Plan) -> Document:
    """The columns of a new backfill. Its fires are those that were planned, even if the task is edited meanwhile."""
    first = plan.fires.last if wanted.newest_first else plan.fires.counted[0]
    times = {"from_at": plan.from_at, "to_at": plan.to_at, "next_fire": first}
    flags = {"newest_first": int(wanted.newest_first), "only_missing": int(wanted.only_missing)}
    return {**_options(wanted), **times, **flags, "fires": plan.fires.number}


def _asked(wanted: Wanted, plan: Plan) -> Document:
    """What was asked for, as JSON."""
    return {"from_at": plain(plan.from_at), "to_at": plain(plan.to_at), **_options(wanted)}


def _options(wanted: Wanted) -> Document:
    names = ("concurrency", "priority", "newest_first", "only_missing", "param")
    return {name: getattr(wanted, name) for name in names}


def _fire(fire: datetime, task: Row[Any]) -> Document:
    return {"utc": written_utc(fire), "local": written_local(fire, zone_of(task.timezone))}


def _document(row: Row[Any], now: datetime) -> Document:
    """A backfill, and how far it is."""
    ended = backfills.ended(row)
    flags = {"newest_first": bool(row.newest_first), "only_missing": bool(row.only_missing)}
    left = None
    is_noted = row.reason is None  # otherwise SQL has just resumed it
    if row.status == BackfillStatus.RUNNING and is_noted and ended > row.ended_before:
        each = (now - row.gmt_running).total_seconds() / (ended - row.ended_before)
        left = round(max(0.0, each * (row.fires - ended)), 1)
    return values_of(row, BACKFILL_FIELDS) | flags | {"ended": ended, "seconds_left": left}
