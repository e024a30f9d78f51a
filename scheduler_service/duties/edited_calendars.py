"""Edited calendars: have the plans of the tasks that use them made anew."""

import logging
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.definition import edition_of
from rota.shared.settings import Settings
from rota.shared.store import calendars, others_locks

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often it looks at the calendars."""

CALENDARS = 50
"""One step reads so many calendars at most."""


class EditedCalendars:
    """The duty: page through the calendars, and mark the plans that were made with another edition of one.

    The materializer then makes these plans anew. A scheduler may have read a calendar before it was edited, and write
    its plan afterwards: the next page finds that plan. Several schedulers may look at once.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._limit = settings.batch
        self._period = max(LOOK_SECONDS, settings.tick_period)
        self._after = 0

    def step(self) -> float:
        """One page; returns the seconds to rest."""
        page = self._database.read(lambda c: calendars.page(c, self._after, CALENDARS))
        self._after = 0 if page.is_last else page.last_id
        there_is_more = not page.is_last
        for name, text in page.texts.items():
            there_is_more |= self._look_at(name, edition_of(text))
        return 0.0 if there_is_more else self._period

    def _look_at(self, name: str, edition: str) -> bool:
        """Mark some plans; returns whether there may be more. Tasks that others have locked are left for later."""
        using, others = self._database.read(lambda c: calendars.outdated(c, name, edition, self._limit))
        left = self._forget(others, name, edition)
        if not using:
            return len(left) < len(others) >= self._limit
        free = self._database.write(lambda c: _mark(c, using))
        if free:
            log.info("calendar %r was edited; plans that are made anew: %d", name, len(free))
        return bool(free) and len(using) + len(others) >= self._limit

    def _forget(self, task_ids: Sequence[int], calendar: str, edition: str) -> Collection[int]:
        """Forget that these tasks used it; returns those of which somebody has locked that."""

        def work(connection: Connection, some: Sequence[int]) -> None:
            calendars.forget(connection, some, calendar, edition)

        return self._database.write_by_halves(
            task_ids, work, None, lambda task: f"task {task}, of calendar {calendar!r},"
        )


def _mark(connection: Connection, task_ids: Collection[int]) -> set[int]:
    free = others_locks.not_locked(connection, task_ids)
    if free:
        calendars.mark(connection, free)
    return free
