"""What follows the ends of instances: a mark for each, written with its instance, in ``schedule_follow_up``.

Marks are few: those of what has not ended, and of what ended just now. So a scheduler pages through all of them, and
instances without a mark cost nothing (docs/decisions/0048-what-follows-an-end.md).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import (
    among,
    bound,
    by_index,
    found_by,
    ignore_conflicts,
    joined_ids,
    json_rows,
    split_ids,
)
from rota.shared.database.later import execute_later
from rota.shared.domain.after_ends import MarkedRun
from rota.shared.domain.states import TERMINAL, FollowUp
from rota.shared.store.tables import schedule_follow_up, schedule_instance, schedule_task

_mark = schedule_follow_up.c
_instance = schedule_instance.c
_task = schedule_task.c

_fired = json_rows("fired", task="id", moment="time")
_scheduler: ColumnElement[str] = literal_column("'scheduler'")
_columns = {
    "schedule_task_id": _instance.schedule_task_id,
    "schedule_instance_id": _instance.id,
    "instance_gmt_create": _instance.gmt_create,
    "what": literal_column(f"'{FollowUp.FIXED_DELAY.value}'"),
    "creator": _scheduler,
    "modifier": _scheduler,
}
_mark_fires = ignore_conflicts(insert(schedule_follow_up)).from_select(
    list(_columns),
    by_index(
        select(*_columns.values()).join_from(
            _fired,
            schedule_instance,
            and_(
                _instance.schedule_task_id == _fired.c.task,
                _instance.schedule_datetime == _fired.c.moment,
                _instance.fire_key == literal_column("''"),
                _instance.run_number == literal_column("0"),
            ),
        ),
        schedule_instance,
        "uq_schedule_instance_fire",
    ),
    include_defaults=False,
)


def mark(connection: Connection, fires: Iterable[tuple[int, datetime]]) -> None:
    """Mark the runs of these fires, (task id, time), that this transaction has inserted: their ends are followed up."""
    if rows := sorted(fires):
        execute_later(connection, _mark_fires, {"rows": bound(rows)})


_its_instance = and_(_instance.id == _mark.schedule_instance_id, _instance.gmt_create == _mark.instance_gmt_create)
_is_over = func.coalesce(_instance.status.in_(sorted(status.value for status in TERMINAL)), literal_column("1")) == 1
_on_page = (
    select(_mark.id, _mark.schedule_task_id, _mark.schedule_instance_id, _mark.instance_gmt_create)
    .where(_mark.id > bindparam("after"))
    .order_by(_mark.id)
    .limit(bindparam("limit"))
    .subquery("page")
)
_page = (
    select(
        func.count(),
        func.max(_on_page.c.id),
        joined_ids(case((and_(_is_over, _task.id.is_not(None)), _on_page.c.schedule_task_id))),
        joined_ids(case((_task.id.is_(None), _on_page.c.id))),
    )
    .select_from(_on_page)
    .outerjoin(schedule_task, _task.id == _on_page.c.schedule_task_id)
    .outerjoin(
        schedule_instance,
        and_(_instance.id == _on_page.c.schedule_instance_id, _instance.gmt_create == _on_page.c.instance_gmt_create),
    )
)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page of marks says: the tasks of which a marked run has ended, and marks whose task is not there."""

    tasks: set[int]
    orphans: list[int]
    following: int
    """The id after which the next page begins; 0 after the last."""


def page(connection: Connection, after_id: int, limit: int) -> Page:
    """At most ``limit`` marks after this id."""
    number, reached, tasks, orphans = connection.execute(_page, {"after": after_id, "limit": limit}).one()
    return Page(set(split_ids(tasks)), split_ids(orphans), int(reached) if number == limit else 0)


_of_tasks = (
    select(
        _mark.id,
        _mark.schedule_task_id,
        _instance.schedule_datetime,
        case((_is_over, literal_column("0")), else_=literal_column("1")),
        case(
            (or_(_instance.attempt > 0, _instance.creator != _scheduler), literal_column("1")),
            else_=literal_column("0"),
        ),
        _instance.gmt_completed,
    )
    .outerjoin_from(schedule_follow_up, schedule_instance, _its_instance)
    .where(among(_mark.schedule_task_id))
    .order_by(_mark.id)
)


def of_tasks(connection: Connection, task_ids: Collection[int]) -> dict[int, list[MarkedRun]]:
    """The marked runs of those of these tasks that have any."""
    found: dict[int, list[MarkedRun]] = {}
    for mark_id, task, moment, is_open, stays, ended in connection.execute(_of_tasks, {"ids": sorted(task_ids)}):
        run = MarkedRun(mark_id, task, moment, bool(is_open), stays=bool(stays), gmt_completed=ended)
        found.setdefault(task, []).append(run)
    return found


_planned = json_rows("planned", id="id", next="time")
_plan = (
    update(schedule_task)
    .where(_task.id == _planned.c.id, _task.next_fire_at.is_(None), _task.is_deleted == 0)
    .values(next_fire_at=_planned.c.next)
)


def plan(connection: Connection, fires: Iterable[tuple[int, datetime]]) -> None:
    """Let tasks, (task id, time), fire next at these times (naive UTC), if their plans have no fire.

    The caller holds the leases of the tasks.
    """
    if rows := sorted(fires):
        execute_later(connection, _plan, {"rows": bound(rows)})


_remove = found_by(delete(schedule_follow_up).where(among(_mark.id)))


def remove(connection: Connection, mark_ids: Sequence[int]) -> None:
    """Remove marks."""
    if mark_ids:
        execute_later(connection, _remove, {"ids": sorted(mark_ids)})
