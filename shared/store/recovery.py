"""Recovery: the scheduler decides about instances whose worker died while it ran them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select

from rota.shared.database.constructs import UtcNow, among, by_index, unindexed, written
from rota.shared.database.later import read_before
from rota.shared.domain import lingering
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import CANCEL_LOST, CLEAN_UP, FAIL_LOST, RECOVER, Move, NodeStatus, WorkerLostPolicy
from rota.shared.domain.times import is_time
from rota.shared.store import cleanups
from rota.shared.store.cleanups import Cleanup
from rota.shared.store.failed_attempts import attempt_end
from rota.shared.store.tables import (
    owns_node,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.transitions import recovering, reporting
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.recovering import LOSSES, Verdict
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
        _instance.id, _instance.attempt, _instance.schedule_task_id, LOSSES.label("worker_losses"),
        _instance.gmt_cancel_requested, _instance.reason, UtcNow().label("time"),
    )
    .where(
        among(_instance.id),
        leaves(RECOVER, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
    )
    .order_by(_instance.id),
    schedule_instance,
)  # fmt: skip

_ran = _node.status == NodeStatus.RUNNING.value
_entered = by_index(
    select(_instance.id, _node.id, _node.gmt_started)
    .join_from(schedule_instance, schedule_task_node, owns_node)
    .where(among(_instance.id), _ran, _node.gmt_started.is_not(None)),
    schedule_instance,
)


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that does not run its instances any more, the reason as a sentence, and what it has entered of them."""

    worker_id: int
    words: str
    entered: Mapping[int, tuple[int, datetime]]
    """The node that ran, or the first of several, and when it began, by instance: of each whose present handler was
    entered."""

    def attempt_end(self, row: Any, reason: str) -> str:
        """How the attempt failed, for the column ``failed_attempts``."""
        node_id, started = self.entered.get(row.id) or (None, None)
        return attempt_end(
            json_text({"error": self.words}),
            attempt=row.attempt,
            worker_id=self.worker_id,
            node_id=node_id,
            gmt_started=written(started) if is_time(started) else None,
            gmt_completed=written(row.time),
            reason=reason,
        )


def recover(connection: Connection, worker_id: int, limit: int) -> int:
    """Let at most ``limit`` instances of a dead worker run again, or end them, as their task says.

    Returns how many it decided; if that is ``limit``, there may be more. It decides by what it has read before. What
    another scheduler or a late report has changed meanwhile stays as it is. It passes over what somebody has locked,
    instances and nodes: the others should not wait for them.
    """
    ids = sorted(read_before(connection, _running_there.limit(limit), {"worker": worker_id}).scalars())
    if not ids:
        return 0
    locked = reporting.locked(connection, ids)
    rows = [r for r in read_before(connection, _judged, {"ids": ids, "worker": worker_id}) if r.id not in locked]
    if not rows:
        return 0
    name, end, culprits = _last_of(connection, worker_id)
    policies = _policies(connection, rows)
    gone = f"worker {name!r} stopped" if end == STOPPED else f"worker {name!r} was lost"
    loss = Loss(worker_id, f"{gone} while it ran this", _entered_of(connection, rows))
    waiting = _not_begun(rows, policies, loss)
    counted = () if end == STOPPED else ids if culprits is None else culprits
    verdicts = [
        _judge_waiting(row, f"{gone} before it began this")
        if row.id in waiting
        else _judge(row, policies.get(row.schedule_task_id), loss, int(row.id in counted))
        for row in rows
    ]
    verdicts = _with_cleanups(connection, verdicts, rows, policies)
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


_why_canceled_there = by_index(
    select(_instance.id, _instance.reason).where(
        among(_instance.id), leaves(RECOVER, unindexed(_instance.status)), _instance.gmt_cancel_requested.is_not(None)
    ),
    schedule_instance,
)


def why_canceled(connection: Connection, instance_ids: Collection[int]) -> dict[int, str]:
    """Why somebody asked to cancel each of these instances, which run, as far as he has said so."""
    found = connection.execute(_why_canceled_there, {"ids": sorted(instance_ids)})
    return {
        number: lingering.why(reason)
        for number, reason in found
        if reason is not None and (lingering.has_ended(reason) or not lingering.waits(reason))
    }


def disown(connection: Connection, worker_id: int, held: Collection[tuple[int, int]], reason: str) -> set[int]:
    """Fail instances that a live worker holds but does not run, if they have begun and may run at most once.

    ``held`` has (instance id, attempt). Returns those that were to be ended: they may not run again. The worker gives
    the others to ``reports.hand_back``.
    """
    values = {"ids": sorted(instance_id for instance_id, _ in held), "worker": worker_id}
    rows = [row for row in read_before(connection, _judged, values) if (row.id, row.attempt) in held]
    policies = _policies(connection, rows)
    at_most_once = [row for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL]
    loss = Loss(worker_id, reason, _entered_of(connection, at_most_once))
    waiting = _not_begun(at_most_once, policies, loss)
    verdicts = [_judge(row, WorkerLostPolicy.FAIL, loss) for row in at_most_once if row.id not in waiting]
    verdicts = _with_cleanups(connection, verdicts, rows, policies)
    recovering.recover(connection, verdicts, worker_id, "", by="worker")
    return {verdict.id for verdict in verdicts}


