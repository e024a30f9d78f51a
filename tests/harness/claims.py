"""Claims, as a worker makes them; or in a transaction of the test's own, which stays open as long as it likes."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.store import large_values
from rota.shared.store.claims import Claims
from rota.shared.store.node_types import NodeTypeNames
from rota.shared.store.overlap import SkipCandidate
from rota.shared.store.runs import NO_SKIP_CANDIDATES, RUNNING, Claim, Run, read_wanted
from rota.shared.store.transitions import claiming

AHEAD = timedelta(days=1000)


def claim(
    database: Database,
    worker: int,
    ids: Collection[int],
    types: NodeTypeNames,
    *,
    now: datetime | None = None,
    skip_candidates: Mapping[int, SkipCandidate] = NO_SKIP_CANDIDATES,
    from_afar: bool = False,
    room: float = math.inf,
) -> Claim:
    """What all claims of these instances brought together."""
    asked = Claims(database, worker, types, AHEAD, from_afar=from_afar, room=room)
    claims = list(asked.claim(ids, now or database.clock.now(), skip_candidates))
    return Claim(
        [run for one in claims for run in one.runs], [left for one in claims for left in one.waiting], claims[0].time
    )


def claim_on(
    connection: Connection, worker: int, ids: Collection[int], types: NodeTypeNames, slot: int | None = None
) -> list[Run]:
    """Claim in a transaction that is not committed yet; for this slot, if the policy of the task does not say it."""
    slots = None if slot is None else [(instance, slot) for instance in ids]
    claiming.claim_unread(connection, worker, ids, AHEAD.total_seconds(), slots)
    rows, _ = read_wanted(connection, worker, sorted(ids), types)
    large_values.read(connection, rows)
    return [row.run() for row in rows if row.terms.status == RUNNING]
