"""Materializing: insert the instances of a batch of fires in one statement, and their nodes in another.

Law 1: the unique key (schedule_task_id, schedule_datetime, fire_key, run_number) is the truth. A fire whose key exists
is done. So a batch may be written twice, after a lost commit or by a scheduler that was frozen: the second write
changes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    TableValuedAlias,
    and_,
    bindparam,
    case,
    delete,
    exists,
    insert,
    literal_column,
    select,
)

from rota.shared.database.constructs import (
    UtcNow,
    among,
    bound,
    by_index,
    found_by,
    ignore_conflicts,
    json_rows,
    unindexed,
)
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.backfilling import fire_key
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import InstanceStatus, NodeStatus, Origin
from rota.shared.store.tables import (
    owns_node,
    schedule_backfill,
    schedule_instance,
    schedule_task_node,
    schedule_task_node_type,
)

_instance = schedule_instance.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c


@dataclass(slots=True)
class Fire:
    """One fire to materialize: assigned to ``worker_id``, or pending (``worker_id`` None) with the ``reason``."""

    task_id: int
    schedule_datetime: datetime
    priority: int
    param: str | None
    worker_id: int | None
    nodes: Sequence[PlannedNode]
    reason: str | None = None
    in_turn: bool = False
    """Whether it may wait for other instances of its task."""

    due_at: datetime | None = None
    """When it may run; None: at ``schedule_datetime``."""


_KINDS = {"task": "id", "moment": "time", "priority": "int", "param": "json", "worker": "id", "reason": "str"}
_fired, _fired_late = json_rows("fired", **_KINDS), json_rows("fired", **_KINDS, due="time")


def _fire(rows: TableValuedAlias, due_at: ColumnElement[Any]) -> dict[str, ColumnElement[Any]]:
    """The columns of a fire. ``overlap_slot`` is one more for a fire that may wait in turn."""
    return {
        "schedule_task_id": rows.c.task,
        "status": case(
            (rows.c.worker.is_(None), literal_column(f"'{InstanceStatus.PENDING.value}'")),
            else_=literal_column(f"'{InstanceStatus.ASSIGNED.value}'"),
        ),
        "schedule_datetime": rows.c.moment,
        "due_at": due_at,
        "run_number": literal_column("0"),
        "origin": literal_column(f"'{Origin.CRON.value}'"),
        "priority": rows.c.priority,
        "param": rows.c.param,
        "schedule_worker_node_id": rows.c.worker,
        "gmt_assigned": case((rows.c.worker.is_not(None), UtcNow())),
        "reason": rows.c.reason,
        "creator": literal_column("'scheduler'"),
        "modifier": literal_column("'scheduler'"),
    }


def _insert_fires(columns: dict[str, ColumnElement[Any]], **more: ColumnElement[Any]) -> Insert:
    columns = {**columns, **more}
    statement: Insert = ignore_conflicts(insert(schedule_instance))
    return statement.from_select(list(columns), select(*columns.values()), include_defaults=False)


_on_time, _jittered = _fire(_fired, _fired.c.moment), _fire(_fired_late, _fired_late.c.due)
_inserts = {
    (False, False): _insert_fires(_on_time),
    (False, True): _insert_fires(_on_time, overlap_slot=literal_column("0")),
    (True, False): _insert_fires(_jittered),
    (True, True): _insert_fires(_jittered, overlap_slot=literal_column("0")),
}
"""By whether a fire is due later than at its own time, and whether it may wait in turn."""

_OF_BACKFILL: dict[str, ColumnElement[Any]] = {
    "fire_key": bindparam("key"),
    "origin": literal_column(f"'{Origin.BACKFILL.value}'"),
    "param": select(schedule_backfill.c.param).where(schedule_backfill.c.id == bindparam("backfill")).scalar_subquery(),
}
_insert_backfilled = {
    False: _insert_fires(_jittered, **_OF_BACKFILL),
    True: _insert_fires(_jittered, **_OF_BACKFILL, overlap_slot=literal_column("0")),
}
"""By whether a fire may wait in turn. The param does not travel: the database copies it from the backfill."""

_insert_refused_fires = _insert_fires(
    _on_time, status=literal_column(f"'{InstanceStatus.CANCELED.value}'"), gmt_completed=UtcNow()
)

_PINNED = {"type": "id", "sequence": "int", "param": "json"}
_of_fire = json_rows("planned", task="id", moment="time", worker="id", **_PINNED)
_of_given = json_rows("pinned", instance="id", **_PINNED)
_is_assigned = unindexed(_instance.status) == literal_column(f"'{InstanceStatus.ASSIGNED.value}'")


def _insert_nodes(rows: TableValuedAlias, index: str, *found: ColumnElement[bool]) -> Insert:
    """Insert the nodes of those instances that match ``found`` and are assigned; they are read by this index."""
    columns = [
        "schedule_instance_id", "instance_gmt_create", "schedule_task_node_type_id", "sequence", "param", "creator",
        "modifier",
    ]  # fmt: skip
    author: ColumnElement[str] = literal_column("'scheduler'")
    its_instance = (_instance.id, _instance.gmt_create)
    chosen = select(*its_instance, rows.c.type, rows.c.sequence, rows.c.param, author, author)
    joined = chosen.select_from(rows).join(schedule_instance, and_(*found, _is_assigned))
    indexed = by_index(joined, schedule_instance, index)
    statement: Insert = ignore_conflicts(insert(schedule_task_node))
    return statement.from_select(columns, indexed, include_defaults=False)


_insert_nodes_of_fires = _insert_nodes(
    _of_fire,
    "uq_schedule_instance_fire",
    _instance.schedule_task_id == _of_fire.c.task,
    _instance.schedule_datetime == _of_fire.c.moment,
    _instance.fire_key == literal_column("''"),
    _instance.run_number == literal_column("0"),
    unindexed(_instance.schedule_worker_node_id) == _of_fire.c.worker,
)
_insert_nodes_of_given = _insert_nodes(_of_given, "PRIMARY", _instance.id == _of_given.c.instance)


_pinned_nodes = by_index(
    select(_instance.id, _node.status, _type.id, _type.type, _node.sequence)
    .join_from(schedule_instance, schedule_task_node, owns_node)
    .join(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .where(among(_instance.id))
    .order_by(_instance.id, _node.sequence),
    schedule_instance,
)


def materialize(connection: Connection, fires: Iterable[Fire]) -> None:
    """Insert the fires' instances, and the nodes of those that are assigned to a worker."""
    batch = sorted(fires, key=lambda fire: (fire.task_id, fire.schedule_datetime))
    if not batch:
        return
    for is_late, in_turn, some in _parted(batch):
        rows = _bound_late(some) if is_late else _bound(some)
        execute_later(connection, _inserts[is_late, in_turn], {"rows": rows})
    nodes = [
        (f.task_id, f.schedule_datetime, f.worker_id, node.type_id, node.sequence, _json(node.param))
        for f in batch
        if f.worker_id is not None
        for node in f.nodes
    ]
    if nodes:
        execute_later(connection, _insert_nodes_of_fires, {"rows": bound(nodes)})


