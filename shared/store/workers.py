"""Worker processes: a row for each start, whose id is its epoch, and a row of heartbeats, which says who lives.

Heartbeats have a narrow table of their own, ``schedule_worker_beat``. People look at workers, and some lock them;
a heartbeat that waits for a lock kills its worker. A worker lives until its beat has ``gmt_dead``. Heartbeat and death
are guarded updates of that one row: whichever comes first, the guard of the other fails. The worker's own row shows
what its beat says. It follows a little later, and waits for nobody (docs/decisions/0028-beats.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, case, delete, func, insert, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.causal import CAUSALLY
from rota.shared.database.constructs import SecondsBefore, UtcNow, among, bound, by_index, found_by, json_rows
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.errors import NameTaken
from rota.shared.domain.states import InstanceStatus, WorkerState
from rota.shared.domain.versions import version_of
from rota.shared.store.tables import schedule_worker_beat, schedule_worker_node

_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c
OF_ITS_WORKER = _beat.schedule_worker_node_id == _worker.id
LIVES = _beat.gmt_dead.is_(None)
SILENT = _beat.last_beat < SecondsBefore(UtcNow(), _beat.liveness_seconds)
AHEAD = SecondsBefore(_beat.last_beat, _beat.liveness_seconds) > UtcNow()
"""The last beat is in the future: the database's clock was set back, or SQL wrote it. It does not tell who lives."""

SHOWN_ALIVE = _worker.state.in_([WorkerState.LIVE.value, WorkerState.DRAINING.value])
"""The worker's row does not say that it is dead. Whether it lives is its beat's to say."""

STOPPING = "stopping"
"""Why a worker drains that was asked to stop."""

STOPPED = "stopped"
"""Why a worker is dead that stopped by itself. It was not lost."""

CONDEMNED = "its row was deleted, or says that it is dead"
"""Why a worker is dead whose process may still run: SQL says so. It learns that at its next heartbeat."""

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
    type_versions: Mapping[str, str] = field(default_factory=dict)
    """The version that it carries of each task type (``node_types.versions_of``)."""

    schedules: Mapping[str, str] = field(default_factory=dict)
    """The version of the declaration of each task that its app declares, by the task's name."""

    wake_address: str | None = None
    """Where it listens for wake-ups; None: nowhere."""

    pools: Mapping[str, int] = field(default_factory=dict)
    """Its pools of threads, each with its size."""


class Load(NamedTuple):
    """What a worker says of itself at each heartbeat."""

    busy: int = 0
    """How many slots are taken, by instances and by abandoned threads."""

    abandoned: int = 0
    """How many slots are taken by threads whose calls were to stop and have not returned."""

    started: int = 0
    """How many instances this process has started since it began. While it grows, the worker makes progress."""


def register(connection: Connection, worker: WorkerDeclaration) -> int:
    """Insert the worker's row and its first beat, and return its id: the epoch that fences all its writes.

    Raises NameTaken if another live worker has that name.
    """
    values: dict[str, Any] = {name: getattr(worker, name) for name in worker.__dataclass_fields__}
    liveness = values.pop("liveness_seconds")
    mappings: dict[str, Any] = {name: dict(values[name]) for name in ("labels", "type_versions", "schedules")}
    by = {"creator": worker.name[:127], "modifier": worker.name[:127]}
    mappings["pools"] = dict(worker.pools) or None
    schedules_version = version_of(mappings["schedules"])
    worker_id = _insert(connection, {**values, **mappings, **by, "schedules_version": schedules_version})
    beat = {"schedule_worker_node_id": worker_id, "liveness_seconds": liveness, **by}
    connection.execute(insert(schedule_worker_beat).values(**beat))
    return worker_id


def _insert(connection: Connection, values: dict[str, Any]) -> int:
    """Insert a worker under an id that no worker had before. After a TRUNCATE the database would begin at 1 again."""
    try:
        worker_id = int(connection.execute(insert(schedule_worker_node).values(**values)).lastrowid)
    except IntegrityError as error:
        name = values["name"]
        raise NameTaken(f"a live worker is named {name!r}; give this one another --name, or stop that one") from error
    newest = connection.scalar(select(func.max(_beat.schedule_worker_node_id))) or 0
    if worker_id > newest:
        return worker_id
    connection.execute(delete(schedule_worker_node).where(_worker.id == worker_id))
    return int(connection.execute(insert(schedule_worker_node).values(id=newest + 1, **values)).lastrowid)


def own_row(connection: Connection, worker: WorkerDeclaration) -> int | None:
    """The id of the row that this process has registered; None if there is none."""
    return connection.scalar(
        select(_worker.id).where(
            _worker.live_name == worker.name,
            _worker.pid == worker.pid,
            _worker.process_identity == worker.process_identity,
        )
    )


def alive(connection: Connection) -> list[Row[Any]]:
    """The rows of all workers that are not dead."""
    return list(connection.execute(select(schedule_worker_node).join(schedule_worker_beat, OF_ITS_WORKER).where(LIVES)))


