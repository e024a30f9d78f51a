"""The fires of tasks that follow others: who follows a run, how what it follows has ended, and what is written then."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
)

from rota.shared.database.causal import CAUSALLY
from rota.shared.database.constructs import (
    UtcNow,
    among,
    bound,
    by_index,
    ignore_conflicts,
    json_rows,
)
from rota.shared.database.later import execute_later
from rota.shared.domain.chains import EndedRun, Link
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import TERMINAL, Origin
from rota.shared.store import chains
from rota.shared.store.chain_runs import marking
from rota.shared.store.plans import inputs_in
from rota.shared.store.tables import schedule_chain, schedule_chain_run, schedule_instance, schedule_task

_run = schedule_chain_run.c
_instance = schedule_instance.c
_task = schedule_task.c
_link = schedule_chain.c
_child = schedule_task.alias("child")

_scheduler: ColumnElement[str] = literal_column("'scheduler'")
_ended = [status.value for status in sorted(TERMINAL)]


@dataclass(frozen=True, slots=True)
class Follower:
    """A task that follows a run that has ended, as it is now."""

    mark_id: int
    link: Link
    name: str
    is_on: bool
    inputs: PlanInputs | None
    """None: SQL has made them unreadable."""


_followers = (
    select(
        _run.id,
        _child.c.id,
        _instance.schedule_datetime,
        _instance.fire_key,
        _instance.origin,
        _run.again_of,
        _child.c.live_name,
        _child.c.status,
        _child.c.plan_inputs,
    )
    .join_from(
        schedule_chain_run,
        schedule_instance,
        and_(_instance.id == _run.schedule_instance_id, _instance.gmt_create == _run.instance_gmt_create),
    )
    .join(schedule_task, _task.id == _instance.schedule_task_id)
    .join(schedule_chain, _link.after_name == _task.live_name)
    .join(_child, _child.c.id == _link.schedule_task_id)
    .where(among(_run.id), _child.c.live_name.is_not(None))
    .order_by(_run.id, _child.c.id)
)


def followers(connection: Connection, mark_ids: Collection[int]) -> list[Follower]:
    """The tasks that follow these runs, in the order of the marks."""
    return [
        Follower(mark, Link(task, moment, key, origin, again_of), name, status == "on", inputs_in(inputs))
        for mark, task, moment, key, origin, again_of, name, status, inputs in connection.execute(
            _followers, {"ids": sorted(mark_ids)}
        )
    ]


_asked = json_rows("asked", name="str", moment="time", fire_key="str")
_runs = (
    select(
        _asked.c.name,
        _asked.c.moment,
        _asked.c.fire_key,
        _instance.id,
        _instance.status,
        _instance.run_number,
    )
    .join_from(_asked, schedule_task, _task.live_name == _asked.c.name)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _task.id,
            _instance.schedule_datetime == _asked.c.moment,
            _instance.fire_key == _asked.c.fire_key,
        ),
    )
    .where(_instance.status.in_(_ended))
)

Place = tuple[datetime, str]
"""The time and the ``fire_key`` of the runs that a fire of a chain follows."""


def newest_ended(
    connection: Connection, asked: Iterable[tuple[str, datetime, str]]
) -> dict[Place, dict[str, EndedRun]]:
    """The newest runs that have ended of tasks, for times: of (name, time, fire_key), by time and then by name.

    They are read after what has ended was found, on whatever server of a cluster. So of two runs that end at once, the
    one that is followed up for the end that was committed last finds both.
    """
    rows = sorted(set(asked))
    if not rows:
        return {}
    found: dict[Place, dict[str, EndedRun]] = {}
    read = connection.execute(_runs, {"rows": bound(rows)}, execution_options=CAUSALLY).all()
    for name, moment, key, run, status, _ in sorted(read, key=lambda row: (row.run_number or 0, row.id)):
        found.setdefault((moment, key), {})[name] = EndedRun(name, run, status)
    return found


_open_again = (
    select(_asked.c.moment, _asked.c.fire_key, _asked.c.name)
    .join_from(_asked, schedule_task, _task.live_name == _asked.c.name)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _task.id,
            _instance.schedule_datetime == _asked.c.moment,
            _instance.fire_key == _asked.c.fire_key,
        ),
    )
    .join(
        schedule_chain_run,
        and_(_run.schedule_instance_id == _instance.id, _run.instance_gmt_create == _instance.gmt_create),
    )
    .where(_run.again_of.is_not(None), _instance.status.not_in(_ended))
)


def open_again(connection: Connection, asked: Iterable[tuple[str, datetime, str]]) -> set[tuple[Place, str]]:
    """Those of (name, time, fire_key) of which a run goes on whose end lets what follows run once more."""
    rows = sorted(set(asked))
    found = connection.execute(_open_again, {"rows": bound(rows)}, execution_options=CAUSALLY).all() if rows else []
    return {((moment, key), name) for moment, key, name in found}


_task_of = select(_instance.schedule_task_id).where(_instance.id == bindparam("id"))


def behind(connection: Connection, replay: int) -> set[str]:
    """The names of the task of a replay, and of all that come behind it."""
    task_id = connection.scalar(_task_of, {"id": replay})
    return set() if task_id is None else chains.behind(connection, task_id)


_firing = json_rows("firing", task="id", moment="time", fire_key="str", origin="str", old="id", again_of="id")


def _insert(run_number: ColumnElement[int], **more: ColumnElement[int]) -> Insert:
    columns = {
        "schedule_task_id": _firing.c.task,
        "schedule_datetime": _firing.c.moment,
        "due_at": UtcNow(),
        "fire_key": _firing.c.fire_key,
        "run_number": run_number,
        "origin": _firing.c.origin,
        "priority": _task.priority,
        **more,
        "creator": _scheduler,
        "modifier": _scheduler,
    }
    chosen = select(*columns.values()).join_from(_firing, schedule_task, _task.id == _firing.c.task)
    statement: Insert = ignore_conflicts(insert(schedule_instance))
    return statement.from_select(list(columns), chosen, include_defaults=False)


_fire = _insert(literal_column("0"))
_fire_again = _insert(literal_column("NULL"), replay_of=_firing.c.old)


def _mark_fired(*which: ColumnElement[bool]) -> Insert:
    own = (
        _instance.schedule_task_id == _firing.c.task,
        _instance.schedule_datetime == _firing.c.moment,
        _instance.fire_key == _firing.c.fire_key,
    )
    found = select(_instance.id, _instance.gmt_create).join_from(_firing, schedule_instance, and_(*own, *which))
    return marking(by_index(found, schedule_instance, "uq_schedule_instance_fire"), _firing.c.again_of)


_mark_first = _mark_fired(_instance.run_number == literal_column("0"))
_mark_fired_again = _mark_fired(_instance.run_number.is_(None), _instance.replay_of == _firing.c.old)


def fire(connection: Connection, links: Iterable[Link]) -> None:
    """Insert the fires of tasks that follow others, due now. One that is there already stays as it is."""
    if rows := sorted({(link.task_id, link.moment, link.fire_key, link.own_origin, None, None) for link in links}):
        execute_later(connection, _fire, {"rows": bound(rows)})


_hold = select(_task.id).where(among(_task.id)).order_by(_task.id).with_for_update()


def fire_again(connection: Connection, links: Collection[Link]) -> None:
    """Insert a run of each of these fires for a replay before it, and mark it as well.

    It is a replay of the newest run of the fire, or its first run. A fire of which an instance is newer than the replay
    that was asked for has run once more already. That is looked up under a lock of the task, so that of two schedulers
    the second finds what the first has written.
    """
    if not links:
        return
    connection.execute(_hold, {"ids": sorted({link.task_id for link in links})}).all()
    newest = there(connection, links)
    replay = Origin.REPLAY.value
    rows = {link.fire: (*link.fire, replay, newest.get(link.fire), link.again_of) for link in links}
    first = [row for row in rows.values() if row[4] is None]
    old = [row for row in rows.values() if row[4] is not None and row[5] is not None and row[4] < row[5]]
    for some, insertion, mark in ((first, _fire, _mark_first), (old, _fire_again, _mark_fired_again)):
        if some:
            execute_later(connection, insertion, {"rows": bound(sorted(some))})
            execute_later(connection, mark, {"rows": bound(sorted(some))})


_wanted = json_rows("wanted", task="id", moment="time", fire_key="str")
_there = by_index(
    select(_wanted.c.task, _wanted.c.moment, _wanted.c.fire_key, func.max(_instance.id))
    .join_from(
        _wanted,
        schedule_instance,
        and_(
            _instance.schedule_task_id == _wanted.c.task,
            _instance.schedule_datetime == _wanted.c.moment,
            _instance.fire_key == _wanted.c.fire_key,
        ),
    )
    .group_by(_wanted.c.task, _wanted.c.moment, _wanted.c.fire_key),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def there(connection: Connection, links: Iterable[Link]) -> dict[tuple[int, datetime, str], int]:
    """The newest instance of each of these fires that has one: by (task id, time, fire_key)."""
    rows = sorted({link.fire for link in links})
    if not rows:
        return {}
    found = connection.execute(_there, {"rows": bound(rows)})
    return {(task, moment, key): newest for task, moment, key, newest in found}
