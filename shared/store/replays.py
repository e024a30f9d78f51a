"""Replays: instances that have ended run once more, each for its own fire. The old ones stay as history.

Many are found by a filter, a page at a time: by the index of what failed or was canceled in the order of the ids, or by
the index of a task's fires in the order of their times. Nothing is read twice, and no page reads more than ``PAGE``
rows, however few of them are wanted.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Row,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    select,
)

from rota.shared.database.constructs import Json, UtcNow, among, bound, by_index, json_rows, read_by
from rota.shared.database.later import execute_later
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import TERMINAL, InstanceStatus, NodeStatus, Origin
from rota.shared.store import params
from rota.shared.store.tables import (
    owns_node,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
)

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c

PAGE = 1000
"""So many instances one statement looks at."""

BATCH = 100
"""So many instances at most are replayed in one transaction."""

_newer = schedule_instance.alias("newer")
_old = schedule_instance.alias("old")
_same_fire = (
    _newer.c.schedule_task_id == _instance.schedule_task_id,
    _newer.c.schedule_datetime == _instance.schedule_datetime,
    _newer.c.fire_key == _instance.fire_key,
)
_is_newest = ~exists(
    read_by(select(_newer.c.id), _newer, "uq_schedule_instance_fire")
    .where(*_same_fire, _newer.c.id > _instance.id)
    .correlate(schedule_instance)
)
"""No later run of its fire is there, whatever became of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which instances are to be replayed: those of a status, of tasks, for times from ``since`` and before ``until``.

    Times are naive UTC. Without ``task_ids`` the status is failed or canceled, since only these have an index of ids.
    """

    status: InstanceStatus
    task_ids: Set[int] | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_found_by_id(self) -> bool:
        """Whether the index of what failed or was canceled leads to them, and not the index of each task's fires."""
        if self.task_ids is None:
            return True
        return len(self.task_ids) > 1 and self.since is None and self.status != InstanceStatus.SUCCEED

    def takes(self, row: Any) -> bool:
        """Whether a row of a page is one of them."""
        moment = row.schedule_datetime
        if not isinstance(moment, datetime):  # SQL wrote no date
            return False
        if self.task_ids is not None and row.schedule_task_id not in self.task_ids:
            return False
        in_time = (self.since is None or moment >= self.since) and (self.until is None or moment < self.until)
        return in_time and row.status == self.status


_columns = (_instance.id, _instance.schedule_task_id, _instance.schedule_datetime, _instance.status)
_by_id = (
    select(*_columns)
    .where(
        _instance.unsuccessful == bindparam("status"),
        _instance.id > bindparam("after"),
        _instance.id <= bindparam("last"),
    )
    .order_by(_instance.id)
    .limit(bindparam("rows"))
)
_by_fire = (
    select(*_columns)
    .where(_instance.schedule_task_id == bindparam("task"), _instance.id <= bindparam("last"))
    .order_by(_instance.schedule_datetime, _instance.fire_key, _instance.run_number)
    .limit(bindparam("rows"))
)


def pages(database: Database, wanted: Wanted, last: int) -> Iterator[list[int]]:
    """The ids of the instances that are wanted, up to the id ``last``, page by page; some pages are empty.

    Each is of a task that is not deleted, and is the newest run of its fire: what was replayed already has a newer one.
    """
    of_tasks = (_pages_of_task(database, task, wanted, last) for task in wanted.task_ids or ())
    for page in _pages_by_id(database, wanted, last) if wanted.is_found_by_id else chain.from_iterable(of_tasks):
        ids = [row.id for row in page if wanted.takes(row)]
        yield database.read(partial(_newest_of, ids=ids)) if ids else []


def _rows(database: Database, statement: Select[Any], **values: Any) -> Sequence[Any]:
    return database.read(lambda connection: connection.execute(statement, values).all())


