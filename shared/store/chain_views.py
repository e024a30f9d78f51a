"""What of a chain one looks at: the tasks that are linked, and their runs for one time."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from rota.shared.database.constructs import among, by_index
from rota.shared.domain.chains import SHOWN, Ended
from rota.shared.store import chain_fires
from rota.shared.store.tables import schedule_chain, schedule_instance, schedule_task

_link = schedule_chain.c
_task = schedule_task.c
_instance = schedule_instance.c

_columns = (_task.live_name, _link.after_name, _link.on_end)
_before = (
    select(*_columns)
    .join_from(schedule_task, schedule_chain, _link.schedule_task_id == _task.id)
    .where(among(_task.live_name))
    .order_by(_task.live_name, _link.after_name)
    .limit(SHOWN * SHOWN)
)
_behind = (
    select(*_columns)
    .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
    .where(among(_link.after_name), _task.live_name.is_not(None))
    .order_by(_link.after_name, _link.schedule_task_id)
    .limit(SHOWN * SHOWN)
)


def connected(connection: Connection, name: str) -> dict[str, dict[str, str]]:
    """The tasks that come before a task and behind it in its chains: of each those that it follows, with the ends.

    Empty: the task follows none, and none follows it.
    """
    after: dict[str, dict[str, str]] = {}
    seen, frontier = {name}, {name}
    while frontier and len(seen) < SHOWN:
        names = {"ids": sorted(frontier)}
        found = [row for links in (_before, _behind) for row in connection.execute(links, names)]
        for follower, before, end in found:
            after.setdefault(str(before), {})
            after.setdefault(str(follower), {})[str(before)] = str(end)
        near = sorted({str(one) for follower, before, _ in found for one in (follower, before)} - seen)
        frontier = set(near[: SHOWN - len(seen)])
        seen |= frontier
    return {one: {b: end for b, end in ends.items() if b in seen} for one, ends in after.items() if one in seen}


_counted = (
    by_index(
        select(_task.live_name, func.max(_instance.id).label("newest"), func.count().label("runs"))
        .join_from(schedule_task, schedule_instance, _instance.schedule_task_id == _task.id)
        .where(
            among(_task.live_name),
            _instance.schedule_datetime == bindparam("moment"),
            _instance.fire_key == bindparam("fire_key"),
        ),
        schedule_instance,
        "uq_schedule_instance_fire",
    )
    .group_by(_task.live_name)
    .subquery("counted")
)
_found = schedule_instance.alias("found")
_runs = select(_counted.c.live_name, _counted.c.runs, _found.c.id, _found.c.status).join_from(
    _counted, _found, _found.c.id == _counted.c.newest
)


def runs(connection: Connection, names: Collection[str], moment: datetime, fire_key: str) -> dict[str, Row[Any]]:
    """The newest run of each of these tasks for one time, (id, status, runs), by name; ``runs``: how many there are."""
    if not names:
        return {}
    found = connection.execute(_runs, {"ids": sorted(names), "moment": moment, "fire_key": fire_key})
    return {row.live_name: row for row in found}


def ended(connection: Connection, names: Collection[str], moment: datetime, fire_key: str) -> Ended:
    """The ended runs of each of these tasks for one time that count for those that follow."""
    asked = [(name, moment, fire_key, 0) for name in names]
    return chain_fires.ended(connection, asked).get(((moment, fire_key), 0), {})
