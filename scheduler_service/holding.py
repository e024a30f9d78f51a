"""Holding: while all scheduling is paused, take back what the schedulers had put ahead, so that it does not begin."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.later import Unexpected
from rota.shared.database.refusals import sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.planning import PlannedTask
from rota.shared.domain.times import is_time
from rota.shared.settings import Settings
from rota.shared.store import locks, pauses
from rota.shared.store.pauses import Pause

log = logging.getLogger(__name__)

AHEAD = timedelta(minutes=10)
"""Fires that are due so long after the pause began are taken out again: more than any look-ahead. Jitter may make some
due later; they wait as they are."""

Lease = Callable[[str, Sequence[int]], list[PlannedTask]]


class Holder:
    """Puts fires that workers were given back to pending, and takes those for times to come out of the table.

    Every scheduler does so at each tick of the pause, since another one may have written fires when it had begun. It
    does both in batches, each one transaction, and goes on at once where a batch was full.
    """

    def __init__(self, database: Database, settings: Settings, lease: Lease) -> None:
        self._database = database
        self._limit = settings.batch
        self._lease = lease
        self._held = False
        """Whether it has said that scheduling is paused."""

    def hold(self) -> bool:
        """One batch of each; returns whether there may be more."""
        rows = self._database.read(pauses.current)
        if not rows:
            return True  # it has ended just now
        began = rows[0].gmt_create
        pause = Pause(rows[0].id, began if is_time(began) else self._database.clock.now())
        if not self._held:
            self._held = True
            log.info("all scheduling is paused, by %s: no new fire begins", rows[0].creator)
        with suppress(Unexpected):  # the pause has ended, or another scheduler has taken a lease over
            return self._take_back(pause) | self._rewind(pause)
        return True

    def over(self) -> None:
        """There is no pause."""
        if self._held:
            self._held = False
            log.info("scheduling goes on: the misfire policies decide about what was missed")

    def _take_back(self, pause: Pause) -> bool:
        given = self._database.read(lambda c: pauses.given(c, self._limit))
        take_back = partial(_take_back, pause=pause)
        held_up = self._database.write_by_halves(given, take_back, self._not_taken_back, of_instance)
        return len(held_up) < len(given) >= self._limit

    def _rewind(self, pause: Pause) -> bool:
        ids = self._database.read(lambda c: pauses.ahead(c, pause, AHEAD, self._limit))
        if not ids:
            return False
        token = locks.new_token()
        leased = self._lease(token, ids)
        tasks = [task for task in leased if not task.terms.is_stale]
        if edited := [task.id for task in leased if task.terms.is_stale]:  # their plans are made anew
            self._database.write(lambda c: locks.drop(c, token, edited))
        if tasks:
            self._database.write_by_halves(tasks, partial(_rewind, token=token, pause=pause), self._refused, _name)
        return len(tasks) >= self._limit

    def _refused(self, task: PlannedTask, error: DBAPIError) -> None:
        log.warning("%s: its fires ahead could not be taken back: %s", _name(task), sentence(error))

    def _not_taken_back(self, instance_id: int, error: DBAPIError) -> None:
        log.warning("%s could not be taken back: %s", of_instance(instance_id), sentence(error))


def _name(task: PlannedTask) -> str:
    return f"task {task.name!r}"


def _take_back(connection: Connection, instance_ids: Sequence[int], *, pause: Pause) -> None:
    pauses.take_back(connection, pause, instance_ids)


def _rewind(connection: Connection, tasks: Sequence[PlannedTask], *, token: str, pause: Pause) -> None:
    pauses.rewind(connection, pause, tasks)
    locks.release(connection, token, {task.id for task in tasks})
