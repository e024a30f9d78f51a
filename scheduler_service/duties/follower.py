"""Following: when a marked run has ended, write what follows its end, and remove the mark."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import plan_calendars
from rota.scheduler_service.leasing import lease_new
from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import Database
from rota.shared.domain.after_ends import follow_up
from rota.shared.domain.planning import PlannedTask
from rota.shared.loop import sparing_rest
from rota.shared.settings import Settings
from rota.shared.store import follow_ups, locks, others_locks, plans
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

SHARE = 0.1
"""The part of its time that it spends on pages of which no run has ended: many runs may wait for workers for long."""

EARLIER_SECONDS = 0.2
"""It looks so much before the assigner, so that the materializer, which ticks between the two, finds the new plans."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What is written for one task: its next fire (naive UTC), if it gets one, and the marks that are removed."""

    task: PlannedTask
    fire: datetime | None
    marks: Sequence[int]


class Follower:
    """The duty: page through the marks, and follow up the runs that have ended.

    It writes under the task's lease, by what it has read since it has that: the next fire and the removal of the mark
    in one transaction. So each end is followed up once, whichever scheduler is killed or frozen, and when. What is to
    follow goes by the task as it is now. Several schedulers may follow up at once.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._surprises = Surprises("follower")
        self._after = 0

    def step(self) -> float:
        """One page; returns the seconds to rest. After the last page, that is until the next tick."""
        began = self._database.clock.monotonic()
        page = self._database.read(lambda c: follow_ups.page(c, self._after, self._settings.batch))
        self._after = page.following
        if page.orphans:
            self._database.write_by_halves(page.orphans, follow_ups.remove, self._not_removed, _name_of_orphan)
        if page.tasks:
            self._follow(sorted(page.tasks))
        if not self._after:
            phase = TICK_PHASE_SECONDS - EARLIER_SECONDS
            return seconds_to_next(self._database.clock.now(), self._settings.tick_period, phase)
        if page.orphans or page.tasks:
            return 0
        return sparing_rest(self._database.clock.monotonic() - began, SHARE)

    def _follow(self, ids: Sequence[int]) -> None:
        token, lease = locks.new_token(), self._settings.lock_lease_seconds
        got = lease_new(self._database, token, ids, lease)
        tasks = self._database.read(lambda c: plans.locked(c, token, got)) if got else []
        if not tasks:
            return
        plan_calendars.give(self._database, tasks)
        runs = self._database.read(lambda c: follow_ups.of_tasks(c, [task.id for task in tasks]))
        now = self._database.clock.now()
        found = [FollowUp(task, *follow_up(task, runs.get(task.id, []), now)) for task in tasks]
        with suppress(Unexpected):  # another scheduler has taken a lease over: the next step looks again
            held_up = self._database.write_by_halves(found, partial(_write, token=token), self._refused, _name)
            if held_up:  # the next fires of their tasks need not wait for that lock, too
                self._database.write(lambda c: locks.drop(c, token, {one.task.id for one in held_up}))

    def _not_removed(self, mark_id: int, error: DBAPIError) -> None:
        self._surprises.say(_name_of_orphan(mark_id), error)

    def _refused(self, one: FollowUp, error: DBAPIError) -> None:
        """The database refuses what SQL has made of a task: the others go on."""
        self._surprises.say(_name(one), error)


def _name(one: FollowUp) -> str:
    return f"what follows a run of task {one.task.name!r}"


def _name_of_orphan(mark_id: int) -> str:
    return f"the removal of row {mark_id} of schedule_follow_up"


def _write(connection: Connection, found: Sequence[FollowUp], token: str) -> None:
    """Write in one transaction, which relies on ``token``'s holding the leases; it passes over locked tasks."""
    planned = {one.task.id for one in found if one.fire is not None}
    locked = planned - others_locks.not_locked(connection, planned) if planned else set()
    free = [one for one in found if one.task.id not in locked]
    locks.release(connection, token, [one.task.id for one in free])
    follow_ups.plan(connection, [(one.task.id, one.fire) for one in free if one.fire is not None])
    follow_ups.remove(connection, [mark for one in free for mark in one.marks])
