"""Following the instances as they end, without missing one and without scanning the table.

Ids are given out in order, but rows become visible when their transaction commits, so a smaller id can appear after a
greater one. So what is watched, besides the instances that have not ended, are the ids that were left out: some were
burnt and will never come, and are given up after a while.
"""

from collections.abc import Collection
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row

from shared.clock import boottime
from shared.domain.states import TERMINAL, InstanceStatus
from shared.store import instances
from shared.store.database import Database

BATCH = 2000
"""Ids looked at in one statement."""

WATCHED_AT_FIRST = 20_000
"""Of the instances that had not ended when following began."""

GIVE_UP_SECONDS = 30.0
"""A transaction that began to write is over by then: idle ones are ended by the database long before."""


class Follower:
    """Gives each instance once, when it has ended, from the moment it is made.

    follower = Follower(database)
    for row in follower.ended(): ...
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_id = database.read(instances.newest_id)
        live = database.read(lambda connection: instances.live_ids(connection, WATCHED_AT_FIRST))
        self._open: dict[int, None] = dict.fromkeys(i for i in live if i <= self._last_id)
        self._left_out: dict[int, float] = {}

    @property
    def watched(self) -> int:
        """How many ids it looks at again."""
        return len(self._open) + len(self._left_out)

    def ended(self) -> list[Row[Any]]:
        """What has ended since the last call, in the order of its end; of more than a batch, the rest comes next."""
        now = boottime()
        asked = [*islice(self._open, BATCH), *islice(self._left_out, BATCH)]
        states, rows = self._database.read(lambda connection: self._read(connection, asked))
        for instance_id in sorted(states):
            self._leave_out(instance_id, now)
        for instance_id in asked:
            self._settle(instance_id, states.pop(instance_id, None), now)
        for instance_id, status in states.items():
            self._settle(instance_id, status, now)
        return rows

    def _read(self, connection: Connection, asked: Collection[int]) -> tuple[dict[int, str], list[Row[Any]]]:
        return instances.ended_since(connection, self._last_id, asked, BATCH)

    def _settle(self, instance_id: int, status: str | None, now: float) -> None:
        """Watch it on, at the end of its queue, unless it has ended, was deleted, or never came."""
        self._open.pop(instance_id, None)
        until = self._left_out.pop(instance_id, now)
        if status is None and now < until:
            self._left_out[instance_id] = until
        elif status is not None and InstanceStatus(status) not in TERMINAL:
            self._open[instance_id] = None

    def _leave_out(self, instance_id: int, now: float) -> None:
        """Watch the ids between the last one seen and this one, the newest of them if there are many."""
        for left_out in range(max(self._last_id + 1, instance_id - BATCH), instance_id):
            self._left_out[left_out] = now + GIVE_UP_SECONDS
        self._last_id = max(self._last_id, instance_id)
