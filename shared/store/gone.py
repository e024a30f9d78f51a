"""Rows of what is long gone: dead workers, what tasks that are gone left, versions that nobody carries, old skips,
refused requests.

Each kind has a ``find``, which reads by an index and locks nothing, and a ``remove``. That locks what it removes and
looks again; it passes over rows that somebody else has locked. So several schedulers may remove at once.

Node types stay: the nodes of all history name them, and no index tells whether one still does.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, delete, exists, func, or_, select

from rota.shared.database.constructs import (
    SecondsBefore,
    UtcNow,
    among,
    by_index,
    found_by,
    joined_ids,
    read_by,
    split_ids,
)
from rota.shared.store.tables import (
    schedule_calendar_use,
    schedule_catch_up,
    schedule_chain,
    schedule_instance,
    schedule_kept_slot,
    schedule_request,
    schedule_skip,
    schedule_task,
    schedule_task_lock,
    schedule_task_type_version,
    schedule_worker_beat,
    schedule_worker_node,
)
from rota.shared.store.workers import ACTIVE, OF_ITS_WORKER, SHOWN_ALIVE

_kept = schedule_kept_slot.c
_task = schedule_task.c
_lock = schedule_task_lock.c
_use = schedule_calendar_use.c
_link = schedule_chain.c
_request = schedule_request.c
_version = schedule_task_type_version.c
_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

_LONG_AGO = SecondsBefore(UtcNow(), bindparam("seconds"))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rows, and how they are found and removed."""

    name: str
    find: Callable[[Connection, int, int, int], tuple[list[int], int]]
    """(connection, after, limit, seconds): the ids that have been gone for ``seconds``, among at most ``limit`` rows.

    It returns them with the id to go on after, which is 0 if these were the last rows.
    """

    remove: Callable[[Connection, Collection[int], int], int]
    """(connection, ids, seconds): remove those of these rows that are gone still; returns how many."""


def _remove(connection: Connection, lock: Select[Any], key: Any, ids: Collection[int], seconds: int) -> int:
    """Delete those rows of one table that ``lock`` finds among these, and whose id is ``key``; returns how many."""
    gone = sorted(connection.scalars(lock, {"ids": sorted(ids), "seconds": seconds}))
    if gone:
        connection.execute(found_by(delete(key.table).where(among(key))), {"ids": gone})
    return len(gone)


# Workers


def _held_by_beat(status: str) -> ColumnElement[Any]:
    """An instance that the beat's worker holds in this state, or NULL. For an EXISTS MariaDB would read all of them."""
    held = schedule_instance.alias(f"is_{status}")
    of_worker = (held.c.status == status, held.c.schedule_worker_node_id == _beat.schedule_worker_node_id)
    return select(held.c.id).where(*of_worker).limit(1).correlate(schedule_worker_beat).scalar_subquery()


_dead = and_(
    _beat.gmt_dead < _LONG_AGO,
    _beat.last_beat < _LONG_AGO,
    ~exists().where(OF_ITS_WORKER, SHOWN_ALIVE),
    *(_held_by_beat(status).is_(None) for status in ACTIVE),
    ~exists().where(_kept.schedule_worker_node_id == _beat.schedule_worker_node_id),
)
_newest_beat = select(func.max(_beat.schedule_worker_node_id).label("id"))
_find_workers = (
    select(_beat.schedule_worker_node_id)
    .where(_dead, _beat.schedule_worker_node_id < _newest_beat.scalar_subquery())
    .order_by(_beat.gmt_dead)
    .limit(bindparam("limit"))
)
_lock_beats = by_index(
    select(_beat.schedule_worker_node_id)
    .where(among(_beat.schedule_worker_node_id), _dead)
    .with_for_update(skip_locked=True),
    schedule_worker_beat,
)
_rows_of_workers = select(_worker.id).where(among(_worker.id))
_lock_workers = by_index(_rows_of_workers.where(~SHOWN_ALIVE).with_for_update(skip_locked=True), schedule_worker_node)


