"""Materializing: from tasks that are due to instances in the database, each fire exactly once.

A batch goes through the protocol of ``shared.store.locks``: acquire, read again, decide, and in one transaction
release, write, advance. Killed between any two of its statements, it has either written a fire and advanced its task,
or neither; its leases run out by themselves.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from scheduler_service.leases import new_token
from scheduler_service.placement import Needs, needs_of
from scheduler_service.world import World, Worlds
from shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from shared.domain.errors import InvalidInput, RotaError
from shared.domain.jsontext import json_text, json_value
from shared.domain.nodes import PlannedNode
from shared.domain.planning import Decision, PlannedTask, Terms, decide
from shared.settings import Settings
from shared.store import fires, locks, overlap, plans
from shared.store.database import Database, is_refusal, sentence
from shared.store.fires import Fire
from shared.store.plans import Advance

log = logging.getLogger(__name__)

REASON_LIMIT = 1000
"""Characters of an error that are kept."""

FIRES_IN_WRITE = 5_000
BYTES_IN_WRITE = 4 * 1024 * 1024
"""What one transaction inserts at most: below ``max_allowed_packet``, whose default is 16 MiB."""

EARLIER_SECONDS = 0.05
SPREAD_SECONDS = 0.05
"""How long before the assigner it looks, so that its first batch is written when the workers ask; schedulers apart."""

OUTRUN_SECONDS = 0.02
"""The longest rest after another scheduler was quicker: it is at work on those, there may be more behind them. Twice as
long after each more in a row, up to a period."""


@dataclass(slots=True)
class Step:
    """What is written for one task."""

    advance: Advance
    fires: list[Fire] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes its fires are."""
        return sum(200 + len(fire.param or "") for fire in self.fires)


class Materializer:
    """The duty: find, lock, read again, decide and place, write.

    What it cannot place is pending, each fire with its reason; the assigner, which sees all that is pending, says so in
    the log.
    """

    def __init__(self, database: Database, settings: Settings, worlds: Worlds | None = None) -> None:
        self._database = database
        self._settings = settings
        self._worlds = worlds or Worlds(database)
        self._outrun = OUTRUN_SECONDS
        earlier = EARLIER_SECONDS + random.uniform(0, SPREAD_SECONDS)  # noqa: S311 - schedulers part
        self._phase = TICK_PHASE_SECONDS - earlier

    def step(self) -> float:
        """One batch; returns the seconds to rest, 0 when there is more to do at once."""
        now = self._database.clock.now()
        horizon = now + timedelta(seconds=self._settings.lookahead_seconds)
        limit, lease = self._settings.batch, self._settings.lock_lease_seconds
        due = self._database.read(lambda c: plans.due(c, now, horizon, limit, lease))
        if not due:
            self._outrun = OUTRUN_SECONDS
            return self._until_next_tick()
        token = new_token()
        got = self._database.write(lambda c: locks.acquire(c, token, due, lease))
        if not got:
            longest = min(self._outrun, self._settings.tick_period)
            self._outrun = 2 * longest
            return random.uniform(0, longest)  # noqa: S311 - schedulers that meet part
        self._outrun = OUTRUN_SECONDS
        tasks = self._database.read(lambda c: plans.locked(c, token, got))
        steps = self._decide(tasks, now, horizon)
        for portion in _portions(steps):
            self._write(token, portion, now)
        unfinished = any(s.advance.next_fire_at is not None and s.advance.next_fire_at <= horizon for s in steps)
        return 0 if len(due) >= limit or unfinished else self._until_next_tick()

    def _until_next_tick(self) -> float:
        return seconds_to_next(self._database.clock.now(), self._settings.tick_period, self._phase)

    def _decide(self, tasks: Sequence[PlannedTask], now: datetime, horizon: datetime) -> list[Step]:
        slots = {t.id: n for t in tasks if (n := _slots(t.terms)) is not None}
        full = self._database.read(lambda c: overlap.full(c, slots)) if slots else set()
        batch = Batch(self._worlds.current(), {task_id: slots[task_id] for task_id in full}, now, horizon)
        steps = []
        for task in tasks:
            try:
                steps.append(batch.step(task))
            except RotaError as error:
                steps.append(Step(Advance(task, None, error=str(error)[:REASON_LIMIT])))
                log.warning("task %r is set aside until it is edited: %s", task.name, error)
            except Exception as error:
                steps.append(Step(Advance(task, None, error=f"{type(error).__name__}: {error}"[:REASON_LIMIT])))
                log.exception("task %r is set aside until it is edited", task.name)
        return steps

    def _write(self, token: str, steps: Sequence[Step], now: datetime) -> None:
        """Write some steps; what the database refuses is halved until the task at fault is alone, and set aside."""
        try:
            self._database.write(lambda c: _write(c, token, steps, now))
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            if len(steps) == 1:
                task = steps[0].advance.task
                log.warning("task %r is set aside until it is edited: %s", task.name, sentence(error))
                aside = [Step(Advance(task, None, error=sentence(error)[:REASON_LIMIT]))]
                self._database.write(lambda c: _write(c, token, aside, now))
                return
            middle = len(steps) // 2
            self._write(token, steps[:middle], now)
            self._write(token, steps[middle:], now)


