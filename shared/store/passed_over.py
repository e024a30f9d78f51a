"""The assigned instances that a claim passes over: somebody is editing their task, or it is not there any more."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, select

from rota.shared.database.constructs import among, by_index
from rota.shared.database.later import read_before
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store.assignments import free_assigned
from rota.shared.store.overlap import Waiting
from rota.shared.store.tables import schedule_instance, schedule_task
from rota.shared.store.transitions import canceling

_instance = schedule_instance.c
_task = schedule_task.c

_passed_over = by_index(
    select(_instance.id, _instance.due_at, _instance.schedule_datetime, _instance.schedule_task_id, _task.id)
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .where(
        among(_instance.id),
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.status == InstanceStatus.ASSIGNED.value,
    ),
    schedule_instance,
)


def left_waiting(connection: Connection, values: dict[str, Any], read: Collection[int]) -> list[Waiting]:
    """Those of the ``ids`` in ``values`` that the claim has not ``read``. The worker tries them again.

    An instance whose times SQL has spoiled is none of them: nobody is to start it, and the scheduler cancels it. Those
    whose task SQL has deleted are canceled here, unless somebody has locked them.
    """
    missing = [i for i in values["ids"] if i not in read]
    rows = list(read_before(connection, _passed_over, {**values, "ids": missing}))
    without_task = {instance_id: f"there is no task {asked}" for instance_id, _, _, asked, task in rows if task is None}
    free = free_assigned(connection, without_task)
    canceling.skip(connection, values["worker"], {i: without_task[i] for i in free})
    return [
        Waiting(instance_id, due_at)
        for instance_id, due_at, fire, *_ in rows
        if is_time(due_at) and is_time(fire) and instance_id not in free
    ]
