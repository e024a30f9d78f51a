"""Sweeping: delete the nodes that are left when SQL has deleted their instances, a page at a time."""

import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.loop import sparing_rest
from rota.shared.settings import Settings
from rota.shared.store import stray_nodes

log = logging.getLogger(__name__)

PAGE_SECONDS = 10.0
"""The longest rest between two pages of nodes."""

ROUND_SECONDS = 43_200.0
"""A round over many nodes rests less, so that it ends in about this time."""

SWEEP_SHARE = 0.2
"""While it finds strays it goes on at once. It works for no more than this share of the time, unless a page takes very
long."""

ANY_ID = 2**63 - 1


class Sweeper:
    """The duty: walk through the nodes in the order of their ids, and delete the strays.

    A round ends at the node that was the newest when it began, so it also ends where nodes are made faster than the
    sweeper looks at them. A stray harms nobody, because whoever reads nodes asks whether they are the instance's own.
    So the walk is slow. Several schedulers may sweep at once.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._limit = settings.batch
        self._clock = database.clock
        self._after = 0
        self._last = ANY_ID
        self._rest = PAGE_SECONDS

    def step(self) -> float:
        """One page; returns the seconds to rest."""
        began = self._clock.monotonic()
        strays, following = self._database.read(lambda c: stray_nodes.find(c, self._after, self._last, self._limit))
        removed = self._remove(strays)
        if following and self._after == 0:
            self._begin_round(following)
        if not following:
            self._last, self._rest = ANY_ID, PAGE_SECONDS
        self._after = following
        if removed:
            log.info("sweeper: deleted %d nodes whose instances are gone", removed)
        shortest = sparing_rest(self._clock.monotonic() - began, SWEEP_SHARE, longest=PAGE_SECONDS)
        return shortest if strays and following else max(shortest, self._rest)

    def _remove(self, strays: Sequence[int]) -> int:
        """Delete these, but those that somebody has locked, which are for the next round; returns how many."""
        removed: dict[int, int] = {}

        def work(connection: Connection, some: Sequence[int]) -> None:
            removed[some[0]] = stray_nodes.remove(connection, some)

        self._database.write_by_halves(strays, work, None, "node {}".format)
        return sum(removed.values())

    def _begin_round(self, following: int) -> None:
        """The first page was full: note where this round ends, and share the time among its pages."""
        self._last = self._database.read(stray_nodes.newest)
        pages = (self._last - following) / self._limit + 1
        self._rest = min(PAGE_SECONDS, ROUND_SECONDS / pages)
