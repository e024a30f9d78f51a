"""Which task follows which: the links, and the circles that they must not close.

The links are written from the ``trigger_spec`` of the task that follows, in the transaction that edits it; after an
edit by SQL, when the scheduler makes the plan. They name tasks: one that is removed and added again is followed again.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, literal_column, select

from rota.shared.database.constructs import among, bound, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later
from rota.shared.domain.errors import InvalidInput, UnknownTask
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.sentences import close_to
from rota.shared.domain.states import OnEnd, TriggerKind
from rota.shared.store import chain_runs
from rota.shared.store.tables import schedule_chain, schedule_task

_link = schedule_chain.c
_task = schedule_task.c

MOST_IN_CHAIN = 1_000
"""So many tasks may come before one, one behind another, and so many may follow one."""

_links = json_rows("links", task="id", after="str", on_end="str")
_columns = {
    "schedule_task_id": _links.c.task,
    "after_name": _links.c.after,
    "on_end": _links.c.on_end,
    "creator": literal_column("'scheduler'"),
    "modifier": literal_column("'scheduler'"),
}
_add = ignore_conflicts(insert(schedule_chain)).from_select(
    list(_columns), select(*_columns.values()), include_defaults=False
)
_unlink = delete(schedule_chain).where(among(_link.schedule_task_id))


def link(connection: Connection, before: Mapping[int, Mapping[str, OnEnd]]) -> None:
    """Write which tasks these tasks follow, by their ids; those that they followed until now are forgotten.

    What of those is still to come is followed, though its fires may be written.
    """
    if before:
        execute_later(connection, _unlink, {"ids": sorted(before)})
        if rows := [(task, name, end.value) for task in sorted(before) for name, end in sorted(before[task].items())]:
            execute_later(connection, _add, {"rows": bound(rows)})
            chain_runs.mark_ahead(connection, {name for _, name, _ in rows})


def link_new(connection: Connection, task_id: int, inputs: PlanInputs) -> None:
    """Write which tasks a new task follows."""
    if inputs.follows_tasks:
        link(connection, {task_id: inputs.before})


def link_edited(connection: Connection, row: Row[Any], inputs: PlanInputs | None) -> None:
    """Write which tasks a task follows that was read and is edited; with None it follows none any more."""
    if row.trigger_kind == TriggerKind.AFTER or (inputs is not None and inputs.follows_tasks):
        link(connection, {row.id: {} if inputs is None else inputs.before})


def checked(connection: Connection, name: str, inputs: PlanInputs, *, old_name: str | None = None) -> None:
    """Check the tasks that a task of this name is to follow, and lock them, with all that come before them.

    So of two edits that would close a circle together, the second waits for the first, and then sees it. Raises
    UnknownTask for one that is not there, and InvalidInput for a circle, and for too many in a row.
    """
    before = inputs.before
    if not before:
        return
    there = _lock(connection, {name, old_name or name, *before})
    if old_name not in (None, name):
        there.pop(str(old_name), None)  # it has this name no more
    if missing := before.keys() - there.keys():
        first = min(missing)
        near = close_to(first, connection.scalars(_some_names).all())
        end = "; an end is success, failure or always" if "=" in first else ""
        raise UnknownTask(f"after {first!r}: there is no such task{near}{end}; rota task list shows those there are")
    came_by = dict.fromkeys(before, name)
    frontier = {one: there[one] for one in before}
    while frontier:
        links = connection.execute(_before, {"ids": sorted(frontier.values())}).all()
        found = {after: follower for follower, after in reversed(links)}
        if name in found:
            raise InvalidInput(f"after: the tasks would follow each other in a circle: {_circle(name, found, came_by)}")
        new = {after: follower for after, follower in found.items() if after not in came_by}
        came_by |= new
        if len(came_by) > MOST_IN_CHAIN:
            raise InvalidInput(f"after: more than {MOST_IN_CHAIN:,} tasks would come before {name!r}; make less depend")
        frontier = _lock(connection, new)
    _not_too_many(connection, name, before)


_some_names = select(_task.live_name).where(_task.live_name.is_not(None)).order_by(_task.live_name).limit(1_000)
_before = (
    select(_task.live_name, _link.after_name)
    .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
    .where(among(_link.schedule_task_id))
    .order_by(_task.live_name, _link.after_name)
)
_by_name = select(_task.live_name, _task.id).where(among(_task.live_name)).order_by(_task.id).with_for_update()


_behind = (
    select(_task.live_name)
    .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
    .where(among(_link.after_name), _task.live_name.is_not(None))
    .limit(MOST_IN_CHAIN)
)


def _lock(connection: Connection, names: Iterable[str]) -> dict[str, int]:
    """Lock the live tasks of these names; returns their ids."""
    rows = connection.execute(_by_name, {"ids": sorted(names)}) if (names := set(names)) else ()
    return dict(map(tuple, rows))


def _circle(name: str, found: Mapping[str, str], came_by: Mapping[str, str]) -> str:
    """The circle in words, from the task that is edited back to itself: ``a after b after a``."""
    back = [name]
    at = found[name]
    while at != name:
        back.append(at)
        at = came_by[at]
    return " after ".join([name, *reversed(back)])


def _not_too_many(connection: Connection, name: str, before: Collection[str]) -> None:
    counted = (
        select(_link.after_name, func.count())
        .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
        .where(among(_link.after_name), _task.live_name.is_not(None), _task.live_name != name)
        .group_by(_link.after_name)
    )
    for one, number in sorted(map(tuple, connection.execute(counted, {"ids": sorted(before)}))):
        if number >= MOST_IN_CHAIN:
            raise InvalidInput(f"after {one!r}: {MOST_IN_CHAIN:,} tasks follow it, and no more may")


def behind(connection: Connection, task_id: int) -> set[str]:
    """The names of a task and of those that follow it, one behind another; at most ``MOST_IN_CHAIN`` and some."""
    found = set(connection.scalars(select(_task.live_name).where(_task.id == task_id, _task.live_name.is_not(None))))
    frontier = found
    while frontier and len(found) <= MOST_IN_CHAIN:
        frontier = set(connection.scalars(_behind, {"ids": sorted(frontier)})) - found
        found |= frontier
    return found


def there(connection: Connection, names: Collection[str]) -> set[str]:
    """Those of these names that live tasks have."""
    found = select(_task.live_name).where(among(_task.live_name))
    return set(connection.scalars(found, {"ids": sorted(names)})) if names else set()


def followers(connection: Connection, name: str) -> list[str]:
    """The live tasks that follow a task of this name, by name; at most one more than may."""
    statement = (
        select(_task.live_name)
        .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
        .where(_link.after_name == name, _task.live_name.is_not(None))
        .order_by(_task.live_name)
        .limit(MOST_IN_CHAIN + 1)
    )
    return list(connection.scalars(statement))


def require_unfollowed(connection: Connection, name: str, act: str) -> None:
    """Refuse to remove or rename a task that others follow: their fires would stop without a word.

    It locks the task, as an edit does that lets another follow it. Raises InvalidInput.
    """
    _lock(connection, [name])
    if found := followers(connection, name):
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise InvalidInput(f"{name!r} cannot be {act}: {shown} follows it; give that another trigger first")
