"""What the scheduler reads of instances that run as their shards."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
    type_coerce,
)

from rota.shared.database.constructs import among, by_index, read_by
from rota.shared.domain.spreading import ITS_SHARDS, Shard
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import params
from rota.shared.store.tables import schedule_instance, schedule_worker_node
from rota.shared.store.transitions.spreading import has_open_shard

_instance = schedule_instance.c
_worker = schedule_worker_node.c
_shard = schedule_instance.alias("shard")


@dataclass(frozen=True, slots=True)
class Running:
    """An instance that runs as its shards."""

    id: int
    attempt: int
    total: int | None
    reason: str | None
    gmt_cancel_requested: datetime | None
    is_open: bool
    """Whether a shard of it has not ended."""


_ONE: ColumnElement[int] = literal_column("1")
_running = read_by(
    select(
        _instance.id,
        _instance.attempt,
        _instance.shard_total,
        _instance.reason,
        _instance.gmt_cancel_requested,
        case((has_open_shard, _ONE)),
    )
    .where(
        _instance.status == InstanceStatus.RUNNING.value,
        _instance.schedule_worker_node_id == literal_column(str(ITS_SHARDS)),
        _instance.id > bindparam("after"),
    )
    .order_by(_instance.id)
    .limit(bindparam("limit")),
    schedule_instance,
    "ix_schedule_instance_work",
)


def running(connection: Connection, after_id: int, limit: int) -> list[Running]:
    """At most ``limit`` instances that run as their shards, after this id."""
    rows = connection.execute(_running, {"after": after_id, "limit": limit})
    return [
        Running(number, attempt, total, reason, requested, is_open=bool(is_open))
        for number, attempt, total, reason, requested, is_open in rows
    ]


def _shards(*results: ColumnElement[Any]) -> Select[Any]:
    columns = (_shard.c.id, _shard.c.shard_index, _shard.c.status, _worker.name, _shard.c.reason)
    its_parent = (
        _shard.c.schedule_task_id == _instance.schedule_task_id,
        _shard.c.schedule_datetime == _instance.schedule_datetime,
        _shard.c.parent_id == _instance.id,
    )
    its_worker = func.coalesce(_shard.c.schedule_worker_node_id, _shard.c.only_worker_node_id)
    found: Select[Any] = by_index(
        select(_instance.id, _shard.c.gmt_cancel_requested.is_not(None), *columns, *results)
        .select_from(schedule_instance)
        .join(_shard, and_(*its_parent))
        .outerjoin(schedule_worker_node, _worker.id == its_worker)
        .where(among(_instance.id)),
        schedule_instance,
    )
    return found


_result = type_coerce(_shard.c.execution_result, String)
_without_results = _shards()
_with_results = _shards(params.small(_result), params.size_if_large(_result))


def shards_of(connection: Connection, parent_ids: Collection[int], *, results: bool = False) -> dict[int, list[Shard]]:
    """The shards of these instances, by the instance, in their order; with their small ``results`` if asked for."""
    statement = _with_results if results else _without_results
    found: dict[int, list[Shard]] = {parent: [] for parent in parent_ids}
    for parent, is_to_stop, number, index, status, worker, reason, *result in connection.execute(
        statement, {"ids": sorted(parent_ids)}
    ):
        small, large = result or (None, None)
        text = None if small is None else str(small)
        found[parent].append(
            Shard(number, index or 0, status, worker, reason, text, large is not None, is_to_stop=bool(is_to_stop))
        )
    return {parent: sorted(shards, key=lambda one: (one.index, one.id)) for parent, shards in found.items()}


_statuses = by_index(select(_instance.id, _instance.status).where(among(_instance.id)), schedule_instance)


def statuses_of(connection: Connection, instance_ids: Collection[int]) -> dict[int, str]:
    """The statuses of these instances, as far as their rows are there."""
    return dict(map(tuple, connection.execute(_statuses, {"ids": sorted(instance_ids)})))
