"""The pause of all scheduling: while ``schedule_pause`` has a row, no new fire of any task begins.

The schedulers see it in what they read anyway (``is_paused``). Fires that are with workers already are put back, and
those of times to come are taken out again (``rewind``): so on resuming the misfire policies decide about all of them.

A scheduler that acts because of a pause relies on that it lasts (``rely_on``): its transaction locks the row that
``end`` deletes. So nothing that was written after the end is undone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, select, update

from rota.shared.database.constructs import found_by, read_by, unindexed
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.planning import PlannedTask
from rota.shared.domain.states import PLANNED_ORIGINS, InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store import fires, plans, unclaimed
from rota.shared.store.assignments import free_assigned
from rota.shared.store.plans import Advance
from rota.shared.store.tables import PRIORITIES, schedule_instance, schedule_pause
from rota.shared.store.transitions import giving

_pause = schedule_pause.c
_instance = schedule_instance.c

REASON = "all scheduling is paused"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause: its row's id, and since when (naive UTC)."""

    id: int
    since: datetime


_all = select(schedule_pause).where(_pause.is_deleted == 0).order_by(_pause.id)


def current(connection: Connection) -> list[Row[Any]]:
    """The rows of the present pause, the oldest first; none while scheduling goes on."""
    return list(read_before(connection, _all, {}))


def begin(connection: Connection, reason: str | None, by: str) -> int:
    """Pause all scheduling; returns the id of the row."""
    result = connection.execute(insert(schedule_pause).values(reason=reason, creator=by, modifier=by))
    return int(result.lastrowid)


def end(connection: Connection, ids: Collection[int]) -> None:
    """End the pause whose rows were read. The transaction raises Unexpected if they are not all there any more."""
    execute_later(connection, found_by(delete(schedule_pause).where(_pause.id.in_(sorted(ids)))), {}, expected=len(ids))


_keep = update(schedule_pause).where(_pause.id == bindparam("pause"), _pause.is_deleted == 0).values(is_deleted=0)


def rely_on(connection: Connection, pause: Pause) -> None:
    """Write nothing with this transaction, which raises Unexpected, if the pause has ended."""
    execute_later(connection, _keep, {"pause": pause.id}, expected=1)


_unbegun = and_(_instance.origin.in_([o.value for o in PLANNED_ORIGINS]), _instance.attempt == 0)
_with_workers = read_by(
    select(_instance.id).where(_instance.status == InstanceStatus.ASSIGNED.value, _unbegun).limit(bindparam("limit")),
    schedule_instance,
    "ix_schedule_instance_work",
)


def given(connection: Connection, limit: int) -> list[int]:
    """Fires that workers were given and have not claimed, at most ``limit``, but for those that somebody has locked."""
    return free_assigned(connection, connection.scalars(_with_workers, {"limit": limit}))


def take_back(connection: Connection, pause: Pause, instance_ids: Collection[int]) -> None:
    """Put fires that no worker has claimed back to pending, without their nodes: they are as fires that nobody got."""
    rely_on(connection, pause)
    giving.take_back_unclaimed(connection, instance_ids, REASON)
    fires.unpin(connection, instance_ids, attempt=0)


_ahead = (
    read_by(
        select(_instance.schedule_task_id).where(
            _instance.status == InstanceStatus.PENDING.value,
            _instance.schedule_worker_node_id.is_(None),
            _instance.priority.in_(PRIORITIES),
            _instance.due_at > bindparam("since"),
            _instance.due_at <= bindparam("until"),
            unclaimed.is_put_ahead(unindexed(_instance.status)),
            _instance.schedule_datetime > bindparam("since"),
        ),
        schedule_instance,
        "ix_schedule_instance_work",
    )
    .distinct()
    .limit(bindparam("limit"))
)


def ahead(connection: Connection, pause: Pause, within: timedelta, limit: int) -> list[int]:
    """Tasks of which fires for times after the pause began are written, and wait; at most ``limit``.

    Only fires due ``within`` so long after the pause began are looked for.
    """
    values = {"since": pause.since, "until": pause.since + within, "limit": limit}
    return sorted(connection.scalars(_ahead, values))


def rewind(connection: Connection, pause: Pause, tasks: Iterable[PlannedTask]) -> None:
    """Take the fires for times after the pause began out of the table, and set the plans back to the first of them.

    The caller holds the leases of the tasks, and their plans are not stale. What a worker has claimed stays.
    """
    by_id = {task.id: task for task in tasks}
    found = unclaimed.fires_ahead(connection, by_id, pause.since)
    first: dict[int, datetime] = {}
    for task_id, _, moment in found:
        if is_time(moment):
            first[task_id] = min(moment, first.get(task_id, moment))
    rely_on(connection, pause)
    unclaimed.drop(connection, [instance_id for _, instance_id, _ in found])
    plans.advance(connection, [Advance(by_id[task_id], moment) for task_id, moment in first.items()])