def _pages_by_id(database: Database, wanted: Wanted, last: int) -> Iterator[Sequence[Any]]:
    after = 0
    while True:
        page = _rows(database, _by_id, status=wanted.status.value, after=after, last=last, rows=PAGE)
        yield page
        if len(page) < PAGE:
            return
        after = page[-1].id


def _pages_of_task(database: Database, task_id: int, wanted: Wanted, last: int) -> Iterator[Sequence[Any]]:
    """Each page begins with the time at which the one before was cut, and leaves out what that had of it."""
    statement = _by_fire if wanted.until is None else _by_fire.where(_instance.schedule_datetime < wanted.until)
    begin, seen = wanted.since, frozenset[int]()
    while True:
        cut = statement if begin is None else statement.where(_instance.schedule_datetime >= begin)
        most = PAGE + len(seen)
        page = _rows(database, cut, task=task_id, last=last, rows=most)
        yield [row for row in page if row.id not in seen]
        if len(page) < most:
            return
        begin = page[-1].schedule_datetime
        seen = frozenset(row.id for row in page if row.schedule_datetime == begin)


_has_task = exists(select(_task.id).where(_task.id == _instance.schedule_task_id, _task.is_deleted == 0))
_chosen = by_index(
    select(_instance.id).where(
        among(_instance.id),
        _instance.status.in_([s.value for s in TERMINAL]),
        _instance.parent_id.is_(None),  # a shard runs again with its parent
        _has_task,
    ),
    schedule_instance,
)


def _newest_of(connection: Connection, ids: Collection[int]) -> list[int]:
    return sorted(connection.scalars(_chosen.where(_is_newest), {"ids": sorted(ids)}))


def require_replayable(row: Row[Any]) -> None:
    """Refuse to replay a shard of a broadcast, which belongs to its worker.

    Raises NotPossible.
    """
    if row.only_worker_node_id is not None:
        raise NotPossible(
            f"instance {row.id} is the part of a broadcast for one worker; replay instance {row.parent_id}, its parent"
        )


def hold(connection: Connection, ids: Collection[int]) -> list[int]:
    """Lock those of these instances that have ended and are the newest runs of their fires; returns them.

    Nobody else needs the lock of a row that has ended, but whoever replays it, too: of two, the second then finds the
    new run of the first.
    """
    statement = select(_instance.id).where(among(_instance.id)).order_by(_instance.id).with_for_update()
    held = connection.scalars(by_index(statement, schedule_instance), {"ids": sorted(ids)}).all()
    return _newest_of(connection, held) if held else []


_sizes = select(_instance.id, params.size(_instance.param)).where(among(_instance.id))


def portions(connection: Connection, ids: Sequence[int], param: Mapping[str, Any] | None = None) -> list[list[int]]:
    """The ids as many at a time as one transaction replays: bounded in rows, and in the bytes of their params.

    ``param``: what each new instance gets in place of its own.
    """
    sizes = {row_id: size or 0 for row_id, size in connection.execute(_sizes, {"ids": sorted(ids)})}
    of_new = 0 if param is None else len(json_text(param).encode())
    least = max(params.BYTES_AT_ONCE // BATCH, of_new)
    weighed = params.in_portions(ids, lambda instance_id: max(least, sizes.get(instance_id, 0)))
    return list(weighed)


_asked = json_rows("asked", id="id", start="int")
_nominal = _old.c.schedule_datetime


def _insert(param: ColumnElement[Any]) -> Insert:
    columns: dict[str, Any] = {
        "schedule_task_id": _old.c.schedule_task_id,
        "schedule_datetime": _nominal,
        "due_at": case((_nominal > UtcNow(), _nominal), else_=UtcNow()),
        "origin": literal_column(f"'{Origin.REPLAY.value}'"),
        "fire_key": _old.c.fire_key,
        "priority": _task.priority,
        "param": param,
        "replay_of": _old.c.id,
        "from_sequence": _asked.c.start,
        "shard_index": _old.c.shard_index,
        "shard_total": case((_old.c.shard_index.is_not(None), _old.c.shard_total)),
        "creator": bindparam("by"),
        "modifier": bindparam("by"),
    }
    chosen = (
        select(*columns.values())
        .select_from(_asked)
        .join(_old, _old.c.id == _asked.c.id)
        .join(schedule_task, _task.id == _old.c.schedule_task_id)
    )
    return insert(schedule_instance).from_select(list(columns), chosen, include_defaults=False)


_insert_as_before = _insert(_old.c.param)
_insert_with_param = _insert(bindparam("param", type_=Json))

_made = by_index(
    select(_old.c.id, func.max(_instance.id))
    .select_from(_old)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _old.c.schedule_task_id,
            _instance.schedule_datetime == _old.c.schedule_datetime,
            _instance.fire_key == _old.c.fire_key,
            _instance.replay_of == _old.c.id,
        ),
    )
    .where(among(_old.c.id))
    .group_by(_old.c.id),
    schedule_instance,
    "uq_schedule_instance_fire",
)