_names = select(_worker.id, _worker.name).where(among(_worker.id))


def names(connection: Connection, worker_ids: Collection[int]) -> dict[int, str]:
    """The names of these workers by their ids; without those whose rows are gone."""
    if not worker_ids:
        return {}
    return {row.id: row.name for row in connection.execute(_names, {"ids": sorted(set(worker_ids))})}


def not_live(connection: Connection, worker_ids: Collection[int]) -> dict[int, str]:
    """Those of these workers that take no instances any more, with the reason: they drain, are dead, or are gone."""
    statement = select(_worker.id, _worker.name, _worker.state).where(_worker.id.in_(sorted(worker_ids)))
    rows = {number: (name, state) for number, name, state in connection.execute(statement)}
    gone = {number: f"#{number}, which is gone" for number in worker_ids if number not in rows}
    others = {number: (name, state) for number, (name, state) in rows.items() if state != WorkerState.LIVE}
    return gone | {number: f"{name!r}, which is {state}" for number, (name, state) in others.items()}


def namesake(connection: Connection, name: str) -> Row[Any] | None:
    """Who holds a name: the worker's id, last_beat, liveness_seconds and gmt_dead, which its row may not show yet."""
    beats = (_beat.last_beat, _beat.liveness_seconds, _beat.gmt_dead)
    found = select(_worker.id, *beats).outerjoin_from(schedule_worker_node, schedule_worker_beat, OF_ITS_WORKER)
    rows: list[Any] = list(connection.execute(found.where(_worker.live_name == name)))
    return rows[0] if rows else None


_heartbeat = (
    found_by(update(schedule_worker_beat))
    .where(_beat.schedule_worker_node_id == bindparam("worker"), LIVES)
    .ordered_values(  # MariaDB and MySQL assign from left to right: the progress must be seen before it is written
        (_beat.gmt_progress, case((_beat.started != bindparam("starts"), UtcNow()), else_=_beat.gmt_progress)),
        (_beat.started, bindparam("starts")),
        (_beat.last_beat, UtcNow()),
        (_beat.busy, bindparam("slots")),
        (_beat.abandoned, bindparam("stuck")),
    )
)


def heartbeat(connection: Connection, worker_id: int, load: Load) -> bool:
    """Record a heartbeat and what the worker says. False: the worker was declared dead, and must stop."""
    said = {"slots": load.busy, "stuck": load.abandoned, "starts": load.started}
    return connection.execute(_heartbeat, {"worker": worker_id, **said}).rowcount == 1


def drain(connection: Connection, worker_id: int, reason: str, by: str) -> bool:
    """Make a live worker draining, so that it takes no more instances; False if it is not live.

    For the reason ``STOPPING`` also one that drains already: nobody may resume it any more.
    """
    drains = [WorkerState.LIVE.value, *([WorkerState.DRAINING.value] if reason == STOPPING else [])]
    changed = connection.execute(
        update(schedule_worker_node)
        .where(_worker.id == worker_id, _worker.state.in_(drains))
        .values(state=WorkerState.DRAINING.value, reason=reason, modifier=by, gmt_modified=UtcNow())
    )
    return changed.rowcount == 1


def steer(connection: Connection, row: Row[Any], state: WorkerState, reason: str | None, by: str) -> None:
    """Set the state of a worker that was read. The transaction raises Unexpected if its state has changed since."""
    statement = (
        update(schedule_worker_node)
        .where(_worker.id == row.id, _worker.state == row.state)
        .values(state=state.value, reason=reason, modifier=by, gmt_modified=UtcNow())
    )
    execute_later(connection, statement, {}, expected=1)


def note_blocked(connection: Connection, worker_id: int, since: datetime | None, by: str | None) -> bool:
    """Note in a worker's row since when its process does not answer (naive UTC), and which runs may hold it up.

    None: it answers. False: somebody has locked the row, for which no heartbeat may wait.
    """
    row = select(_worker.id).where(_worker.id == worker_id).with_for_update(skip_locked=True)
    if read_before(connection, row, {}).scalar() is None:
        return False
    blocked = {"gmt_blocked": since, "blocked_by": by, "gmt_modified": UtcNow()}
    execute_later(connection, update(schedule_worker_node).where(_worker.id == worker_id).values(blocked), {})
    return True


def leave(connection: Connection, worker_id: int) -> None:
    """Note that a worker stops, as somebody asked. What it still runs when its process ends counts as handed back."""
    own = update(schedule_worker_beat).where(_beat.schedule_worker_node_id == worker_id, LIVES)
    execute_later(connection, own.values(reason=STOPPED, modifier="worker", gmt_modified=UtcNow()), {})


