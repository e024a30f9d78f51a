"""What the scheduler reads of instances that run as their shards."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

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
from rota.shared.database.later import read_before
from rota.shared.domain.spreading import ITS_SHARDS, Shard
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store import params
from rota.shared.store.tables import schedule_instance, schedule_worker_node
from rota.shared.store.transitions import canceling
from rota.shared.store.transitions import spreading as moves
from rota.shared.store.transitions.spreading import has_open_shard

_instance = schedule_instance.c
_worker = schedule_worker_node.c
_shard = schedule_instance.alias("shard")


WHY_STOPPED = "its parent is canceled"


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
    columns = (
        _shard.c.id,
        _shard.c.shard_index,
        _shard.c.status,
        _worker.name,
        _shard.c.reason,
        _shard.c.gmt_completed,
    )
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
    for parent, is_to_stop, number, index, status, worker, reason, moment, *result in connection.execute(
        statement, {"ids": sorted(parent_ids)}
    ):
        small, large = result or (None, None)
        text, ended = None if small is None else str(small), moment if is_time(moment) else None
        shard = Shard(number, index or 0, status, worker, reason, text, large is not None, bool(is_to_stop), ended)
        found[parent].append(shard)
    return {parent: sorted(shards, key=lambda one: (one.index, one.id)) for parent, shards in found.items()}


class Unstopped(NamedTuple):
    """The shards that are to be stopped, and that nobody has stopped yet: those that wait, and those that run. Ids."""

    waiting: list[int]
    running: list[int]
    parents: list[int]
    """The instances of which they are shards."""


def unstopped(connection: Connection, parent_ids: Collection[int]) -> Unstopped:
    """What is left to be stopped of the shards of these instances."""
    found = Unstopped([], [], [])
    for parent, shards in (shards_of(connection, parent_ids) if parent_ids else {}).items():
        waiting = [one.id for one in shards if one.status in (InstanceStatus.PENDING, InstanceStatus.ASSIGNED)]
        running = [one.id for one in shards if one.status == InstanceStatus.RUNNING and not one.is_to_stop]
        if waiting or running:
            found.waiting.extend(waiting)
            found.running.extend(running)
            found.parents.append(parent)
    return found


def stop(connection: Connection, shards: Unstopped, *, waits: bool = False) -> None:
    """Cancel the shards that wait, and ask the workers of those that run to stop them.

    It passes over those of the latter that somebody has locked, unless it ``waits`` for them.
    """
    moves.cancel(connection, shards.waiting, WHY_STOPPED)
    request = canceling.request_cancel_of if waits else canceling.request_cancel_of_free
    request(connection, shards.running, WHY_STOPPED)


_statuses = by_index(select(_instance.id, _instance.status).where(among(_instance.id)), schedule_instance)


def stranded(connection: Connection, parents: Mapping[int, int]) -> tuple[dict[int, str], dict[int, str]]:
    """The shards that nobody runs any more, since their parent has ended; and those that nobody runs yet, since SQL has
    put it back. Each with the reason. ``parents``: the id of the parent, by the id of the shard.
    """
    ids = sorted(set(parents.values()))
    statuses = dict(map(tuple, read_before(connection, _statuses, {"ids": ids}))) if ids else {}
    lost, early = {}, {}
    for shard, parent in parents.items():
        status = statuses.get(parent)
        if status in (InstanceStatus.PENDING, InstanceStatus.ASSIGNED):
            early[shard] = f"waits for its parent, instance {parent}"
        elif status != InstanceStatus.RUNNING:
            lost[shard] = f"its parent, instance {parent}, runs no more"
    return lost, early
