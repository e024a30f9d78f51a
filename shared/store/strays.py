"""Strays: instances in a state that no move of Rota's leads to, because somebody wrote it by SQL.

Nobody would ever look at them again: the assigner gives pending instances that have no worker, and recovery asks the
workers. CHECKs refuse such a status; these rows were written past the checks. Of a slot that is kept for no thread,
nobody would say that it is free.
"""

from collections.abc import Collection

from sqlalchemy import Connection, literal_column, or_, select, union_all

from rota.shared.database.constructs import by_index, read_by
from rota.shared.database.later import read_before
from rota.shared.domain.spreading import ITS_SHARDS
from rota.shared.domain.states import FAIL_LOST, InstanceStatus
from rota.shared.store.tables import kept_for_nothing, schedule_instance
from rota.shared.store.transitions import canceling, keeping, recovering
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.recovering import Verdict

_instance = schedule_instance.c
LIMIT = 100
"""The most strays of each kind that one look finds."""

_held = _instance.schedule_worker_node_id.is_not(None)
_by_nobody = or_(~_held, _instance.schedule_worker_node_id == literal_column(str(ITS_SHARDS)))
_WRONG = ((InstanceStatus.PENDING, _held), (InstanceStatus.ASSIGNED, _by_nobody), (InstanceStatus.RUNNING, ~_held))
_parts = [
    select(_instance.id, _instance.status).where(_instance.status == status.value, wrong).limit(LIMIT)
    for status, wrong in _WRONG
]
_strays = union_all(*(select(part.subquery()) for part in _parts))
_slots = read_by(
    select(_instance.id).where(_instance.overlap_key > 0, kept_for_nothing).limit(LIMIT),
    schedule_instance,
    "uq_schedule_instance_overlap_key",
)


def find(connection: Connection) -> dict[int, str]:
    """The strays and their states, by id: pending with a worker, or assigned or running without one."""
    return dict(connection.execute(_strays).all())


def end(connection: Connection, instance_id: int, status: str) -> None:
    """End a stray: cancel what has not started, and fail what is said to run."""
    if status != InstanceStatus.RUNNING:
        with_worker = "with a worker" if status == InstanceStatus.PENDING else "without a worker"
        canceling.cancel(connection, instance_id, f"somebody made it {status} {with_worker} by SQL", "scheduler")
        return
    asked = (_instance.attempt, _instance.gmt_cancel_requested.is_not(None))
    found = select(*asked).where(_instance.id == instance_id, ~_held, leaves(FAIL_LOST))
    reason = "somebody made it running by SQL, and no worker runs it"
    for attempt, requested in read_before(connection, by_index(found, schedule_instance), {}):
        verdict = Verdict(instance_id, attempt, FAIL_LOST, reason, is_cancel_requested=bool(requested))
        recovering.recover(connection, [verdict], None, "", by="scheduler")


def find_slots(connection: Connection) -> list[int]:
    """The instances that have ended and keep overlap slots for no thread: no row of ``schedule_kept_slot`` says whose.

    It reads the slots that are taken: those of what runs, and these.
    """
    return sorted(connection.scalars(_slots))


def free_slots(connection: Connection, instance_ids: Collection[int]) -> None:
    """Free those of these slots that are still kept for no thread."""
    still = by_index(select(_instance.id).where(_instance.id.in_(instance_ids), kept_for_nothing), schedule_instance)
    keeping.free(connection, read_before(connection, still, {}).scalars().all())
