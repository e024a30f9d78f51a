"""The tables from which listeners are told: what is new in each of them, in order, and what it says.

A feed is read in two steps: where its newest rows stand, which an index tells, and then the rows that were not told.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, or_, select

from rota.shared.database.constructs import among, read_by
from rota.shared.domain.events import EventName, FiresEvent, RowEvent, SchedulerEvent, TaskEvent, WorkerEvent
from rota.shared.domain.jsontext import object_in
from rota.shared.domain.states import SkipReason
from rota.shared.domain.times import is_time
from rota.shared.domain.told import MOST_OPEN, SETTLED, Entry, Place, Told, text_of
from rota.shared.store import audit
from rota.shared.store.tables import (
    schedule_audit,
    schedule_scheduler_node,
    schedule_skip,
    schedule_task,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.workers import STOPPED

_audit = schedule_audit.c
_skip = schedule_skip.c
_task = schedule_task.c
_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c
_scheduler = schedule_scheduler_node.c

ACTS: Mapping[str, EventName] = {
    "task.add": EventName.TASK_ADDED,
    "task.set": EventName.TASK_CHANGED,
    "task.on": EventName.TASK_CHANGED,
    "task.off": EventName.TASK_CHANGED,
    "task.remove": EventName.TASK_REMOVED,
    "scheduler.pause": EventName.SCHEDULER_PAUSED,
    "scheduler.resume": EventName.SCHEDULER_RESUMED,
}
"""The acts in ``schedule_audit`` that listeners are told."""

SKIPS: Mapping[str, EventName] = {
    SkipReason.SKIP.value: EventName.MISSED,
    SkipReason.FIRE_ONCE.value: EventName.MISSED,
    SkipReason.WINDOW.value: EventName.MISSED,
    SkipReason.CAP.value: EventName.MISSED,
    SkipReason.EDITED.value: EventName.SKIPPED,
    SkipReason.BY_HAND.value: EventName.SKIPPED,
}
"""The stretches in ``schedule_skip`` that listeners are told. That a task is off is no news at each of its fires."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A table that says what has happened, in the order of its ids or of a time."""

    events: frozenset[EventName]
    newest: Select[Any] | None
    """The newest rows, by their ids; None: their order is that of a time."""

    newer: Select[Any]
    """The rows behind a place, in order: the id or the time that they are ordered by, their ids, when they were
    written."""

    rows: Callable[[Connection, Collection[int]], Collection[Row[Any]]]
    event: Callable[[Row[Any]], RowEvent | None]

    @property
    def by_time(self) -> bool:
        """Whether the order is that of a time."""
        return self.newest is None

    def begin(self, connection: Connection, now: datetime) -> Told:
        """A minute before ``now`` (naive UTC), with nothing told of what is there since then."""
        if self.newest is None:
            return Told((text_of(now - SETTLED), 0))
        newest = self._entries(connection.execute(self.newest, {"limit": MOST_RECENT}))
        settled = (entry.place for entry in newest if entry.is_settled(now))
        return Told(next(settled, (newest[-1].row_id - 1, "") if newest else (0, "")))

    def newest_id(self, connection: Connection) -> float:
        """The newest id, 0 if there is none. It is less than one that was told after a TRUNCATE. By a time: inf."""
        if self.newest is None:
            return math.inf
        newest = connection.execute(self.newest, {"limit": 1}).first()
        return newest.row_id if newest else 0

    def after(self, connection: Connection, place: Place) -> list[Entry]:
        """Up to ``MOST_OPEN`` entries behind a place, in order. A row whose time is none is none of them."""
        behind: dict[str, Any] = {"id": place[0]}
        if self.by_time:
            behind = {"place": datetime.fromisoformat(str(place[0])), "id": place[1]}
        return self._entries(connection.execute(self.newer, {**behind, "limit": MOST_OPEN}))

    def _entries(self, found: Iterable[Any]) -> list[Entry]:
        if self.by_time:
            return [Entry((text_of(at), row_id), row_id, at) for at, row_id, _ in found if is_time(at)]
        return [Entry((row_id, text_of(at)), row_id, at) for _, row_id, at in found]

    def told_by(self, connection: Connection, entries: Collection[Entry]) -> dict[Place, RowEvent]:
        """What the rows of these entries tell, by their places. Not every row tells something.

        One that has changed since its entry was read tells nothing: it stands at another place now.
        """
        ids = sorted({entry.row_id for entry in entries})
        rows = {row.id: row for row in self.rows(connection, ids)} if ids else {}
        found = ((entry, rows[entry.row_id]) for entry in entries if entry.row_id in rows)
        told = {entry.place: self.event(row) for entry, row in found if self._is_still(row, entry)}
        return {place: event for place, event in told.items() if event is not None}

    def _is_still(self, row: Row[Any], entry: Entry) -> bool:
        return not self.by_time or text_of(row.placed_at) == entry.place[0]


MOST_RECENT = 1_000
"""So many rows are looked at to find what was written within the last minute."""


def _by_id(table: Any, written_at: Any) -> dict[str, Any]:
    ordered = select(table.c.id, table.c.id.label("row_id"), written_at).limit(bindparam("limit"))
    return {
        "newest": ordered.order_by(table.c.id.desc()),
        "newer": read_by(ordered.where(table.c.id > bindparam("id")), table).order_by(table.c.id),
    }


