"""Backfills: a row for each range of past fires that somebody asked to run, and the steps of the scheduler in it.

A step is one transaction: it inserts the instances of some fires, and moves the row on. The row's ``revision`` is the
fence: of two schedulers that have read one row, the second changes nothing. So is its ``status``: nothing is written
for a backfill that was paused or canceled meanwhile.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import (
    Json,
    UtcNow,
    UtcTime,
    bound,
    by_index,
    json_rows,
    read_by,
    stored_time,
    written,
)
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.backfilling import Backfill, Past, Step, fire_key
from rota.shared.domain.errors import NotFound
from rota.shared.domain.states import BackfillStatus, InstanceStatus
from rota.shared.store import catch_ups, plans
from rota.shared.store.spoiled_backfills import spoiled_columns
from rota.shared.store.tables import schedule_backfill, schedule_instance, schedule_task

_backfill = schedule_backfill.c
_instance = schedule_instance.c
_task = schedule_task.c

RUNNING, PAUSED, CANCELED, DONE = (status.value for status in BackfillStatus)
OVER = (CANCELED, DONE)
WAITS = (InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value)


@dataclass(frozen=True, slots=True)
class Found:
    """A backfill that is under way, with what its task says now."""

    backfill: Backfill
    is_deleted: bool
    """Whether the task was deleted, or is gone."""

    overlap_policy: str | None
    max_instances: int | None
    priority: int
    planned_until: datetime | None
    complete_from: datetime | None
    inputs_text: str | None
    """The inputs of the task's plan, if SQL has inserted the backfill and nobody has looked at it yet."""

    param_is_odd: bool
    """Whether SQL has inserted it so, with a param that is no JSON object."""

    ended: int
    """How many of its fires had ended, or need not run."""

    is_resumed: bool
    """Whether SQL has resumed it: it runs, with what says that it was paused or had ended."""

    is_stopped: bool
    """Whether SQL has paused or ended it: nothing says since when, or why."""

    spoiled: Sequence[str]
    """The columns of the row into which SQL has written what cannot be."""

    @property
    def is_by_sql(self) -> bool:
        """Whether SQL has changed its status, and no step has noted that yet."""
        return self.is_resumed or self.is_stopped


_small = [column for column in _backfill if column.name != "param"]
"""Without the param, which may be large, and travels to the instances inside the database."""

_is_no_object = case(
    (_backfill.param.is_(None), literal_column("0")),
    (func.json_valid(_backfill.param), func.upper(func.json_type(_backfill.param)) != literal_column("'OBJECT'")),
    else_=literal_column("1"),
)
_open = (
    read_by(
        select(
            *_small,
            _task.is_deleted.label("task_deleted"),
            _task.overlap_policy,
            _task.max_instances,
            _task.next_fire_at,
            _task.history_complete_from,
            case((_backfill.plan_inputs.is_(None), _task.plan_inputs)).label("inputs_text"),
            case((and_(_backfill.plan_inputs.is_(None), _is_no_object == literal_column("1")), 1), else_=0).label(
                "param_is_odd"
            ),
        ).join_from(schedule_backfill, schedule_task, _task.id == _backfill.schedule_task_id, isouter=True),
        schedule_backfill,
        "ix_schedule_backfill_open",
    )
    .where(
        _backfill.id > bindparam("after"),
        or_(
            _backfill.status == literal_column(f"'{RUNNING}'"),
            and_(_backfill.status.in_([PAUSED, *OVER]), _backfill.in_flight > 0),
        ),
    )
    .order_by(_backfill.id)
    .limit(bindparam("limit"))
)


def page(connection: Connection, after_id: int, limit: int) -> list[Found]:
    """At most ``limit`` backfills after this id that run, or whose instances have not all ended."""
    rows = connection.execute(_open, {"after": after_id, "limit": limit})
    return [_found(row) for row in rows]


def _found(row: Any) -> Found:
    spoiled = spoiled_columns(row)
    inputs = None if row.plan_inputs is None else plans.inputs_in(row.plan_inputs)
    backfill = Backfill(
        row.id, row.schedule_task_id, row.status, row.from_at, row.to_at, row.next_fire, inputs, bool(row.newest_first),
        bool(row.only_missing), row.concurrency, _moments(row.in_flight_fires), row.revision,
    )  # fmt: skip
    is_deleted = row.task_deleted is None or bool(row.task_deleted)
    terms = (row.overlap_policy, row.max_instances, row.priority, row.next_fire_at, row.history_complete_from)
    was_stopped = row.reason is not None or row.gmt_completed is not None
    is_stopped = row.reason is None if row.status == PAUSED else row.status in OVER and row.gmt_completed is None
    noted = (0 if spoiled else ended(row), row.status == RUNNING and was_stopped, is_stopped)
    return Found(backfill, is_deleted, *terms, row.inputs_text, bool(row.param_is_odd), *noted, spoiled)