def bury(
    connection: Connection, worker_ids: Collection[int], reason: str, by: str, culprits: list[int] | None = None
) -> int:
    """Mark workers dead whose processes are known to be gone; returns how many it marked.

    ``culprits``: the instances for which they were killed, which alone count a loss, even if the worker was stopping.
    None: unknown. It passes over those whose beats somebody has locked, and those that are dead already. Of the
    condemned it notes that they are gone.
    """
    ended = update(schedule_worker_beat).where(
        _beat.schedule_worker_node_id.in_(sorted(worker_ids)), ~LIVES, _beat.reason == CONDEMNED
    )
    said = {"reason": reason, "culprits": culprits, "modifier": by, "gmt_modified": UtcNow()}
    marked = _bury(connection, worker_ids, reason, by, culprits=culprits)
    return marked or connection.execute(ended.values(said)).rowcount


def condemn(connection: Connection, worker_ids: Collection[int], by: str) -> int:
    """Mark workers dead of which SQL says so; returns how many it marked. Their processes may still run."""
    return _bury(connection, worker_ids, CONDEMNED, by)


_may_run = select(and_(~LIVES, or_(_beat.reason.is_(None), _beat.reason == CONDEMNED), ~SILENT, ~AHEAD)).where(
    _beat.schedule_worker_node_id == bindparam("worker")
)


def may_still_run(connection: Connection, worker_id: int) -> bool | None:
    """Whether a dead worker's process may still run, because only SQL says that it is dead and its lease is not over.

    None: nobody knows, because its beat is gone.
    """
    said = connection.scalar(_may_run, {"worker": worker_id}, execution_options=CAUSALLY)
    return None if said is None else bool(said)


def bury_silent(connection: Connection, worker_ids: Collection[int], by: str) -> int:
    """Mark those of these workers dead that have been silent for longer than their liveness limits.

    The database's clock decides. A beat in the future counts as silence: the caller has seen that it stays the same for
    the limit. Returns how many it marked. A beat that somebody has locked is passed over: most
    likely the worker is beating.
    """
    return _bury(connection, worker_ids, "silent for longer than its liveness limit", by, or_(SILENT, AHEAD))


def _bury(
    connection: Connection, worker_ids: Collection[int], reason: str, by: str, *condition: Any, culprits: Any = None
) -> int:
    mortal = (_beat.schedule_worker_node_id.in_(sorted(worker_ids)), LIVES, *condition)
    dying = select(_beat.schedule_worker_node_id).where(*mortal).with_for_update(skip_locked=True)
    ids = sorted(read_before(connection, by_index(dying, schedule_worker_beat), {}).scalars()) if worker_ids else []
    if not ids:
        return 0
    is_known = reason == CONDEMNED or culprits is not None
    why = reason if is_known else func.coalesce(_beat.reason, reason)
    death = {"gmt_dead": UtcNow(), "reason": why, "culprits": culprits, "modifier": by, "gmt_modified": UtcNow()}
    bury = found_by(update(schedule_worker_beat)).where(_beat.schedule_worker_node_id.in_(ids), LIVES, *condition)
    buried = execute_later(connection, bury.values(death), {})
    execute_later(connection, text("COMMIT"), {})
    show(connection, ids, by)
    return buried.rows


_seen = json_rows("seen", id="id", beat="time", busy="int", state="str", dead="time", reason="str")
_dies = _seen.c.state.is_not(None)
_show = (
    update(schedule_worker_node)
    .where(_worker.id == _seen.c.id, SHOWN_ALIVE)
    .values(
        last_heartbeat=func.coalesce(_seen.c.beat, _worker.last_heartbeat),
        current_load=func.coalesce(_seen.c.busy, _worker.current_load),
        gmt_dead=case((_dies, func.coalesce(_seen.c.dead, UtcNow())), else_=_worker.gmt_dead),
        reason=func.coalesce(_seen.c.reason, _worker.reason),
        gmt_modified=case((_dies, UtcNow()), else_=_worker.gmt_modified),
        modifier=case((_dies, bindparam("by")), else_=_worker.modifier),
        state=func.coalesce(_seen.c.state, _worker.state),
    )
)


def show(connection: Connection, worker_ids: Collection[int], by: str) -> None:
    """Let the rows of these workers, unless they say dead already, show what their beats say.

    It passes over rows that somebody has locked; a later call shows them. A worker without a beat is dead.
    """
    shown = select(_worker.id).where(_worker.id.in_(sorted(worker_ids)), SHOWN_ALIVE).with_for_update(skip_locked=True)
    ids = sorted(read_before(connection, by_index(shown, schedule_worker_node), {}).scalars()) if worker_ids else []
    if not ids:
        return
    beats = select(
        _beat.schedule_worker_node_id, _beat.last_beat, _beat.busy,
        case((_beat.gmt_dead.is_not(None), WorkerState.DEAD.value)), _beat.gmt_dead, _beat.reason,
    ).where(_beat.schedule_worker_node_id.in_(ids))  # fmt: skip
    found = {row[0]: tuple(row) for row in read_before(connection, beats, {})}
    gone = (None, None, WorkerState.DEAD.value, None, "its heartbeats were deleted")
    rows = [found.get(worker_id, (worker_id, *gone)) for worker_id in ids]
    execute_later(connection, _show, {"rows": bound(rows), "by": by})