def _parted(batch: list[Fire]) -> Iterator[tuple[bool, bool, list[Fire]]]:
    """The fires by whether they are due at another time than their own, and whether they wait in turn.

    Nearly always all are alike, and then no list is made anew.
    """
    late = [f for f in batch if f.due_at is not None]
    for is_late, some in ((False, [f for f in batch if f.due_at is None] if late else batch), (True, late)):
        turns = [f for f in some if f.in_turn]
        plain = [f for f in some if not f.in_turn] if turns else some
        yield from ((is_late, in_turn, part) for in_turn, part in ((False, plain), (True, turns)) if part)


def backfill(connection: Connection, backfill_id: int, fires: Sequence[Fire]) -> None:
    """Insert pending instances of a backfill, in this order. Each fire has its ``due_at``, and no param of its own.

    A fire that the backfill has written before stays as it is.
    """
    values = {"key": fire_key(backfill_id), "backfill": backfill_id}
    for in_turn, statement in _insert_backfilled.items():
        if some := [fire for fire in fires if fire.in_turn == in_turn]:
            execute_later(connection, statement, {"rows": _bound_late(some), **values})


def refuse(connection: Connection, fires: Iterable[Fire]) -> None:
    """Insert fires that the database has refused with their params as canceled, each with its reason.

    Such a fire has neither a worker nor a param. A fire that is there already stays as it is.
    """
    if rows := sorted(fires, key=lambda fire: (fire.task_id, fire.schedule_datetime)):
        execute_later(connection, _insert_refused_fires, {"rows": _bound(rows)})


def _bound(fires: Iterable[Fire]) -> str:
    return bound((f.task_id, f.schedule_datetime, f.priority, f.param, f.worker_id, f.reason) for f in fires)


def _bound_late(fires: Iterable[Fire]) -> str:
    return bound((f.task_id, f.schedule_datetime, f.priority, f.param, f.worker_id, f.reason, f.due_at) for f in fires)


def pinned(connection: Connection, instance_ids: Collection[int]) -> dict[int, list[PlannedNode]]:
    """Of those of these instances that have nodes already: the nodes that have not succeeded, without params.

    An earlier assignment pinned them.
    """
    if not instance_ids:
        return {}
    nodes: dict[int, list[PlannedNode]] = {}
    for instance_id, status, *columns in read_before(connection, _pinned_nodes, {"ids": sorted(instance_ids)}):
        left = nodes.setdefault(instance_id, [])
        if status != NodeStatus.SUCCEED:
            left.append(PlannedNode(*columns))
    return nodes


def pin_nodes(connection: Connection, nodes: Iterable[tuple[int, PlannedNode]]) -> None:
    """Insert nodes of instances: (instance id, node). Nodes that are there already stay as they are.

    An instance that is not assigned, because the assignment lost a race, gets no nodes.
    """
    rows = [(instance_id, n.type_id, n.sequence, _json(n.param)) for instance_id, n in nodes]
    if rows:
        execute_later(connection, _insert_nodes_of_given, {"rows": bound(sorted(rows, key=itemgetter(0, 2)))})


_unpin = found_by(
    delete(schedule_task_node).where(
        among(_node.schedule_instance_id),
        exists(
            by_index(
                select(_instance.id).where(
                    owns_node,
                    _instance.status == InstanceStatus.PENDING.value,
                    _instance.attempt == bindparam("attempt"),
                    _instance.from_sequence.is_(None),
                ),
                schedule_instance,
            )
        ),
    ),
    "uq_schedule_task_node_order",
)


def unpin(connection: Connection, instance_ids: Collection[int], attempt: int) -> None:
    """Delete the nodes of instances that this transaction has locked, so that the next worker's list is pinned anew.

    Only pending instances lose them that were claimed ``attempt`` times. The caller knows that no handler of theirs has
    been entered. A replay from a node on keeps them, since some have results.
    """
    if instance_ids:
        execute_later(connection, _unpin, {"ids": sorted(instance_ids), "attempt": attempt})


def _json(value: Any) -> str | None:
    return None if value is None else json_text(value)
