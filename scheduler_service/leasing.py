"""Leasing tasks that may have no row in ``schedule_task_lock`` yet.

Somebody may have locked the place of such a row: a console that read the gap where it goes, at REPEATABLE READ. Then
that task alone is passed over, until the lock is gone.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from rota.shared.database.later import then_read
from rota.shared.database.transactions import Database
from rota.shared.store import locks


def lease_new(database: Database, token: str, task_ids: Collection[int], lease_seconds: float) -> set[int]:
    """Lease those of the tasks that are free, whether they were leased before or not; returns which ``token`` holds.

    got = lease_new(database, token, [3, 4], 10)

    Raises DatabaseProblem as ``Database.write`` does.
    """
    got: set[int] = set()

    def lease(connection: Connection, some: Sequence[int]) -> None:
        take_and_read = then_read(
            lambda c: locks.take_new(c, token, some, lease_seconds), lambda c: locks.held(c, token, some)
        )
        got.update(take_and_read(connection))

    database.write_by_halves(sorted(task_ids), lease, None, lambda task_id: f"the lease of task {task_id}")
    return got
