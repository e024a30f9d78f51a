"""What stands under business keys: the rows of the keys with their instances, read without a lock or with one."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    String,
    TableValuedAlias,
    and_,
    bindparam,
    case,
    literal_column,
    select,
    type_coerce,
)

from rota.shared.database.constructs import SecondsBefore, UtcNow, among, bound, by_index, json_rows, read_by
from rota.shared.database.later import read_before
from rota.shared.domain.business_keys import FAR_SECONDS, Fire, Key, Standing
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.times import is_time
from rota.shared.store import params
from rota.shared.store.tables import schedule_business_key, schedule_instance
from rota.shared.store.transitions import run_again

_key = schedule_business_key.c
_instance = schedule_instance.c

_its_instance = and_(_instance.id == _key.schedule_instance_id, _instance.gmt_create == _key.instance_gmt_create)

_state = (
    _instance.schedule_task_id.label("run_task_id"),
    _instance.status,
    _instance.attempt,
    _instance.run_again_at,
    _instance.gmt_cancel_requested,
    case((SecondsBefore(_instance.due_at, literal_column(str(FAR_SECONDS))) > UtcNow(), 1), else_=0).label("is_far"),
)
_columns = (
    _key.id.label("key_id"),
    _key.type,
    _key.code,
    _key.number,
    _key.revision,
    _key.schedule_task_id,
    _key.due_at,
    _key.next_at,
    params.size(_key.next_param).label("next_bytes"),
    _key.schedule_instance_id,
    *_state,
)
_wanted = json_rows("wanted", code="str", number="str")
_standing = (
    by_index(
        select(*_columns).join_from(
            _wanted,
            schedule_business_key,
            and_(_key.type == bindparam("type"), _key.code == _wanted.c.code, _key.number == _wanted.c.number),
        ),
        schedule_business_key,
        "uq_schedule_business_key_key",
    )
).outerjoin(schedule_instance, _its_instance)
_due = (
    read_by(select(*_columns), schedule_business_key, "ix_schedule_business_key_due_at")
    .outerjoin_from(schedule_business_key, schedule_instance, _its_instance)
    .order_by(_key.due_at, _key.id)
    .limit(bindparam("limit"))
)
_due_from_here = _due.where(_key.due_at == bindparam("due"), _key.id > bindparam("after"))
_due_later = _due.where(_key.due_at > bindparam("due"), _key.due_at <= bindparam("until"))


def is_of_fire(rows: TableValuedAlias) -> ColumnElement[bool]:
    """The condition that an instance is of the fire that a row names by ``task``, ``moment`` and ``fire_key``."""
    return and_(
        _instance.schedule_task_id == rows.c.task,
        _instance.schedule_datetime == rows.c.moment,
        _instance.fire_key == rows.c.fire_key,
        _instance.run_number == literal_column("0"),
    )


_asked_for = json_rows("asked_for", task="id", moment="time", fire_key="str")
_followers = by_index(
    select(_instance.fire_key, _instance.id, *_state).join_from(_asked_for, schedule_instance, is_of_fire(_asked_for)),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def standing(connection: Connection, task_type: str, keys: Collection[Key]) -> dict[Key, Standing]:
    """What stands under those of these keys of a task type that have a row. It is read before the transaction."""
    rows = read_before(connection, _standing, {"type": task_type, "rows": bound(sorted(keys))}).all()
    return {one.key: one for one in _with_followers(connection, rows)}


_lock = by_index(
    select(_key.id)
    .join_from(
        _wanted,
        schedule_business_key,
        and_(_key.type == bindparam("type"), _key.code == _wanted.c.code, _key.number == _wanted.c.number),
    )
    .with_for_update(of=schedule_business_key),
    schedule_business_key,
    "uq_schedule_business_key_key",
)


def lock(connection: Connection, task_type: str, keys: Collection[Key]) -> None:
    """Lock those of these keys that have a row, so that what stands under them can be read and written undisturbed."""
    connection.execute(_lock, {"type": task_type, "rows": bound(sorted(keys))})


@dataclass(frozen=True, slots=True)
class Page:
    """A page of keys that are due, and where the next one begins; None after the last."""

    standings: Sequence[Standing]
    following: tuple[datetime, int] | None


def due(connection: Connection, after: tuple[datetime, int], until: datetime, limit: int) -> Page:
    """At most ``limit`` keys after this time and id, whose times are not after ``until`` (naive UTC)."""
    place = {"due": after[0], "after": after[1], "limit": limit}
    rows = list(connection.execute(_due_from_here, place))
    if len(rows) < limit:
        later = {"due": after[0], "until": until, "limit": limit - len(rows)}
        rows += connection.execute(_due_later, later)
    following = (rows[-1].due_at, rows[-1].key_id) if len(rows) == limit else None
    return Page(_with_followers(connection, rows), following)


_next_params = select(_key.id, type_coerce(_key.next_param, String)).where(among(_key.id))


def next_params(connection: Connection, standings: Iterable[Standing]) -> dict[int, str | None]:
    """The params that are kept for the next runs of these keys, as JSON texts by the ids of the keys.

    They are read before the transaction, which relies on the revisions of the keys.
    """
    ids = sorted(one.key_id for one in standings if one.next_bytes)
    rows = read_before(connection, _next_params, {"ids": ids}) if ids else ()
    return {key_id: None if param is None else str(param) for key_id, param in rows}  # a number in SQLite


def _with_followers(connection: Connection, rows: Iterable[Row[Any]]) -> list[Standing]:
    """The rows as they stand, each with the last run that a handler has asked for."""
    found = [_as_standing(row) for row in rows]
    again = {at: (row.run_task_id, row.run_again_at) for at, row in enumerate(rows) if is_time(row.run_again_at)}
    while again:
        fires = {
            at: Fire(task_id, moment, run_again.fire_key(found[at].instance_id))
            for at, (task_id, moment) in again.items()
        }
        asked = bound(sorted((fire.task_id, fire.moment, fire.fire_key) for fire in fires.values()))
        by_fire = {row.fire_key: row for row in read_before(connection, _followers, {"rows": asked})}
        again = {}
        for at, fire in fires.items():
            if (row := by_fire.get(fire.fire_key)) is not None:
                found[at] = replace(
                    found[at],
                    instance_id=row.id,
                    status=_status(row.status),
                    attempt=row.attempt,
                    cancel_is_requested=row.gmt_cancel_requested is not None,
                    is_far=bool(row.is_far),
                    follower=fire,
                )
                again |= {at: (row.run_task_id, row.run_again_at)} if is_time(row.run_again_at) else {}
    return found


def _as_standing(row: Row[Any]) -> Standing:
    return Standing(
        row.key_id,
        row.type,
        (row.code, row.number),
        row.revision,
        row.schedule_task_id,
        row.next_at if is_time(row.next_at) else None,
        row.schedule_instance_id,
        _status(row.status),
        row.attempt or 0,
        row.gmt_cancel_requested is not None,
        is_far=bool(row.is_far),
        next_bytes=row.next_bytes or 0,
    )


def _status(word: str | None) -> InstanceStatus | None:
    """None for an instance that is gone, and for a word that SQL has spoiled."""
    return InstanceStatus(word) if word in list(InstanceStatus) else None
