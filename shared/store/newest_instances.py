"""The newest instances of the tasks that were chosen, by indexes and in short statements."""

import heapq
from collections.abc import Set
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select, String, bindparam, cast, select, union_all

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

MANY_TASKS = 1_000
"""The instances of more tasks than this are found by their ids, a page at a time: among them they are many."""

PAGE = 10_000
BEHIND_ALL = 2**63 - 1
"""An id behind those of all instances."""

_page = (
    select(_instance.id, _instance.schedule_task_id, _instance.parent_id)
    .where(_instance.id < bindparam("before"))
    .order_by(_instance.id.desc())
    .limit(bindparam("rows"))
)
_active = by_index(
    select(_instance.id).join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id),
    schedule_instance,
    "ix_schedule_instance_work",
)


def of_tasks(connection: Connection, chosen: TaskFilter, limit: int, status: str | None = None) -> list[int]:
    """The ids of at most ``limit`` instances of these tasks, the newest by ``schedule_datetime`` first; no shards.

    Those that failed or were canceled, and those of more than ``MANY_TASKS`` tasks, come with the newest id first: so
    they are found. Each statement is short, so that none of them is taken for an outage.
    """
    if status is not None and status not in (*UNSUCCESSFUL, InstanceStatus.SUCCEED):
        newest_first = (_instance.schedule_datetime.desc(), _instance.id.desc())
        wanted = (*tasks.are_chosen(chosen), _instance.parent_id.is_(None))
        statement = _active.where(_instance.status == status, *wanted).order_by(*newest_first)
        return list(connection.scalars(statement.limit(limit)))
    task_ids = tasks.ids(connection, chosen)
    if not task_ids:
        return []
    if status in UNSUCCESSFUL:
        failed = read_by(_page, schedule_instance, "ix_schedule_instance_unsuccessful")
        return _by_ids(connection, failed.where(_instance.unsuccessful == status), set(task_ids), limit)
    if len(task_ids) > MANY_TASKS:
        some = _page if status is None else _page.where(_instance.status == status)
        return _by_ids(connection, read_by(some, schedule_instance), set(task_ids), limit)
    return _by_fires(connection, task_ids, limit, status)


def _by_ids(connection: Connection, page_of: Select[Any], task_ids: Set[int], limit: int) -> list[int]:
    """Page by page, the newest ids first."""
    found: list[int] = []
    before = BEHIND_ALL
    while len(found) < limit:
        page = connection.execute(page_of, {"before": before, "rows": PAGE}).all()
        found += [row.id for row in page if row.schedule_task_id in task_ids and row.parent_id is None]
        if len(page) < PAGE:
            break
        before = page[-1].id
    return found[:limit]


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
