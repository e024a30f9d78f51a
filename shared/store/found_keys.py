"""Business keys as people and programs look for them: by the beginning of a key, by a part of it, or by time."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select

from rota.shared.database.constructs import read_by
from rota.shared.domain.business_keys import KeyFilter
from rota.shared.store import params
from rota.shared.store.tables import schedule_business_key, schedule_instance, schedule_task

_key = schedule_business_key.c
_instance = schedule_instance.c

LAST_CHARACTER = "\U0010ffff"

_found = (
    select(
        _key.id,
        _key.type,
        _key.code,
        _key.number,
        _key.due_at,
        _key.next_at,
        _key.schedule_instance_id,
        schedule_task.c.name.label("task_name"),
        schedule_task.c.timezone,
        _instance.status,
        _instance.attempt,
        params.small(_instance.param).label("param"),
    )
    .outerjoin_from(
        schedule_business_key,
        schedule_instance,
        and_(_instance.id == _key.schedule_instance_id, _instance.gmt_create == _key.instance_gmt_create),
    )
    .outerjoin(schedule_task, schedule_task.c.id == _key.schedule_task_id)
)


def by_number(connection: Connection, chosen: KeyFilter, after: str, limit: int) -> list[Row[Any]]:
    """At most ``limit`` keys whose numbers are greater than ``after``."""
    begins = chosen.begins or ""
    conditions = [
        _key.type == chosen.type,
        _key.code == (chosen.code or ""),
        _key.number > after if after else _key.number >= begins,
        _key.number < begins + LAST_CHARACTER,
        *_at(chosen),
    ]
    if chosen.contains is not None:
        conditions.append(_key.number.contains(chosen.contains, autoescape=True))
    found = read_by(_found.where(*conditions), schedule_business_key, "uq_schedule_business_key_key")
    return list(connection.execute(found.order_by(_key.number).limit(limit)))


def by_time(
    connection: Connection, chosen: KeyFilter, after: tuple[datetime, int] | None, limit: int
) -> list[Row[Any]]:
    """At most ``limit`` keys that come after this time and id."""
    conditions = _at(chosen)
    if after is not None:
        conditions += [
            _key.due_at >= after[0],
            or_(_key.due_at > after[0], and_(_key.due_at == after[0], _key.id > after[1])),
        ]
    if chosen.type is not None:
        conditions.append(_key.type == chosen.type)
    if chosen.code is not None:
        conditions.append(_key.code == chosen.code)
    index = "ix_schedule_business_key_due_at" if chosen.type is None else "ix_schedule_business_key_type_due_at"
    found = read_by(_found.where(*conditions), schedule_business_key, index)
    return list(connection.execute(found.order_by(_key.due_at, _key.id).limit(limit)))


def _at(chosen: KeyFilter) -> list[ColumnElement[bool]]:
    from_at, to_at = chosen.from_at, chosen.to_at
    return [
        *([] if from_at is None else [_key.due_at >= from_at]),
        *([] if to_at is None else [_key.due_at < to_at]),
    ]


def of_fire(connection: Connection, task_id: int, moment: datetime, fire_key: str) -> int | None:
    """The id of the instance of a fire; None: SQL has deleted it."""
    found: int | None = connection.scalar(
        select(_instance.id).where(
            _instance.schedule_task_id == task_id,
            _instance.schedule_datetime == moment,
            _instance.fire_key == fire_key,
            _instance.run_number == 0,
        )
    )
    return found


def newest_of_fire(connection: Connection, task_name: str, moment: datetime, fire_key: str) -> int | None:
    """The id of the newest run of a fire: the last replay, if there is one. None: there is no such fire."""
    found: int | None = connection.scalar(
        select(_instance.id)
        .join(schedule_task, _instance.schedule_task_id == schedule_task.c.id)
        .where(
            schedule_task.c.live_name == task_name,
            _instance.schedule_datetime == moment,
            _instance.fire_key == fire_key,
        )
        .order_by(_instance.id.desc())
        .limit(1)
    )
    return found