def _policies(connection: Connection, rows: list[Any]) -> dict[int, str]:
    task_ids = sorted({row.schedule_task_id for row in rows})
    statement = select(_task.id, _task.on_worker_lost).where(_task.id.in_(task_ids))
    return dict(read_before(connection, statement, {}).all())


def _entered_of(connection: Connection, rows: list[Any]) -> dict[int, tuple[int, datetime]]:
    found = read_before(connection, _entered, {"ids": [row.id for row in rows]}) if rows else ()
    ran = sorted((tuple(row) for row in found), reverse=True)  # the first node of each comes last, and stays
    return {instance_id: (node_id, started) for instance_id, node_id, started in ran}


def _not_begun(rows: list[Any], policies: Mapping[int, str], loss: Loss) -> set[int]:
    """Those of these runs that may run at most once and whose present node's handler was not entered.

    Their claim left ``gmt_started`` of that node empty, and the worker enters no handler before it has committed the
    move "begin", which sets it. That move locks the instance, too, and ``recovering.recover`` looks again when it has
    the lock. So "begin" either comes before it, which then sees it, or finds the instance in another state and is
    refused.
    """
    may_run_once = {row.id for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL}
    return may_run_once - loss.entered.keys()


def _judge_waiting(row: Any, lost: str) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return _verdict(row, CANCEL_LOST, f"{_why_canceled(row)}; {lost}", 0, waits=True)
    return _verdict(row, RECOVER, f"{lost}; another worker runs it", 0, waits=True)


def _judge(row: Any, policy: str | None, loss: Loss, losses: int = 1) -> Verdict:
    if row.gmt_cancel_requested is not None:
        return _verdict(row, CANCEL_LOST, f"{_why_canceled(row)}; {loss.words}", losses)
    move, why = FAIL_LOST, f"{loss.words}; its task says on_worker_lost = fail"
    if lingering.has_ended(row.reason):
        why = f"{lingering.why(row.reason)}; {loss.words}"
    elif policy != WorkerLostPolicy.FAIL:
        is_poison = row.worker_losses + losses >= POISON_AFTER_LOSSES
        poison = f"it is the {POISON_AFTER_LOSSES}rd worker that this instance lost: poison"
        move, why = (FAIL_LOST, f"{loss.words}; {poison}") if is_poison else (RECOVER, f"{loss.words}; it runs again")
    return replace(_verdict(row, move, why, losses), attempt_end=loss.attempt_end(row, why))


def _why_canceled(row: Any) -> str:
    return "canceled" if row.reason is None else lingering.why(row.reason)


def _with_cleanups(
    connection: Connection, verdicts: list[Verdict], rows: Sequence[Any], policies: Mapping[int, str]
) -> list[Verdict]:
    """The verdicts; but what would end, and has nodes left that run always, is given to another worker for these.

    A first attempt that waits has entered no handler: it has nothing to clean up.
    """
    ends = [v.id for v in verdicts if v.move in (FAIL_LOST, CANCEL_LOST) and (v.attempt > 1 or not v.waits)]
    found = cleanups.of_runs(connection, ends)
    read = {row.id: row for row in rows}
    return [_with_cleanup(v, found[v.id], read[v.id], policies) if v.id in found else v for v in verdicts]


def _with_cleanup(verdict: Verdict, cleanup: Cleanup, row: Any, policies: Mapping[int, str]) -> Verdict:
    if verdict.waits:  # the next claim carries the cancel out: it sees that no handler of the present node was entered
        return replace(verdict, move=RECOVER)
    is_poison = row.worker_losses + verdict.losses >= POISON_AFTER_LOSSES
    has_ended = lingering.has_ended(row.reason)  # what ran has, too
    may_rerun = policies.get(row.schedule_task_id) != WorkerLostPolicy.FAIL and not is_poison and not has_ended
    runs_again = may_rerun and cleanup.outlives_cancel and verdict.move is CANCEL_LOST
    ended = cleanup.to_cancel if runs_again else cleanup.ended
    if (cleanup.had_ended and may_rerun) or not ended:  # nothing is left to cancel
        return replace(verdict, move=RECOVER, reason=f"{verdict.reason}; its nodes that run always go on elsewhere")
    if not cleanup.left and not runs_again:
        return verdict
    return replace(verdict, move=CLEAN_UP, ended=ended, runs_again=runs_again)


def _verdict(row: Any, move: Move, reason: str, losses: int, *, waits: bool = False) -> Verdict:
    requested = row.gmt_cancel_requested is not None
    return Verdict(row.id, row.attempt, move, reason, losses, is_cancel_requested=requested, waits=waits)
