"""A worker claims what follows a run of a task that runs one at a time, in the transaction that reports the run."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, exists, literal_column, not_, or_, select

from rota.shared.database.constructs import read_by
from rota.shared.database.later import Later, execute_later
from rota.shared.domain.states import OverlapPolicy
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance, schedule_task
from rota.shared.store.transitions.claiming import HAS_NO_LIMIT, START_NODES, START_NODES_TO_BEGIN, unread_claim

_instance = schedule_instance.c
_task = schedule_task.c
_holder = schedule_instance.alias("holder")
_older = schedule_instance.alias("older")

_runs_alone = or_(
    _task.overlap_policy == OverlapPolicy.QUEUE.value,
    and_(_task.overlap_policy == OverlapPolicy.ALLOW.value, _task.max_instances == 1),
)
_runs_in_another_slot = exists(
    read_by(select(_holder.c.id), _holder, "uq_schedule_instance_overlap_key").where(
        _holder.c.overlap_key.between(bindparam("second_key"), bindparam("last_key"))
    )
)
"""In one that the task has no more, since fewer may run at once than before. The first slot is not asked for: its key
is unique, so the UPDATE leaves the row out. (Were the keys those of the outer row, MariaDB would read the whole
index.)"""

_oldest = (
    read_by(select(_older.c.id), _older, "ix_schedule_instance_turn")
    .where(_older.c.turn_key == bindparam("task"), _older.c.due_at.is_not(None))
    .order_by(_older.c.due_at, _older.c.id)
    .limit(1)
    .scalar_subquery()
)
_claim_following = unread_claim(
    literal_column("0"),
    HAS_NO_LIMIT,
    _runs_alone,
    _instance.attempt == bindparam("attempt_read"),
    not_(_runs_in_another_slot),
    _oldest == _instance.id,
    _instance.schedule_task_id == bindparam("task"),
)


class Following(NamedTuple):
    """An instance of a task that runs one at a time, as it was read, with its first node that has not succeeded."""

    id: int
    attempt: int
    task: int
    node: int
    begins: bool
    """Whether it is to be committed apart that its first handler begins: it may run at most once."""


def claim_following(connection: Connection, worker_id: int, following: Iterable[Following]) -> list[Later]:
    """Claim instances of tasks that run one at a time, and start their first nodes.

    Each is claimed if nothing of its task runs, as this transaction has left it, and nothing older of it waits. Those
    that somebody has locked are passed over; the transaction waits only for a lock on a node, and for one on a run that
    has the first slot while the one that ended had another. The results tell how many nodes were started: where it is
    one, the instance was won.
    """
    started: list[Later] = []
    for one in following:
        first_key = one.task * OVERLAP_SLOTS
        claim = {"ids": [one.id], "attempt_read": one.attempt, "worker": worker_id, "ahead": 0.0, "task": one.task}
        keys = {"second_key": first_key + 1, "last_key": first_key + OVERLAP_SLOTS - 1}
        execute_later(connection, _claim_following, {**claim, **keys})
        start = START_NODES_TO_BEGIN if one.begins else START_NODES
        started.append(execute_later(connection, start, {"nodes": [one.node], "worker": worker_id}))
    return started
