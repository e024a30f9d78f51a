"""Overlap: what of one task may run at once, decided by a unique key, and what becomes of those that may not.

``overlap_key`` is the task's id times ``OVERLAP_SLOTS``, plus a slot, while an instance runs, and NULL otherwise; it is
unique, so two workers cannot both take a slot (docs/decisions/0006-overlap-at-the-claim.md).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, exists, or_, select, update

from shared.domain.states import PLANNED_ORIGINS, InstanceStatus, NodeStatus, OverlapPolicy, TaskStatus
from shared.store.dialects import UtcNow, bound, by_index, json_rows
from shared.store.tables import OVERLAP_SLOTS, schedule_instance, schedule_task, schedule_task_node

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c


class Contender(Protocol):
    """An assigned instance, as overlap sees it."""

    id: int
    schedule_task_id: int
    schedule_datetime: datetime
    due_at: datetime

    @property
    def origin(self) -> str:
        """What asked for it."""
        ...

    @property
    def attempt(self) -> int:
        """How often it was claimed before."""
        ...

    @property
    def overlap_policy(self) -> str:
        """Its task's."""
        ...

    @property
    def max_instances(self) -> int | None:
        """Its task's."""
        ...


REPORTED_WITHIN = timedelta(seconds=1)
"""How long a fire that is to be skipped waits to be sure: its predecessor may have ended and not be reported yet."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Whether a fire is to be skipped for a run that stands ``running``: its report is waited for until then."""

    holder_id: int
    until: datetime


Waiting = tuple[int, datetime, int | None]
"""An instance that is to be tried again: its id, its due time, and the id of the run that it may be skipped for."""

ASSIGNED, RUNNING = InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value


def slots_waited_for(policy: str | None, max_instances: int | None) -> int | None:
    """How many fires of a task may run at once, if one that finds no slot free waits for it; None: it does not wait.

    ``max_instances`` counts with ``allow`` alone, whatever SQL has left there.
    """
    if policy == OverlapPolicy.ALLOW:
        return max_instances
    return 1 if policy == OverlapPolicy.QUEUE else None


def full(connection: Connection, slots: Mapping[int, int]) -> set[int]:
    """Of these tasks (id: how many of its instances may run at once), those whose overlap slots are all taken."""
    if not slots:
        return set()
    ranges = (
        _instance.overlap_key.between(task * OVERLAP_SLOTS, task * OVERLAP_SLOTS + slots[task] - 1)
        for task in sorted(slots)
    )
    taken = Counter(
        key // OVERLAP_SLOTS for key in connection.scalars(select(_instance.overlap_key).where(or_(*ranges)))
    )
    return {task for task, count in taken.items() if count >= slots[task]}


def in_turn(slots: int) -> str:
    """Why an instance waits for others of its task; the same for all that wait, so that it is written once."""
    return "waits for its turn: its task " + ("runs one at a time" if slots == 1 else f"runs {slots} at once")


def free_slots(connection: Connection, rows: Sequence[Contender]) -> list[tuple[int, int | None]]:
    """The overlap slot each instance is to run in: (id, slot); without those that find no slot free."""
    limited = {
        row.schedule_task_id
        for row in rows
        if row.overlap_policy == OverlapPolicy.ALLOW and row.max_instances is not None
    }
    taken = _taken(connection, limited) if limited else {}
    slots: list[tuple[int, int | None]] = []
    for row in rows:
        if row.overlap_policy != OverlapPolicy.ALLOW:
            slots.append((row.id, 0))
        elif row.max_instances is None:
            slots.append((row.id, None))
        else:
            used = taken.setdefault(row.schedule_task_id, set())
            free = next((slot for slot in range(row.max_instances) if slot not in used), None)
            if free is not None:
                used.add(free)
                slots.append((row.id, free))
    return slots


