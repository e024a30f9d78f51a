"""Recovery: the scheduler decides about instances whose worker died while it ran them."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, and_, select

from rota.shared.database.constructs import by_index
from rota.shared.domain.states import CANCEL_LOST, FAIL_LOST, RECOVER, WorkerLostPolicy
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


def recover(connection: Connection, worker_id: int, limit: int) -> int:
    """Let at most ``limit`` instances of a dead worker run again, or end them, as their task says.

    Returns how many it decided; if that is ``limit``, there may be more. It locks the rows before it decides, so two
    schedulers, or a scheduler and a late report, cannot both change an instance. It passes over rows that somebody
    else has locked: the others should not wait for them.
    """
    running_there = and_(leaves(RECOVER), _instance.schedule_worker_node_id == worker_id)
    ids = sorted(connection.scalars(select(_instance.id).where(running_there).limit(limit)))
    if not ids:
        return 0
    judged = (
        select(_instance.id, _instance.schedule_task_id, _instance.worker_losses, _instance.gmt_cancel_requested)
        .where(_instance.id.in_(ids), running_there)
        .order_by(_instance.id)
        .with_for_update(skip_locked=True)
    )
    rows: list[Any] = list(connection.execute(by_index(judged, schedule_instance)))
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
    recovering.recover(connection, verdicts, name, by="scheduler")
    return len(rows)


def _last_of(connection: Connection, worker_id: int) -> tuple[str, str | None, list[int] | None]:
    """The name of a dead worker, why it is dead, and the instances it was killed for, as far as the tables know."""
    found = (
        select(_worker.name, _beat.reason, _beat.culprits)
        .outerjoin_from(schedule_worker_node, schedule_worker_beat, _beat.schedule_worker_node_id == _worker.id)
        .where(_worker.id == worker_id)
    )
    for name, end, culprits in connection.execute(found):
        return name, end, culprits if isinstance(culprits, list) else None
    return f"#{worker_id}", None, None


def held(connection: Connection, worker_id: int) -> list[tuple[int, int, bool]]:
    """The instances that are ``running`` under a worker: (id, attempt, whether somebody asked to cancel it)."""
    statement = select(_instance.id, _instance.attempt, _instance.gmt_cancel_requested).where(
        leaves(RECOVER), _instance.schedule_worker_node_id == worker_id
    )
    return [(i, attempt, requested is not None) for i, attempt, requested in connection.execute(statement)]


def disown(connection: Connection, worker_id: int, held: Collection[tuple[int, int]], reason: str) -> int:
    """Fail instances that a live worker holds but does not run, if they have begun and may run at most once.

    ``held`` has (instance id, attempt). Returns how many it ended. The other instances may run again; the worker gives
    them to ``reports.hand_back``.
    """
    running_there = and_(leaves(RECOVER), _instance.schedule_worker_node_id == worker_id)
    judged = (
        select(
            _instance.id, _instance.attempt, _instance.schedule_task_id, _instance.worker_losses,
            _instance.gmt_cancel_requested,
        )
        .where(_instance.id.in_(sorted(instance_id for instance_id, _ in held)), running_there)
        .order_by(_instance.id)
        .with_for_update()
    )  # fmt: skip
    rows = [row for row in connection.execute(by_index(judged, schedule_instance)) if (row.id, row.attempt) in held]
    policies = _policies(connection, rows)
    waiting = _not_begun(connection, rows, policies)
    at_most_once = [row for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL]
    verdicts = [_judge(row, WorkerLostPolicy.FAIL, reason) for row in at_most_once if row.id not in waiting]
    recovering.recover(connection, verdicts, "", by="worker")
    return len(verdicts)


def _policies(connection: Connection, rows: list[Any]) -> dict[int, str]:
    task_ids = sorted({row.schedule_task_id for row in rows})
    statement = select(_task.id, _task.on_worker_lost).where(_task.id.in_(task_ids))
    return dict(connection.execute(statement).all())


def _not_begun(connection: Connection, rows: list[Any], policies: Mapping[int, str]) -> set[int]:
    """Those of these locked runs that may run at most once and of which provably no handler was entered.

    Their claim left ``gmt_started`` of their nodes empty, and the worker enters no handler before it has committed the
    move "begin", which sets it. That move locks the instance, too. So it either came before this transaction, which
    sees it, or it finds the instance in another state and is refused.
    """
    ids = {row.id for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL}
    if not ids:
        return set()
    entered = select(_node.schedule_instance_id).where(
        _node.schedule_instance_id.in_(sorted(ids)), _node.gmt_started.is_not(None)
    )
    return ids - set(connection.scalars(entered))


def _judge_waiting(row: Any, lost: str) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return Verdict(row.id, CANCEL_LOST, f"canceled; {lost}", losses=0)
    return Verdict(row.id, RECOVER, f"{lost}; another worker runs it", losses=0)


def _judge(row: Any, policy: str | None, lost: str, losses: int = 1) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return Verdict(row.id, CANCEL_LOST, f"canceled; {lost}", losses)
    if policy == WorkerLostPolicy.FAIL:
        return Verdict(row.id, FAIL_LOST, f"{lost}; its task says on_worker_lost = fail", losses)
    if row.worker_losses + losses >= POISON_AFTER_LOSSES:
        return Verdict(
            row.id, FAIL_LOST, f"{lost}; it is the {POISON_AFTER_LOSSES}rd worker that this instance lost: poison"
        )
    return Verdict(row.id, RECOVER, f"{lost}; it runs again", losses)
