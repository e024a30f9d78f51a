"""Crowds: groups of which so many instances wait in a worker's queue that they would hold up those of others."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal_column, or_, select, union_all

from rota.shared.database.constructs import among, by_index, read_by
from rota.shared.domain.groups import Group, crowds_of, group_of
from rota.shared.domain.times import is_time
from rota.shared.store.polling import QUEUED, Assigned, Lane, Queue
from rota.shared.store.tables import schedule_instance, schedule_task

FIRST = 50
NEWEST = 100
"""So many of those that wait longest are looked at, spread evenly; and so many of the newest, because what comes behind
a crowd is among them."""

BESIDE = 1_000
"""So many instances of other groups are read at most."""

_instance = schedule_instance.c
_task = schedule_task.c
_OF_ITS_TASK = _task.id == _instance.schedule_task_id


_group = func.nullif(_task.task_group, literal_column("''"))
_sampled = by_index(
    select(_group, _task.id, literal_column("1").label("is_first"))
    .join_from(schedule_instance, schedule_task, _OF_ITS_TASK)
    .where(among(_instance.id)),
    schedule_instance,
)


def _of_priority(queued: Select[Any]) -> Select[Any]:
    return queued.where(_instance.priority == bindparam("priority"))


def _looked(lane: Lane, queued: Select[Any]) -> Any:
    backwards = _of_priority(queued).order_by(None).order_by(_instance.priority.desc(), _instance.due_at.desc())
    if lane is not Lane.POOL:
        backwards = read_by(backwards, schedule_instance, "ix_schedule_instance_work")
    newest = backwards.subquery("newest")
    of_task = select(_group, _task.id, literal_column("0"))
    joined = of_task.join_from(newest, schedule_instance, _instance.id == newest.c.id).join(schedule_task, _OF_ITS_TASK)
    return union_all(_sampled, by_index(joined, schedule_instance))


def _is_none_of(tasks: ColumnElement[bool], groups: ColumnElement[bool]) -> ColumnElement[bool]:
    return or_(and_(_group.is_(None), ~tasks), and_(_group.is_not(None), ~groups))


def _others(lane: Lane, queued: Select[Any]) -> Select[Any]:
    joined = _of_priority(queued).add_columns(_group, _task.id)
    joined = joined.join_from(schedule_instance, schedule_task, _OF_ITS_TASK)
    others = joined.where(_is_none_of(among(_task.id, "tasks"), among(_task.task_group, "groups")))
    return others if lane is Lane.POOL else by_index(others, schedule_instance, "ix_schedule_instance_work")


_looks = {lane: _looked(lane, queued) for lane, queued in QUEUED.items()}
_others_of = {lane: _others(lane, queued) for lane, queued in QUEUED.items()}
_groups = by_index(
    select(_instance.id, _group, _task.id)
    .join_from(schedule_instance, schedule_task, _OF_ITS_TASK)
    .where(among(_instance.id)),
    schedule_instance,
)


class Beside(NamedTuple):
    """What waits in a queue beside crowds."""

    crowds: frozenset[Group] = frozenset()
    """The crowds that others wait beside, and None for what has no group in ``groups``; none, if nobody else waits."""

    rows: Sequence[Assigned] = ()
    """The instances that are of no crowd."""

    groups: Mapping[int, Group] = MappingProxyType({})
    """Their groups by their ids; and those of the crowds' instances, if there are several crowds."""


NOBODY = Beside()


def beside(connection: Connection, queue: Queue, waiting: Sequence[int], priority: int, horizon: datetime) -> Beside:
    """What waits in a worker's queue beside crowds; nothing, where there is one group alone, or no crowd.

    ``waiting``: those of one priority that have waited longest, in their order. What else is due by ``horizon`` (naive
    UTC) is looked for, at most ``BESIDE``. The crowds are those of a sample, so a small one may be overlooked.
    """
    place = {**queue.values, "priority": priority, "horizon": horizon}
    ids = sorted(waiting[:: -(-len(waiting) // FIRST)])
    looked = connection.execute(_looks[queue.lane], {**place, "ids": ids, "limit": NEWEST}).all()
    crowds = crowds_of([group_of(name, task) for name, task, is_first in looked if is_first])
    if not crowds or (len(crowds) == 1 and all(group_of(name, task) in crowds for name, task, _ in looked)):
        return NOBODY
    tasks, names = _parted(crowds)
    values = {**place, "tasks": tasks, "groups": names, "limit": BESIDE}
    found = connection.execute(_others_of[queue.lane], values).all()
    rows = [(i, due_at, rank) for i, due_at, rank, _, _ in found if is_time(due_at)]
    groups = {i: group_of(name, task) for i, _, _, name, task in found}
    if len(crowds) > 1:
        groups |= {i: group_of(name, task) for i, name, task in connection.execute(_groups, {"ids": sorted(waiting)})}
    return Beside(frozenset({None, *crowds} if rows else ()), rows, groups)


def _parted(groups: Collection[Group]) -> tuple[list[int], list[str]]:
    """The tasks that are groups of their own, and the names of the other groups; neither list is ever empty."""
    return (
        [0, *sorted(group for group in groups if isinstance(group, int))],
        ["", *sorted(group for group in groups if isinstance(group, str))],
    )