def _taken(connection: Connection, task_ids: Collection[int]) -> dict[int, set[int]]:
    of_tasks = or_(
        *(_instance.overlap_key.between(t * OVERLAP_SLOTS, (t + 1) * OVERLAP_SLOTS - 1) for t in sorted(task_ids))
    )
    taken: dict[int, set[int]] = {}
    for key in connection.scalars(select(_instance.overlap_key).where(of_tasks)):
        taken.setdefault(key // OVERLAP_SLOTS, set()).add(key % OVERLAP_SLOTS)
    return taken


_settled = json_rows("settled", id="id", reason="str")

_cancel_settled = (
    update(schedule_instance)
    .where(
        _instance.id == _settled.c.id,
        _instance.status == ASSIGNED,
        _instance.schedule_worker_node_id == bindparam("worker"),
    )
    .values(
        status=InstanceStatus.CANCELED.value,
        reason=_settled.c.reason,
        gmt_completed=UtcNow(),
        gmt_modified=UtcNow(),
        modifier="worker",
    )
)


_cancel_nodes = (
    update(schedule_task_node)
    .where(
        _node.schedule_instance_id.in_(bindparam("ids", expanding=True)),
        _node.status == NodeStatus.PENDING.value,
        exists(
            by_index(
                select(_instance.id).where(
                    _instance.id == _node.schedule_instance_id, _instance.status == InstanceStatus.CANCELED.value
                ),
                schedule_instance,
            )
        ),
    )
    .values(status=NodeStatus.CANCELED.value)
)


def skip_overrun(
    connection: Connection, worker_id: int, rows: Sequence[Contender], doubts: Mapping[int, Doubt]
) -> set[int]:
    """Skip those of these fires that were due while their predecessor ran, which has ended since; returns their ids."""
    doubtful = [(row, doubts[row.id].holder_id) for row in rows if row.id in doubts and _skips(row)]
    if not doubtful:
        return set()
    ended = select(_instance.id, _instance.gmt_started, _instance.gmt_completed).where(
        _instance.id.in_(sorted({holder_id for _, holder_id in doubtful})),
        _instance.gmt_started.is_not(None),
        _instance.gmt_completed.is_not(None),
    )
    spans = {holder_id: (start, end) for holder_id, start, end in connection.execute(ended)}
    overrun = [
        (row.id, _skipped_for(holder_id))
        for row, holder_id in doubtful
        if holder_id in spans and spans[holder_id][0] < row.due_at < spans[holder_id][1]
    ]
    if overrun:
        _cancel(connection, worker_id, overrun)
    return {instance_id for instance_id, _ in overrun}


def settle(
    connection: Connection, worker_id: int, lost: Sequence[Contender], now: datetime, doubts: Mapping[int, Doubt]
) -> list[Waiting]:
    """Decide about assigned instances that a claim did not win; returns those that are to be tried again."""
    states = {
        instance_id: (unwanted, deleted, status)
        for instance_id, unwanted, deleted, status in connection.execute(
            select(_instance.id, _instance.gmt_cancel_requested, _task.is_deleted, _task.status)
            .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
            .where(
                _instance.id.in_([row.id for row in lost]),
                _instance.schedule_worker_node_id == worker_id,
                _instance.status == ASSIGNED,
            )
        )
    }
    holders = _holders(connection, lost)
    canceled: list[tuple[int, str]] = []
    replaced: set[int] = set()
    waiting: list[Waiting] = []
    for row in (row for row in lost if row.id in states):
        unwanted, deleted, status = states[row.id]
        before = holders.get(row.schedule_task_id, [])
        if unwanted:
            canceled.append((row.id, "canceled before it started"))
        elif deleted:
            canceled.append((row.id, "its task was deleted"))
        elif status == TaskStatus.OFF and row.origin in PLANNED_ORIGINS:
            canceled.append((row.id, "its task was off when it was due"))
        elif (holder_id := _ran_when_due(row, before, now)) is not None and _is_sure(row, now, doubts):
            canceled.append((row.id, _skipped_for(holder_id)))
        else:
            waiting.append((row.id, row.due_at, holder_id))
            if row.due_at <= now and _replaces(row):
                replaced.update(holder.id for holder in before if holder.schedule_datetime < row.schedule_datetime)
    if canceled:
        _cancel(connection, worker_id, canceled)
    if replaced:
        request_cancel(connection, replaced, "replaced by its task's next fire")
    return waiting


def _cancel(connection: Connection, worker_id: int, reasons: Sequence[tuple[int, str]]) -> None:
    connection.execute(_cancel_settled, {"rows": bound(reasons), "worker": worker_id})
    connection.execute(_cancel_nodes, {"ids": [instance_id for instance_id, _ in reasons]})


def _ran_when_due(row: Contender, before: Sequence[Any], now: datetime) -> int | None:
    """The id of the run that a fire is to be skipped for, if that has not ended yet; None: there is none."""
    if row.due_at > now or not _skips(row):
        return None
    return next((holder.id for holder in before if holder.gmt_started < row.due_at), None)


def _is_sure(row: Contender, now: datetime, doubts: Mapping[int, Doubt]) -> bool:
    return row.id in doubts and doubts[row.id].until <= now


def _skipped_for(holder_id: int) -> str:
    return f"overlap: instance {holder_id} still ran when it was due"


def _skips(row: Contender) -> bool:
    """Only a fire is skipped, and only for a run that was under way when it was due.

    What somebody asked for, what has begun already, and what merely came late together with its predecessor waits.
    """
    return row.overlap_policy == OverlapPolicy.SKIP and _is_new_fire(row)


def _replaces(row: Contender) -> bool:
    """Only a fire replaces, and only runs for times before its own: what is older or begun must not cancel the new."""
    return row.overlap_policy == OverlapPolicy.REPLACE and _is_new_fire(row)


def _is_new_fire(row: Contender) -> bool:
    return row.origin in PLANNED_ORIGINS and row.attempt == 0


def _holders(connection: Connection, rows: Sequence[Contender]) -> dict[int, list[Any]]:
    """What runs of each task that one slot bounds."""
    keys = {row.schedule_task_id * OVERLAP_SLOTS for row in rows}
    holders: dict[int, list[Any]] = {}
    statement = select(
        _instance.id, _instance.schedule_task_id, _instance.schedule_datetime, _instance.gmt_started
    ).where(_instance.overlap_key.in_(sorted(keys)))
    for holder in connection.execute(statement):
        holders.setdefault(holder.schedule_task_id, []).append(holder)
    return holders


def request_cancel(connection: Connection, instance_ids: Collection[int], reason: str) -> int:
    """Ask the workers that run these instances to stop them; returns how many are asked that were not."""
    return connection.execute(
        update(schedule_instance)
        .where(
            _instance.id.in_(sorted(instance_ids)),
            _instance.status == RUNNING,
            _instance.gmt_cancel_requested.is_(None),
        )
        .values(gmt_cancel_requested=UtcNow(), reason=reason)
    ).rowcount
