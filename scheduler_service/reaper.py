"""Reaping: whatever is held by a worker that is not live comes back, on every pass.

Every pass, not only when a worker is declared dead: another scheduler may have been assigning to it at that moment.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from shared.clock import boottime
from shared.domain.states import WorkerState
from shared.settings import Settings
from shared.store import assignments, losses, workers
from shared.store.database import Database, database_time

log = logging.getLogger(__name__)

CLOCK_STEP_SECONDS = 2.0
"""The database's clock was set if it differs by more from the time that has passed here since the last pass."""

AWAY_SHARE = 0.5
"""After so long without a pass, as a part of the liveness limit, the reaper was away."""

REST_SHARE = 0.25
"""How long it rests at most, as such a part, however long a tick is: or it would always think that it was away."""

UNSTARTED_SHARE = 0.1
"""How often it is looked for what is not started in time, as a part of that time: each look is a statement."""


class Reaper:
    """The duty: declare the silent dead, recover what they held, take back what is not started in time.

    While the database is away no worker can beat, and when its clock is set forward all look silent. So after an outage
    of its own, after such a step, and when it starts, the reaper watches for one full liveness limit before it declares
    anyone dead.
    """

    def __init__(self, database: Database, settings: Settings, by: str) -> None:
        self._database = database
        self._settings = settings
        self._by = by
        self._watching_since = boottime()
        self._last_pass = boottime()
        self._last_time = database.read(database_time)
        self._looked_for_unstarted = float("-inf")

    def step(self) -> float:
        """One pass; returns the seconds to rest."""
        census = self._database.read(workers.census)
        if self._declare_dead(census):
            census = self._database.read(workers.census)
        self._recover(census.holders, census.alive)
        if boottime() - self._looked_for_unstarted >= self._settings.assignment_timeout_seconds * UNSTARTED_SHARE:
            self._looked_for_unstarted = boottime()
            self._take_back_unstarted(census.alive)
        return min(self._settings.tick_seconds, self._settings.liveness_seconds * REST_SHARE)

    def _declare_dead(self, census: workers.Census) -> int:
        liveness, now = self._settings.liveness_seconds, boottime()
        away = now - self._last_pass
        step = (census.time - self._last_time).total_seconds() - away
        self._last_pass, self._last_time = now, census.time
        was_away = away > liveness * AWAY_SHARE
        if was_away or abs(step) > CLOCK_STEP_SECONDS:
            self._watching_since = now
            why = f"was away for {away:.0f} s" if was_away else f"saw the database's clock step {step:+.0f} s"
            log.warning("reaper: %s; it declares nobody dead for %d s", why, liveness)
        if now - self._watching_since < liveness or not census.silent:
            return 0
        buried = self._database.write(lambda c: workers.bury_silent(c, self._by))
        if buried:
            log.warning("reaper: declared %d silent worker(s) dead", buried)
        return buried

    def _recover(self, holders: Collection[int], alive: Mapping[int, str]) -> None:
        limit = self._settings.batch
        for worker_id in sorted(holders):
            state = alive.get(worker_id)
            if state == WorkerState.LIVE:
                continue
            taken = self._all(partial(assignments.take_back_assigned, worker_id=worker_id, limit=limit))
            recover = partial(losses.recover, worker_id=worker_id, limit=limit)
            lost = self._all(recover) if state is None else 0
            if taken or lost:  # a draining worker goes on with what it runs
                log.info("reaper: worker %d is not live: took back %d assigned, %d running", worker_id, taken, lost)

    def _all(self, work: Callable[[Connection], int]) -> int:
        total = 0
        while True:
            done = self._database.write(work)
            total += done
            if done < self._settings.batch:
                return total

    def _take_back_unstarted(self, alive: Collection[int]) -> None:
        cutoff = self._database.clock.now() - timedelta(seconds=self._settings.assignment_timeout_seconds)
        limit = self._settings.batch
        if not self._database.read(lambda c: assignments.overdue(c, alive, cutoff, 1)):
            return
        taken = self._database.write(lambda c: assignments.take_back_unstarted(c, alive, cutoff, limit))
        if taken:
            log.info("reaper: took back %d assignments that were not started in time", taken)
