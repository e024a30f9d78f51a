"""Pulling: poll what is assigned, wait for its moment, claim it in batches just before, start it exactly then.

Two queues: what is assigned waits for its claim, at most ``CLAIM_AHEAD`` before it is due and only while there is a
slot for it or will be one as soon; what is claimed waits for its due time. So pulling costs no punctuality.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.clock import TICK_PHASE_SECONDS, boottime, seconds_to_next
from shared.settings import Settings
from shared.store import losses, reports, runs
from shared.store.database import Database
from shared.store.node_types import NodeTypeNames
from shared.store.overlap import REPORTED_WITHIN, Doubt
from shared.store.runs import Run
from worker_service.delay_queue import DelayQueue
from worker_service.runner import Runner

log = logging.getLogger(__name__)

CLAIM_AHEAD = timedelta(seconds=0.1)
"""The longest that an instance is claimed before it is due, or before a slot is expected to be free for it; for a slot
longer, where claims take long (``LONGEST_PACE_SECONDS``)."""

CLAIM_TIME = timedelta(seconds=0.05)
"""By when it is claimed at the latest: a claim takes less. In between, claims are gathered."""

PACE_SECONDS = 0.02
LONGEST_PACE_SECONDS = 0.5
"""How long claims are gathered while all slots are taken and what is claimed waits for them: as long as the last claim
took, within these bounds. Where claims take long, since many workers are at the database, batches so grow; and reach
as far ahead as two of them take."""

GIVE_BACK_AFTER = timedelta(seconds=1)
"""What is claimed and has waited for its slot so long is handed back by the next poll."""

FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 0.5
"""An instance that is due and cannot be claimed yet is tried again: soon, for its task may merely be being written;
then less and less often, for its predecessor may run for hours."""

QUEUE_LIMIT = 5000
"""How many assigned instances are kept in mind; the rest stay rows until there is room."""

FEW = QUEUE_LIMIT // 5
"""With fewer in mind than this, there is room for a poll to bring more."""

HURRY_SECONDS = 0.1
HURRY_SHARE = 0.1
LONGEST_HURRY_SECONDS = 0.5
"""After a poll that brought what was late already, and left few in mind, the next comes so soon; or later, where polls
take long, so that they take no larger part of the time than this. A backlog comes in pieces, and between two of them
there may be nothing new: after a poll that brought as much as this makes polls in a period, they go on so for one."""

POLL_PHASE_SECONDS = TICK_PHASE_SECONDS + 0.075
POLL_SPREAD_SECONDS = 0.05
"""When workers ask, by the database's clock: a little later than the schedulers look, spread by their ids. What a
scheduler has not placed by then waits for a period more; it takes some 15 ms, 40 where a machine is slow."""


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
        self._claims: DelayQueue[int] = DelayQueue(database.clock, CLAIM_AHEAD - CLAIM_TIME)
        self._types = NodeTypeNames()
        self._lock = threading.Lock()
        self._waiting: dict[int, int] = {}
        self._claiming: set[int] = set()
        self._claimed: set[int] = set()
        self._tries: dict[int, int] = {}
        self._doubts: dict[int, Doubt] = {}
        self._compared = 0.0
        self._behind_until = 0.0
        self._claim_took = 0.0
        self._claim_ended = 0.0
        self._period = settings.poll_period
        self._phase = POLL_PHASE_SECONDS + worker_id % 16 / 16 * POLL_SPREAD_SECONDS
        self.wake_poll: Callable[[], None] = lambda: None

    def poll(self) -> float:
        """Fetch what is assigned; returns the seconds to rest.

        Not long after it brought something that was late already, and not much: there may be more behind it. ``claim``
        wakes it when only little is left of much.
        """
        self._give_back()
        if boottime() - self._compared >= self._settings.heartbeat_seconds:
            self.compare()
            self._compared = boottime()
        began, now = boottime(), self._database.clock.now()
        horizon = now + timedelta(seconds=self._settings.lookahead_seconds)
        with self._lock:
            self._claimed = set(self._claiming)
        rows = self._database.read(lambda c: runs.poll(c, self._worker_id, horizon, QUEUE_LIMIT))
        with self._lock:
            new = self._keep_in_mind(rows)
        rest = seconds_to_next(self._database.clock.now(), self._period, self._phase)
        ended, late = boottime(), sum(due_at <= now for _, due_at, _ in new)
        if late * HURRY_SECONDS >= self._period:
            self._behind_until = ended + self._period
        if len(self._waiting) < FEW and (late or ended < self._behind_until):
            rest = min(rest, max(HURRY_SECONDS, (ended - began) / HURRY_SHARE), LONGEST_HURRY_SECONDS)
        return rest

    def _keep_in_mind(self, rows: Sequence[Any]) -> list[Any]:
        """What was claimed since the read began may be running, or have ended: it must not be claimed once more.

        Returns what is new. What is not among the rows any more was taken back, unless they were too many to read all.
        """
        new = [row for row in rows if row[0] not in self._waiting and row[0] not in self._claimed]
        if len(rows) < QUEUE_LIMIT or len(self._waiting) > 2 * QUEUE_LIMIT:
            there = {row[0] for row in rows}
            self._waiting = {i: priority for i, priority in self._waiting.items() if i in there}
            self._tries = {i: tries for i, tries in self._tries.items() if i in there}
            self._doubts = {i: doubt for i, doubt in self._doubts.items() if i in there}
            if len(self._claims) > 2 * len(self._waiting):
                self._claims.retain(self._waiting)
        self._waiting.update((instance_id, priority) for instance_id, _, priority in new)
        self._claims.put_all(
            ((due_at - CLAIM_TIME, instance_id, priority) for instance_id, due_at, priority in new),
            early=CLAIM_AHEAD - CLAIM_TIME,
        )
        return new

    def claim(self) -> float:
        """Wait until something is to be claimed and there is a slot for it; claim it."""
        ids = self._claims.take(self._room)
        with self._lock:
            ids = [instance_id for instance_id in dict.fromkeys(ids) if instance_id in self._waiting]
            priorities = {instance_id: self._waiting.pop(instance_id) for instance_id in ids}
            self._claiming.update(ids)
            self._claimed.update(ids)
        if not ids:
            return 0
        began = boottime()
        try:
            self._claim(priorities)
        except BaseException:
            self.wake_poll()
            raise
        finally:
            self._claiming.difference_update(ids)
            self._claim_ended = boottime()
            self._claim_took = self._claim_ended - began
        if len(self._waiting) < FEW <= len(ids) + len(self._waiting):
            self.wake_poll()
        if self._busy() <= self._settings.capacity:
            return 0
        return min(max(self._claim_took, PACE_SECONDS), LONGEST_PACE_SECONDS)

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

    def room_made(self) -> None:
        """A slot is free: claim again."""
        self._claims.room_made()

    def close(self) -> None:
        """Claim nothing more."""
        self._claims.close()

    def _room(self) -> int:
        """How many may be claimed: as many as there are free slots, and as will be free by the time they start."""
        free = self._settings.capacity - self._busy()
        slots = free + self._runner.foreseen(free, self._ahead())
        held = self._settings.capacity + 2 * self._settings.batch - len(self._runner)
        return min(slots, held, self._settings.batch)

    def _ahead(self) -> float:
        """How far ahead slots are foreseen, in seconds; a claim of long ago says nothing."""
        is_recent = boottime() - self._claim_ended < LONGEST_PACE_SECONDS + PACE_SECONDS
        took = self._claim_took if is_recent else 0.0
        return max(CLAIM_AHEAD.total_seconds(), min(2 * took, LONGEST_PACE_SECONDS))

    def _give_back(self) -> None:
        """Hand back what was claimed for a slot that did not come free: another worker may have one."""
        late = self._starts.remove(before=self._database.clock.now() - GIVE_BACK_AFTER)
        if late:
            self._hand_back(late, "its worker had no slot for it")
            log.info("worker: handed back %d instances that it had no slot for", len(late))

    def _hand_back(self, unstarted: Sequence[Run], reason: str) -> None:
        for run in unstarted:
            self._runner.drop(run.id)
        held = [(run.id, run.attempt) for run in unstarted]
        self._database.write(lambda c: reports.hand_back(c, self._worker_id, held, reason))

    def _claim(self, priorities: dict[int, int]) -> None:
        now = self._database.clock.now()
        claim = self._database.write(
            lambda c: runs.claim(
                c, self._worker_id, list(priorities), now, self._types, tried=self._tries, doubts=self._doubts
            )
        )
        accepted, claimed = self._runner.accept(claim.runs), self._database.clock.now()
        starts = [(max(run.due_at, claimed), run, priorities.get(run.id, 0)) for run in accepted]
        if accepted and not self._starts.put_all(starts):  # the worker stopped while this claim was under way
            self._hand_back(accepted, "its worker stopped")
        waiting = {instance_id for instance_id, _, _ in claim.waiting}
        with self._lock:
            self._waiting.update((instance_id, priorities[instance_id]) for instance_id in waiting)
            for instance_id in priorities.keys() - waiting:
                self._tries.pop(instance_id, None)
                self._doubts.pop(instance_id, None)
            for instance_id, due_at, holder_id in claim.waiting:
                if holder_id is not None:
                    self._doubts.setdefault(instance_id, Doubt(holder_id, claimed + REPORTED_WITHIN))
                self._claims.put(self._next_try(instance_id, due_at, now), instance_id, rank=priorities[instance_id])

    def _next_try(self, instance_id: int, due_at: datetime, now: datetime) -> datetime:
        """Not before it is due, then after a pause that grows."""
        pause = 0.0
        if due_at <= now:
            tries = self._tries[instance_id] = self._tries.get(instance_id, 0) + 1
            pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 10))
        moment = max(due_at, now) + timedelta(seconds=pause)
        doubt = self._doubts.get(instance_id)
        return moment if doubt is None or doubt.until <= now else min(moment, doubt.until)
