"""Leases on tasks, in ``schedule_task_lock``, so that two schedulers do not do the same work.

Every interleaving of this protocol is safe, because the writes that follow it are keyed and guarded themselves:

1. ``take`` takes the leases that are free or expired, and its packet commits. It passes over rows that another
   scheduler has locked (SKIP LOCKED) and does not wait for them, because a frozen scheduler must not freeze the others.
2. The scheduler reads the tasks that it has leased and decides about them. It holds no row lock meanwhile.
3. ``release`` comes before all writes of the writing transaction. It locks the rows of the leases until the commit,
   which gives them back. If another scheduler has taken one over, because this one slept for longer than its lease, or
   if one was taken too long ago, because what was decided then is out of date, nothing is written. ``kept`` then
   tells which leases are left, and the transaction is tried again with their tasks alone.
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
    bound,
    ignore_conflicts,
    joined_ids,
    json_rows,
    split_ids,
)
from rota.shared.database.later import execute_later, read_before
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
_new = json_rows("new", id="id")
_add = ignore_conflicts(insert(schedule_task_lock)).from_select(
    ["schedule_task_id"], select(_new.c.id), include_defaults=False
)
_is_kept = (
    among(_lock.schedule_task_id),
    _lock.locked_by == bindparam("token"),
    _lock.locked_at >= SecondsBefore(UtcNow(), bindparam("within")),
)
"""It may be given back already: by a transaction of the same batch, or by this one if its answer was lost."""

_kept = select(joined_ids(_lock.schedule_task_id)).where(*_is_kept)
_release = update(schedule_task_lock).where(*_is_kept).values(is_locked=0)
_held = select(joined_ids(_lock.schedule_task_id)).where(
    among(_lock.schedule_task_id), _lock.locked_by == bindparam("token"), _lock.is_locked == 1
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


def take(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> None:
    """Lease those of the tasks that are free and have a lock already; the caller reads which ``token`` holds.

    The statement waits for nobody and for no answer, so that it may travel with what is read then. When it runs again
    after a lost commit, it takes the same leases.
    """
    execute_later(connection, _take, {"ids": sorted(task_ids), "token": token, "lease": lease_seconds})


def take_new(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> None:
    """The same of tasks that may have no lock yet: it inserts those locks."""
    existing = set(read_before(connection, _of_tasks, {"ids": sorted(task_ids)}).scalars())
    if missing := sorted(set(task_ids) - existing):
        execute_later(connection, _add, {"rows": bound((task_id,) for task_id in missing)})
    take(connection, token, task_ids, lease_seconds)


def held(connection: Connection, token: str, task_ids: Collection[int]) -> set[int]:
    """Those of the tasks that ``token`` has leased."""
    return set(split_ids(connection.scalar(_held, {"ids": sorted(task_ids), "token": token})))


def kept(
    connection: Connection, token: str, task_ids: Collection[int], within_seconds: float = LONGEST_BATCH_SECONDS
) -> set[int]:
    """Those of the tasks that ``release`` would find: ``token`` was the last to lease them, not too long ago."""
    values = {"ids": sorted(task_ids), "token": token, "within": within_seconds}
    return set(split_ids(read_before(connection, _kept, values).scalar()))


def release(
    connection: Connection,
    token: str,
    task_ids: Collection[int],
    within_seconds: float = LONGEST_BATCH_SECONDS,
) -> None:
    """Give the leases back with this transaction's commit, which relies on ``token``'s holding all of them.

    Otherwise the transaction raises Unexpected. Leases that were taken more than ``within_seconds`` ago do not count:
    their holder was frozen since, and what it has decided is out of date.

    No other scheduler can lease these tasks before the commit. ``locked_by`` stays, and names the last holder. So the
    transaction may run again after a lost commit, unless another scheduler has leased one of them since.
    """
    if task_ids:
        values = {"ids": sorted(task_ids), "token": token, "within": within_seconds}
        execute_later(connection, _release, values, expected=len(task_ids))


def drop(connection: Connection, token: str, task_ids: Collection[int]) -> None:
    """Give back those of these leases that ``token`` has still. Nothing is written about their tasks."""
    values = {"ids": sorted(task_ids), "token": token, "within": LONGEST_BATCH_SECONDS}
    execute_later(connection, _release, values)