def _moments(texts: Any) -> list[datetime]:
    """The times in ``in_flight_fires``, where SQL may have written anything."""
    read = [stored_time(text) for text in texts if isinstance(text, str)] if isinstance(texts, list) else []
    return [moment for moment in read if isinstance(moment, datetime)]


_asked = json_rows("asked", moment="time")


def _asked_fires(*columns: Any) -> Select[Any]:
    """Instances of a task for the times that are asked for."""
    joined = and_(
        _instance.schedule_task_id == bindparam("task"),
        _instance.schedule_datetime == _asked.c.moment,
    )
    found = select(*columns).select_from(_asked).join(schedule_instance, joined)
    statement: Select[Any] = by_index(found, schedule_instance, "uq_schedule_instance_fire")
    return statement


_own = _asked_fires(_instance.schedule_datetime, _instance.status, _instance.id).where(
    _instance.fire_key == bindparam("fire_key"), _instance.run_number == literal_column("0")
)
_ran = (
    _asked_fires(_instance.schedule_datetime)
    .where(_instance.status != literal_column(f"'{InstanceStatus.CANCELED.value}'"))
    .distinct()
)


def in_flight(connection: Connection, backfill: Backfill) -> tuple[dict[datetime, str], list[int]]:
    """The statuses of the fires in flight by their times, and the ids of the instances that wait."""
    if not backfill.in_flight:
        return {}, []
    rows = bound((fire,) for fire in backfill.in_flight)
    values = {"rows": rows, "task": backfill.task_id, "fire_key": fire_key(backfill.id)}
    found = connection.execute(_own, values).all()
    return {moment: status for moment, status, _ in found}, [i for _, status, i in found if status in WAITS]


def past(connection: Connection, found: Found, fires: Collection[datetime]) -> Past:
    """What ``only_missing`` must know of these fires.

    The plan, which was read before, hands fires on to the catch-up and to instances, and the catch-up to instances. So
    a fire that is read in this order cannot be overlooked.
    """
    stretches = [(one.next_fire, one.last_fire) for one in catch_ups.of_task(connection, found.backfill.task_id)]
    ran = ran_of(connection, found.backfill.task_id, fires)
    return Past(found.planned_until, stretches, found.complete_from, ran)


def ran_of(connection: Connection, task_id: int, fires: Collection[datetime]) -> set[datetime]:
    """Those of these fires of a task that have an instance which is not canceled."""
    if not fires:
        return set()
    values = {"rows": bound((fire,) for fire in fires), "task": task_id}
    return set(read_before(connection, _ran, values).scalars())


_is_as_read = (
    _backfill.id == bindparam("backfill"),
    _backfill.revision == bindparam("read"),
    _backfill.status == bindparam("was"),
)
_adopt = (
    update(schedule_backfill)
    .where(*_is_as_read)
    .values(
        plan_inputs=bindparam("inputs"),
        next_fire=bindparam("next", type_=UtcTime),
        fires=bindparam("number"),
        revision=_backfill.revision + 1,
    )
)


def adopt(connection: Connection, found: Found, next_fire: datetime, number: int) -> None:
    """Give a backfill that SQL has inserted what it needs: its plan, its first fire, and how many it has."""
    read = {"backfill": found.backfill.id, "read": found.backfill.revision, "was": found.backfill.status}
    values = {**read, "inputs": found.inputs_text, "next": next_fire, "number": number}
    execute_later(connection, _adopt, values, expected=1)


_advance = (
    update(schedule_backfill)
    .where(*_is_as_read)
    .values(
        status=bindparam("becomes"),
        next_fire=bindparam("next", type_=UtcTime),
        fires=case(
            (bindparam("is_counted") == 1, _backfill.written + _backfill.not_missing + bindparam("last")),
            else_=_backfill.fires,
        ),
        written=_backfill.written + bindparam("fires_written"),
        not_missing=_backfill.not_missing + bindparam("fires_not_missing"),
        succeeded=_backfill.succeeded + bindparam("fires_succeeded"),
        failed=_backfill.failed + bindparam("fires_failed"),
        canceled=_backfill.canceled + bindparam("fires_canceled"),
        in_flight=bindparam("number"),
        in_flight_fires=bindparam("which", type_=Json),
        gmt_running=case((bindparam("is_resumed") == 1, UtcNow()), else_=_backfill.gmt_running),
        ended_before=case((bindparam("is_resumed") == 1, bindparam("ended")), else_=_backfill.ended_before),
        reason=case((bindparam("is_as_before") == 1, _backfill.reason), else_=bindparam("why")),
        gmt_completed=case((bindparam("is_over") == 1, func.coalesce(_backfill.gmt_completed, UtcNow()))),
        revision=_backfill.revision + 1,
        gmt_modified=UtcNow(),
        modifier=literal_column("'scheduler'"),
    )
)


