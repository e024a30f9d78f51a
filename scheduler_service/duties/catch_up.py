"""Catching up: write the missed fires of tasks with ``fire_all``, a few at a time, behind what is due now."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import plan_calendars
from rota.scheduler_service.fleet import FleetCache
from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected, then_read
from rota.shared.database.transactions import Database
from rota.shared.domain.catching_up import CatchUp, CaughtUp, catch_up
from rota.shared.domain.errors import RotaError
from rota.shared.domain.planning import CATCH_UP_PRIORITY, PlannedTask
from rota.shared.domain.states import SkipReason
from rota.shared.settings import Settings
from rota.shared.store import catch_ups, chain_runs, fires, locks, others_locks, plans, skips, turns
from rota.shared.store.fires import Fire
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

STRETCHES = 30
"""One step looks at so many stretches at most. It writes ten times as many fires, so that catching up takes a part of
what a small machine can run, and not all of it."""

LOOK_SECONDS = 5.0
"""How often it looks while there is nothing to catch up."""

REASON = "it was missed, and waits behind what is due now"

Step = tuple[PlannedTask, CatchUp, CaughtUp]


class Catcher:
    """The duty: page through the stretches of missed fires, and write the next few fires of each.

    It writes them under the task's lease, as pending instances of the last priority, which the assigner gives out. It
    goes on with a task when the last fire that it wrote has begun, and writes nothing while no worker has room for what
    can wait. So neither the table nor the workers' queues are flooded. Several schedulers may catch up at once.
    """

    def __init__(self, database: Database, settings: Settings, fleet_cache: FleetCache) -> None:
        self._database = database
        self._settings = settings
        self._fleet_cache = fleet_cache
        self._surprises = Surprises("catch-up")
        self._after = 0

    def step(self) -> float:
        """One page; returns the seconds to rest: until the next tick, or longer where there is nothing to catch up."""
        page = self._database.read(lambda c: catch_ups.page(c, self._after, STRETCHES))
        is_idle = page.is_last and self._after == 0 and not page.last_id
        self._after = 0 if page.is_last else page.last_id
        period = self._settings.tick_period
        if page.ready and self._fleet_cache.current().has_room(can_wait=True):
            self._catch_up(page.ready)
        if is_idle:
            return max(LOOK_SECONDS, period)
        return seconds_to_next(self._database.clock.now(), period, TICK_PHASE_SECONDS)

    def _catch_up(self, ready: Sequence[CatchUp]) -> None:
        token, lease = locks.new_token(), self._settings.lock_lease_seconds
        ids = {one.task_id for one in ready}
        tasks = self._database.write(
            then_read(lambda c: locks.take(c, token, ids, lease), lambda c: plans.locked(c, token, ids))
        )
        if not tasks:
            return
        found = plan_calendars.give(self._database, tasks, [one.inputs for one in ready])
        ready = [one if one.inputs is None else replace(one, inputs=one.inputs.on(found)) for one in ready]
        by_id = {task.id: task for task in tasks}
        steps = [step for one in ready if one.task_id in by_id for step in self._decided(by_id[one.task_id], one)]
        if not steps:
            return
        with suppress(Unexpected):  # another scheduler has taken a lease over: the next step looks again
            held_up = self._database.write_by_halves(steps, partial(_write, token=token), self._refused, _name)
            if held_up:  # the next fires of their tasks need not wait for that lock, too
                self._database.write(lambda c: locks.drop(c, token, {task.id for task, *_ in held_up}))

    def _refused(self, step: Step, error: DBAPIError) -> None:
        """The database refuses what SQL has made of a task: the others go on."""
        self._surprises.say(_name(step), error)

    def _decided(self, task: PlannedTask, missed: CatchUp) -> list[Step]:
        """What is written for a stretch; nothing if it cannot be decided now."""
        try:
            return [(task, missed, catch_up(task.terms, missed))]
        except RotaError as error:  # the materializer sets the task aside, and says why
            log.debug("catch-up of task %r: %s", task.name, error)
        except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: one task must not stop the others
            self._surprises.say(f"the catch-up of task {task.name!r}", error)
        return []


def _name(step: Step) -> str:
    return f"the catch-up of task {step[0].name!r}"


def _write(connection: Connection, steps: Sequence[Step], token: str) -> None:
    """Write steps in one transaction, which relies on ``token``'s holding the leases.

    It passes over tasks that it would change and that somebody has locked, and over stretches that were moved on since
    they were read: by another scheduler, or by this very transaction, if the answer to its commit was lost.
    """
    unmoved = catch_ups.not_moved(connection, [missed for _, missed, _ in steps])
    steps = [step for step in steps if step[1].id in unmoved]
    counted = {task.id for task, _, step in steps if step.skipped}
    locked = counted - others_locks.not_locked(connection, counted) if counted else set()
    steps = [step for step in steps if step[0].id not in locked]
    locks.release(connection, token, {task.id for task, *_ in steps})
    caught_up = [fire for task, _, step in steps for fire in _fires(task, step)]
    fires.materialize(connection, caught_up)
    chain_runs.mark_fires(connection, [(fire.task_id, fire.schedule_datetime) for fire in caught_up])
    catch_ups.advance(connection, [(missed, step) for _, missed, step in steps])
    skips.record(connection, [(task.id, one) for task, _, step in steps for one in step.skipped])
    catch_ups.count(connection, _numbers(steps))


def _fires(task: PlannedTask, step: CaughtUp) -> list[Fire]:
    in_turn = turns.waits_in_turn(task.terms.overlap_policy, task.terms.max_instances)
    return [Fire(task.id, moment, CATCH_UP_PRIORITY, None, None, (), REASON, in_turn) for moment in step.fires]


def _numbers(steps: Iterable[Step]) -> list[tuple[int, int, int]]:
    """What is not run of each task: (task id, misfires, fires held back)."""
    numbers: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for task, _, step in steps:
        for one in step.skipped:
            numbers[task.id][one.reason == SkipReason.OFF] += one.number
    return [(task_id, misfires, held_back) for task_id, (misfires, held_back) in numbers.items()]
