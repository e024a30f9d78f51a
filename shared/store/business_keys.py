"""The business keys of one-off work: a row for each, which points to the instance that waits or runs under it.

A caller reads what stands under its keys without a lock, and writes by what it has read. Each write expects the
``revision`` of the row, or that there is none, so of two callers who have read the same only one is committed, and the
other reads again (docs/decisions/0060-business-keys.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import (
    Connection,
    String,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from rota.shared.database.constructs import (
    UtcNow,
    among,
    bound,
    by_index,
    found_by,
    ignore_conflicts,
    json_rows,
    read_by,
)
from rota.shared.database.later import execute_later
from rota.shared.domain.business_keys import Asked, Done, Fire, Key, Standing, outcome
from rota.shared.domain.states import Origin
from rota.shared.store.standing_keys import is_of_fire
from rota.shared.store.tables import schedule_business_key, schedule_instance, schedule_task
from rota.shared.store.transitions import canceling, rescheduling
from rota.shared.store.transitions.rescheduling import Rescheduled

_key = schedule_business_key.c
_instance = schedule_instance.c
_task = schedule_task.c

_FIRE = "uq_schedule_instance_fire"

REPLACED = "another time was asked for under its key"
"""The reason of a run that is canceled because another one takes its place."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked for under one key of a task type, what stands there, and the task for a new run."""

    type: str
    key: Key
    asked: Asked
    standing: Standing | None
    task_id: int
    fire_key: str
    """Of a new run. No other has it."""

    @property
    def done(self) -> Done:
        """What the call does."""
        return outcome(self.standing)

    @property
    def adds(self) -> bool:
        """Whether it adds a run: also to take the place of one that is not moved in place."""
        done = self.done
        return done is Done.ADDED or (done is Done.MOVED and not (self.standing and self.standing.moves_in_place))


_new = json_rows("new", task="id", moment="time", fire_key="str", param="json")
_insert_runs = insert(schedule_instance).from_select(
    [
        "schedule_task_id", "schedule_datetime", "due_at", "fire_key", "run_number", "origin", "priority", "param",
        "creator", "modifier",
    ],
    select(
        _new.c.task,
        _new.c.moment,
        case((_new.c.moment > UtcNow(), _new.c.moment), else_=UtcNow()),
        _new.c.fire_key,
        literal_column("0"),
        literal_column(f"'{Origin.MANUAL.value}'"),
        func.coalesce(_task.priority, literal_column("5")),
        _new.c.param,
        bindparam("by", type_=String),
        bindparam("by", type_=String),
    ).select_from(_new).outerjoin(schedule_task, _task.id == _new.c.task),
    include_defaults=False,
)  # fmt: skip

_added = json_rows("added", type="str", code="str", number="str", task="id", moment="time", fire_key="str")
_insert_keys = ignore_conflicts(insert(schedule_business_key)).from_select(
    [
        "type", "code", "number", "schedule_task_id", "schedule_instance_id", "instance_gmt_create", "due_at",
        "creator", "modifier",
    ],
    by_index(
        select(
            _added.c.type,
            _added.c.code,
            _added.c.number,
            _added.c.task,
            _instance.id,
            _instance.gmt_create,
            _added.c.moment,
            bindparam("by", type_=String),
            bindparam("by", type_=String),
        ).join_from(_added, schedule_instance, is_of_fire(_added)),
        schedule_instance,
        _FIRE,
    ),
    include_defaults=False,
)  # fmt: skip

_changed = json_rows(
    "changed",
    id="id",
    revision="int",
    owner="id",
    task="id",
    moment="time",
    fire_key="str",
    due="time",
    next="time",
    param="json",
)


def _of_fire(column: Any) -> Any:
    """A column of the instance of the fire that a changed key is to point to."""
    return (
        read_by(select(column), schedule_instance, _FIRE)
        .where(is_of_fire(_changed))
        .correlate(_changed)
        .scalar_subquery()
    )