_is_kept = _node.sequence < _instance.from_sequence
_owned_by_old = and_(_node.schedule_instance_id == _old.c.id, _node.instance_gmt_create == _old.c.gmt_create)
_copied = {
    "schedule_instance_id": _instance.id,
    "instance_gmt_create": _instance.gmt_create,
    "schedule_task_node_type_id": _node.schedule_task_node_type_id,
    "sequence": _node.sequence,
    "status": case((_is_kept, _node.status), else_=literal_column(f"'{NodeStatus.PENDING.value}'")),
    "param": _node.param,
    "gmt_completed": case((_is_kept, _node.gmt_completed)),
    "execution_result": case((_is_kept, _node.execution_result)),
    "creator": _instance.creator,
    "modifier": _instance.creator,
}
_copy_nodes = insert(schedule_task_node).from_select(
    list(_copied),
    by_index(
        select(*_copied.values())
        .select_from(schedule_instance)
        .join(_old, _old.c.id == _instance.replay_of)
        .join(schedule_task_node, _owned_by_old)
        .where(among(_instance.id), _instance.from_sequence.is_not(None)),
        schedule_instance,
    ),
    include_defaults=False,
)
"""A kept node has no start: no handler of this instance was entered there."""


def insert_replays(
    connection: Connection, starts: Mapping[int, int | None], by: str, param: Mapping[str, Any] | None = None
) -> dict[int, int]:
    """Insert a new run for each of these instances, which this transaction holds; returns the new ids by the old.

    ``starts``: the sequence of the node to begin with, by instance; None: the first, and nodes are chosen anew.
    ``param``: in place of their own.
    """
    values: dict[str, Any] = {"rows": bound(sorted(starts.items())), "by": by}
    if param is None:
        connection.execute(_insert_as_before, values)
    else:
        connection.execute(_insert_with_param, {**values, "param": param})
    made: dict[int, int] = dict(map(tuple, connection.execute(_made, {"ids": sorted(starts)})))
    if any(start is not None for start in starts.values()):
        execute_later(connection, _copy_nodes, {"ids": sorted(made.values())})
    return made


_own_nodes: Select[Any] = by_index(
    select(_instance.id, _node.sequence, _type.type, _type.category, _node.status)
    .join_from(schedule_instance, schedule_task_node, owns_node)
    .join(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .where(among(_instance.id))
    .order_by(_instance.id, _node.sequence),
    schedule_instance,
)


def nodes_of(connection: Connection, ids: Collection[int]) -> dict[int, list[Any]]:
    """The nodes of these instances in their order, each with ``sequence``, ``type``, ``category`` and ``status``."""
    found: dict[int, list[Any]] = {instance_id: [] for instance_id in ids}
    for row in connection.execute(_own_nodes, {"ids": sorted(ids)}):
        found[row.id].append(row)
    return found
