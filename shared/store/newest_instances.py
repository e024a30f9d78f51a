"""The newest instances of the tasks that were chosen, by indexes and in short statements."""

import heapq
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, Row, Select, String, bindparam, cast, select, union_all

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
"""The instances of more tasks than this are looked for in the newest pages of all, first. If too few are there, since
these tasks run rarely, each task is looked at."""

PAGE = 10_000
BEHIND_ALL = 2**63 - 1
"""An id behind those of all instances."""

_page = (
    select(_instance.id, _instance.schedule_task_id, _instance.parent_id, _instance.status)
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

    Those that failed or were canceled are found by their ids, and come with the newest id first; so may those of more
    than ``MANY_TASKS`` tasks. Each statement is short, so that none is taken for an outage.
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
        pages = _pages(connection, failed.where(_instance.unsuccessful == status))
        return list(islice(_those_of(pages, set(task_ids), status), limit))
    if len(task_ids) > MANY_TASKS:
        pages = islice(_pages(connection, read_by(_page, schedule_instance)), len(task_ids) // TASKS_IN_STATEMENT)
        found = list(islice(_those_of(pages, set(task_ids), status), limit))
        if len(found) == limit:
            return found
    return _by_fires(connection, task_ids, limit, status)


def _pages(connection: Connection, page: Select[Any]) -> Iterator[Sequence[Row[Any]]]:
    """The newest ids first."""
    before = BEHIND_ALL
    while rows := connection.execute(page, {"before": before, "rows": PAGE}).all():
        yield rows
        before = rows[-1].id


def _those_of(pages: Iterable[Sequence[Row[Any]]], task_ids: Set[int], status: str | None) -> Iterator[int]:
    for row in chain.from_iterable(pages):
        if row.schedule_task_id in task_ids and row.parent_id is None and status in (None, row.status):
            yield row.id


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
