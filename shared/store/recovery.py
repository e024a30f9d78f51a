"""Recovery: the scheduler decides about instances whose worker died while it ran them."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select

from rota.shared.database.constructs import among, by_index, unindexed
from rota.shared.database.later import read_before
from rota.shared.domain.states import CANCEL_LOST, FAIL_LOST, RECOVER, Move, WorkerLostPolicy
from rota.shared.store.tables import (
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.transitions import recovering
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.recovering import Verdict
from rota.shared.store.workers import STOPPED

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

POISON_AFTER_LOSSES = 3
"""An instance that has lost so many workers is not run again, because it may be what kills them."""


_running = and_(leaves(RECOVER), _instance.schedule_worker_node_id == bindparam("worker"))
_running_there = select(_instance.id).where(_running)
_judged = by_index(
    select(
        _instance.id, _instance.attempt, _instance.schedule_task_id, _instance.worker_losses,
        _instance.gmt_cancel_requested,
    )
    .where(
        among(_instance.id),
        leaves(RECOVER, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
    )
    .order_by(_instance.id),
    schedule_instance,
)  # fmt: skip
_judged_free = _judged.with_for_update(skip_locked=True)


def recover(connection: Connection, worker_id: int, limit: int) -> int:
    """Let at most ``limit`` instances of a dead worker run again, or end them, as their task says.

    Returns how many it decided; if that is ``limit``, there may be more. It decides by what it has read before. What
    another scheduler or a late report has changed meanwhile stays as it is. It passes over rows that somebody has
    locked: the others should not wait for them.
    """
    ids = sorted(read_before(connection, _running_there.limit(limit), {"worker": worker_id}).scalars())
    rows = list(read_before(connection, _judged_free, {"ids": ids, "worker": worker_id})) if ids else []
    if not rows:
        return 0
    name, end, culprits = _last_of(connection, worker_id)
    policies = _policies(connection, rows)
    waiting = _not_begun(connection, rows, policies)
    gone = f"worker {name!r} stopped" if end == STOPPED else f"worker {name!r} was lost"
    counted = () if end == STOPPED else ids if culprits is None else culprits
    verdicts = [
        _judge_waiting(row, f"{gone} before it began this")
        if row.id in waiting
        else _judge(row, policies.get(row.schedule_task_id), f"{gone} while it ran this", int(row.id in counted))
        for row in rows
    ]
    recovering.recover(connection, verdicts, worker_id, name, by="scheduler")
    return len(rows)


def _last_of(connection: Connection, worker_id: int) -> tuple[str, str | None, list[int] | None]:
    """The name of a dead worker, why it is dead, and the instances it was killed for, as far as the tables know."""
    found = (
        select(_worker.name, _beat.reason, _beat.culprits)
        .outerjoin_from(schedule_worker_node, schedule_worker_beat, _beat.schedule_worker_node_id == _worker.id)
        .where(_worker.id == worker_id)
    )
    for name, end, culprits in read_before(connection, found, {}):
        return name, end, culprits if isinstance(culprits, list) else None
    return f"#{worker_id}", None, None


def held(connection: Connection, worker_id: int) -> list[tuple[int, int, bool]]:
    """The instances that are ``running`` under a worker: (id, attempt, whether somebody asked to cancel it)."""
    statement = select(_instance.id, _instance.attempt, _instance.gmt_cancel_requested).where(
        leaves(RECOVER), _instance.schedule_worker_node_id == worker_id
    )
    return [(i, attempt, requested is not None) for i, attempt, requested in connection.execute(statement)]


def disown(connection: Connection, worker_id: int, held: Collection[tuple[int, int]], reason: str) -> set[int]:
    """Fail instances that a live worker holds but does not run, if they have begun and may run at most once.

    ``held`` has (instance id, attempt). Returns those that were to be ended: they may not run again. The worker gives
    the others to ``reports.hand_back``.
    """
    values = {"ids": sorted(instance_id for instance_id, _ in held), "worker": worker_id}
    rows = [row for row in read_before(connection, _judged, values) if (row.id, row.attempt) in held]
    policies = _policies(connection, rows)
    waiting = _not_begun(connection, rows, policies)
    at_most_once = [row for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL]
    verdicts = [_judge(row, WorkerLostPolicy.FAIL, reason) for row in at_most_once if row.id not in waiting]
    recovering.recover(connection, verdicts, worker_id, "", by="worker")
    return {verdict.id for verdict in verdicts}


def _policies(connection: Connection, rows: list[Any]) -> dict[int, str]:
    task_ids = sorted({row.schedule_task_id for row in rows})
    statement = select(_task.id, _task.on_worker_lost).where(_task.id.in_(task_ids))
    return dict(read_before(connection, statement, {}).all())


def _not_begun(connection: Connection, rows: list[Any], policies: Mapping[int, str]) -> set[int]:
    """Those of these runs that may run at most once and of which no handler was entered.

    Their claim left ``gmt_started`` of their nodes empty, and the worker enters no handler before it has committed the
    move "begin", which sets it. That move locks the instance, too, and ``recovering.recover`` looks again when it has
    the lock. So "begin" either comes before it, which then sees it, or finds the instance in another state and is
    refused.
    """
    ids = {row.id for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL}
    if not ids:
        return set()
    entered = select(_node.schedule_instance_id).where(
        _node.schedule_instance_id.in_(sorted(ids)), _node.gmt_started.is_not(None)
    )
    return ids - set(read_before(connection, entered, {}).scalars())


def _judge_waiting(row: Any, lost: str) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return _verdict(row, CANCEL_LOST, f"canceled; {lost}", 0, waits=True)
    return _verdict(row, RECOVER, f"{lost}; another worker runs it", 0, waits=True)


def _judge(row: Any, policy: str | None, lost: str, losses: int = 1) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return _verdict(row, CANCEL_LOST, f"canceled; {lost}", losses)
    if policy == WorkerLostPolicy.FAIL:
        return _verdict(row, FAIL_LOST, f"{lost}; its task says on_worker_lost = fail", losses)
    if row.worker_losses + losses >= POISON_AFTER_LOSSES:
        why = f"{lost}; it is the {POISON_AFTER_LOSSES}rd worker that this instance lost: poison"
        return _verdict(row, FAIL_LOST, why, losses)
    return _verdict(row, RECOVER, f"{lost}; it runs again", losses)


def _verdict(row: Any, move: Move, reason: str, losses: int, *, waits: bool = False) -> Verdict:
    requested = row.gmt_cancel_requested is not None
    return Verdict(row.id, row.attempt, move, reason, losses, is_cancel_requested=requested, waits=waits)
