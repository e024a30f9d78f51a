"""Reaping: whatever is held by a worker that is not live comes back, on every pass.

Every pass, not only when a worker is declared dead: another scheduler may have been assigning to it at that moment.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from shared.clock import boottime
from shared.domain.states import WorkerState
from shared.settings import Settings
from shared.store import assignments, losses, workers
from shared.store.database import Database, database_time

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOCK_STEP_SECONDS = 2.0
CLOCK_STEP_SHARE = 0.25
"""The database's clock was set if it is off by more from the time that has passed here since the last pass; or by more
than this part of a shorter limit, the scheduler's own or that of a worker that looks silent."""

AWAY_SHARE = 0.5
"""After so long without an answer of the database, as a part of the liveness limit, the reaper was away."""

UNSTARTED_SHARE = 0.1
"""How often it is looked for what is not started in time, as a part of that time: each look is a statement."""


@dataclass(frozen=True, slots=True)
class Look:
    """The database's time, and the host's since boot when it was asked and when it had answered."""

    asked: float
    time: datetime
    answered: float

    def step_since(self, earlier: "Look") -> float:
        """How far, in seconds, the database's clock was set between two looks: no more than is certain, as either was
        taken at some moment between question and answer."""
        passed = (self.time - earlier.time).total_seconds()
        least, most = self.asked - earlier.answered, self.answered - earlier.asked
        return passed - min(max(passed, least), most)


class Reaper:
    """The duty: declare the silent dead, recover what they held, take back what is not started in time.

    While the database is away no worker can beat, and when its clock is set forward all look silent. So after an
    outage, after such a step, and when it starts, the reaper declares nobody dead before it has watched for that
    worker's whole liveness limit.
    """

    def __init__(self, database: Database, settings: Settings, by: str) -> None:
        self._database = database
        self._settings = settings
        self._by = by
        self._seen = Look(boottime(), database.read(database_time), boottime())
        self._watching_since = self._heard = self._seen.answered
        self._looked_for_unstarted = float("-inf")

    def step(self) -> float:
        """One pass; returns the seconds to rest."""
        asked = boottime()
        census = self._ask(workers.census)
        self._check_clock(Look(asked, census.time, self._heard), census.silent.values())
        if self._declare_dead(census):
            census = self._ask(workers.census)
        self._recover(census.holders, census.alive)
        if boottime() - self._looked_for_unstarted >= self._settings.assignment_timeout_seconds * UNSTARTED_SHARE:
            self._looked_for_unstarted = boottime()
            self._take_back_unstarted(census.alive)
        return self._settings.tick_period

    def _ask(self, work: Callable[[Connection], T]) -> T:
        answer = self._database.read(work)
        self._hear()
        return answer

    def _change(self, work: Callable[[Connection], int]) -> int:
        changed = self._database.write(work)
        self._hear()
        return changed

    def _hear(self) -> None:
        now = boottime()
        silence, self._heard = now - self._heard, now
        if silence > self._settings.liveness_seconds * AWAY_SHARE:
            self._watch(f"heard nothing from the database for {silence:.0f} s")

    def _check_clock(self, look: Look, limits: Collection[int]) -> None:
        step, self._seen = look.step_since(self._seen), look
        shortest = min([self._settings.liveness_seconds, *limits])
        if abs(step) > min(CLOCK_STEP_SECONDS, shortest * CLOCK_STEP_SHARE):
            self._watch(f"saw the database's clock step {step:+.1f} s")

    def _watch(self, why: str) -> None:
        self._watching_since = self._heard
        log.warning("reaper: %s; it declares nobody dead before it has watched for a liveness limit", why)

    def _declare_dead(self, census: workers.Census) -> int:
        watched = self._heard - self._watching_since
        silent = [worker_id for worker_id, limit in census.silent.items() if limit <= watched]
        if not silent:
            return 0
        buried = self._change(partial(workers.bury_silent, worker_ids=silent, by=self._by))
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
            done = self._change(work)
            total += done
            if done < self._settings.batch:
                return total

    def _take_back_unstarted(self, alive: Collection[int]) -> None:
        cutoff = self._database.clock.now() - timedelta(seconds=self._settings.assignment_timeout_seconds)
        limit = self._settings.batch
        if not self._ask(lambda c: assignments.overdue(c, alive, cutoff, 1)):
            return
        taken = self._change(lambda c: assignments.take_back_unstarted(c, alive, cutoff, limit))
        if taken:
            log.info("reaper: took back %d assignments that were not started in time", taken)