_point_keys = (
    update(schedule_business_key)
    .where(_key.id == _changed.c.id, _key.revision == _changed.c.revision)
    .values(
        schedule_task_id=func.coalesce(_changed.c.owner, _key.schedule_task_id),
        schedule_instance_id=func.coalesce(_of_fire(_instance.id), _key.schedule_instance_id),
        instance_gmt_create=func.coalesce(_of_fire(_instance.gmt_create), _key.instance_gmt_create),
        due_at=func.coalesce(_changed.c.due, _key.due_at),
        revision=_key.revision + 1,
        gmt_modified=UtcNow(),
        modifier=bindparam("by"),
    )
)
_change_keys = _point_keys.values(next_at=_changed.c.next, next_param=_changed.c.param)


def put(connection: Connection, calls: Sequence[Call], by: str) -> None:
    """Write what is asked for, as ``Call.done`` says of each. No two calls are of one key.

    The transaction relies on all that was read. It locks keys before the instances to which they point, as all do.
    """
    ordered = sorted(calls, key=attrgetter("type", "key"))
    adding = [call for call in ordered if call.adds]
    if adding:
        runs = [(call.task_id, call.asked.at, call.fire_key, call.asked.param) for call in adding]
        execute_later(connection, _insert_runs, {"rows": bound(runs), "by": by}, expected=len(runs))
    new = [
        (call.type, *call.key, call.task_id, call.asked.at, call.fire_key) for call in adding if call.standing is None
    ]
    if new:
        execute_later(connection, _insert_keys, {"rows": bound(new), "by": by}, expected=len(new))
    standing = [(call, one) for call in ordered if (one := call.standing) is not None]
    _change(connection, [_changes(call, one) for call, one in standing], by)
    replaced = [one.instance_id for call, one in standing if call.adds and not one.has_ended]
    canceling.cancel_unclaimed(connection, replaced, REPLACED, by)
    moved = [
        Rescheduled(one.instance_id, call.task_id, call.asked.at, call.asked.param)
        for call, one in standing
        if call.done is Done.MOVED and not call.adds
    ]
    rescheduling.reschedule(connection, moved, by)


def _changes(call: Call, standing: Standing) -> tuple[Any, ...]:
    """The row of ``_changed`` for a call."""
    asked = call.asked
    fire = Fire(call.task_id, asked.at, call.fire_key) if call.adds else standing.follower
    place = (None, None, None) if fire is None else (fire.task_id, fire.moment, fire.fire_key)
    then = (None, asked.at, asked.param) if call.done is Done.KEPT else (asked.at, None, None)
    return (standing.key_id, standing.revision, call.task_id, *place, *then)


def take_over(connection: Connection, standings: Iterable[Standing], by: str) -> None:
    """Let keys point to what handlers have asked for. What is kept as the next run stays so."""
    rows = [
        (one.key_id, one.revision, None, fire.task_id, fire.moment, fire.fire_key, fire.moment, None, None)
        for one in standings
        if (fire := one.follower) is not None
    ]
    _change(connection, rows, by, _point_keys)


def forget_next(connection: Connection, standings: Iterable[Standing], by: str) -> None:
    """Drop what is kept as the next run of these keys."""
    _change(connection, [(one.key_id, one.revision, *[None] * 7) for one in standings], by)


def _change(connection: Connection, rows: Iterable[tuple[Any, ...]], by: str, statement: Update = _change_keys) -> None:
    if ordered := sorted(rows, key=itemgetter(0)):
        execute_later(connection, statement, {"rows": bound(ordered), "by": by}, expected=len(ordered))


_remove = found_by(delete(schedule_business_key).where(among(_key.id), _key.revision == bindparam("revision")))


def remove(connection: Connection, standings: Iterable[Standing], *, expected: bool) -> None:
    """Remove the rows of keys that nobody has changed since; with ``expected`` the transaction relies on that."""
    for revision, some in groupby(sorted(standings, key=attrgetter("revision")), attrgetter("revision")):
        ids = sorted(one.key_id for one in some)
        values = {"ids": ids, "revision": revision}
        execute_later(connection, _remove, values, expected=len(ids) if expected else None)
