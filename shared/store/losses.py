"""Recovery: what becomes of instances whose worker died while it ran them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, literal_column, select, update

from shared.domain.jsontext import json_text
from shared.domain.states import InstanceStatus, NodeStatus, WorkerLostPolicy
from shared.store.dialects import UtcNow, bound, by_index, json_rows
from shared.store.tables import schedule_instance, schedule_task, schedule_task_node, schedule_worker_node

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_worker = schedule_worker_node.c

POISON_AFTER_LOSSES = 3
"""An instance that has cost this many workers their lives is not run again."""

_lost = json_rows("lost", id="id", status="str", reason="str", result="json")
_ended = _lost.c.status != literal_column(f"'{InstanceStatus.PENDING.value}'")

_recover = (
    update(schedule_instance)
    .where(_instance.id == _lost.c.id, _instance.status == InstanceStatus.RUNNING.value)
    .values(
        status=_lost.c.status,
        schedule_worker_node_id=case((_ended, _instance.schedule_worker_node_id)),
        gmt_assigned=case((_ended, _instance.gmt_assigned)),
        gmt_started=case((_ended, _instance.gmt_started)),
        gmt_completed=case((_ended, UtcNow())),
        worker_losses=_instance.worker_losses + 1,
        lost_by=case((_ended, _instance.lost_by), else_=bindparam("worker")),
        reason=_lost.c.reason,
        execution_result=_lost.c.result,
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)


@dataclass(frozen=True, slots=True)
class _Verdict:
    id: int
    status: InstanceStatus
    reason: str


def recover(connection: Connection, worker_id: int, limit: int) -> int:
    """Take what a worker that is not alive was running: to run again, or ended as its task says.

    At most ``limit``, which is how many were found when there may be more. The rows are locked in the order of their
    ids before they are judged, so that of two schedulers, or of this and a late report, one does it.
    """
    mine = and_(_instance.status == InstanceStatus.RUNNING.value, _instance.schedule_worker_node_id == worker_id)
    ids = sorted(connection.scalars(select(_instance.id).where(mine).limit(limit)))
    if not ids:
        return 0
    judged = (
        select(_instance.id, _instance.schedule_task_id, _instance.worker_losses, _instance.gmt_cancel_requested)
        .where(_instance.id.in_(ids), mine)
        .order_by(_instance.id)
        .with_for_update()
    )
    rows: list[Any] = list(connection.execute(by_index(judged, schedule_instance)))
    name = connection.scalar(select(_worker.name).where(_worker.id == worker_id)) or f"#{worker_id}"
    policies = _policies(connection, rows)
    lost = f"worker {name!r} was lost while it ran this"
    verdicts = [_judge(row, policies.get(row.schedule_task_id), lost) for row in rows]
    _write(connection, verdicts, name, by="scheduler")
    return len(ids)


def disown(connection: Connection, worker_id: int, held: Collection[tuple[int, int]], reason: str) -> int:
    """End what a live worker holds and does not run, where its task says so: (instance id, attempt); returns how many.

    The rest may run again: it is for ``reports.hand_back``.
    """
    mine = and_(_instance.status == InstanceStatus.RUNNING.value, _instance.schedule_worker_node_id == worker_id)
    judged = (
        select(
            _instance.id, _instance.attempt, _instance.schedule_task_id, _instance.worker_losses,
            _instance.gmt_cancel_requested,
        )
        .where(_instance.id.in_(sorted(instance_id for instance_id, _ in held)), mine)
        .order_by(_instance.id)
        .with_for_update()
    )  # fmt: skip
    rows = [row for row in connection.execute(by_index(judged, schedule_instance)) if (row.id, row.attempt) in held]
    policies = _policies(connection, rows)
    once = [row for row in rows if policies.get(row.schedule_task_id) == WorkerLostPolicy.FAIL]
    _write(connection, [_judge(row, WorkerLostPolicy.FAIL, reason) for row in once], "", by="worker")
    return len(once)


def _policies(connection: Connection, rows: list[Any]) -> dict[int, str]:
    task_ids = sorted({row.schedule_task_id for row in rows})
    statement = select(_task.id, _task.on_worker_lost).where(_task.id.in_(task_ids))
    return dict(connection.execute(statement).all())


def _judge(row: Any, policy: str | None, lost: str) -> _Verdict:
    if row.gmt_cancel_requested is not None:
        return _Verdict(row.id, InstanceStatus.CANCELED, f"canceled; {lost}")
    if policy == WorkerLostPolicy.FAIL:
        return _Verdict(row.id, InstanceStatus.FAILED, f"{lost}; its task says on_worker_lost = fail")
    if row.worker_losses + 1 >= POISON_AFTER_LOSSES:
        return _Verdict(row.id, InstanceStatus.FAILED, f"{lost}, the {POISON_AFTER_LOSSES}rd to be lost: poison")
    return _Verdict(row.id, InstanceStatus.PENDING, f"{lost}; it runs again")


def _write(connection: Connection, verdicts: list[_Verdict], worker: str, by: str) -> None:
    if not verdicts:
        return
    rows = [
        (v.id, v.status.value, v.reason, None if v.status is InstanceStatus.PENDING else json_text({"error": v.reason}))
        for v in verdicts
    ]
    connection.execute(_recover, {"rows": bound(rows), "worker": worker, "by": by})
    again = [v.id for v in verdicts if v.status is InstanceStatus.PENDING]
    ended = [v.id for v in verdicts if v.status is not InstanceStatus.PENDING]
    if again:
        connection.execute(
            update(schedule_task_node)
            .where(_node.schedule_instance_id.in_(again), _node.status == NodeStatus.RUNNING.value)
            .values(status=NodeStatus.PENDING.value, gmt_started=None)
        )
    if ended:
        running = _node.status == NodeStatus.RUNNING.value
        connection.execute(
            update(schedule_task_node)
            .where(
                _node.schedule_instance_id.in_(ended),
                _node.status.in_([NodeStatus.RUNNING.value, NodeStatus.PENDING.value]),
            )
            .values(
                gmt_completed=case((running, UtcNow())),
                status=case((running, NodeStatus.FAILED.value), else_=NodeStatus.CANCELED.value),
            )
        )
