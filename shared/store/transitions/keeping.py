"""An instance that has ended may keep its slots, because its thread still runs. This is no move: it has ended.

``slot_kept`` keeps the unique ``overlap_key``, so no claim needs to look for anything else. A slot of a limit is kept
by it, too. The rows of ``schedule_kept_slot`` say which worker's thread it is. The worker frees the slot when the
thread has returned, the scheduler when the worker is dead. A shard keeps the slot of its parent, which does not end
meanwhile.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, bindparam, delete, exists, insert, literal_column, or_, select, update

from rota.shared.database.constructs import UtcNow, among, found_by
from rota.shared.database.later import execute_later
from rota.shared.domain.states import FAIL
from rota.shared.store.tables import schedule_instance, schedule_kept_slot, schedule_limit_slot
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_kept = schedule_kept_slot.c

_limit_slot = schedule_limit_slot.c
_has_limit_slot = exists().where(
    _limit_slot.schedule_instance_id == _instance.id, _limit_slot.attempt == _instance.attempt
)
_has_slot = (
    among(_instance.id),
    _instance.schedule_worker_node_id == bindparam("worker"),
    or_(_instance.overlap_slot.is_not(None), _instance.parent_id.is_not(None), _has_limit_slot),
    leaves(FAIL),
)
_keep = update(schedule_instance).where(*_has_slot).values(slot_kept=1)
_note = insert(schedule_kept_slot).from_select(
    ["schedule_instance_id", "schedule_worker_node_id", "creator", "modifier"],
    select(
        _instance.id, _instance.schedule_worker_node_id, literal_column("'worker'"), literal_column("'worker'")
    ).where(*_has_slot),
)
_free = (
    update(schedule_instance)
    .where(among(_instance.id), _instance.slot_kept == 1)
    .values(slot_kept=0, gmt_modified=UtcNow())
)
_forget = found_by(delete(schedule_kept_slot).where(among(_kept.schedule_instance_id)))
_of_worker = select(_kept.schedule_instance_id).where(_kept.schedule_worker_node_id == bindparam("worker"))
_free_own = _free.where(exists(_of_worker.where(_kept.schedule_instance_id == _instance.id)))
_forget_own = _forget.where(_kept.schedule_worker_node_id == bindparam("worker"))


def keep(connection: Connection, worker_id: int, instance_ids: Collection[int]) -> None:
    """Let runs that this transaction has locked, and is about to end, keep their slots. Runs without one keep none.

    What an earlier instance with such an id has left behind gives way.
    """
    if instance_ids:
        values = {"ids": sorted(instance_ids), "worker": worker_id}
        execute_later(connection, _keep, values)
        execute_later(connection, _forget, {"ids": values["ids"]})
        execute_later(connection, _note, values)


def free(connection: Connection, instance_ids: Collection[int]) -> None:
    """Free the slots that these instances kept."""
    if instance_ids:
        execute_later(connection, _free, {"ids": sorted(instance_ids)})
        execute_later(connection, _forget, {"ids": sorted(instance_ids)})


def free_own(connection: Connection, worker_id: int, instance_ids: Collection[int]) -> None:
    """Free those of these slots that are kept for this worker's threads. The others are other workers'."""
    if instance_ids:
        values = {"ids": sorted(instance_ids), "worker": worker_id}
        execute_later(connection, _free_own, values)
        execute_later(connection, _forget_own, values)


def of_worker(connection: Connection, worker_id: int, limit: int) -> Sequence[int]:
    """At most ``limit`` of the instances that keep slots for a worker's threads."""
    return connection.execute(_of_worker.limit(limit), {"worker": worker_id}).scalars().all()
