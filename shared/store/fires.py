"""Materializing: the instances of a batch of fires, and their nodes, each in one statement.

Law 1: the unique key (schedule_task_id, schedule_datetime, fire_key, run_number) is the truth. An existing key counts
as done, so a batch that is written again, after a lost commit or by a scheduler that slept, changes nothing.
"""

from collections.abc import Collection, Iterable, Sequence
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
    case,
    insert,
    literal_column,
    select,
)

from shared.domain.jsontext import json_text
from shared.domain.nodes import PlannedNode
from shared.domain.states import InstanceStatus, Origin
from shared.store.dialects import UtcNow, among, bound, by_index, ignore_conflicts, json_rows, unindexed
from shared.store.tables import schedule_instance, schedule_task_node, schedule_task_node_type

_instance = schedule_instance.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c


@dataclass(slots=True)
class Fire:
    """One fire to materialize: given to a worker, or pending with the reason why not."""

    task_id: int
    schedule_datetime: datetime
    priority: int
    param: str | None
    worker_id: int | None
    nodes: Sequence[PlannedNode]
    reason: str | None = None


_fired = json_rows("fired", task="id", moment="time", priority="int", param="json", worker="id", reason="str")

_insert_fires = ignore_conflicts(insert(schedule_instance)).from_select(
    [
        "schedule_task_id", "status", "schedule_datetime", "due_at", "run_number", "origin", "priority", "param",
        "schedule_worker_node_id", "gmt_assigned", "reason", "creator", "modifier",
    ],
    select(
        _fired.c.task,
        case(
            (_fired.c.worker.is_(None), literal_column(f"'{InstanceStatus.PENDING.value}'")),
            else_=literal_column(f"'{InstanceStatus.ASSIGNED.value}'"),
        ),
        _fired.c.moment,
        _fired.c.moment,
        literal_column("0"),
        literal_column(f"'{Origin.CRON.value}'"),
        _fired.c.priority,
        _fired.c.param,
        _fired.c.worker,
        case((_fired.c.worker.is_not(None), UtcNow())),
        _fired.c.reason,
        literal_column("'scheduler'"),
        literal_column("'scheduler'"),
    ),
    include_defaults=False,
)  # fmt: skip

_PINNED = {"type": "id", "sequence": "int", "param": "json"}
_of_fire = json_rows("planned", task="id", moment="time", worker="id", **_PINNED)
_of_given = json_rows("pinned", instance="id", **_PINNED)
_is_assigned = unindexed(_instance.status) == literal_column(f"'{InstanceStatus.ASSIGNED.value}'")


def _insert_nodes(rows: TableValuedAlias, index: str, *found: ColumnElement[bool]) -> Insert:
    """Nodes of the instances that are assigned and found so, by this index."""
    columns = ["schedule_instance_id", "schedule_task_node_type_id", "sequence", "param", "creator", "modifier"]
    author: ColumnElement[str] = literal_column("'scheduler'")
    chosen = select(_instance.id, rows.c.type, rows.c.sequence, rows.c.param, author, author)
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
    select(_node.schedule_instance_id, _type.id, _type.type, _node.sequence)
    .join_from(schedule_task_node, schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .where(among(_node.schedule_instance_id))
    .order_by(_node.schedule_instance_id, _node.sequence),
    schedule_task_node,
    "uq_schedule_task_node_order",
)


def materialize(connection: Connection, fires: Iterable[Fire]) -> None:
    """Insert the fires' instances, and the nodes of those that were given to a worker."""
    batch = sorted(fires, key=lambda fire: (fire.task_id, fire.schedule_datetime))
    if not batch:
        return
    connection.execute(
        _insert_fires,
        {"rows": bound((f.task_id, f.schedule_datetime, f.priority, f.param, f.worker_id, f.reason) for f in batch)},
    )
    nodes = [
        (f.task_id, f.schedule_datetime, f.worker_id, node.type_id, node.sequence, _json(node.param))
        for f in batch
        if f.worker_id is not None
        for node in f.nodes
    ]
    if nodes:
        connection.execute(_insert_nodes_of_fires, {"rows": bound(nodes)})


def pinned(connection: Connection, instance_ids: Collection[int]) -> dict[int, list[PlannedNode]]:
    """The nodes, without params, of those instances that have theirs: an earlier assignment pinned them; no deploy
    changes it."""
    if not instance_ids:
        return {}
    nodes: dict[int, list[PlannedNode]] = {}
    for instance_id, *columns in connection.execute(_pinned_nodes, {"ids": sorted(instance_ids)}):
        nodes.setdefault(instance_id, []).append(PlannedNode(*columns))
    return nodes


def pin_nodes(connection: Connection, nodes: Iterable[tuple[int, PlannedNode]]) -> None:
    """Write the nodes of instances, each with the instance's id; those pinned already stay.

    Instances that were not assigned after all get none.
    """
    rows = [(instance_id, n.type_id, n.sequence, _json(n.param)) for instance_id, n in nodes]
    if rows:
        connection.execute(_insert_nodes_of_given, {"rows": bound(sorted(rows, key=itemgetter(0, 2)))})


def _json(value: Any) -> str | None:
    return None if value is None else json_text(value)
