"""Leases on tasks, in ``schedule_task_lock``: so that schedulers do not do the same work twice.

The protocol, safe at every interleaving because the writes that follow are keyed and guarded themselves:

1. ``acquire`` takes what is free or expired and commits. Rows that another scheduler is working on are passed over,
   not waited for: a frozen scheduler must not freeze the others (SKIP LOCKED is for that economy alone; the UPDATE
   is guarded by itself, for databases that ignore it).
2. The scheduler reads and decides, holding no row lock.
3. ``hold`` is the first statement of the writing transaction: FOR UPDATE by token. What was taken over meanwhile, since
   this scheduler slept longer than its lease, is dropped here; what is held cannot be taken over until the commit.
4. ``release`` is the last statement of that transaction.
"""

from collections.abc import Collection

from sqlalchemy import Connection, and_, insert, or_, select, update

from shared.store.dialects import SecondsBefore, UtcNow, by_index, ignore_conflicts
from shared.store.tables import schedule_task_lock

_lock = schedule_task_lock.c


def acquire(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> set[int]:
    """Lease the tasks that are free or whose lease has expired; returns those leased under ``token``."""
    if not task_ids:
        return set()
    free = or_(_lock.is_locked == 0, _lock.locked_at < SecondsBefore(UtcNow(), lease_seconds))
    ids = sorted(task_ids)
    takeable = and_(_lock.schedule_task_id.in_(ids), free)
    take = (
        select(_lock.schedule_task_id)
        .where(takeable)
        .order_by(_lock.schedule_task_id)
        .with_for_update(skip_locked=True)
    )
    got = set(connection.scalars(by_index(take, schedule_task_lock)))
    got |= _insert_missing(connection, sorted(set(ids) - got))
    if got:
        connection.execute(
            update(schedule_task_lock)
            .where(_lock.schedule_task_id.in_(sorted(got)), free)
            .values(locked_by=token, locked_at=UtcNow(), is_locked=1)
        )
    # Read again: others may have been quicker, and if the answer to a commit was lost, the leases are ours already.
    return set(connection.scalars(select(_lock.schedule_task_id).where(_lock.locked_by == token)))


def _insert_missing(connection: Connection, task_ids: list[int]) -> set[int]:
    if not task_ids:
        return set()
    there = set(connection.scalars(select(_lock.schedule_task_id).where(_lock.schedule_task_id.in_(task_ids))))
    missing = [{"schedule_task_id": task_id} for task_id in task_ids if task_id not in there]
    if missing:
        connection.execute(ignore_conflicts(insert(schedule_task_lock)), missing)
    return {row["schedule_task_id"] for row in missing}


def hold(connection: Connection, token: str, task_ids: Collection[int]) -> set[int]:
    """Lock the rows still leased under ``token`` until this transaction ends; returns which they are."""
    statement = (
        select(_lock.schedule_task_id)
        .where(_lock.schedule_task_id.in_(sorted(task_ids)), _lock.locked_by == token, _lock.is_locked == 1)
        .order_by(_lock.schedule_task_id)
        .with_for_update()
    )
    return set(connection.scalars(by_index(statement, schedule_task_lock)))


def release(connection: Connection, token: str, task_ids: Collection[int]) -> None:
    """Give the leases back; what was taken over is left alone."""
    connection.execute(
        update(schedule_task_lock)
        .where(_lock.schedule_task_id.in_(sorted(task_ids)), _lock.locked_by == token)
        .values(locked_by=None, is_locked=0)
    )
