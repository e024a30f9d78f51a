"""Follow instances as they end, without missing one and without scanning the table.

The database gives ids in order, but a row becomes visible only when its transaction commits. So a smaller id can appear
after a greater one. A follower therefore watches the instances that have not ended, and also the gaps between the ids
that it has seen. Some of these ids will never appear, because their transactions were rolled back. The follower stops
watching them after ``GIVE_UP_SECONDS``.
"""

from collections.abc import Collection
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control.documents import Document, instance_in_list
from rota.shared.database.transactions import Database
from rota.shared.domain.states import TERMINAL, InstanceStatus
from rota.shared.store import instances

BATCH = 2000
"""The most ids of each kind that are read in one statement."""

WATCHED_AT_FIRST = 20_000
"""The most instances watched of those that had not ended when following began."""

GIVE_UP_SECONDS = 30.0
"""How long an id in a gap is watched. A transaction that writes is over by then, because the database ends idle ones
long before."""


class Follower:
    """Returns each instance that ends after the follower was made, exactly once, as it is in a list.

    follower = Follower(database)
    for instance in follower.ended(): ...
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_id = database.read(instances.newest_id)
        live = database.read(lambda connection: instances.live_ids(connection, WATCHED_AT_FIRST))
        self._open: dict[int, None] = dict.fromkeys(i for i in live if i <= self._last_id)
        self._gaps: dict[int, float] = {}

    @property
    def watched(self) -> int:
        """How many ids the follower watches."""
        return len(self._open) + len(self._gaps)

    def ended(self) -> list[Document]:
        """The instances that have ended since the last call, in the order of their ends.

        If there are more than a batch, the next calls return the others.
        """
        now = self._database.clock.monotonic()
        watched = [*islice(self._open, BATCH), *islice(self._gaps, BATCH)]
        states, rows = self._database.read(lambda connection: self._read(connection, watched))
        for instance_id in sorted(states):
            self._watch_gap_before(instance_id, now)
        for instance_id in watched:
            self._watch_again(instance_id, states.pop(instance_id, None), now)
        for instance_id, status in states.items():
            self._watch_again(instance_id, status, now)
        return [instance_in_list(row) for row in rows]

    def _read(self, connection: Connection, watched: Collection[int]) -> tuple[dict[int, str], list[Row[Any]]]:
        return instances.ended_since(connection, self._last_id, watched, BATCH)

    def _watch_again(self, instance_id: int, status: str | None, now: float) -> None:
        """Put an id at the end of its queue, unless its instance has ended, was deleted, or never appeared."""
        self._open.pop(instance_id, None)
        until = self._gaps.pop(instance_id, now)
        if status is None and now < until:
            self._gaps[instance_id] = until
        elif status is not None and InstanceStatus(status) not in TERMINAL:
            self._open[instance_id] = None

    def _watch_gap_before(self, instance_id: int, now: float) -> None:
        """Watch the ids between the last one seen and this one; of a large gap only the newest ``BATCH``."""
        for missing_id in range(max(self._last_id + 1, instance_id - BATCH), instance_id):
            self._gaps[missing_id] = now + GIVE_UP_SECONDS
        self._last_id = max(self._last_id, instance_id)
