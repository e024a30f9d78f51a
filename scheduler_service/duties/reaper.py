"""Reaping: on every pass, take back what workers hold that are not live.

On every pass, not only when a worker is declared dead, because another scheduler may have been assigning to it then.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.transactions import Database, database_time
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem
from rota.shared.domain.states import WorkerState
from rota.shared.domain.weights import MOST_WEIGHT
from rota.shared.settings import Settings
from rota.shared.store import assignments, census, loads, pools, recovery, unstarted, workers
from rota.shared.store.census import Census
from rota.shared.store.loads import LiveWorker
from rota.shared.store.pools import PoolLoad
from rota.shared.store.transitions import keeping
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOCK_STEP_SECONDS = 2.0
CLOCK_STEP_SHARE = 0.25
"""The reaper takes the database's clock for set when it differs by so many seconds from what it expected by the time
that has passed on this host. With liveness limits of a few seconds it does so from this share of the shortest on."""

AWAY_SHARE = 0.5
"""Without an answer of the database for this share of the liveness limit, the reaper counts as having been away."""

UNSTARTED_SHARE = 0.1
"""The reaper looks for assignments that were not started in time this often, as a share of that time."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One reading of the database's clock: its time, and this host's seconds since boot before and after the answer."""

    asked: float
    time: datetime
    answered: float

    def step_since(self, earlier: "ClockReading") -> float:
        """How far, in seconds, the database's clock was set between two readings.

        The database took each reading at some moment between question and answer; only what is certain is told.
        """
        passed = (self.time - earlier.time).total_seconds()
        least, most = self.asked - earlier.answered, self.answered - earlier.asked
        return passed - min(max(passed, least), most)


