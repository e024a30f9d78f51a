"""Worker processes: a row for each start, its epoch; heartbeats, drain and death as guarded updates."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, insert, null, select, union_all, update
from sqlalchemy.exc import IntegrityError

from shared.domain.errors import NameTaken
from shared.domain.states import InstanceStatus, WorkerState
from shared.store.dialects import SecondsBefore, UtcNow
from shared.store.tables import schedule_instance, schedule_worker_node

_worker = schedule_worker_node.c
_instance = schedule_instance.c
_silent = _worker.last_heartbeat < SecondsBefore(UtcNow(), _worker.liveness_seconds)
_ALIVE = (WorkerState.LIVE.value, WorkerState.DRAINING.value)
ACTIVE = (InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class WorkerDeclaration:
    """A worker as it registers itself."""

    name: str
    host: str
    pid: int
    process_identity: str
    version: str
    capacity: int
    prefetch: int
    liveness_seconds: int
    node_types: list[str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that work may be given to."""

    id: int
    name: str
    capacity: int
    prefetch: int
    load: int
    labels: Mapping[str, str]
    node_types: frozenset[str]


def register(connection: Connection, worker: WorkerDeclaration) -> int:
    """Insert the worker's row and return its id: the epoch that fences all it writes.

    Raises NameTaken when a live worker has that name.
    """
    values: dict[str, Any] = {name: getattr(worker, name) for name in worker.__dataclass_fields__}
    values.update(labels=dict(worker.labels), creator=worker.name, modifier=worker.name)
    try:
        result = connection.execute(insert(schedule_worker_node).values(**values))
    except IntegrityError as error:
        raise NameTaken(
            f"a live worker is named {worker.name!r}; give this one another --name, or stop that one"
        ) from error
    return int(result.lastrowid)


def own_row(connection: Connection, worker: WorkerDeclaration) -> int | None:
    """The id of the row that this very process has registered; None if there is none."""
    return connection.scalar(
        select(_worker.id).where(
            _worker.live_name == worker.name,
            _worker.pid == worker.pid,
            _worker.process_identity == worker.process_identity,
        )
    )


def alive(connection: Connection) -> list[Row[Any]]:
    """The rows of all workers that are not dead."""
    return list(connection.execute(select(schedule_worker_node).where(_worker.state.in_(_ALIVE))))


_heartbeat = (
    update(schedule_worker_node)
    .where(_worker.id == bindparam("worker"), _worker.state.in_(_ALIVE))
    .values(last_heartbeat=UtcNow(), current_load=bindparam("load"))
)


def heartbeat(connection: Connection, worker_id: int, load: int) -> bool:
    """Renew the lease. False: the worker was declared dead, and must stop."""
    return connection.execute(_heartbeat, {"worker": worker_id, "load": load}).rowcount == 1


def drain(connection: Connection, worker_id: int, reason: str, by: str) -> bool:
    """Let a live worker take no more; False if it is not live."""
    changed = connection.execute(
        update(schedule_worker_node)
        .where(_worker.id == worker_id, _worker.state == WorkerState.LIVE.value)
        .values(state=WorkerState.DRAINING.value, reason=reason, modifier=by, gmt_modified=UtcNow())
    )
    return changed.rowcount == 1


def bury(connection: Connection, worker_ids: Collection[int], reason: str, by: str) -> int:
    """Mark workers dead, whose processes are known to be gone; returns how many were not dead yet."""
    return _bury(connection, _worker.id.in_(sorted(worker_ids)), reason, by) if worker_ids else 0


def bury_silent(connection: Connection, worker_ids: Collection[int], by: str) -> int:
    """Mark dead those of these workers that are silent beyond their liveness limits; the database's clock decides.

    The same row is updated by the heartbeat: whichever comes first, the other finds its guard false.
    """
    silent = and_(_worker.id.in_(sorted(worker_ids)), _silent)
    return _bury(connection, silent, "silent for longer than its liveness limit", by) if worker_ids else 0


def _bury(connection: Connection, condition: Any, reason: str, by: str) -> int:
    return connection.execute(
        update(schedule_worker_node)
        .where(_worker.state.in_(_ALIVE), condition)
        .values(state=WorkerState.DEAD.value, reason=reason, gmt_dead=UtcNow(), modifier=by, gmt_modified=UtcNow())
    ).rowcount


_is_held = and_(_instance.status.in_(ACTIVE), _instance.schedule_worker_node_id.is_not(None))
_loads = (
    select(_instance.schedule_worker_node_id, func.count()).where(_is_held).group_by(_instance.schedule_worker_node_id)
)


def loads(connection: Connection) -> dict[int, int]:
    """How many instances each worker holds, assigned or running, counted from the rows; dead holders too."""
    return dict(connection.execute(_loads).all())


_fleet = select(_worker.id, _worker.name, _worker.capacity, _worker.prefetch, _worker.labels, _worker.node_types).where(
    _worker.state == WorkerState.LIVE.value, ~_silent
)


def fleet(connection: Connection) -> list[LiveWorker]:
    """The workers that work may be given to, each with its load."""
    load = loads(connection)
    return [
        LiveWorker(
            id=row.id,
            name=row.name,
            capacity=row.capacity,
            prefetch=row.prefetch,
            load=load.get(row.id, 0),
            labels=row.labels if isinstance(row.labels, dict) else {},
            node_types=frozenset(row.node_types if isinstance(row.node_types, list) else ()),
        )
        for row in connection.execute(_fleet)
    ]


@dataclass(frozen=True, slots=True)
class Census:
    """The workers that are not dead, with their states; those of them that are silent beyond their limits, with these
    in seconds; all that hold anything, the dead too; and the database's time then, naive UTC."""

    alive: dict[int, str]
    silent: dict[int, int]
    holders: set[int]
    time: datetime


_moment = select(UtcNow().label("time")).subquery("moment")
_held = select(_instance.schedule_worker_node_id).where(_is_held).distinct().subquery("held")
_census = union_all(
    select(_moment.c.time, _worker.id, _worker.state, case((_silent, _worker.liveness_seconds))).select_from(
        _moment.outerjoin(schedule_worker_node, _worker.state.in_(_ALIVE))
    ),
    select(null(), _held.c.schedule_worker_node_id, null(), null()),
)
"""The time comes with the workers, and where there are none; then, without a time, those that hold something. One
statement sees one moment: whoever holds something and is not among the living, was dead when it was seen."""


def census(connection: Connection) -> Census:
    """Who is there, who holds something, and when."""
    rows = connection.execute(_census).all()
    there = [row for row in rows if row.time is not None]
    return Census(
        alive={worker_id: state for _, worker_id, state, _ in there if worker_id is not None},
        silent={worker_id: limit for _, worker_id, _, limit in there if limit is not None},
        holders={worker_id for time, worker_id, _, _ in rows if time is None},
        time=there[0].time,
    )


def listed(connection: Connection, limit: int, *, all_states: bool = False) -> list[Row[Any]]:
    """Workers for people to see, the newest first; only those alive unless ``all_states``."""
    statement = select(schedule_worker_node).order_by(_worker.id.desc()).limit(limit)
    return list(connection.execute(statement if all_states else statement.where(_worker.state.in_(_ALIVE))))
