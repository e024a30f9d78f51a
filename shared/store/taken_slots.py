"""Which overlap slots of a task are taken: the keys that its running instances have in the unique index."""

from collections.abc import Collection

from sqlalchemy import Connection, select

from rota.shared.database.constructs import bound, by_index, json_rows
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance

_key = schedule_instance.c.overlap_key
_asked = json_rows("asked", task="id")
_first = _asked.c.task * OVERLAP_SLOTS

_keys = by_index(
    select(_key).join_from(_asked, schedule_instance, _key.between(_first, _first + (OVERLAP_SLOTS - 1))),
    schedule_instance,
    "uq_schedule_instance_overlap_key",
)
"""For each task MariaDB reads one range of the index. With all ranges in one OR it scanned the whole index while the
table was filling, and compared each key with hundreds of ranges."""


def of(connection: Connection, task_ids: Collection[int]) -> dict[int, set[int]]:
    """The slots of these tasks that are taken, also those from a number on that a task has no more."""
    taken: dict[int, set[int]] = {}
    if not task_ids:
        return taken
    for key in connection.scalars(_keys, {"rows": bound((task,) for task in sorted(task_ids))}):
        taken.setdefault(key // OVERLAP_SLOTS, set()).add(key % OVERLAP_SLOTS)
    return taken
