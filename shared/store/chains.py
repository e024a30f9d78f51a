"""Which task follows which: the links, and the circles that they must not close.

The links are written from the ``trigger_spec`` of the task that follows, in the transaction that edits it; after an
edit by SQL, when the scheduler makes the plan. They name tasks: one that is removed and added again is followed again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    String,
    Update,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from rota.shared.database.constructs import UtcNow, among, bound, found_by, ignore_conflicts, json_rows
from rota.shared.database.later import execute_later, read_before
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
_as_text = _link.on_end.concat(_link.schedule_task_id).concat(literal_column("':'")).concat(_link.after_name)
"""A link as one text, ``success12:nightly``. Rows of JSON would be read anew for each link."""

_unlink = found_by(
    delete(schedule_chain).where(among(_link.schedule_task_id), ~among(_as_text, "kept")), "uq_schedule_chain_link"
)
"""It leaves the links that stay. If one were deleted and inserted again, InnoDB would still find the deleted one in the
index. It would look whether the link behind that is equal, too, and wait for it if somebody has locked it."""


def link(connection: Connection, before: Mapping[int, Mapping[str, OnEnd]]) -> None:
    """Write which tasks these tasks follow, by their ids; those that they followed until now are forgotten.

    What of those is still to come is followed, though its fires may be written.
    """
    if before:
        rows = [(task, name, end.value) for task in sorted(before) for name, end in sorted(before[task].items())]
        kept = [f"{end}{task}:{name}" for task, name, end in rows] or [""]
        execute_later(connection, _unlink, {"ids": sorted(before), "kept": kept})
        if rows:
            execute_later(connection, _add, {"rows": bound(rows)})
            chain_runs.mark_ahead(connection, {name for _, name, _ in rows})


_hold = found_by(
    update(schedule_task).where(among(_task.live_name)).values(gmt_modified=UtcNow()),
    "uq_schedule_task_live_name",
)


def hold(connection: Connection, names: Collection[str]) -> None:
    """Lock the tasks of these names until the commit, before others are linked to them after an edit by SQL.

    A scheduler that writes a fire of one changes its row, too. So one of the two waits: either that scheduler sees the
    link, or ``link`` sees the fire. In a Galera cluster a lock holds on its own node alone. Both have changed the row
    there, so one of them fails, and is tried again.
    """
    if names:
        execute_later(connection, _hold, {"ids": sorted(names)})


def link_new(connection: Connection, task_id: int, inputs: PlanInputs) -> None:
    """Write which tasks a new task follows."""
    if inputs.follows_tasks:
        link(connection, {task_id: inputs.before})


def link_edited(connection: Connection, row: Row[Any], inputs: PlanInputs | None) -> None:
    """Write which tasks a task follows that was read and is edited; with None it follows none any more."""
    if row.trigger_kind == TriggerKind.AFTER or (inputs is not None and inputs.follows_tasks):
        link(connection, {row.id: {} if inputs is None else inputs.before})


def checked(connection: Connection, name: str, inputs: PlanInputs, *, old_name: str | None = None) -> None:
    """Check the tasks that a task of this name is to follow. It reads before the transaction begins.

    The transaction raises Unexpected if one of them, or of those that come before them, is changed meanwhile. So of two
    edits that would close a circle together, the second is tried again, and then sees it. Raises UnknownTask for one
    that is not there, and InvalidInput for a circle, and for too many in a row.
    """
    before = inputs.before
    if not before:
        return
    there = _read(connection, set(before))
    if old_name is not None and old_name != name:
        there.pop(old_name, None)  # no task has that name from now on
    if missing := before.keys() - there.keys():
        raise _unknown(connection, min(missing))
    seen = dict(there)
    came_by = dict.fromkeys(before, name)
    frontier = there
    while frontier:
        ids = {"ids": sorted(one.id for one in frontier.values())}
        links = read_before(connection, _before, ids).all()
        found = {after: follower for follower, after in reversed(links)}
        if name in found:
            raise InvalidInput(f"after: the tasks would follow each other in a circle: {_circle(name, found, came_by)}")
        new = {after: follower for after, follower in found.items() if after not in came_by}
        came_by |= new
        if len(came_by) > MOST_IN_CHAIN:
            raise InvalidInput(f"after: more than {MOST_IN_CHAIN:,} tasks would come before {name!r}; make less depend")
        frontier = _read(connection, new)
        seen |= frontier
    _not_too_many(connection, name, before)
    _rely_on(connection, [one for other, one in seen.items() if other in before], _change)
    _rely_on(connection, [one for other, one in seen.items() if other not in before], _leave)


_before = (
    select(_task.live_name, _link.after_name)
    .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
    .where(among(_link.schedule_task_id))
    .order_by(_task.live_name, _link.after_name)
)
_modified = cast(_task.gmt_modified, String)
_by_name = select(_task.live_name, _task.id, _modified.label("modified")).where(among(_task.live_name))
_some_names = select(_task.live_name).where(_task.live_name.is_not(None)).order_by(_task.live_name).limit(1_000)
_read_then = json_rows("read_then", id="id", modified="str")
_same = (_task.id == _read_then.c.id, _task.is_deleted == 0, _modified == _read_then.c.modified)
_change = update(schedule_task).where(*_same).values(gmt_modified=UtcNow())
"""Those that are followed directly: whoever removes or renames one, as it was read before, is to see that."""

_leave = update(schedule_task).where(*_same).values(gmt_modified=_task.gmt_modified)
"""It changes nothing: it counts those that are as they were read."""


def _read(connection: Connection, names: Collection[str]) -> dict[str, Row[Any]]:
    """The live tasks of these names: (name, id, when it was changed last)."""
    rows = read_before(connection, _by_name, {"ids": sorted(names)}) if names else ()
    return {row.live_name: row for row in rows}


def _rely_on(connection: Connection, read: Sequence[Row[Any]], statement: Update) -> None:
    if read:
        rows = bound(sorted((one.id, one.modified) for one in read))
        execute_later(connection, statement, {"rows": rows}, expected=len(read))


def _unknown(connection: Connection, name: str) -> UnknownTask:
    near = close_to(name, read_before(connection, _some_names, {}).scalars().all())
    end = "; an end is success, failure or always" if "=" in name else ""
    return UnknownTask(f"after {name!r}: there is no such task{near}{end}; rota task list shows those there are")


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
    for one, number in sorted(map(tuple, read_before(connection, counted, {"ids": sorted(before)}))):
        if number >= MOST_IN_CHAIN:
            raise InvalidInput(f"after {one!r}: {MOST_IN_CHAIN:,} tasks follow it, and no more may")


_behind = (
    select(_task.live_name)
    .join_from(schedule_chain, schedule_task, _task.id == _link.schedule_task_id)
    .where(among(_link.after_name), _task.live_name.is_not(None))
    .limit(MOST_IN_CHAIN)
)


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
        .where(_link.after_name == name, _task.live_name.is_not(None), _task.trigger_kind == TriggerKind.AFTER.value)
        .order_by(_task.live_name)
        .limit(MOST_IN_CHAIN + 1)
    )
    return list(read_before(connection, statement, {}).scalars())


def require_unfollowed(connection: Connection, name: str, act: str) -> None:
    """Refuse to remove or rename a task that others follow: their fires would stop without a word.

    It is read before the transaction begins. An edit that lets another follow the task changes its ``gmt_modified``, on
    which the caller's transaction relies. Raises InvalidInput.
    """
    if found := followers(connection, name):
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise InvalidInput(f"{name!r} cannot be {act}: {shown} follows it; give that another trigger first")
