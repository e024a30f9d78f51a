"""What people do with instances: list, show, run, replay, cancel."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, String, and_, bindparam, case, func, insert, select, type_coerce

from rota.shared.database.constructs import UtcNow, UtcTime, among
from rota.shared.database.later import read_before
from rota.shared.domain.errors import NotFound, NotPossible
from rota.shared.domain.jsontext import UnreadableJson, json_value
from rota.shared.domain.replaying import start_of
from rota.shared.domain.states import TERMINAL, InstanceStatus, Origin
from rota.shared.store import cleanups, params, replays, spreading
from rota.shared.store.tables import (
    owns_node,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_node,
)
from rota.shared.store.transitions import canceling

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c
_worker = schedule_worker_node.c

UNSUCCESSFUL = (InstanceStatus.FAILED, InstanceStatus.CANCELED)

RESULT_SHOWN = 100
"""So many characters of a large result are read for a list."""


_of_task = (_task.timezone, _task.owner, _task.task_group, _task.tags)


def _with_names(*columns: Any) -> Select[Any]:
    return (
        select(*columns, _task.name.label("task_name"), *_of_task, _worker.name.label("worker_name"))
        .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
        .join(schedule_worker_node, _worker.id == _instance.schedule_worker_node_id, isouter=True)
    )


_seen = _with_names(schedule_instance)
_result = type_coerce(_instance.execution_result, String)
_in_list = _with_names(
    *(column for column in _instance if column.name not in ("param", "execution_result", "failed_attempts")),
    params.small(_instance.param).label("param"),
    params.size_if_large(_instance.param).label("param_bytes"),
    params.size_if_large(_instance.execution_result).label("result_bytes"),
    params.small(_instance.execution_result).label("execution_result"),
    case((params.bytes_of_large(_result) > 0, func.substr(_result, 1, RESULT_SHOWN))).label("result_begins"),
)
"""Without large params and results, of which a page may have gigabytes; of a large result it has the beginning."""


def find(connection: Connection, instance_id: int) -> Row[Any]:
    """One instance, with ``task_name``, what its task says of itself, and ``worker_name``.

    Raises NotFound.
    """
    row: Row[Any] | None = read_before(connection, _seen.where(_instance.id == instance_id), {}).one_or_none()
    if row is None:
        raise _not_found(instance_id)
    return row


def find_many(connection: Connection, ids: Collection[int]) -> list[Row[Any]]:
    """These instances in the order of their ids, as ``listed`` has them.

    Raises NotFound if one is missing.
    """
    rows = in_list(connection, ids)
    missing = set(ids) - {row.id for row in rows}
    if missing:
        raise _not_found(min(missing))
    return rows


def _not_found(instance_id: int) -> NotFound:
    return NotFound(f"there is no instance {instance_id}; rota instance list shows the newest")


def nodes(connection: Connection, instance_id: int) -> list[Row[Any]]:
    """The nodes of an instance in their order, each with its ``type``."""
    return list(
        connection.execute(
            select(schedule_task_node, _type.type)
            .join_from(schedule_instance, schedule_task_node, owns_node)
            .join(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
            .where(_instance.id == instance_id)
            .order_by(_node.sequence)
        )
    )


def listed(
    connection: Connection,
    limit: int,
    *,
    task_id: int | None = None,
    status: str | None = None,
    after_id: int | None = None,
) -> list[Row[Any]]:
    """At most ``limit`` instances, the newest first; those of one task by ``schedule_datetime``. Shards are left out.

    ``after_id`` keeps only instances with a greater id. They come without large params and results, of which
    ``param_bytes`` and ``result_bytes`` have the sizes, and with ``result_begins``: the beginning of a large result
    as a JSON text.
    """
    statement = _in_list.where(_instance.parent_id.is_(None)).limit(limit)
    if after_id is not None:
        statement = statement.where(_instance.id > after_id)
    if task_id is None:
        statement = statement.order_by(_instance.id.desc())
    else:  # in the order of its index
        statement = statement.where(_instance.schedule_task_id == task_id).order_by(
            _instance.schedule_datetime.desc(), _instance.fire_key.desc(), _instance.run_number.desc()
        )
    if status in UNSUCCESSFUL:
        statement = statement.where(_instance.unsuccessful == status)
    elif status is not None:
        statement = statement.where(_instance.status == status)
    return list(connection.execute(statement))


def shards(connection: Connection, parent: Row[Any], limit: int, status: str | None = None) -> list[Row[Any]]:
    """At most ``limit`` shards of an instance, in their order, as ``listed`` has them."""
    own = _in_list.where(
        _instance.schedule_task_id == parent.schedule_task_id,
        _instance.schedule_datetime == parent.schedule_datetime,
        _instance.parent_id == parent.id,
    )
    if status is not None:
        own = own.where(_instance.status == status)
    return list(connection.execute(own.order_by(_instance.shard_index, _instance.id).limit(limit)))


def in_list(connection: Connection, ids: Iterable[int]) -> list[Row[Any]]:
    """These instances in the order of their ids, as ``listed`` has them."""
    found = read_before(connection, _in_list.where(among(_instance.id)).order_by(_instance.id), {"ids": sorted(ids)})
    return list(found)


def ask(
    connection: Connection,
    task: Row[Any],
    schedule_datetime: datetime,
    by: str,
    *,
    param: Mapping[str, Any] | None = None,
    origin: Origin = Origin.MANUAL,
    fire_key: str = "",
) -> int:
    """Insert a run of a task for a nominal time (naive UTC), due then, or at once if it has passed; returns its id.

    The scheduler assigns it to a worker, and gives it its run number while it holds the task's lease.
    """
    nominal = bindparam("nominal", schedule_datetime, UtcTime)
    result = connection.execute(
        insert(schedule_instance).values(
            schedule_task_id=task.id,
            schedule_datetime=schedule_datetime,
            due_at=case((nominal > UtcNow(), nominal), else_=UtcNow()),
            origin=origin.value,
            fire_key=fire_key,
            priority=task.priority,
            param=param,
            creator=by,
            modifier=by,
        )
    )
    return int(result.lastrowid)


_ended = (
    select(
        *(_instance.id, _instance.status, _instance.parent_id, _instance.only_worker_node_id),
        params.small(_instance.param).label("param"),
        params.size_if_large(_instance.param).label("param_bytes"),
        _task.id.label("task_id"),
    )
    .join_from(
        schedule_instance,
        schedule_task,
        and_(_task.id == _instance.schedule_task_id, _task.is_deleted == 0),
        isouter=True,
    )
    .where(_instance.id == bindparam("instance"))
)
"""What a replay asks of an instance; ``task_id`` is NULL if its task was deleted."""


def replay(
    connection: Connection,
    instance_id: int,
    by: str,
    *,
    param: Mapping[str, Any] | None = None,
    from_node: str | None = None,
) -> int:
    """Run an ended instance once more: a new instance for the same fire; returns its id.

    The new instance gets the old one's ``schedule_datetime``, ``fire_key`` and param, or this ``param``, and the next
    run number. With ``from_node`` it gets its nodes, too, and the results of those before that one. The old instance
    stays as history. Raises NotFound. Raises NotPossible if the instance has not ended, if its task was
    deleted, if its param is JSON that Python cannot read, or if a node before ``from_node`` has not succeeded.
    """
    row = read_before(connection, _ended, {"instance": instance_id}).one_or_none()
    if row is None:
        raise _not_found(instance_id)
    if InstanceStatus(row.status) not in TERMINAL:
        raise NotPossible(
            f"instance {instance_id} is {row.status}, not ended; cancel it first, or wait until it has ended"
        )
    if row.task_id is None:
        raise NotPossible(f"instance {instance_id} belongs to a task that was deleted; nothing can run it")
    if param is None:
        _require_readable(connection, row)
    start = None
    replays.require_replayable(row)
    if from_node is not None:
        start = start_of(instance_id, replays.nodes_of(connection, [instance_id])[instance_id], from_node)
    return replays.insert_replays(connection, {instance_id: start}, by, param)[instance_id]


def _require_readable(connection: Connection, row: Row[Any]) -> None:
    """Refuse a param that Python cannot read. A large one is read alone, and not kept."""
    param = row.param
    if row.param_bytes is not None:
        text = params.of_instances(connection, [row.id])[row.id]
        param = None if text is None else json_value(text)
    if isinstance(param, UnreadableJson):
        raise NotPossible(f"param of instance {row.id}: {param}")


def cancel(
    connection: Connection, instance: Row[Any], now: datetime, by: str, reason: str = "canceled by hand"
) -> dict[str, Any]:
    """Cancel an instance that was read, or ask its worker to stop it; returns the columns that this sets.

    If it had begun and waits for another attempt, its nodes that run always are left: a worker runs them.
    ``now`` is naive UTC. The transaction raises Unexpected if the instance has another status by then. Raises
    NotPossible for an instance that has ended.
    """
    if instance.status in TERMINAL:
        raise NotPossible(f"instance {instance.id} has ended already: {instance.status}")
    if instance.status != InstanceStatus.RUNNING:
        if cleanups.call_off(connection, instance, reason, by):
            return {"reason": reason}
        shards = spreading.unstopped(connection, [instance.id] if instance.shard_total is not None else [])
        canceling.cancel_as_read(connection, instance, reason, by)
        spreading.stop(connection, shards, waits=True)
        return {"status": InstanceStatus.CANCELED.value, "reason": reason}
    if instance.gmt_cancel_requested is not None:
        return {}
    canceling.request_cancel(connection, instance.id, now, reason)
    return {"reason": reason, "gmt_cancel_requested": now}


def of_fire(connection: Connection, task_id: int, moment: datetime, limit: int) -> list[Row[Any]]:
    """At most ``limit`` instances of a task for one time (naive UTC): the newest run first, as of a list; no shards."""
    own = _in_list.where(
        _instance.schedule_task_id == task_id, _instance.schedule_datetime == moment, _instance.parent_id.is_(None)
    )
    found = connection.execute(own.order_by(_instance.fire_key.desc(), _instance.run_number.desc()).limit(limit))
    return sorted(found, key=lambda row: (row.run_number is None, row.run_number or 0, row.id), reverse=True)


def newest_id(connection: Connection) -> int:
    """The greatest id of an instance; 0 if there is no instance."""
    return connection.scalar(select(func.max(_instance.id))) or 0


def live_ids(connection: Connection, limit: int) -> list[int]:
    """Ids of instances that have not ended, at most ``limit``."""
    live = [s.value for s in InstanceStatus if s not in TERMINAL]
    return list(connection.scalars(select(_instance.id).where(_instance.status.in_(live)).limit(limit)))


def ended_since(
    connection: Connection, after_id: int, watched: Collection[int], limit: int
) -> tuple[dict[int, str], list[Row[Any]]]:
    """Read what a follower needs: the states of instances by id, and the rows of those that have ended, as in a list.

    The instances are the ``watched`` ones and the first ``limit`` after ``after_id``. They are read by the primary key
    alone, so the cost depends on what happens, not on the size of the table. A follower watches the instances that have
    not ended, and the gaps between the ids that it has read, because their transactions may still commit.
    """
    fresh = select(_instance.id, _instance.status).where(_instance.id > after_id).order_by(_instance.id).limit(limit)
    known = select(_instance.id, _instance.status).where(_instance.id.in_(sorted(watched)))
    states: dict[int, str] = {row.id: row.status for row in connection.execute(fresh)}
    if watched:
        states |= {row.id: row.status for row in connection.execute(known)}
    ended = sorted(i for i, status in states.items() if InstanceStatus(status) in TERMINAL)
    if not ended:
        return states, []
    rows = connection.execute(_in_list.where(_instance.id.in_(ended)).order_by(_instance.gmt_completed, _instance.id))
    return states, list(rows)
