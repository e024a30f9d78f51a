"""Behind a flood: what fell due after very many pending instances of one group, and must not wait for all of them."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from rota.scheduler_service.fleet import FleetSnapshot
from rota.shared.database.transactions import Database
from rota.shared.domain.groups import CROWD_PART, crowds_of
from rota.shared.store import assignments
from rota.shared.store.pending import Pending

NEWEST = 500
"""Among so many of the newest instances one pass looks for those of others. A group that is half of them is a flood."""


def note_floods(snapshot: FleetSnapshot, first: Sequence[Pending], batch: int) -> None:
    """Note the floods in the first page of what waits for room: the groups that are a tenth of a whole page."""
    for (pool, group), number in Counter((one.pool, one.group) for one in first).items():
        if number >= CROWD_PART * batch:
            snapshot.of_pool(pool).floods.note(group)


def behind_a_flood(
    database: Database, snapshot: FleetSnapshot, first: Sequence[Pending], horizon: datetime
) -> list[Pending]:
    """Of the newest pending instances due by ``horizon`` (naive UTC), those of no flood.

    ``first``: the first page of what is pending. If no group is a crowd of it, nothing is looked for.
    """
    crowds = crowds_of([one.group for one in first])
    if not crowds:
        return []
    newest = database.read(lambda c: assignments.newest_pending(c, first[-1].priority, horizon, NEWEST))
    for (pool, group), number in Counter((one.pool, one.group) for one in newest).items():
        if 2 * number >= NEWEST:
            snapshot.of_pool(pool).floods.note(group)
            crowds.add(group)
    floods_of = {pool: snapshot.of_pool(pool).floods for pool in {one.pool for one in newest}}
    return [one for one in newest if one.group not in crowds and not floods_of[one.pool].hold_back(one.group)]
