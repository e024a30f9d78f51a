"""What programs ask for in transactions of their own: rows of ``schedule_request``, until the scheduler has done it.

A program only inserts. No other key than the primary one is unique, so an insert waits for nobody, and nobody waits for
a transaction that has inserted, however long it stays open. The scheduler reads what is committed, without locks, and
removes a row in the transaction that does what it says (docs/decisions/0061-requests.md).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, String, bindparam, delete, exists, select, type_coerce, update

from rota.shared.database.callers import Insert
from rota.shared.database.constructs import UtcNow, among, found_by, read_by, written
from rota.shared.database.later import execute_later, read_before
from rota.shared.database.transactions import Database
from rota.shared.domain.business_keys import Key
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.store import params
from rota.shared.store.tables import schedule_request

_request = schedule_request.c


class What(StrEnum):
    """What is asked for."""

    ONCE = "once"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Request:
    """What one row asks for; ``due_at`` is naive UTC, None: at once; ``param`` a JSON text, None if it is large."""

    id: int
    what: str
    type: str
    key: Key
    due_at: datetime | None
    param: str | None
    why: str | None
    by: str
    fire_key: str | None = None
    """That of the run, by which the program finds it."""

    large_param: int = 0
    """How many bytes a param has that is too large to be read with the others; ``with_large_params`` reads it."""


_waiting = (
    read_by(
        select(
            _request.id,
            _request.what,
            _request.type,
            _request.code,
            _request.number,
            _request.due_at,
            params.small(type_coerce(_request.param, String)),
            _request.why,
            _request.creator,
            _request.fire_key,
            params.bytes_of_large(_request.param),
        ),
        schedule_request,
        "ix_schedule_request_open",
    )
    .where(_request.is_deleted == 0)
    .order_by(_request.id)
    .limit(bindparam("limit"))
)


any_waiting = exists(
    read_by(select(_request.id), schedule_request, "ix_schedule_request_open").where(_request.is_deleted == 0)
)
"""Whether there is a request; a part of what the scheduler asks once in a tick (``assignments.look``)."""


def waiting(connection: Connection, limit: int) -> list[Request]:
    """The oldest requests, at most so many, without their large params."""
    rows = connection.execute(_waiting, {"limit": limit})
    return [Request(i, what, kind, (code, number), *rest) for i, what, kind, code, number, *rest in rows]


_large = select(_request.id, type_coerce(_request.param, String)).where(among(_request.id), _request.is_deleted == 0)


def with_large_params(connection: Connection, some: Sequence[Request]) -> list[Request]:
    """These requests with their large params, without those that another scheduler has done meanwhile."""
    ids = sorted(one.id for one in some if one.large_param)
    texts = dict(map(tuple, connection.execute(_large, {"ids": ids})))
    left = (one for one in some if not one.large_param or one.id in texts)
    return [replace(one, param=texts[one.id]) if one.large_param else one for one in left]


_left = select(_request.id).where(among(_request.id), _request.is_deleted == 0)
_remove = found_by(delete(schedule_request).where(among(_request.id), _request.is_deleted == 0))
_refuse = (
    update(schedule_request)
    .where(_request.id == bindparam("request"), _request.is_deleted == 0)
    .values(is_deleted=1, reason=bindparam("said"), gmt_modified=UtcNow(), modifier="scheduler")
)


def left(connection: Connection, ids: Collection[int]) -> set[int]:
    """Those of these requests that are still to be done. It is read before the transaction."""
    return set(read_before(connection, _left, {"ids": sorted(ids)}).scalars())


def remove(connection: Connection, ids: Collection[int]) -> None:
    """Remove requests that this transaction does. It relies on it that nobody else has."""
    execute_later(connection, _remove, {"ids": sorted(ids)}, expected=len(ids))


def refuse(connection: Connection, request_id: int, reason: str) -> None:
    """Keep a request that cannot be done, with the reason, for people to see."""
    execute_later(connection, _refuse, {"request": request_id, "said": reason[:REASON_LIMIT]})


def insert(database: Database, request: Request) -> Insert:
    """The INSERT of a request, for a caller's own transaction; the database gives the id."""
    one = request
    columns = ("what", "type", "code", "number", "due_at", "param", "why", "fire_key", "creator", "modifier")
    values = (str(one.what), one.type, *one.key, written(one.due_at), one.param, one.why, one.fire_key, one.by, one.by)
    return Insert(database.backend, database.url, schedule_request.name, columns, values)