class Reaper:
    """The duty: declare silent workers dead, recover what they held, take back what is not started in time.

    While the database is away no worker can beat, and when its clock is set forward all workers look silent. So after
    an outage, after such a step and after its own start, the reaper first watches a worker for its whole liveness limit
    before it declares that worker dead. After a step back beats are in the future: the reaper watches each of them for
    the limit, and a worker that beats meanwhile lives.

    For such a time nobody could start anything, either. So after an outage or a step it takes nothing back as not
    started in time before it has watched for that time.

    The servers of a cluster have a clock each, and beats are of several. To move to another server counts as a step of
    the clock. And no clock of a server decides alone who is silent: the reaper must have seen the same beat for the
    limit.
    """

    def __init__(self, database: Database, settings: Settings, by: str) -> None:
        self._database = database
        self._settings = settings
        self._by = by
        self._clock = database.clock
        self._surprises = Surprises("reaper")
        asked = self._clock.monotonic()
        self._seen = ClockReading(asked, database.read(database_time), self._clock.monotonic())
        self._watching_since = self._heard = self._seen.answered
        self._servers, self._moves = database.servers, database.servers.moves
        self._ahead: dict[tuple[int, datetime], float] = {}
        self._beats: dict[tuple[int, datetime], float] = {}
        """When the reaper has first seen a beat of a worker, where several clocks tell the time of beats."""

        self._known: Collection[int] = [worker.id for worker in database.read(workers.alive)]
        self._without_beat: dict[int, float] = {}
        self._looked_for_unstarted = self._held_up = float("-inf")
        self._looked_to: dict[unstarted.Queue, unstarted.Place] = {}
        """How far it has looked through the queues in which something is late."""

    def step(self) -> float:
        """One pass; returns the seconds to rest."""
        asked = self._clock.monotonic()
        seen = self._take_census()
        self._check_clock(ClockReading(asked, seen.time, self._heard), seen.silent.values())
        if self._declare_dead(seen):
            seen = self._take_census()
        if seen.unshown:
            self._change(partial(workers.show, worker_ids=seen.unshown, by=self._by))
        self._recover(seen)
        now, timeout = self._clock.monotonic(), self._settings.assignment_timeout_seconds
        if now - self._looked_for_unstarted >= timeout * UNSTARTED_SHARE and now - self._held_up >= timeout:
            self._looked_for_unstarted = now
            self._take_back_unstarted(seen.alive)
        return self._settings.tick_period

    def _take_census(self) -> Census:
        seen = self._ask(partial(census.take, known=self._known))
        self._known = seen.known
        return seen

    def _ask(self, work: Callable[[Connection], T]) -> T:
        answer = self._database.read(work)
        self._hear()
        return answer

    def _change(self, work: Callable[[Connection], T]) -> T:
        changed = self._database.write(work)
        self._hear()
        return changed

    def _hear(self) -> None:
        now = self._clock.monotonic()
        silence, self._heard = now - self._heard, now
        if silence > self._settings.assignment_timeout_seconds * AWAY_SHARE + self._settings.tick_period:
            self._held_up = now
        if silence > self._settings.liveness_seconds * AWAY_SHARE:
            self._watch(f"heard nothing from the database for {silence:.0f} s")

    def _check_clock(self, look: ClockReading, limits: Collection[int]) -> None:
        step, self._seen = look.step_since(self._seen), look
        shortest = min([self._settings.liveness_seconds, *limits])
        if self._servers.moves != self._moves:
            self._moves = self._servers.moves
            self._watch(f"moved to another server, whose clock differs by {step:+.1f} s")
        elif abs(step) > min(CLOCK_STEP_SECONDS, shortest * CLOCK_STEP_SHARE):
            self._watch(f"saw the database's clock step {step:+.1f} s")

    def _watch(self, why: str) -> None:
        self._watching_since = self._held_up = self._heard
        log.warning("reaper: %s; it declares nobody dead before it has watched for a liveness limit", why)

    def _declare_dead(self, seen: Census) -> int:
        self._ahead = {beat: self._ahead.get(beat, self._heard) for beat in seen.ahead.items()}
        beats = seen.beats.items() if self._servers.are_several else ()
        self._beats = {beat: self._beats.get(beat, self._heard) for beat in beats}
        since = dict.fromkeys(seen.silent, self._watching_since)
        for (worker_id, _), first in (*self._ahead.items(), *self._beats.items()):
            since[worker_id] = max(first, since.get(worker_id, first))
        silent = [worker_id for worker_id, limit in seen.silent.items() if limit <= self._heard - since[worker_id]]
        buried = self._bury(silent, workers.bury_silent, "silent")
        return buried + self._bury(seen.condemned, workers.condemn, "condemned")

    def _bury(self, worker_ids: Iterable[int], bury: Callable[..., int], kind: str) -> int:
        """Declare these dead, each in a transaction of its own: a lock on one should not hold up the others."""
        buried = sum(self._change(partial(bury, worker_ids=[one], by=self._by)) for one in sorted(worker_ids))
        if buried:
            log.warning("reaper: declared %d %s worker(s) dead", buried, kind)
        return buried

    def _recover(self, seen: Census) -> None:
        """Take back what workers hold that are not live. A draining worker goes on with what it runs."""
        self._without_beat = {i: since for i, since in self._without_beat.items() if i in seen.holders}
        for worker_id in sorted(seen.holders):
            if seen.alive.get(worker_id) == WorkerState.LIVE:
                continue
            is_dead = worker_id not in seen.alive and worker_id not in seen.condemned
            try:
                self._recover_from(worker_id, is_gone=is_dead and self._is_gone(worker_id))
                self._surprises.over(_holding(worker_id))
            except DatabaseProblem as error:  # the others' instances should not wait for this one's
                if not isinstance(error, DatabaseAway):  # it has answered all the time
                    self._heard = self._clock.monotonic()
                log.warning(
                    "reaper: worker %d is not live; what it holds could not be taken back: %s", worker_id, error
                )
            except DBAPIError as error:  # nor for a row of this one's that the database refuses
                self._surprises.say(_holding(worker_id), error)

    def _is_gone(self, worker_id: int) -> bool:
        """Whether a dead worker runs nothing any more. Who is dead by SQL alone may run on until its lease is over."""
        may_run = self._ask(partial(workers.may_still_run, worker_id=worker_id))
        if may_run is None:
            since = self._without_beat.setdefault(worker_id, self._heard)
            return self._heard - since >= self._settings.liveness_seconds
        return not may_run

    def _recover_from(self, worker_id: int, *, is_gone: bool) -> None:
        limit = self._settings.batch
        taken = self._all(worker_id, partial(assignments.take_back_assigned, worker_id=worker_id, limit=limit))
        lost = self._all(worker_id, partial(recovery.recover, worker_id=worker_id, limit=limit)) if is_gone else 0
        if is_gone:
            self._free_slots(worker_id)
        if taken or lost:
            log.info("reaper: worker %d is not live: took back %d assigned, %d running", worker_id, taken, lost)

    def _all(self, worker_id: int, work: Callable[[Connection], int]) -> int:
        """Page after page of what a worker holds, up to one of which somebody has locked something."""
        total, done = 0, [0]

        def page(connection: Connection, _: object) -> None:
            done[0] = work(connection)

        while True:
            held_up = self._database.write_by_halves([worker_id], page, None, _holding)
            self._hear()
            if held_up:
                return total
            total += done[0]
            if done[0] < self._settings.batch:
                return total

    def _free_slots(self, worker_id: int) -> None:
        """Free the slots that were kept for a dead worker's threads."""
        of_worker = partial(keeping.of_worker, worker_id=worker_id, limit=self._settings.batch)

        def free(connection: Connection, some: Sequence[int]) -> None:
            keeping.free_own(connection, worker_id, some)

        while kept := self._ask(of_worker):
            held_up = self._database.write_by_halves(kept, free, None, of_instance)
            self._hear()
            if held_up or len(kept) < self._settings.batch:
                return

    def _take_back_unstarted(self, alive: Collection[int]) -> None:
        """Take back what was not started in time, from workers that start nothing, and where another has free slots.

        A worker with a long queue that it works off keeps the queue, unless another worker would begin at once: one
        with as many free slots as the instance takes, or threads of its pool.
        """
        cutoff = self._clock.now() - timedelta(seconds=self._settings.assignment_timeout_seconds)
        late = self._ask(lambda c: unstarted.late_queues(c, alive, cutoff))
        self._looked_to = {queue: self._looked_to.get(queue, unstarted.FRONT) for queue in late}
        if not late:
            return
        stalled = self._ask(lambda c: census.stalled(c, alive, cutoff))
        idle = self._ask(_idle)
        for queue, place in self._looked_to.items():
            avoid = stalled.get(queue.worker)
            free = {pool: _most_free(slots, queue.worker) for pool, slots in idle.items()}
            if avoid is not None:
                free[None] = MOST_WEIGHT
            if not any(free.values()):
                continue
            look = partial(unstarted.take_back, queue=queue, cutoff=cutoff, after=place, avoid=avoid, free=free)
            taken, self._looked_to[queue] = self._change(partial(look, limit=self._settings.batch))
            if taken:
                log.info("reaper: took back %d assignments that worker %d did not start in time", taken, queue.worker)


def _holding(worker_id: int) -> str:
    return f"what worker {worker_id} holds"


def _most_free(slots: Mapping[int, int], but: int) -> int:
    return max((free for worker, free in slots.items() if worker != but), default=0)


def _idle(connection: Connection) -> dict[str | None, dict[int, int]]:
    """How many slots of each worker are free by all that it holds, in each pool that any has, and of its own (None)."""
    live = loads.fleet(connection)
    held = pools.held(connection, [worker.id for worker in live if worker.has_places])
    idle: dict[str | None, dict[int, int]] = {None: {}}
    for worker in live:
        holds = held.get(worker.id, {})
        parts: dict[str | None, LiveWorker] = {None: worker.beside(holds)}
        parts |= {pool: worker.in_pool(pool, holds.get(pool, PoolLoad())) for pool in worker.pools}
        for pool, part in parts.items():
            idle.setdefault(pool, {})[worker.id] = part.free_slots
    return idle
