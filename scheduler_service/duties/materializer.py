"""Materializing: write the instances of tasks that are due, each fire exactly once.

A batch follows the protocol of ``rota.shared.store.locks``: acquire the leases, read the tasks again, decide; then, in
one transaction, release, write, advance. A scheduler that is killed between any two statements has either written a
fire and advanced its task, or neither. Its leases run out by themselves.

Somebody else may have locked a row of a task: an operator's edit that is not committed, or a frozen process. Then the
first write waits for that lock in vain. From then on each write first asks which tasks are locked, and passes over
them. It cannot ask whether the place of a fire is locked: the batch is parted until that task is alone. A task that is
passed over keeps its lease until it runs out, so the next batches contain other tasks.
"""

import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import params, plan_calendars, steered
from rota.scheduler_service.batch import Batch, slots_of
from rota.scheduler_service.fleet import FleetCache
from rota.scheduler_service.holding import Holder
from rota.scheduler_service.kinds import UnknownKinds
from rota.scheduler_service.leasing import lease_new
from rota.scheduler_service.urgent import URGENT_PRIORITY, Given, wake_workers
from rota.scheduler_service.writing import TaskWrite, WriteTimes, aside, portions, without_param, write_tasks
from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected, then_read
from rota.shared.database.refusals import sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.after_ends import Flight
from rota.shared.domain.errors import RotaError, UnknownKind
from rota.shared.domain.planning import PlannedTask
from rota.shared.settings import Settings
from rota.shared.store import chain_runs, follow_ups, locks, overlap, plans
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

EARLIER_SECONDS = 0.05
SPREAD_SECONDS = 0.05
"""The materializer ticks so much before the assigner, so that its first batch is written when the workers poll. The
spread is a random part, by which several schedulers differ."""

FIRST_BATCH = 200
"""A tick's first batch has so many tasks at most, so that it is written when the workers poll. They see that more is to
come, and poll again soon."""

AWAY = timedelta(seconds=15)
"""If two looks are further apart, the scheduler was away between them. If they are not, it is only slow."""

OUTRUN_SECONDS = 0.02
"""The longest rest after another scheduler had leased all that was found. It doubles each time in a row, up to a
period. It is short because more tasks may be due behind those."""