class Batch:
    """The decisions of one batch. What many tasks have alike, as a herd does, is decided once.

    ``full`` are tasks whose slots are all taken, with how many they have: their fires stay pending, and fill no
    worker's queue.
    """

    def __init__(self, world: World, full: Mapping[int, int], now: datetime, horizon: datetime) -> None:
        self._world = world
        self._full = full
        self._now = now
        self._horizon = horizon
        self._decisions: dict[tuple[Terms, datetime | None], Decision] = {}
        self._works: dict[Terms, Work] = {}

    def step(self, task: PlannedTask) -> Step:
        """What is written for a task.

        Raises InvalidCron or InvalidTimezone, and whatever else a row that SQL wrote leads to.
        """
        decision = _bounded(self._decision(task), task.param)
        advance = Advance(task, decision.next_fire_at, decision.misfires, decision.held_back)
        if not decision.fires:
            return Step(advance)
        # The plan is good whatever the param is: fires that cannot be placed are left to the assigner.
        try:
            value = _readable(task.param)
        except InvalidInput as error:
            return Step(advance, _pending(task, decision.fires, None, str(error)))
        if task.id in self._full:
            reason = overlap.in_turn(self._full[task.id])
            return Step(advance, _pending(task, decision.fires, task.param, reason))
        try:
            work = self._work(task.terms, value)
        except InvalidInput as error:
            return Step(advance, _pending(task, decision.fires, task.param, str(error)))
        return Step(advance, [self._placed(task, moment, work) for moment in decision.fires])

    def _decision(self, task: PlannedTask) -> Decision:
        alike = (task.terms, task.next_fire_at)
        decision = self._decisions.get(alike)
        if decision is None:
            decision = decide(task.terms, task.next_fire_at, self._now, self._horizon)
            self._decisions[alike] = decision
        return decision

    def _placed(self, task: PlannedTask, moment: datetime, work: "Work") -> Fire:
        fleet = self._world.fleet
        worker = fleet.choose(work.needs, late=moment <= self._now)
        reason = fleet.why_not(work.needs) if worker is None else None
        return Fire(task.id, moment, task.terms.priority, task.param, worker, work.nodes, reason)

    def _work(self, terms: Terms, param: Any) -> "Work":
        work = self._works.get(terms) if param is None else None
        if work is None:
            nodes = self._world.catalog.nodes_of(terms.type, param)
            work = Work(nodes, needs_of(nodes, terms.required_labels))
            if param is None:
                self._works[terms] = work
        return work


@dataclass(frozen=True, slots=True)
class Work:
    """What a fire is to run, and what of a worker that needs."""

    nodes: Sequence[PlannedNode]
    needs: Needs


def _slots(terms: Terms) -> int | None:
    return overlap.slots_waited_for(terms.overlap_policy, terms.max_instances)


def _readable(param: str | None) -> Any:
    """The value of a param.

    Raises InvalidInput for one that Python cannot read, or could not write again: it reads 1e999 as infinity.
    """
    value = None if param is None else json_value(param)
    if value is not None:
        json_text(value)
    return value


def _bounded(decision: Decision, param: str | None) -> Decision:
    """No more fires at once than one transaction takes; the next tick goes on."""
    most = max(1, BYTES_IN_WRITE // (200 + len(param or "")))
    if len(decision.fires) <= most:
        return decision
    return Decision(decision.fires[most], decision.fires[:most], decision.misfires, decision.held_back)


def _pending(task: PlannedTask, moments: Iterable[datetime], param: str | None, reason: str) -> list[Fire]:
    said = reason[:REASON_LIMIT]
    return [Fire(task.id, moment, task.terms.priority, param, None, (), said) for moment in moments]


def _portions(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """The steps, as many at a time as one transaction takes."""
    begun = count = size = 0
    for at, step in enumerate(steps):
        more, larger = len(step.fires), step.size
        if at > begun and (count + more > FIRES_IN_WRITE or size + larger > BYTES_IN_WRITE):
            yield steps[begun:at]
            begun, count, size = at, 0, 0
        count, size = count + more, size + larger
    yield steps[begun:]


def _write(connection: Connection, token: str, steps: Sequence[Step], now: datetime) -> None:
    ours = locks.release(connection, token, [s.advance.task.id for s in steps])
    kept = [s for s in steps if s.advance.task.id in ours]
    terms_of = {s.advance.task.id: s.advance.task.terms for s in kept}
    replanned = [i for i, terms in terms_of.items() if terms.is_deleted or (terms.is_stale and terms.was_planned)]
    plans.drop_ahead(connection, replanned, now)
    fires.materialize(connection, [fire for s in kept for fire in s.fires])
    plans.advance(connection, [s.advance for s in kept])
