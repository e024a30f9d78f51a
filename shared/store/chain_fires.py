"""The fires of tasks that follow others: who follows a run, how what it follows has ended, and what is written then."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Select,
    and_,
    case,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from rota.shared.database.causal import CAUSALLY
from rota.shared.database.constructs import (
    UtcNow,
    among,
    bound,
    by_index,
    ignore_conflicts,
    json_rows,
    unindexed,
)
from rota.shared.database.later import execute_later
from rota.shared.domain.chains import EndedRun, Link
from rota.shared.domain.planning import CATCH_UP_PRIORITY, PlanInputs
from rota.shared.domain.states import TERMINAL, InstanceStatus, Origin, TaskStatus
from rota.shared.store import chains
from rota.shared.store.chain_runs import IS_FOLLOWED, marking
from rota.shared.store.plans import inputs_in
from rota.shared.store.tables import schedule_chain, schedule_chain_run, schedule_instance, schedule_task
from rota.shared.store.transitions import chaining

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


_LAST: ColumnElement[int] = literal_column(str(CATCH_UP_PRIORITY))
_followers = (
    select(
        _run.id,
        _child.c.id,
        _instance.schedule_datetime,
        _instance.fire_key,
        _instance.origin,
        case((and_(_instance.priority == _LAST, _task.priority != _LAST), _LAST)),
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
    read = connection.execute(_followers, {"ids": sorted(mark_ids)}, execution_options=CAUSALLY)
    found = []
    for mark, task, moment, key, origin, late, again_of, name, status, inputs in read:
        link = Link(task, moment, key, origin, again_of, late)
        found.append(Follower(mark, link, name, status == TaskStatus.ON, inputs_in(inputs)))
    return found


Place = tuple[datetime, str]
"""The time and the ``fire_key`` of the runs that a fire of a chain follows."""

Asked = tuple[str, datetime, str, int]
"""A task whose runs for a place are asked for: its name, the place, and the replay since which runs count (0: all)."""

_asked = json_rows("asked", name="str", moment="time", fire_key="str", since="id")
_place = (_asked.c.name, _asked.c.moment, _asked.c.fire_key, _asked.c.since)
_status, _origin = unindexed(_instance.status), _instance.origin
_is_replay = _origin == literal_column(f"'{Origin.REPLAY.value}'")
_counts = and_(
    _status.in_(_ended),
    or_(
        and_(_asked.c.since == literal_column("0"), or_(not_(_is_replay), _instance.again_of.is_not(None))),
        and_(_asked.c.since > literal_column("0"), _instance.again_of >= _asked.c.since),
    ),
    or_(
        _status != literal_column(f"'{InstanceStatus.CANCELED.value}'"),
        _instance.attempt > literal_column("0"),
        and_(_instance.creator == _scheduler, _origin != literal_column(f"'{Origin.BACKFILL.value}'")),
    ),
)
"""A replay that nobody asked to be followed does not count, nor what was canceled before it began, unless a trigger had
made it: neither has a mark by which a fire would be decided."""

_of_place = and_(
    _instance.schedule_task_id == _task.id,
    _instance.schedule_datetime == _asked.c.moment,
    _instance.fire_key == _asked.c.fire_key,
)


def _of_asked(*columns: Any) -> Select[Any]:
    found = select(*columns).join_from(_asked, schedule_task, _task.live_name == _asked.c.name)
    of_place: Select[Any] = by_index(
        found.join(schedule_instance, _of_place), schedule_instance, "uq_schedule_instance_fire"
    )
    return of_place


_newest = (
    _of_asked(*_place, func.max(_instance.id).label("run"))
    .where(_counts)
    .group_by(*_place, _instance.status)
    .subquery("newest")
)
_found = schedule_instance.alias("found")
_runs = (
    select(
        _newest.c.name,
        _newest.c.moment,
        _newest.c.fire_key,
        _newest.c.since,
        _found.c.id,
        _found.c.status,
        _found.c.again_of,
    )
    .join_from(_newest, _found, _found.c.id == _newest.c.run)
    .order_by(_found.c.id)
)


def ended(connection: Connection, asked: Iterable[Asked]) -> dict[tuple[Place, int], dict[str, list[EndedRun]]]:
    """The newest run of tasks with each end: by the place and the replay since which they count, then by name.

    They are read after what has ended was found, on whatever server of a cluster. So of two runs that end at once, the
    one that is followed up for the end that was committed last finds both.
    """
    rows = sorted(set(asked))
    if not rows:
        return {}
    found: dict[tuple[Place, int], dict[str, list[EndedRun]]] = {}
    read = connection.execute(_runs, {"rows": bound(rows)}, execution_options=CAUSALLY)
    for name, moment, key, since, run, status, again_of in read:
        runs = found.setdefault(((moment, key), since), {}).setdefault(name, [])
        runs.append(EndedRun(name, run, status, again_of))
    return found


_open_again = (
    _of_asked(_asked.c.moment, _asked.c.fire_key, _asked.c.name)
    .join(
        schedule_chain_run,
        and_(_run.schedule_instance_id == _instance.id, _run.instance_gmt_create == _instance.gmt_create),
    )
    .where(_run.again_of.is_not(None), _status.not_in(_ended))
)


def open_again(connection: Connection, asked: Iterable[Asked]) -> set[tuple[Place, str]]:
    """Those (place, name) of which a run goes on whose end lets what follows run once more."""
    rows = sorted(set(asked))
    found = connection.execute(_open_again, {"rows": bound(rows)}, execution_options=CAUSALLY).all() if rows else []
    return {((moment, key), name) for moment, key, name in found}


_tasks_of = by_index(select(_instance.id, _instance.schedule_task_id).where(among(_instance.id)), schedule_instance)


def behind(connection: Connection, replay_ids: Collection[int]) -> dict[int, set[str]]:
    """Of each of these replays the names of its task, and of all that come behind that."""
    tasks = dict(map(tuple, connection.execute(_tasks_of, {"ids": sorted(replay_ids)}))) if replay_ids else {}
    names = {task: chains.behind(connection, task) for task in set(tasks.values())}
    return {replay: names.get(tasks.get(replay, 0), set()) for replay in replay_ids}


_firing = json_rows(
    "firing", task="id", moment="time", fire_key="str", origin="str", late="int", old="id", again_of="id"
)


def _insert(run_number: ColumnElement[int], **more: ColumnElement[Any]) -> Insert:
    columns = {
        "schedule_task_id": _firing.c.task,
        "schedule_datetime": _firing.c.moment,
        "due_at": UtcNow(),
        "fire_key": _firing.c.fire_key,
        "run_number": run_number,
        "origin": _firing.c.origin,
        "priority": func.coalesce(_firing.c.late, _task.priority),
        **more,
        "creator": _scheduler,
        "modifier": _scheduler,
    }
    chosen = select(*columns.values()).join_from(_firing, schedule_task, _task.id == _firing.c.task)
    statement: Insert = ignore_conflicts(insert(schedule_instance))
    return statement.from_select(list(columns), chosen, include_defaults=False)


_fire = _insert(literal_column("0"))
_fire_first = _insert(literal_column("0"), again_of=_firing.c.again_of)
_fire_again = _insert(literal_column("NULL"), replay_of=_firing.c.old, again_of=_firing.c.again_of)


def _mark_fired(*which: ColumnElement[bool]) -> Insert:
    own = (
        _instance.schedule_task_id == _firing.c.task,
        _instance.schedule_datetime == _firing.c.moment,
        _instance.fire_key == _firing.c.fire_key,
    )
    found = select(_instance.id, _instance.gmt_create).join_from(_firing, schedule_instance, and_(*own))
    found = found.join(schedule_task, _task.id == _instance.schedule_task_id).where(*which)
    return marking(by_index(found, schedule_instance, "uq_schedule_instance_fire"), _firing.c.again_of)


_mark_run = _mark_fired(
    _instance.run_number == literal_column("0"),
    _status == literal_column(f"'{InstanceStatus.PENDING.value}'"),
    IS_FOLLOWED,
)
_mark_again = _mark_fired(_instance.again_of == _firing.c.again_of)


def fire(connection: Connection, links: Iterable[Link]) -> None:
    """Insert the fires of tasks that follow others, due now, and mark those that others follow.

    One that is there already stays as it is, and one that has ended is not marked again: a circle that SQL has written
    would go on for ever.
    """
    if rows := sorted(
        {(*link.fire, link.own_origin, link.late, None, None) for link in links}, key=lambda row: row[:3]
    ):
        execute_later(connection, _fire, {"rows": bound(rows)})
        execute_later(connection, _mark_run, {"rows": bound(rows)})


_wanted = json_rows("wanted", task="id", moment="time", fire_key="str", again_of="id")
_fire_wanted = (_wanted.c.task, _wanted.c.moment, _wanted.c.fire_key)
_waits = and_(
    _instance.again_of.is_not(None),
    _instance.attempt == literal_column("0"),
    _status.in_([InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value]),
)
_there = by_index(
    select(
        *_fire_wanted,
        func.max(_instance.id),
        func.max(case((_instance.again_of == _wanted.c.again_of, _instance.id))),
        func.max(case((_waits, _instance.id))),
    )
    .join_from(
        _wanted,
        schedule_instance,
        and_(
            _instance.schedule_task_id == _wanted.c.task,
            _instance.schedule_datetime == _wanted.c.moment,
            _instance.fire_key == _wanted.c.fire_key,
        ),
    )
    .group_by(*_fire_wanted),
    schedule_instance,
    "uq_schedule_instance_fire",
)
_moved = json_rows("moved", id="id", again_of="id")
_mark_for = (
    update(schedule_chain_run)
    .where(_run.schedule_instance_id == _moved.c.id, _run.again_of < _moved.c.again_of)
    .values(again_of=_moved.c.again_of)
)


def fire_again(connection: Connection, links: Collection[Link]) -> None:
    """Insert a run of each of these fires for a replay before it, and mark it. The caller has leased their tasks.

    It is a replay of the newest run of the fire, or its first run. What has run for this replay already does not run
    for it again; and one that waits, for another replay, will see this one's end, too: it counts for both.
    """
    newest = {link.fire: link for link in sorted(links, key=lambda link: link.again_of or 0)}
    if not newest:
        return
    asked = bound(sorted((*link.fire, link.again_of) for link in newest.values()))
    there = {(task, moment, key): rest for task, moment, key, *rest in connection.execute(_there, {"rows": asked})}
    first: list[tuple[Any, ...]] = []
    again: list[tuple[Any, ...]] = []
    counted: list[tuple[int, int]] = []
    for fire, link in newest.items():
        old, own, waiting = there.get(fire, (None, None, None))
        if own is None and waiting is not None:
            counted.append((waiting, link.again_of or 0))
        elif own is None:
            (first if old is None else again).append((*fire, Origin.REPLAY.value, link.late, old, link.again_of))
    for rows, insertion in ((first, _fire_first), (again, _fire_again)):
        if rows:
            some = bound(rows)
            execute_later(connection, insertion, {"rows": some})
            execute_later(connection, _mark_again, {"rows": some})
    if counted:
        chaining.count_for(connection, counted)
        execute_later(connection, _mark_for, {"rows": bound(sorted(counted))})
