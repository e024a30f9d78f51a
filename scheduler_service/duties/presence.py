"""Presence: the scheduler's own row, where people see who schedules, and can pause one."""

import logging
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from rota.shared.database.refusals import sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.store import schedulers
from rota.shared.store.schedulers import SchedulerDeclaration

log = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
BEAT_SHARE = 0.25
"""The row is written every ``BEAT_SECONDS``, or once a tick where ticks are rarer, since a write is a commit. But two
writes are at most ``BEAT_SHARE`` of the liveness limit apart, so that a live scheduler does not look silent."""


class Presence:
    """The duty: register the scheduler, and write every few seconds when the materializer last ticked.

    A materializer that fails or hangs does not tick. Then its scheduler shows as silent, although the process lives.
    """

    def __init__(self, database: Database, declaration: SchedulerDeclaration, tick_period: float) -> None:
        self._database = database
        self._declaration = declaration
        self._rest = min(max(BEAT_SECONDS, tick_period), declaration.liveness_seconds * BEAT_SHARE)
        self._id: int | None = None
        self._ticked_at: datetime | None = None
        self._written: datetime | None = None
        self._left = False
        self.is_paused = False
        """Whether this scheduler is to materialize nothing; read each time that the row is written."""

    def ticked(self) -> None:
        """Note that the materializer has ticked just now."""
        self._ticked_at = self._database.clock.now()

    def step(self) -> float:
        """Register, or else write the last tick if there is a new one. Returns the seconds to rest."""
        if self._left:
            return self._rest
        if self._id is None:
            own = self._declaration
            [self._id] = schedulers.insert_into(self._database, lambda c: [schedulers.register(c, own)])
        elif self._ticked_at is not None and self._ticked_at != self._written:
            self._write(self._id, self._ticked_at)
        return self._rest

    def _write(self, scheduler_id: int, moment: datetime) -> None:
        if self._database.write_one(lambda c: schedulers.tick(c, scheduler_id, moment)):
            self._written = moment
            self._see_state(self._database.read(lambda c: schedulers.is_paused(c, scheduler_id)))
        else:  # this host slept for so long that another scheduler removed the row
            self._id = None

    def _see_state(self, paused: bool) -> None:
        if paused != self.is_paused:
            log.info("presence: this scheduler is %s", "paused: it materializes nothing" if paused else "active again")
        self.is_paused = paused

    def leave(self) -> None:
        """Mark this scheduler's row as stopped. A database error is only logged: the scheduler stops all the same."""
        self._left = True  # or a step that comes late would register again
        if self._id is None:
            return
        scheduler_id, self._id = self._id, None
        try:
            self._database.write_one(lambda c: schedulers.leave(c, scheduler_id, self._declaration.name))
        except (DatabaseProblem, DBAPIError) as error:
            log.warning("presence: the row of this scheduler could not be marked as stopped: %s", sentence(error))
