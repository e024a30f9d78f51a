"""Leases on tasks, in ``schedule_task_lock``, so that two schedulers do not do the same work.

Every interleaving of this protocol is safe, because the writes that follow it are keyed and guarded themselves:

1. ``acquire`` takes the leases that are free or expired, and commits. It passes over rows that another scheduler has
   locked (SKIP LOCKED) and does not wait for them, because a frozen scheduler must not freeze the others.
2. The scheduler reads the tasks that it has leased and decides about them. It holds no row lock meanwhile.
3. ``release`` comes before all writes of the writing transaction. It drops the tasks whose leases another scheduler has
   taken over, because this one slept for longer than its lease, and those
   whose leases were taken too long ago, because what was decided then is out of date. It locks the rows of the others
   until the commit, which gives these leases back.
"""

import itertools
import os
import socket
import uuid
from collections.abc import Collection

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from rota.shared.database.constructs import (
    SecondsBefore,
    UtcNow,
    among,
    by_index,
    ignore_conflicts,
    joined_ids,
    split_ids,
)
from rota.shared.database.later import execute_later
from rota.shared.store.tables import schedule_task_lock

_lock = schedule_task_lock.c


_free = or_(
    _lock.is_locked == 0,
    _lock.locked_at < SecondsBefore(UtcNow(), bindparam("lease")),
    SecondsBefore(_lock.locked_at, bindparam("lease")) > UtcNow(),
    _lock.locked_at.is_(None),
    _lock.locked_by == bindparam("token"),
)
"""A lease that begins in the future counts as none, too: the clock was set back, or SQL wrote it."""

_takeable = (
    select(_lock.schedule_task_id)
    .where(among(_lock.schedule_task_id), _free)
    .distinct()  # so that the server does not merge this into the UPDATE, which would then wait for locked rows
    .with_for_update(skip_locked=True)
    .subquery("takeable")
)
_take = (
    update(schedule_task_lock)
    .where(_lock.schedule_task_id == _takeable.c.schedule_task_id)
    .values(locked_by=bindparam("token"), locked_at=UtcNow(), is_locked=1)
)
_of_tasks = select(_lock.schedule_task_id).where(among(_lock.schedule_task_id))
_release = (
    update(schedule_task_lock)
    .where(
        among(_lock.schedule_task_id),
        _lock.locked_by == bindparam("token"),
        _lock.is_locked == 1,
        _lock.locked_at >= SecondsBefore(UtcNow(), bindparam("within")),
    )
    .values(is_locked=0)
)
_held = select(joined_ids(_lock.schedule_task_id)).where(
    among(_lock.schedule_task_id), _lock.locked_by == bindparam("token"), _lock.is_locked == 1
)
_released = by_index(
    _of_tasks.where(_lock.locked_by == bindparam("token"), _lock.is_locked == 0)
    .order_by(_lock.schedule_task_id)
    .with_for_update(),
    schedule_task_lock,
)


_process = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
_batch = itertools.count(1)


LONGEST_BATCH_SECONDS = 60.0
"""The time from the lease to the write of a batch that waits for no certain moment."""


def new_token() -> str:
    """A token that no other batch of any scheduler has: ``host:pid:process:batch``.

    Each batch has a token of its own, so that it never mistakes the leases of an earlier batch for its own.
    """
    return f"{_process}:{next(_batch)}"


def acquire(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> set[int]:
    """Lease the tasks that are free or whose lease is older than ``lease_seconds``; returns those ``token`` holds now.

    When it runs again after a lost commit, it finds the leases that it took before and returns them.
    """
    if not task_ids:
        return set()
    take(connection, token, task_ids, lease_seconds)
    got = held(connection, token, task_ids)
    if len(got) < len(task_ids) and (missing := _insert_missing(connection, sorted(set(task_ids) - got))):
        take(connection, token, missing, lease_seconds)
        got = held(connection, token, task_ids)
    return got


def take(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> None:
    """Lease those of the tasks that are free and have a lock already; the caller reads which ``token`` holds.

    The statement waits for nobody and for no answer, so that it may travel with what is read then.
    """
    execute_later(connection, _take, {"ids": sorted(task_ids), "token": token, "lease": lease_seconds})


def held(connection: Connection, token: str, task_ids: Collection[int]) -> set[int]:
    """Those of the tasks that ``token`` has leased."""
    return set(split_ids(connection.scalar(_held, {"ids": sorted(task_ids), "token": token})))


def _insert_missing(connection: Connection, task_ids: list[int]) -> set[int]:
    existing = set(connection.scalars(_of_tasks, {"ids": task_ids}))
    missing = [{"schedule_task_id": task_id} for task_id in task_ids if task_id not in existing]
    if missing:
        connection.execute(ignore_conflicts(insert(schedule_task_lock)), missing)
    return {row["schedule_task_id"] for row in missing}


def release(
    connection: Connection,
    token: str,
    task_ids: Collection[int],
    within_seconds: float = LONGEST_BATCH_SECONDS,
    *,
    at_once: bool = False,
) -> set[int]:
    """Give the leases back with this transaction's commit; returns the tasks whose leases ``token`` still held.

    Leases that were taken more than ``within_seconds`` ago are not among them: their holder was frozen since, and what
    it has decided is out of date.

    No other scheduler can lease these tasks before the commit. ``locked_by`` stays, and names the last holder. When it
    runs again after a lost commit, it returns the same tasks, except those that another scheduler has leased since.
    With ``at_once`` it relies on ``token``'s holding all of them, and the transaction raises Unexpected otherwise.
    """
    if not task_ids:
        return set()
    values = {"ids": sorted(task_ids), "token": token}
    bounds = {**values, "within": within_seconds}
    if at_once:
        execute_later(connection, _release, bounds, expected=len(task_ids))
        return set(task_ids)
    if connection.execute(_release, bounds).rowcount == len(task_ids):
        return set(task_ids)
    return set(connection.scalars(_released, values))
