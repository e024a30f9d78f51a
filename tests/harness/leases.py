"""Leases on tasks, taken and given back as the duties do, but in the caller's transaction."""

from collections.abc import Collection

from sqlalchemy import Connection

from rota.shared.store import locks


def acquire(connection: Connection, token: str, task_ids: Collection[int], lease_seconds: float) -> set[int]:
    """Lease those of the tasks that are free; returns those that the token holds now."""
    if not task_ids:
        return set()
    locks.take_new(connection, token, task_ids, lease_seconds)
    return locks.held(connection, token, task_ids)


def release(
    connection: Connection,
    token: str,
    task_ids: Collection[int],
    within_seconds: float = locks.LONGEST_BATCH_SECONDS,
) -> set[int]:
    """Give back those of the leases that the token has kept; returns their tasks."""
    kept = locks.kept(connection, token, task_ids, within_seconds)
    locks.release(connection, token, kept, within_seconds)
    return kept