def _by_time(table: Any, moment: Any, row_id: Any, index: str, *which: Any) -> dict[str, Any]:
    behind = or_(moment > bindparam("place"), row_id > bindparam("id"))
    ordered = select(moment, row_id.label("row_id"), moment.label("written_at")).limit(bindparam("limit"))
    newer = ordered.where(moment >= bindparam("place"), behind, *which)
    return {
        "newest": None,
        "newer": read_by(newer, table, index).order_by(moment, row_id),
    }


def _selected(statement: Select[Any]) -> Callable[[Connection, Collection[int]], Collection[Row[Any]]]:
    return lambda connection, ids: connection.execute(statement, {"ids": ids}).all()


def _of_act(row: Row[Any]) -> RowEvent | None:
    event = ACTS.get(row.action)
    if event is None:
        return None
    if event in (EventName.SCHEDULER_PAUSED, EventName.SCHEDULER_RESUMED):
        why = object_in(row.new_values).get("reason") or row.why
        return SchedulerEvent(event.value, _aware(row.gmt_create), row.actor, why=why)
    return TaskEvent(
        event=event.value,
        at=_aware(row.gmt_create),
        task_id=row.object_id,
        task_name=row.object_name or "",
        action=row.action,
        actor=row.actor,
        face=row.face,
        why=row.why,
        old=object_in(row.old_values),
        new=object_in(row.new_values),
    )


_skips = (
    select(schedule_skip, _skip.gmt_modified.label("placed_at"), _task.name)
    .outerjoin_from(schedule_skip, schedule_task, _task.id == _skip.schedule_task_id)
    .where(among(_skip.id))
)


def _of_skip(row: Row[Any]) -> RowEvent | None:
    event = SKIPS.get(row.reason)
    if event is None or not (is_time(row.first_fire) and is_time(row.last_fire)):
        return None
    return FiresEvent(
        event=event.value,
        at=_aware(row.gmt_modified),
        task_id=row.schedule_task_id,
        task_name=row.name,
        reason=row.reason,
        first_fire=_aware(row.first_fire),
        last_fire=_aware(row.last_fire),
        fires=row.fires,
    )


def _of_join(row: Row[Any]) -> RowEvent:
    return _worker_event(EventName.WORKER_JOINED, row, row.gmt_started)


_dead = (
    select(
        _beat.schedule_worker_node_id.label("id"), _beat.gmt_dead, _beat.gmt_dead.label("placed_at"), _beat.reason,
        _worker.name, _worker.host, _worker.pid, _worker.version,
    )
    .outerjoin_from(schedule_worker_beat, schedule_worker_node, _worker.id == _beat.schedule_worker_node_id)
    .where(among(_beat.schedule_worker_node_id))
)  # fmt: skip


def _of_death(row: Row[Any]) -> RowEvent | None:
    if not is_time(row.gmt_dead):
        return None
    event = EventName.WORKER_LEFT if row.reason == STOPPED else EventName.WORKER_LOST
    return _worker_event(event, row, row.gmt_dead, row.reason)


def _worker_event(event: EventName, row: Row[Any], at: Any, reason: str | None = None) -> WorkerEvent:
    return WorkerEvent(
        event=event.value,
        at=_aware(at),
        worker_id=row.id,
        worker=row.name,
        host=row.host,
        pid=row.pid,
        version=row.version,
        reason=reason,
    )


def _of_scheduler(row: Row[Any]) -> RowEvent:
    event = EventName.SCHEDULER_STARTED.value
    started = _aware(row.gmt_started)
    return SchedulerEvent(event, started, actor=row.name, host=row.host, pid=row.pid, version=row.version)


def _aware(moment: Any) -> datetime:
    """A time in UTC; what SQL has made unreadable is the beginning of all times."""
    return moment.replace(tzinfo=UTC) if isinstance(moment, datetime) else datetime(1970, 1, 1, tzinfo=UTC)


FEEDS = (
    Feed(
        frozenset(ACTS.values()),
        **_by_id(schedule_audit, _audit.gmt_create),
        rows=audit.of_ids,
        event=_of_act,
    ),
    Feed(
        frozenset(SKIPS.values()),
        **_by_time(
            schedule_skip,
            _skip.gmt_modified,
            _skip.id,
            "ix_schedule_skip_gmt_modified",
            _skip.reason.in_(sorted(SKIPS)),
        ),
        rows=_selected(_skips),
        event=_of_skip,
    ),
    Feed(
        frozenset({EventName.WORKER_JOINED}),
        **_by_id(schedule_worker_node, _worker.gmt_started),
        rows=_selected(select(schedule_worker_node).where(among(_worker.id))),
        event=_of_join,
    ),
    Feed(
        frozenset({EventName.WORKER_LEFT, EventName.WORKER_LOST}),
        **_by_time(
            schedule_worker_beat, _beat.gmt_dead, _beat.schedule_worker_node_id, "ix_schedule_worker_beat_gmt_dead"
        ),
        rows=_selected(_dead),
        event=_of_death,
    ),
    Feed(
        frozenset({EventName.SCHEDULER_STARTED}),
        **_by_id(schedule_scheduler_node, _scheduler.gmt_started),
        rows=_selected(select(schedule_scheduler_node).where(among(_scheduler.id))),
        event=_of_scheduler,
    ),
)
"""All feeds; each event comes from one of them."""
