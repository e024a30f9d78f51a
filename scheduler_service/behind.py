"""Behind a flood: what fell due after very many pending instances of one group, and must not wait for all of them."""

from collections.abc import Sequence
from datetime import datetime

from rota.scheduler_service.fleet import FleetSnapshot
from rota.shared.database.transactions import Database
from rota.shared.domain.groups import crowds_of
from rota.shared.store import assignments
from rota.shared.store.pending import Pending

NEWEST = 500
"""Among so many of the newest instances one pass looks for those of others."""


def behind_a_flood(
    database: Database, snapshot: FleetSnapshot, first: Sequence[Pending], horizon: datetime
) -> list[Pending]:
    """Of the newest pending instances due by ``horizon`` (naive UTC), those of no flood; none, if there is no flood.

    ``first``: the first page of what is pending. A group that is a crowd of it is noted as a flood.
    """
    crowds = crowds_of([one.group for one in first])
    if not crowds:
        return []
    for pool, group in {(one.pool, one.group) for one in first if one.group in crowds}:
        snapshot.of_pool(pool).floods.note(group)
    newest = database.read(lambda c: assignments.newest_pending(c, first[-1].priority, horizon, NEWEST))
    floods_of = {pool: snapshot.of_pool(pool).floods for pool in {one.pool for one in newest}}
    return [one for one in newest if one.group not in crowds and not floods_of[one.pool].hold_back(one.group)]
