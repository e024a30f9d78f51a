"""Materializing: from tasks that are due to instances in the database, each fire exactly once.

A batch goes through the protocol of ``shared.store.locks``: acquire, read again, decide, and in one transaction hold,
write, advance, release. Killed between any two of its statements, it has either written a fire and advanced its task,
or neither; its leases run out by themselves.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from scheduler_service.leases import new_token
from scheduler_service.placement import Fleet
from shared.domain.errors import InvalidInput, RotaError
from shared.domain.jsontext import json_text
from shared.domain.nodes import Catalog, PlannedNode
from shared.domain.planning import PlannedTask, decide
from shared.domain.states import OverlapPolicy
from shared.settings import Settings
from shared.store import fires, locks, node_types, overlap, plans, workers
from shared.store.database import Database, is_refusal, sentence

log = logging.getLogger(__name__)

REASON_LIMIT = 1000
"""Characters of an error that are kept."""


@dataclass(slots=True)
class Batch:
    """What one batch writes."""

    advances: list[plans.Advance] = field(default_factory=list)
    placed: list[fires.Fire] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class World:
    """What a batch is decided from: the node types, the workers as it fills them, the tasks that can start no more."""

    catalog: Catalog
    fleet: Fleet
    full: set[int]


class Materializer:
    """The duty: find, lock, read again, decide and place, write.

    What it cannot place is pending, each fire with its reason; the assigner, which sees all that is pending in each of
    its passes, says so in the log.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._rest = min(settings.tick_seconds, settings.lookahead_seconds / 2)

    def step(self) -> float:
        """One batch; returns the seconds to rest, 0 when there is more to do at once."""
        now = self._database.clock.now()
        horizon = now + timedelta(seconds=self._settings.lookahead_seconds)
        due = self._database.read(lambda c: plans.due(c, now, horizon, self._settings.batch))
        if not due:
            return self._rest
        token = new_token()
        lease = self._settings.lock_lease_seconds
        got = self._database.write(lambda c: locks.acquire(c, token, due, lease))
        if not got:
            return self._rest
        tasks = self._database.read(lambda c: plans.locked(c, token, got))
        queued = {t.id: t.max_instances or 1 for t in tasks if _queues(t)}
        catalog, fleet, full = self._database.read(
            lambda c: (node_types.catalog(c), Fleet(workers.fleet(c)), overlap.full(c, queued))
        )
        batch = self._decide(tasks, World(catalog, fleet, full), now, horizon)
        self._write(token, batch, now)
        unfinished = any(a.next_fire_at is not None and a.next_fire_at <= horizon for a in batch.advances)
        return 0 if len(due) >= self._settings.batch or unfinished else self._rest

    def _decide(self, tasks: Sequence[PlannedTask], world: World, now: datetime, horizon: datetime) -> Batch:
        batch = Batch()
        for task in tasks:
            try:
                planned = _fires_of(task, world, now, horizon)
            except RotaError as error:
                planned = Batch([plans.Advance(task, None, error=str(error))])
                log.warning("task %r is set aside until it is edited: %s", task.name, error)
            except Exception as error:
                planned = Batch([plans.Advance(task, None, error=f"{type(error).__name__}: {error}")])
                log.exception("task %r is set aside until it is edited", task.name)
            batch.advances += planned.advances
            batch.placed += planned.placed
        return batch

    def _write(self, token: str, batch: Batch, now: datetime) -> None:
        """Write a batch; one that the database refuses is halved until the task at fault is alone, and set aside."""
        try:
            self._database.write(lambda c: _write(c, token, batch, now))
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            if len(batch.advances) == 1:
                task = batch.advances[0].task
                log.warning("task %r is set aside until it is edited: %s", task.name, sentence(error))
                aside = Batch([plans.Advance(task, None, error=sentence(error)[:REASON_LIMIT])])
                self._database.write(lambda c: _write(c, token, aside, now))
                return
            middle = len(batch.advances) // 2
            for advances in (batch.advances[:middle], batch.advances[middle:]):
                ids = {a.task.id for a in advances}
                self._write(token, Batch(advances, [f for f in batch.placed if f.task_id in ids]), now)


def _queues(task: PlannedTask) -> bool:
    """Whether its fires wait for each other: those whose slots are taken stay pending, and fill no worker's queue."""
    return task.overlap_policy == OverlapPolicy.QUEUE or task.max_instances is not None


def _fires_of(task: PlannedTask, world: World, now: datetime, horizon: datetime) -> Batch:
    decision = decide(task, now, horizon)
    advance = plans.Advance(task, decision.next_fire_at, decision.misfires, decision.held_back)
    if not decision.fires:
        return Batch([advance])
    try:
        param = None if task.param is None else json_text(task.param)
    except InvalidInput as error:  # the plan is good: its fires are left to the assigner, which ends them
        return Batch([advance], _left(task, decision.fires, None, str(error)))
    if task.id in world.full:
        return Batch([advance], _left(task, decision.fires, param, overlap.in_turn(task.max_instances or 1)))
    left = _left(task, decision.fires, param)
    try:
        nodes = world.catalog.nodes_of(task.type, task.param)
        return Batch([advance], [_placed(fire, nodes, task, world.fleet) for fire in left])
    except InvalidInput as error:  # these too
        return Batch([advance], [replace(fire, reason=str(error)[:REASON_LIMIT]) for fire in left])


def _left(
    task: PlannedTask, moments: Iterable[datetime], param: str | None, reason: str | None = None
) -> list[fires.Fire]:
    said = None if reason is None else reason[:REASON_LIMIT]
    return [fires.Fire(task.id, moment, task.priority, param, None, [], said) for moment in moments]


def _placed(fire: fires.Fire, nodes: Sequence[PlannedNode], task: PlannedTask, fleet: Fleet) -> fires.Fire:
    worker = fleet.choose(nodes, task.required_labels)
    reason = fleet.why_not(nodes, task.required_labels) if worker is None else None
    return replace(fire, worker_id=worker, nodes=nodes, reason=reason)


def _write(connection: Connection, token: str, batch: Batch, now: datetime) -> None:
    ids = [a.task.id for a in batch.advances]
    held = locks.hold(connection, token, ids)
    advances = [a for a in batch.advances if a.task.id in held]
    replanned = [a.task.id for a in advances if a.task.is_deleted or (a.task.is_stale and a.task.was_planned)]
    plans.drop_ahead(connection, replanned, now)
    fires.materialize(connection, [f for f in batch.placed if f.task_id in held])
    plans.advance(connection, advances)
    locks.release(connection, token, held)
