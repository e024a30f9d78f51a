"""The scheduler gives pending instances to workers, and takes back those that a worker has not started."""

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select, update

from rota.shared.database.constructs import UtcNow, among, bound, by_index, ignore_conflicts, json_rows, unindexed
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.states import GIVE, TAKE_BACK
from rota.shared.store.tables import schedule_instance
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c

_free_pending = by_index(
    select(_instance.id, _instance.attempt)
    .where(among(_instance.id), leaves(GIVE, unindexed(_instance.status)))
    .with_for_update(skip_locked=True),
    schedule_instance,
)


def free_pending(connection: Connection, instance_ids: Collection[int]) -> dict[int, int]:
    """Those of these instances that are still pending and that nobody has locked, with their attempts.

    One row that somebody has locked must not hold up the others of a batch.
    """
    if not instance_ids:
        return {}
    rows = read_before(connection, _free_pending, {"ids": sorted(instance_ids)})
    return dict(map(tuple, rows))


_given = json_rows("given", id="id", worker="id", run_number="int", param="json")

_give = ignore_conflicts(
    update(schedule_instance)
    .where(_instance.id == _given.c.id, leaves(GIVE))
    .values(
        status=GIVE.target.value,
        schedule_worker_node_id=_given.c.worker,
        gmt_assigned=UtcNow(),
        run_number=func.coalesce(_instance.run_number, _given.c.run_number),
        param=func.coalesce(_instance.param, _given.c.param),
        reason=None,
    )
)


def give(connection: Connection, rows: Iterable[tuple[int, int, int | None, str | None]]) -> None:
    """Assign instances that are still pending: (instance id, worker id, run number, param as JSON).

    An instance stays pending if another has taken its run number meanwhile; the next pass gives it another number.
    """
    ordered = sorted(rows)
    if ordered:
        execute_later(connection, _give, {"rows": bound(ordered)})


_back = json_rows("back", id="id")
_take_back = (
    update(schedule_instance)
    .where(_instance.id == _back.c.id, leaves(TAKE_BACK))
    .values(status=TAKE_BACK.target.value, schedule_worker_node_id=None, gmt_assigned=None)
)
_take_back_unstarted = _take_back.where(_instance.gmt_assigned < bindparam("cutoff")).values(
    reason="its worker did not start the instance in time", lost_by=func.coalesce(bindparam("avoid"), _instance.lost_by)
)
_take_back_unclaimed = _take_back.where(_instance.attempt == 0).values(reason=bindparam("why"))
_take_back_from = _take_back.where(_instance.schedule_worker_node_id == bindparam("worker")).values(
    reason="its worker stopped, and had not started the instance"
)


def take_back_unstarted(
    connection: Connection, instance_ids: Collection[int], cutoff: datetime, avoid: str | None = None
) -> None:
    """Put these instances back to pending if they were assigned before ``cutoff`` (naive UTC).

    ``avoid`` names the worker that they should not be given to again.
    """
    rows = bound((i,) for i in sorted(instance_ids))
    execute_later(connection, _take_back_unstarted, {"rows": rows, "cutoff": cutoff, "avoid": avoid})


def take_back_unclaimed(connection: Connection, instance_ids: Collection[int], reason: str) -> None:
    """Put these instances back to pending if no worker has ever claimed them."""
    rows = bound((i,) for i in sorted(instance_ids))
    execute_later(connection, _take_back_unclaimed, {"rows": rows, "why": reason})


def take_back_from(connection: Connection, worker_id: int, instance_ids: Collection[int]) -> None:
    """Put these instances back to pending if they are assigned to this worker and not claimed."""
    rows = bound((i,) for i in sorted(instance_ids))
    execute_later(connection, _take_back_from, {"rows": rows, "worker": worker_id})


_adopt = (
    update(schedule_instance)
    .where(among(_instance.id), _instance.due_at.is_(None))
    .values(due_at=_instance.schedule_datetime)
)


def adopt(connection: Connection, instance_ids: Collection[int]) -> None:
    """Set ``due_at`` of rows that SQL inserted without it to their nominal time. They stay pending."""
    if instance_ids:
        execute_later(connection, _adopt, {"ids": sorted(instance_ids)})


_line_up = (
    update(schedule_instance)
    .where(among(_instance.id), leaves(GIVE), _instance.overlap_slot.is_(None))
    .values(overlap_slot=0)
)


def line_up(connection: Connection, instance_ids: Collection[int]) -> None:
    """Let these pending instances, which may wait for others of their tasks, take their places in the order."""
    if instance_ids:
        execute_later(connection, _line_up, {"ids": sorted(instance_ids)})


_leave_line = update(schedule_instance).where(among(_instance.id), leaves(GIVE)).values(overlap_slot=None)


def leave_line(connection: Connection, instance_ids: Collection[int]) -> None:
    """Let others of their tasks go before these pending instances, which no live worker can run."""
    if instance_ids:
        execute_later(connection, _leave_line, {"ids": sorted(instance_ids)})


_explained = json_rows("explained", id="id", reason="str")
_explain = (
    update(schedule_instance).where(_instance.id == _explained.c.id, leaves(GIVE)).values(reason=_explained.c.reason)
)


def explain(connection: Connection, reasons: dict[int, str]) -> None:
    """Write for each of these instances, if it is still pending, why it waits."""
    if reasons:
        execute_later(connection, _explain, {"rows": bound(sorted(reasons.items()))})
