"""Leases on tasks, in ``schedule_task_lock``: so that schedulers do not do the same work twice.

The protocol, safe at every interleaving because the writes that follow are keyed and guarded themselves:

1. ``acquire`` takes what is free or expired and commits. Rows that another scheduler is working on are passed over,
   not waited for: a frozen scheduler must not freeze the others (SKIP LOCKED is for that economy alone; the UPDATE
   is guarded by itself, for databases that ignore it).
2. The scheduler reads what it has leased and decides, holding no row lock.
3. ``release`` is the first statement of the writing transaction. What was taken over meanwhile, since this scheduler
   slept longer than its lease, is dropped here; the row locks of the rest keep others off until the commit, which
   gives the leases back.
"""

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from shared.store.dialects import SecondsBefore, UtcNow, among, by_index, ignore_conflicts, joined_ids, split_ids
from shared.store.tables import schedule_task_lock

_lock = schedule_task_lock.c


_free = or_(
    _lock.is_locked == 0,
    _lock.locked_at < SecondsBefore(UtcNow(), bindparam("lease")),
    _lock.locked_by == bindparam("token"),
)
_takeable = by_index(
    select(joined_ids(_lock.schedule_task_id))
    .where(among(_lock.schedule_task_id), _free)
    .with_for_update(skip_locked=True),
    schedule_task_lock,
)
_take = (
    update(schedule_task_lock)
    .where(among(_lock.schedule_task_id), _free)
    .values(locked_by=bindparam("token"), locked_at=UtcNow(), is_locked=1)
)
_there = select(_lock.schedule_task_id).where(among(_lock.schedule_task_id))
_release = (
    update(schedule_task_lock)
    .where(among(_lock.schedule_task_id), _lock.locked_by == bindparam("token"), _lock.is_locked == 1)
    .values(is_locked=0)
)
_taken = _there.where(_lock.locked_by == bindparam("token"), _lock.is_locked == 1)
_released = by_index(
    _there.where(_lock.locked_by == bindparam("token"), _lock.is_locked == 0)
    .order_by(_lock.schedule_task_id)
    .with_for_update(),
    schedule_task_lock,
)


def acquire(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> set[int]:
    """Lease the tasks that are free or whose lease has expired; returns those that ``token`` has now.

    Run again after a lost commit, it finds its leases its own.
    """
    if not task_ids:
        return set()
    names = {"token": token, "lease": lease_seconds}
    ids = sorted(task_ids)
    got = set(split_ids(connection.scalar(_takeable, {"ids": ids, **names})))
    if len(got) < len(ids):
        got |= _insert_missing(connection, sorted(set(ids) - got))
    if got and connection.execute(_take, {"ids": sorted(got), **names}).rowcount < len(got):
        return set(connection.scalars(_taken, {"ids": ids, "token": token}))  # others inserted some first
    return got


def _insert_missing(connection: Connection, task_ids: list[int]) -> set[int]:
    there = set(connection.scalars(_there, {"ids": task_ids}))
    missing = [{"schedule_task_id": task_id} for task_id in task_ids if task_id not in there]
    if missing:
        connection.execute(ignore_conflicts(insert(schedule_task_lock)), missing)
    return {row["schedule_task_id"] for row in missing}


def release(connection: Connection, token: str, task_ids: Collection[int]) -> set[int]:
    """Give the leases back with this transaction's commit; returns those that were still ``token``'s, and are its own
    until then. ``locked_by`` stays: who held it last.

    Run again after a lost commit it says the same, unless another has leased the task since.
    """
    if not task_ids:
        return set()
    which = {"ids": sorted(task_ids), "token": token}
    if connection.execute(_release, which).rowcount == len(task_ids):
        return set(task_ids)
    return set(connection.scalars(_released, which))
