"""Removing: delete the rows of what is long gone, such as dead workers, a page at a time."""

import logging

from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import gone

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""The rest after a kind of rows, before the next. The kinds take turns."""

PAGE_SECONDS = 1.0
"""The rest after a page of rows, before the next page of the same kind. A look at a page is one statement."""

DAY_SECONDS = 86_400


class Remover:
    """The duty: look at one kind of rows in turn, page by page, and remove those that have been gone for long.

    Nobody uses these rows, so it takes its time. Several schedulers may remove at once.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._limit = settings.batch
        self._seconds = settings.forget_days * DAY_SECONDS
        self._turn = 0
        self._after = dict.fromkeys(gone.KINDS, 0)

    def step(self) -> float:
        """One page; returns the seconds to rest."""
        kind = gone.KINDS[self._turn]
        after, limit, seconds = self._after[kind], self._limit, self._seconds
        ids, self._after[kind] = self._database.read(lambda c: kind.find(c, after, limit, seconds))
        removed = self._database.write(lambda c: kind.remove(c, ids, seconds)) if ids else 0
        if removed:
            log.info("remover: deleted %d rows of the kind %s that were gone for long", removed, kind.name)
        if self._after[kind] or removed == limit:
            return PAGE_SECONDS
        self._turn = (self._turn + 1) % len(gone.KINDS)
        return LOOK_SECONDS
