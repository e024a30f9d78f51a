"""The roster: workers as people see them, each with its newest beat."""

from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from rota.shared.database.later import read_before
from rota.shared.domain.errors import NotFound
from rota.shared.store.tables import schedule_worker_beat, schedule_worker_node
from rota.shared.store.workers import OF_ITS_WORKER, SHOWN_ALIVE

_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

_listed = (
    select(
        *(column for column in _worker if column.name not in ("last_heartbeat", "current_load")),
        func.coalesce(_beat.last_beat, _worker.last_heartbeat).label("last_heartbeat"),
        func.coalesce(_beat.busy, _worker.current_load).label("current_load"),
        _beat.liveness_seconds,
    )
    .outerjoin_from(schedule_worker_node, schedule_worker_beat, OF_ITS_WORKER)
    .order_by(_worker.id.desc())
    .limit(bindparam("limit"))
)


def listed(connection: Connection, limit: int, *, all_states: bool = False) -> list[Row[Any]]:
    """At most ``limit`` workers, the newest first, with their newest beats; without dead ones unless ``all_states``."""
    return list(connection.execute(_listed if all_states else _listed.where(SHOWN_ALIVE), {"limit": limit}))


def find(connection: Connection, name: str) -> Row[Any]:
    """The worker of this name that is not dead, as ``listed`` shows it.

    Raises NotFound.
    """
    rows: list[Any] = list(read_before(connection, _listed.where(_worker.live_name == name), {"limit": 1}))
    if not rows:
        raise NotFound(f"no live worker is named {name!r}; rota worker list shows them")
    found: Row[Any] = rows[0]
    return found