def find_workers(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Workers that have been dead for so long, that hold no instance, and whose threads keep no slot.

    The newest worker is never among them: its id tells which ids were given (``workers.register``).
    """
    del after  # those that were found before are removed by now, or locked
    values = {"limit": limit, "seconds": seconds}
    return sorted(connection.scalars(_find_workers, values)), 0


def remove_workers(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete the rows of these workers and their heartbeats, both or neither of each."""
    beats = set(connection.scalars(_lock_beats, {"ids": sorted(ids), "seconds": seconds}))
    if not beats:
        return 0
    present = set(connection.scalars(_rows_of_workers, {"ids": sorted(beats)}))
    locked = set(connection.scalars(_lock_workers, {"ids": sorted(beats)}))
    gone = sorted(locked | (beats - present))  # SQL may have deleted the row, and left its heartbeats
    if gone:
        connection.execute(found_by(delete(schedule_worker_node).where(among(_worker.id))), {"ids": gone})
        connection.execute(
            found_by(delete(schedule_worker_beat).where(among(_beat.schedule_worker_node_id))), {"ids": gone}
        )
    return len(gone)


# Locks of tasks

_without_task = and_(
    or_(_lock.locked_at.is_(None), _lock.locked_at < _LONG_AGO),
    ~exists().where(_task.id == _lock.schedule_task_id, _task.is_deleted == 0),
)
_lock_locks = by_index(
    select(_lock.schedule_task_id)
    .where(among(_lock.schedule_task_id), _without_task)
    .with_for_update(skip_locked=True),
    schedule_task_lock,
)


def find_locks(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Locks that nobody has leased for so long, and whose tasks are deleted, or not there."""
    return _page(connection, _find_locks, after, limit, seconds)


def remove_locks(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these locks."""
    return _remove(connection, _lock_locks, _lock.schedule_task_id, ids, seconds)


# Which calendar a task was planned with

_unused_calendar = and_(
    _use.gmt_modified < _LONG_AGO, ~exists().where(_task.id == _use.schedule_task_id, _task.is_deleted == 0)
)
_lock_uses = by_index(
    select(_use.id).where(among(_use.id), _unused_calendar).with_for_update(skip_locked=True),
    schedule_calendar_use,
)


def find_uses(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Which calendar tasks used that are deleted, or not there."""
    return _page(connection, _find_uses, after, limit, seconds)


def remove_uses(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these rows. A task that is undeleted gets another one when it is planned."""
    return _remove(connection, _lock_uses, _use.id, ids, seconds)


# The links of chains

_unused_link = and_(
    _link.gmt_modified < _LONG_AGO, ~exists().where(_task.id == _link.schedule_task_id, _task.is_deleted == 0)
)
_lock_links = by_index(
    select(_link.id).where(among(_link.id), _unused_link).with_for_update(skip_locked=True), schedule_chain
)


def find_links(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Which tasks those tasks followed that are deleted, or not there."""
    return _page(connection, _find_links, after, limit, seconds)


def remove_links(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these rows. A task that is undeleted gets them again when it is planned."""
    return _remove(connection, _lock_links, _link.id, ids, seconds)


# Versions of task types

_later = schedule_task_type_version.alias("later")
_carried = (
    exists()
    .where(SHOWN_ALIVE, func.instr(_worker.type_versions, _version.version) > 0)
    .correlate(schedule_task_type_version)
)
_unused = and_(
    _version.gmt_modified < _LONG_AGO,
    exists().where(_later.c.category == _version.category, _later.c.gmt_modified > _version.gmt_modified),
    ~_carried,
)
_lock_versions = by_index(
    select(_version.id).where(among(_version.id), _unused).with_for_update(skip_locked=True),
    schedule_task_type_version,
)


def find_versions(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Versions that were registered last so long ago and that no live worker carries; of no task type the newest."""
    return _page(connection, _find_versions, after, limit, seconds)


def remove_versions(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these versions. A worker that registers one at this moment waits, and writes it anew."""
    return _remove(connection, _lock_versions, _version.id, ids, seconds)


# Fires that were skipped or are still to be caught up

SKIPS_KEPT = 100
"""So many stretches of skipped fires are kept of each task however old they are: the newest."""

_skip = schedule_skip.c
_catch_up = schedule_catch_up.c
_newer = schedule_skip.alias("newer")
_oldest_kept = (
    select(_newer.c.last_fire)
    .where(_newer.c.schedule_task_id == _skip.schedule_task_id)
    .order_by(_newer.c.schedule_task_id.desc(), _newer.c.last_fire.desc())  # MySQL sorts without the task
    .limit(1)
    .offset(SKIPS_KEPT - 1)
    .correlate(schedule_skip)
    .scalar_subquery()
)
_old_skip = or_(
    and_(_skip.gmt_modified < _LONG_AGO, _skip.last_fire < _oldest_kept),
    ~exists().where(_task.id == _skip.schedule_task_id),
)
_lock_skips = by_index(
    select(_skip.id).where(among(_skip.id), _old_skip).with_for_update(skip_locked=True), schedule_skip
)
_of_no_task = ~exists().where(_task.id == _catch_up.schedule_task_id)
_lock_catch_ups = by_index(
    select(_catch_up.id).where(among(_catch_up.id), _of_no_task).with_for_update(skip_locked=True), schedule_catch_up
)


def find_skips(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Stretches of skipped fires that changed last so long ago and are not among the newest of their task.

    Those of tasks that SQL has deleted are found, too, however new they are.
    """
    return _page(connection, _find_skips, after, limit, seconds)


def remove_skips(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these stretches."""
    return _remove(connection, _lock_skips, _skip.id, ids, seconds)


def find_catch_ups(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """Stretches of missed fires of tasks that SQL has deleted, however new they are: they never run."""
    return _page(connection, _find_catch_ups, after, limit, seconds)


def remove_catch_ups(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these stretches."""
    return _remove(connection, _lock_catch_ups, _catch_up.id, ids, seconds)


# Requests that were refused

_old_refusal = and_(_request.is_deleted == 1, _request.gmt_modified < _LONG_AGO)
_lock_requests = by_index(
    select(_request.id).where(among(_request.id), _old_refusal).with_for_update(skip_locked=True), schedule_request
)


def find_requests(connection: Connection, after: int, limit: int, seconds: int) -> tuple[list[int], int]:
    """What programs asked for and was refused so long ago."""
    return _page(connection, _find_requests, after, limit, seconds)


def remove_requests(connection: Connection, ids: Collection[int], seconds: int) -> int:
    """Delete these requests, with their params."""
    return _remove(connection, _lock_requests, _request.id, ids, seconds)


def _of_page(key: ColumnElement[int], condition: ColumnElement[bool]) -> Select[Any]:
    """How many rows a page has, its last id, and the ids that meet the condition."""
    return _page_of(select(key.label("id"), case((condition, key)).label("gone")), key)


def _page_of(rows: Select[Any], key: ColumnElement[int]) -> Select[Any]:
    of_page = rows.where(key > bindparam("after"))
    page = of_page.order_by(key).limit(bindparam("limit")).subquery("page")
    return select(func.count(), func.max(page.c.id), joined_ids(page.c.gone))


_find_uses = _of_page(_use.id, _unused_calendar)
_find_links = _of_page(_link.id, _unused_link)
_find_locks = _of_page(_lock.schedule_task_id, _without_task)
_find_versions = _of_page(_version.id, _unused)
_find_skips = _of_page(_skip.id, _old_skip)
_find_catch_ups = _of_page(_catch_up.id, _of_no_task)
_refused = select(_request.id.label("id"), case((_old_refusal, _request.id)).label("gone"))
_find_requests = _page_of(
    read_by(_refused.where(_request.is_deleted == 1), schedule_request, "ix_schedule_request_open"), _request.id
)


def _page(
    connection: Connection, statement: Select[Any], after: int, limit: int, seconds: int
) -> tuple[list[int], int]:
    values = {"after": after, "limit": limit, "seconds": seconds}
    seen, reached, gone = connection.execute(statement, values).one()
    return split_ids(gone), int(reached) if seen == limit else 0


KINDS = (
    Kind("worker", find_workers, remove_workers),
    Kind("lock", find_locks, remove_locks),
    Kind("calendar use", find_uses, remove_uses),
    Kind("chain link", find_links, remove_links),
    Kind("version", find_versions, remove_versions),
    Kind("skip", find_skips, remove_skips),
    Kind("catch-up", find_catch_ups, remove_catch_ups),
    Kind("request", find_requests, remove_requests),
)
