"""Scheduler processes: a row for each start, with its last tick. The rows only inform: Rota decides nothing by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, insert, select, update

from rota.shared.database.constructs import SecondsBefore, UtcNow, found_by
from rota.shared.database.transactions import Database
from rota.shared.domain.states import SchedulerState
from rota.shared.store.tables import schedule_scheduler_node

_scheduler = schedule_scheduler_node.c
SILENT = _scheduler.last_tick < SecondsBefore(UtcNow(), _scheduler.liveness_seconds)

FORGET_SECONDS = 86_400
"""The next scheduler that registers removes the rows that have not ticked for so long: a day."""

FORGET_LIMIT = 1000


HEEDS, PAUSE = "heeds", "pause"
"""In ``kinds`` of each scheduler's row: what it heeds. An older one, which does not know pauses, says nothing there."""


@dataclass(frozen=True, slots=True)
class SchedulerDeclaration:
    """A scheduler as it registers itself."""

    name: str
    host: str
    pid: int
    version: str
    liveness_seconds: int
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The kinds of tasks that it can plan (``known_kinds``)."""

    wake_address: str | None = None
    lookahead_seconds: int | None = None


class Listening(NamedTuple):
    """Where a scheduler listens for wake-ups, and how far ahead it looks for work."""

    address: object
    lookahead_seconds: float


def insert_into(database: Database, work: Callable[[Connection], list[int]]) -> list[int]:
    """Run ``work``, which registers schedulers, and return their ids. A lost answer does not insert them twice."""
    return database.insert(schedule_scheduler_node, work)


def register(connection: Connection, scheduler: SchedulerDeclaration) -> int:
    """Insert the scheduler's row and return its id.

    It also removes rows that have not ticked for a day, at most 1,000.
    """
    _forget(connection)
    values = {name: getattr(scheduler, name) for name in SchedulerDeclaration.__dataclass_fields__}
    values["kinds"] = {**scheduler.kinds, HEEDS: [PAUSE]}
    statement = insert(schedule_scheduler_node).values(**values, creator=scheduler.name, modifier=scheduler.name)
    return int(connection.execute(statement).lastrowid)


def _forget(connection: Connection) -> None:
    old = _scheduler.last_tick < SecondsBefore(UtcNow(), FORGET_SECONDS)
    ids = connection.scalars(select(_scheduler.id).where(old).order_by(_scheduler.last_tick).limit(FORGET_LIMIT)).all()
    if ids:
        connection.execute(found_by(delete(schedule_scheduler_node).where(_scheduler.id.in_(sorted(ids)), old)))


def tick(connection: Connection, scheduler_id: int, moment: datetime) -> bool:
    """Record the scheduler's last tick (naive UTC). False: its row is gone, and the scheduler must register again."""
    statement = update(schedule_scheduler_node).where(_scheduler.id == scheduler_id, _scheduler.is_deleted == 0)
    return connection.execute(statement.values(last_tick=moment)).rowcount == 1


def is_paused(connection: Connection, scheduler_id: int) -> bool:
    """Whether somebody has paused this scheduler: ``UPDATE schedule_scheduler_node SET state = 'paused' …``."""
    state = connection.scalar(select(_scheduler.state).where(_scheduler.id == scheduler_id))
    return state == SchedulerState.PAUSED


def leave(connection: Connection, scheduler_id: int, by: str) -> bool:
    """Mark the row of a scheduler that stops as deleted. False if it was marked before, or is gone."""
    statement = update(schedule_scheduler_node).where(_scheduler.id == scheduler_id, _scheduler.is_deleted == 0)
    return connection.execute(statement.values(is_deleted=1, modifier=by, gmt_modified=UtcNow())).rowcount == 1


MOST_WOKEN = 3
"""So many schedulers are woken at most. One is enough, but the one that ticked last may have died since."""

_listening = (
    select(_scheduler.wake_address, _scheduler.lookahead_seconds)
    .where(_scheduler.wake_address.is_not(None), _scheduler.is_deleted == 0, ~SILENT)
    .order_by(_scheduler.last_tick.desc(), _scheduler.id.desc())
    .limit(MOST_WOKEN)
)


def listening(connection: Connection) -> list[Listening]:
    """The live schedulers that listen for wake-ups, at most ``MOST_WOKEN``; those that ticked last."""
    found = connection.execute(_listening)
    return [Listening(address, ahead) for address, ahead in found if isinstance(ahead, int | float)]


def listed(connection: Connection, limit: int) -> list[Row[Any]]:
    """Schedulers that have not stopped, the one with the latest tick first; each with ``is_silent`` (1 or 0)."""
    statement = select(schedule_scheduler_node, SILENT.label("is_silent")).where(_scheduler.is_deleted == 0)
    return list(connection.execute(statement.order_by(_scheduler.last_tick.desc(), _scheduler.id.desc()).limit(limit)))