def advance(connection: Connection, found: Found, step: Step) -> None:
    """Move a backfill on. The transaction relies on that it is as it was read, and raises Unexpected otherwise."""
    backfill, flying = found.backfill, [*step.in_flight, *step.fires]
    now_ended = {f"fires_{status}": 0 for status in ("succeeded", "failed", "canceled")}
    for status, number in step.ended.items():
        now_ended["fires_succeeded" if status == InstanceStatus.SUCCEED else f"fires_{status}"] += number
    by_sql = f"{step.status} by SQL" if found.is_stopped and step.status == backfill.status else None
    is_as_before = step.status == backfill.status and step.reason is None and not found.is_by_sql
    values = {
        "backfill": backfill.id,
        "read": backfill.revision,
        "was": backfill.status,
        "becomes": step.status,
        "next": step.next_fire,
        "fires_written": len(step.fires),
        "fires_not_missing": step.not_missing,
        "number": len(flying),
        "is_counted": int(step.next_fire is None and backfill.next_fire is not None),
        "last": len(step.fires) + step.not_missing,
        "which": [written(fire) for fire in flying] or None,
        "is_resumed": int(found.is_resumed),
        "ended": found.ended + sum(step.ended.values()),
        "is_as_before": int(is_as_before),
        "why": step.reason or by_sql,
        "is_over": int(step.status in OVER),
        **now_ended,
    }
    execute_later(connection, _advance, values, expected=1)


# What people do with backfills


def add(connection: Connection, task: Row[Any], by: str, **columns: Any) -> int:
    """Insert a backfill of a task, with the inputs of its plan as they are; returns its id."""
    values = {"schedule_task_id": task.id, "plan_inputs": task.plan_inputs, "creator": by, "modifier": by}
    return int(connection.execute(insert(schedule_backfill).values(**values, **columns)).lastrowid)


def _with_task(*columns: Any) -> Select[Any]:
    named = select(*columns, _task.name.label("task_name"), _task.timezone)
    return named.join_from(schedule_backfill, schedule_task, _task.id == _backfill.schedule_task_id, isouter=True)


_seen, _in_list = _with_task(schedule_backfill), _with_task(*_small)


def find(connection: Connection, backfill_id: int) -> Row[Any]:
    """One backfill, with ``task_name`` and ``timezone``.

    Raises NotFound.
    """
    row: Row[Any] | None = read_before(connection, _seen.where(_backfill.id == backfill_id), {}).one_or_none()
    if row is None:
        raise NotFound(f"there is no backfill {backfill_id}; rota backfill list shows the newest")
    return row


def listed(
    connection: Connection, limit: int, *, task_id: int | None = None, status: str | None = None
) -> list[Row[Any]]:
    """At most ``limit`` backfills, the newest first, without their params."""
    statement = _in_list.order_by(_backfill.id.desc()).limit(limit)
    if task_id is not None:
        statement = statement.where(_backfill.schedule_task_id == task_id)
    if status is not None:
        statement = statement.where(_backfill.status == status)
    return list(connection.execute(statement))


def switch(connection: Connection, row: Row[Any], status: BackfillStatus, by: str, why: str | None) -> None:
    """Give a backfill another status. The transaction relies on the status that was read."""
    values: dict[str, Any] = {"status": status.value, "reason": why or f"{status.value} by {by}"}
    if status == BackfillStatus.RUNNING:
        values |= {"gmt_running": UtcNow(), "ended_before": ended(row), "reason": None}
    elif status == BackfillStatus.CANCELED:
        values |= {"gmt_completed": UtcNow()}
    changed = (
        update(schedule_backfill)
        .where(_backfill.id == bindparam("backfill"), _backfill.status == bindparam("was"))
        .values(**values, gmt_modified=UtcNow(), modifier=by)
    )
    execute_later(connection, changed, {"backfill": row.id, "was": row.status}, expected=1)


def ended(row: Row[Any]) -> int:
    """How many fires of a backfill have ended, or need not run."""
    number: int = row.succeeded + row.failed + row.canceled + row.not_missing
    return number
