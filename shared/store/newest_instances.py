"""The newest instances of the tasks that were chosen, by indexes, however long the history and however few they are."""

import heapq
from itertools import chain

from sqlalchemy import Connection, Select, String, cast, select, union_all

from rota.shared.database.constructs import by_index, read_by
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import TaskFilter
from rota.shared.store import tasks
from rota.shared.store.instances import UNSUCCESSFUL
from rota.shared.store.tables import schedule_instance, schedule_task

_instance = schedule_instance.c
_newest = schedule_instance.alias("newest")
_task = schedule_task.c

TASKS_IN_STATEMENT = 50
ROWS_IN_STATEMENT = 50_000
"""One statement looks at so many tasks; at fewer if it may find more rows than this."""

_of_chosen = select(_instance.id).join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
_unsuccessful = by_index(_of_chosen, schedule_instance, "ix_schedule_instance_unsuccessful")
_active = by_index(_of_chosen, schedule_instance, "ix_schedule_instance_work")


def of_tasks(connection: Connection, chosen: TaskFilter, limit: int, status: str | None = None) -> list[int]:
    """The ids of at most ``limit`` instances of these tasks, the newest by ``schedule_datetime`` first; no shards.

    Those that failed or were canceled come with the newest id first: so their index has them.
    """
    if status is None or status == InstanceStatus.SUCCEED:
        return _by_fires(connection, tasks.ids(connection, chosen), limit, status)
    wanted = (*tasks.are_chosen(chosen), _instance.parent_id.is_(None))
    if status in UNSUCCESSFUL:
        statement = _unsuccessful.where(_instance.unsuccessful == status, *wanted).order_by(_instance.id.desc())
    else:
        newest_first = (_instance.schedule_datetime.desc(), _instance.id.desc())
        statement = _active.where(_instance.status == status, *wanted).order_by(*newest_first)
    return list(connection.scalars(statement.limit(limit)))


def _by_fires(connection: Connection, task_ids: list[int], limit: int, status: str | None) -> list[int]:
    """Some tasks at a time, each by the index of its fires. The whole is never more than two statements' rows."""
    at_once = max(1, min(TASKS_IN_STATEMENT, ROWS_IN_STATEMENT // limit))
    newest: list[tuple[str, int]] = []
    for at in range(0, len(task_ids), at_once):
        own = union_all(*(_newest_of(task_id, limit, status) for task_id in task_ids[at : at + at_once]))
        newest = heapq.nlargest(limit, chain(newest, ((row.moment, row.id) for row in connection.execute(own))))
    return [instance_id for _, instance_id in newest]


def _newest_of(task_id: int, limit: int, status: str | None) -> Select[tuple[str, int]]:
    columns = (cast(_newest.c.schedule_datetime, String).label("moment"), _newest.c.id)
    own = read_by(select(*columns), _newest, "uq_schedule_instance_fire")
    own = own.where(_newest.c.schedule_task_id == task_id, _newest.c.parent_id.is_(None))
    if status is not None:
        own = own.where(_newest.c.status == status)
    in_order = (_newest.c[name].desc() for name in ("schedule_task_id", "schedule_datetime", "fire_key", "run_number"))
    found = own.order_by(*in_order).limit(limit).subquery().c
    return select(found.moment, found.id)
