"""Backfills into whose rows SQL has written what no CHECK allows: a session may write without them."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal_column, update

from rota.shared.database.constructs import UtcNow
from rota.shared.database.later import execute_later
from rota.shared.domain.states import BackfillStatus
from rota.shared.store.limits import RANGES
from rota.shared.store.tables import schedule_backfill

_backfill = schedule_backfill.c
_LIMITS = RANGES["schedule_backfill"]


def spoiled_columns(row: Any) -> list[str]:
    """The columns that hold what no CHECK allows: a session may write without them."""

    def is_sound(name: str) -> bool:
        value = getattr(row, name)
        if name in _LIMITS:
            least, most = _LIMITS[name]
            return isinstance(value, int) and least <= value <= most
        return isinstance(value, datetime) or (value is None and name == "next_fire")

    return [name for name in (*_LIMITS, "from_at", "to_at", "next_fire") if not is_sound(name)]


def give_up(connection: Connection, read: tuple[int, str], spoiled: Collection[str], reason: str) -> None:
    """Cancel a backfill whose row SQL has spoiled; its numbers become such that the row can be read and ended.

    The transaction relies on what was ``read``: its id and its status. Raises Unexpected otherwise.
    """
    values: dict[str, Any] = {name: _LIMITS[name][0] for name in spoiled if name in _LIMITS}
    values |= {
        "status": BackfillStatus.CANCELED.value,
        "reason": reason,
        "next_fire": None,
        "in_flight": 0,
        "in_flight_fires": None,
    }
    completed = func.coalesce(_backfill.gmt_completed, UtcNow())
    given_up = (
        update(schedule_backfill)
        .where(_backfill.id == bindparam("backfill"), _backfill.status == bindparam("was"))
        .values(**values, gmt_completed=completed, gmt_modified=UtcNow(), modifier=literal_column("'scheduler'"))
    )
    execute_later(connection, given_up, {"backfill": read[0], "was": read[1]}, expected=1)
