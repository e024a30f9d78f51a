"""Crowds: groups of which so many instances wait in a worker's queue that they would hold up those of others."""

from collections.abc import Collection, Sequence
from datetime import datetime
from statistics import median_low
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal_column, or_, select

from rota.shared.database.constructs import among, by_index
from rota.shared.domain.groups import NO_MEMBERS, Group, Member, Members, crowds_of, group_of, share_in
from rota.shared.domain.times import is_time
from rota.shared.store.polling import QUEUED, Assigned, Lane, Queue
from rota.shared.store.tables import schedule_instance, schedule_task

SAMPLED = 50
"""So many of those that wait longest are asked for their groups, spread evenly. A crowd is found by them."""

OTHERS_READ = 1_000
"""So many instances beside crowds one statement reads at most."""

_instance = schedule_instance.c
_task = schedule_task.c
_OF_ITS_TASK = _task.id == _instance.schedule_task_id


_group = func.nullif(_task.task_group, literal_column("''"))
_MEMBER = (_group, _task.id, _task.group_share)


def _is_none_of(tasks: ColumnElement[bool], groups: ColumnElement[bool]) -> ColumnElement[bool]:
    return or_(and_(_group.is_(None), ~tasks), and_(_group.is_not(None), ~groups))


def _others(lane: Lane, queued: Select[Any]) -> Select[Any]:
    of_priority = queued.where(_instance.priority == bindparam("priority"))
    joined = of_priority.add_columns(*_MEMBER).join_from(schedule_instance, schedule_task, _OF_ITS_TASK)
    others = joined.where(_is_none_of(among(_task.id, "tasks"), among(_task.task_group, "groups")))
    return others if lane is Lane.POOL else by_index(others, schedule_instance, "ix_schedule_instance_work")


_others_of = {lane: _others(lane, queued) for lane, queued in QUEUED.items()}
_groups = by_index(
    select(_instance.id, *_MEMBER).join_from(schedule_instance, schedule_task, _OF_ITS_TASK).where(among(_instance.id)),
    schedule_instance,
)


class Beside(NamedTuple):
    """What waits in a queue beside crowds."""

    crowds: frozenset[Group] = frozenset()
    """The crowds that others wait beside, and None for what has no group in ``members``; none, if nobody else waits."""

    rows: Sequence[Assigned] = ()
    """The instances that are of none of the crowds among those that wait longest."""

    members: Members = NO_MEMBERS
    """Their groups by their ids; and those of all that wait longest, if these are of several crowds."""

    rest: Member = Member()
    """The group and the share of all instances that are not in ``members``: those of the crowd."""


NOBODY = Beside()


def beside(connection: Connection, queue: Queue, waiting: Sequence[int], priority: int, horizon: datetime) -> Beside:
    """What waits in a worker's queue beside crowds; nothing, where there is one group alone, or no crowd.

    ``waiting``: those of one priority that have waited longest, in their order. What else is due by ``horizon`` (naive
    UTC) is read. If that is very much, a second crowd is among it, and who waits behind that is read, too.
    """
    sampled = _members_of(connection, waiting[:: -(-len(waiting) // SAMPLED)])
    first = crowds_of([one.group for one in sampled.values()])
    if not first:
        return NOBODY
    place = {**queue.values, "priority": priority, "horizon": horizon, "limit": OTHERS_READ}
    crowds, rows, members = set(first), dict[int, Assigned](), dict[int, Member]()
    while True:
        tasks, names = _parted(crowds)
        found = connection.execute(_others_of[queue.lane], {**place, "tasks": tasks, "groups": names}).all()
        rows |= {i: (i, due_at, rank) for i, due_at, rank, *_ in found if is_time(due_at)}
        members |= {row.id: _member(*row[3:]) for row in found}
        more = crowds_of([members[row.id].group for row in found]) if len(found) >= OTHERS_READ else set()
        if not more:
            break
        crowds |= more
    some_wait = any(members[i].group not in crowds for i in rows)
    if len(first) > 1:
        members |= _members_of(connection, waiting)
    rest = Member(None, median_low(one.share for one in sampled.values() if one.group in first))
    return Beside(frozenset({None, *crowds} if some_wait else ()), tuple(rows.values()), members, rest)


def _members_of(connection: Connection, ids: Collection[int]) -> dict[int, Member]:
    return {i: _member(*member) for i, *member in connection.execute(_groups, {"ids": sorted(ids)})}


def _member(name: str | None, task: int, share: Any) -> Member:
    return Member(group_of(name, task), share_in(share))


def _parted(groups: Collection[Group]) -> tuple[list[int], list[str]]:
    """The tasks that are groups of their own, and the names of the other groups; neither list is ever empty."""
    return (
        [0, *sorted(group for group in groups if isinstance(group, int))],
        ["", *sorted(group for group in groups if isinstance(group, str))],
    )