class Materializer:
    """The duty: find, lock, read again, decide and place, write.

    A fire that no worker fits is written pending, with the reason. The assigner, which sees all pending instances, logs
    it.
    """

    def __init__(self, database: Database, settings: Settings, fleet_cache: FleetCache | None = None) -> None:
        self._database = database
        self._settings = settings
        self._fleet_cache = fleet_cache or FleetCache(database)
        self.unknown_kinds = UnknownKinds(database)
        self._within = max(settings.lookahead_seconds, settings.lock_lease_seconds)
        self._longest_wait = timedelta(seconds=2 * settings.assignment_timeout_seconds)  # of what a worker was given
        self._surprises = Surprises("materializer")
        self._outrun = OUTRUN_SECONDS
        self._at_work_since = self._looked_at = database.clock.now()
        self._holder = Holder(database, settings, self._lease)
        self._has_begun = False
        """Whether this tick has had its first batch."""

        self._any_chain = True
        """Whether any task follows another."""

        earlier = EARLIER_SECONDS + random.uniform(0, SPREAD_SECONDS)  # noqa: S311 - schedulers part
        self._phase = TICK_PHASE_SECONDS - earlier

    def step(self) -> float:
        """One batch; returns the seconds to rest, 0 when there is more to do at once."""
        now = self._database.clock.now()
        self._at_work_since = now if now - self._looked_at > AWAY else self._at_work_since
        rest = self._batch(now)
        self._looked_at = now  # a step that failed was none: the database was away
        return rest

    def _batch(self, now: datetime) -> float:
        horizon = now + timedelta(seconds=self._settings.lookahead_seconds)
        limit, lease = self._settings.batch, self._settings.lock_lease_seconds
        if not self._has_begun:
            limit = min(limit, FIRST_BATCH)
        self._has_begun = True
        known = self.unknown_kinds.are_left
        due, paused, self._any_chain = self._database.read(
            lambda c: plans.due(c, now, horizon, limit, lease, known=known)
        )
        if paused and self._holder.hold():
            return 0
        if not paused:
            self._holder.over()
        if not due:
            self._outrun = OUTRUN_SECONDS
            return self._until_next_tick()
        token = locks.new_token()
        tasks = self._lease(token, due)
        if not tasks:
            longest = min(self._outrun, self._settings.tick_period)
            self._outrun = 2 * longest
            return random.uniform(0, longest)  # noqa: S311 - schedulers that meet part
        self._outrun = OUTRUN_SECONDS
        steered.give(self._database, tasks, now)
        unfinished = False
        for some in params.of_due(self._database, tasks):
            writes = self._decide(some, now, horizon, paused=paused)
            for portion in portions(writes):
                self._write(token, portion, now)
            self._wake_workers(writes)
            unfinished |= any(w.advance.next_fire_at is not None and w.advance.next_fire_at <= horizon for w in writes)
        self.unknown_kinds.give_back(token)
        return 0 if len(due) >= limit or (unfinished and not paused) else self._until_next_tick()

    def _wake_workers(self, writes: Iterable[TaskWrite]) -> None:
        """Wake the workers of the urgent fires that are written so late that they might poll them too late."""
        fleet = self._fleet_cache.current().fleet
        if not fleet.listens:
            return
        urgent = [fire for write in writes for fire in write.fires if fire.priority <= URGENT_PRIORITY]
        if urgent:
            given = (Given(fire.worker_id, fire.due_at or fire.schedule_datetime) for fire in urgent)
            half = timedelta(seconds=self._settings.lookahead_seconds / 2)
            wake_workers(given, fleet, self._database.clock.now() + half)

    def _lease(self, token: str, due: Sequence[int]) -> list[PlannedTask]:
        """Lease these tasks and read them; in one round trip, if they have been leased before."""
        lease = self._settings.lock_lease_seconds
        tasks = self._database.write(
            then_read(lambda c: locks.take(c, token, due, lease), lambda c: plans.locked(c, token, due))
        )
        there = {task.id for task in tasks}
        if new := [task_id for task_id in due if task_id not in there]:
            got = lease_new(self._database, token, new, lease)
            tasks += self._database.read(lambda c: plans.locked(c, token, got)) if got else []
        return plan_calendars.given(self._database, tasks)

    def _until_next_tick(self) -> float:
        self._has_begun = False
        return seconds_to_next(self._database.clock.now(), self._settings.tick_period, self._phase)

    def _decide(
        self, tasks: Sequence[PlannedTask], now: datetime, horizon: datetime, *, paused: bool
    ) -> list[TaskWrite]:
        slots = {t.id: n for t in tasks if (n := slots_of(t.terms)) is not None}
        full = {i: slots[i] for i in self._database.read(lambda c: overlap.full(c, slots))} if slots else {}
        flights = self._flights([task.id for task in tasks if task.terms.inputs.follows_ends], now)
        snapshot, since = self._fleet_cache.current(), self._at_work_since
        batch = Batch(
            snapshot, full, now, horizon, self._surprises, flights=flights, at_work_since=since, paused=paused
        )
        writes = []
        for task in tasks:
            try:
                writes.append(batch.write_of(task))
                if self._surprises:
                    self._surprises.over(f"task {task.name!r}")
            except UnknownKind as error:
                writes += [] if self.unknown_kinds.leaves(task, error) else [aside(task, str(error))]
            except RotaError as error:
                writes.append(aside(task, str(error)))
            except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: the task keeps its lease meanwhile
                self._surprises.say(f"task {task.name!r}", error)
        return writes

    def _flights(self, task_ids: Sequence[int], now: datetime) -> dict[int, Flight]:
        """What the marked runs of these tasks say about their plans."""
        if not task_ids:
            return {}
        runs = self._database.read(lambda c: follow_ups.of_tasks(c, task_ids))
        return {task_id: Flight.of(some, now) for task_id, some in runs.items()}

    def _write(self, token: str, writes: Sequence[TaskWrite], now: datetime) -> None:
        """Write some tasks. Fires that the database refuses are canceled, because their param may be at fault.

        If it refuses even that, the task is set aside. If it refuses that, too, the task keeps its lease: until the
        lease is over no scheduler looks at the task again.
        """

        wariness = self._database.wariness

        def refused(write: TaskWrite, error: DBAPIError) -> None:
            task = write.advance.task
            if write.advance.error is not None:
                self._surprises.say(f"task {task.name!r}", error)
                return
            is_param = write.fires and write.refused is None
            again = without_param(write, sentence(error)) if is_param else aside(task, sentence(error))
            self._write(token, [again], now)

        times = WriteTimes(now, now - self._longest_wait, self._within)

        def write(connection: Connection, some: Sequence[TaskWrite], *, at_once: bool) -> None:
            wary = wariness.is_wary()
            is_late = wary or not at_once
            marks = self._any_chain or (is_late and chain_runs.any_link(connection))
            passed_over = write_tasks(connection, token, some, times, wary=wary, at_once=at_once, marks=marks)
            wariness.passed_over(f"task {name!r}" for name in sorted(passed_over))

        by_halves = self._database.write_by_halves
        try:
            by_halves(writes, partial(write, at_once=True), refused, _name)
        except Unexpected:  # another scheduler has taken a lease over, or a task follows another now
            with suppress(Unexpected):  # if that comes again, the rest is written when its leases are over
                by_halves(writes, partial(write, at_once=False), refused, _name)


def _name(write: TaskWrite) -> str:
    return f"task {write.advance.task.name!r}"
