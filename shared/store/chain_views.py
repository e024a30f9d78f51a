"""What of a chain one looks at: the tasks that are linked, and their runs for one time."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from rota.shared.database.constructs import among, by_index
from rota.shared.domain.chains import EndedRun
from rota.shared.domain.states import TERMINAL
from rota.shared.store.tables import schedule_chain, schedule_instance, schedule_task

_link = schedule_chain.c
_task = schedule_task.c
_instance = schedule_instance.c

SHOWN = 100
"""So many tasks of a chain are read at most, the nearest first."""

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
            after.setdefault(before, {})
            after.setdefault(follower, {})[before] = str(end)
        near = sorted({one for follower, before, _ in found for one in (follower, before)} - seen)
        frontier = set(near[: SHOWN - len(seen)])
        seen |= frontier
    return {one: {b: end for b, end in ends.items() if b in seen} for one, ends in after.items() if one in seen}


_runs = by_index(
    select(_task.live_name, _instance.id, _instance.status, _instance.run_number)
    .join_from(schedule_task, schedule_instance, _instance.schedule_task_id == _task.id)
    .where(among(_task.live_name)),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def runs(connection: Connection, names: Collection[str], moment: datetime, fire_key: str) -> list[Row[Any]]:
    """The runs of these tasks for one time: (name, id, status, run number), the oldest first."""
    own = _runs.where(_instance.schedule_datetime == moment, _instance.fire_key == fire_key)
    found = connection.execute(own, {"ids": sorted(names)}).all() if names else []
    return sorted(found, key=lambda row: (row.run_number is None, row.run_number or 0, row.id))


def ended(rows: Collection[Row[Any]]) -> dict[str, EndedRun]:
    """The newest of these runs that has ended, of each task."""
    return {row.live_name: EndedRun(row.live_name, row.id, row.status) for row in rows if row.status in TERMINAL}
