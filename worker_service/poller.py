"""Pulling: poll what is assigned, wait for its moment, claim it in batches just before, start it exactly then.

Two queues: what is assigned waits for its claim, at most ``CLAIM_AHEAD_SECONDS`` before it is due and only while there
is a free slot; what is claimed waits for its due time. So pulling costs no punctuality.
"""

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from shared.clock import boottime
from shared.settings import Settings
from shared.store import losses, reports, runs
from shared.store.database import Database
from shared.store.runs import Run
from worker_service.delay_queue import DelayQueue
from worker_service.runner import Runner

log = logging.getLogger(__name__)

CLAIM_AHEAD_SECONDS = 0.1
FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 0.5
"""An instance that is due and cannot be claimed yet is tried again: soon, for its task may merely be being written;
then less and less often, for its predecessor may run for hours."""

QUEUE_LIMIT = 2000
"""How many assigned instances are kept in mind; the rest stay rows until there is room."""


class Poller:
    """Two steps over one worker's instances: ``poll``, on the poll's cadence, and ``claim``, whenever something is due.

    They run on two threads. What is being claimed is counted as held, so that the comparison of the rows with what runs
    never takes it for a stranger.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        worker_id: int,
        *,
        runner: Runner,
        starts: DelayQueue[Run],
        busy: Callable[[], int],
    ) -> None:
        self._database = database
        self._settings = settings
        self._worker_id = worker_id
        self._runner = runner
        self._starts = starts
        self._busy = busy
        self._claims: DelayQueue[int] = DelayQueue(database.clock, CLAIM_AHEAD_SECONDS)
        self._lock = threading.Lock()
        self._waiting: dict[int, datetime] = {}
        self._claiming: set[int] = set()
        self._claimed: set[int] = set()
        self._tries: dict[int, int] = {}
        self._compared = 0.0
        self.wake_poll: Callable[[], None] = lambda: None

    def poll(self) -> float:
        """Fetch what is assigned; returns the seconds to rest (``claim`` wakes it when there is room)."""
        if boottime() - self._compared >= self._settings.heartbeat_seconds:
            self.compare()
            self._compared = boottime()
        horizon = self._database.clock.now() + timedelta(seconds=self._settings.lookahead_seconds)
        with self._lock:
            self._claimed = set(self._claiming)
        rows = self._database.read(lambda c: runs.poll(c, self._worker_id, horizon, QUEUE_LIMIT))
        with self._lock:
            # What was claimed since the read began may be running, or have ended: it must not be claimed once more.
            for instance_id, due_at in rows:
                if instance_id not in self._waiting and instance_id not in self._claimed:
                    self._waiting[instance_id] = due_at
                    self._claims.put(due_at, instance_id)
        return self._settings.poll_seconds

    def claim(self) -> float:
        """Wait until something is to be claimed and there is a slot for it; claim it."""
        free = self._settings.capacity - self._busy()
        ids = self._claims.take(min(free, self._settings.batch))
        if not ids:
            return 0
        with self._lock:
            self._claiming.update(ids)
            self._claimed.update(ids)
            for instance_id in ids:
                self._waiting.pop(instance_id, None)
        try:
            self._claim(ids)
        except BaseException:
            self.wake_poll()
            raise
        finally:
            self._claiming.difference_update(ids)
        if len(self._waiting) < QUEUE_LIMIT // 2 <= len(ids) + len(self._waiting):
            self.wake_poll()
        return 0

    def compare(self) -> None:
        """Compare the rows that stand ``running`` under this worker with what it runs: stop what somebody canceled,
        hand back strangers, but fail those that may run once at most."""
        held = self._database.read(lambda c: runs.held(c, self._worker_id))
        claiming = set(self._claiming)
        known = self._runner.held
        strangers = [(i, attempt) for i, attempt, _ in held if (i, attempt) not in known and i not in claiming]
        for instance_id, attempt, canceled in held:
            if canceled:
                self._runner.stop(instance_id, attempt, "canceled", canceled=True)
        if strangers and not self._claims.closed:  # since then what ran is ended, and known no more
            reason = "its worker held it but did not run it"
            failed, back = self._database.write(
                lambda c: (
                    losses.disown(c, self._worker_id, strangers, reason),
                    reports.hand_back(c, self._worker_id, strangers, reason),
                )
            )
            if failed or back:  # else they ended between the two looks
                log.warning("worker: held but did not run: %d instances handed back, %d failed", back, failed)

    def wake(self) -> None:
        """A slot is free: claim again."""
        self._claims.wake()

    def close(self) -> None:
        """Claim nothing more."""
        self._claims.close()

    def _claim(self, ids: list[int]) -> None:
        now = self._database.clock.now()
        claim = self._database.write(lambda c: runs.claim(c, self._worker_id, ids, now))
        for run in claim.runs:
            if self._runner.accept(run):
                self._starts.put(run.due_at, run)
        for instance_id, due_at in claim.waiting:
            self._waiting[instance_id] = due_at
            self._claims.put(self._next_try(instance_id, due_at, now), instance_id)
        for instance_id in set(ids) - {waiting for waiting, _ in claim.waiting}:
            self._tries.pop(instance_id, None)

    def _next_try(self, instance_id: int, due_at: datetime, now: datetime) -> datetime:
        """Not before it is due, then after a pause that grows; the queue gives out ``CLAIM_AHEAD_SECONDS`` early."""
        pause = 0.0
        if due_at <= now:
            tries = self._tries[instance_id] = self._tries.get(instance_id, 0) + 1
            pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 10))
        return max(due_at, now) + timedelta(seconds=pause + CLAIM_AHEAD_SECONDS)
