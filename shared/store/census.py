"""The census: one snapshot of who lives, who is silent, who holds instances, and whose row shows what is not so."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, case, literal_column, null, or_, select, union_all

from rota.shared.database.causal import CAUSALLY
from rota.shared.database.constructs import SecondsBefore, UtcNow, among, bound, json_rows, read_by
from rota.shared.domain.spreading import ITS_SHARDS
from rota.shared.domain.states import WorkerState
from rota.shared.store.tables import (
    schedule_instance,
    schedule_kept_slot,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.workers import ACTIVE, AHEAD, LIVES, OF_ITS_WORKER, SHOWN_ALIVE, SILENT

_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

SHOWN_SECONDS = 5
"""A worker's row should show a beat that is at most so many seconds older than its newest."""


UNREADABLE_LIMIT_SECONDS = 12
"""The liveness limit that counts in place of one that is no number."""

MOST_KNOWN = 999
"""MariaDB and MySQL make no ranges of a NOT IN with more than 1,000 values."""


@dataclass(frozen=True, slots=True)
class Census:
    """One snapshot of the workers."""

    alive: dict[int, str]
    """The states of the workers that live and whose rows say so, by id."""

    condemned: set[int]
    """The ids of those that beat, but whose rows are gone or say dead: somebody wants them dead."""

    unshown: set[int]
    """The ids of those whose rows do not show what their beats say: death, or a beat of ``SHOWN_SECONDS`` ago."""

    silent: dict[int, int]
    """The liveness limits in seconds of those that have been silent for longer, or whose beat is ``ahead``, by id."""

    ahead: dict[int, datetime]
    """The beats that are in the future, by id."""

    beats: dict[int, datetime]
    """The last beats of those that live, by id: naive UTC, by the clock of the server that wrote each."""

    holders: set[int]
    """The ids of all workers that hold an instance, or an overlap slot of one that has ended; dead ones included."""

    time: datetime
    """The database's time of the snapshot, naive UTC."""

    @property
    def known(self) -> set[int]:
        """The ids that the next snapshot need not look for: of all who live or hold something."""
        return {*self.alive, *self.condemned, *self.holders}


_YES: ColumnElement[int] = literal_column("1")
_moment = select(UtcNow().label("time")).subquery("moment")
_known = json_rows("known", id="id")
_holder = schedule_instance.c.schedule_worker_node_id
_of_others = read_by(
    select(schedule_instance.c.status, _holder)
    .where(schedule_instance.c.status.in_(ACTIVE), _holder > literal_column(str(ITS_SHARDS)), ~among(_holder, "known"))
    .distinct(),
    schedule_instance,
    "ix_schedule_instance_work",
).subquery("of_others")


def _held_by_known(status: str) -> ColumnElement[bool]:
    """Whether a worker that is known holds something in this state: it reads one entry of the index of work."""
    held = schedule_instance.alias(f"is_{status}")
    of_worker = (held.c.status == status, held.c.schedule_worker_node_id == _known.c.id)
    found = read_by(select(held.c.id).where(*of_worker), held, "ix_schedule_instance_work").limit(literal_column("1"))
    is_there: ColumnElement[bool] = found.correlate(_known).scalar_subquery().is_not(None)
    return is_there


_unshown = or_(
    _worker.last_heartbeat < SecondsBefore(_beat.last_beat, SHOWN_SECONDS), _worker.last_heartbeat > _beat.last_beat
)
_limit_of_silent = case((or_(SILENT, AHEAD), _beat.liveness_seconds))
_census = union_all(
    select(
        _moment.c.time, _worker.id, _worker.state,
        case((and_(_beat.last_beat.is_not(None), LIVES), _YES)).label("lives"),
        _limit_of_silent.label("patience"), case((_unshown, _YES)).label("unshown"), _beat.last_beat.label("beat"),
        case((AHEAD, _YES)).label("is_ahead"),
    ).select_from(
        _moment.outerjoin(schedule_worker_node, SHOWN_ALIVE).outerjoin(schedule_worker_beat, OF_ITS_WORKER)
    ),
    select(null(), _beat.schedule_worker_node_id, null(), _YES, _limit_of_silent, null(), _beat.last_beat,
        case((AHEAD, _YES)))
    .outerjoin_from(schedule_worker_beat, schedule_worker_node, OF_ITS_WORKER)
    .where(LIVES, or_(_worker.id.is_(None), _worker.state == WorkerState.DEAD.value)),
    select(null(), _known.c.id, null(), null(), null(), null(), null(), null()).where(
        or_(*map(_held_by_known, ACTIVE))
    ),
    select(null(), _of_others.c.schedule_worker_node_id, null(), null(), null(), null(), null(), null()),
    select(null(), schedule_kept_slot.c.schedule_worker_node_id, null(), null(), null(), null(), null(), null()),
)  # fmt: skip
"""The first part selects the workers whose rows do not say dead, each with the time, or the time alone if there is
none. The second selects those that beat although their rows say dead, or are gone. The others select the holders: first
those that are known, each by one look into the index; then all others, in the ranges of the index that are left. It is
one snapshot: a holder that is listed in neither of the first two was already dead."""


def take(connection: Connection, known: Collection[int] = ()) -> Census:
    """Take one snapshot: which workers are alive, which are silent, which hold instances, and the time.

    ``known``: the workers of which much of what they hold is not to be read: those of the last snapshot. Whoever is not
    among them is found all the same. On a cluster it waits for what was committed elsewhere before: by a stale beat a
    worker that lives looks silent.
    """
    ids = sorted(known)[:MOST_KNOWN]
    values = {"rows": bound((worker_id,) for worker_id in ids), "known": [0, *ids]}
    rows = connection.execute(_census, values, execution_options=CAUSALLY).all()
    shown = [row for row in rows if row.time is not None and row.id is not None]
    living = [row for row in shown if row.lives]
    condemned = [row for row in rows if row.time is None and row.lives]
    return Census(
        alive={row.id: row.state for row in living},
        condemned={row.id for row in condemned},
        unshown={row.id for row in shown if row.unshown or not row.lives},
        ahead={row.id: row.beat for row in (*living, *condemned) if row.is_ahead},
        beats={row.id: row.beat for row in (*living, *condemned)},
        silent={row.id: _limit(row.patience) for row in (*living, *condemned) if row.patience is not None},
        holders={row.id for row in rows if row.time is None and not row.lives and row.id > 0},
        time=next(row.time for row in rows if row.time is not None),
    )


def _limit(patience: int) -> int:
    """A liveness limit in seconds. SQL may have written 0, or a text in SQLite, which is read as 0."""
    return patience if patience > 0 else UNREADABLE_LIMIT_SECONDS


def stalled(connection: Connection, worker_ids: Collection[int], since: datetime) -> dict[int, str]:
    """Those of these workers that have started nothing since a moment (naive UTC), as far as they said: ids, names."""
    makes_none = or_(_beat.gmt_progress.is_(None), _beat.gmt_progress < since)
    found = select(_worker.id, _worker.name).join_from(schedule_worker_node, schedule_worker_beat, OF_ITS_WORKER)
    return dict(connection.execute(found.where(_worker.id.in_(sorted(worker_ids)), makes_none)).all())
