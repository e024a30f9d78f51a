"""Deadlines: end the runs that are over their task's limit for the whole run, and that their workers do not end."""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import Database, database_time
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.settings import Settings
from rota.shared.store import deadlines, reports
from rota.shared.store.deadlines import LONGEST_WAIT_SECONDS, Watched
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

LONGEST_REST_SECONDS = 5.0
REPORT_SECONDS = 3.0
"""So long after a lock a worker may write what waited for it: it looks twice a second, by some round trips."""

STEP_SECONDS = 2.0
"""The database's clock was set if it differs by so much from what has passed on this host."""


class Deadlines:
    """The duty: look at what may be overdue, every five seconds, or once a tick if a tick is longer.

    A worker ends a run at its limit by itself. So the scheduler waits for ``overdue_seconds`` more: only a worker that
    beats and does nothing lets that pass. After its own start and after an outage it ends no run for as long, since
    workers may have had no chance to report. Runs that began before the database's clock was set are their workers'.
    What somebody has locked is ended at a later look.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._clock = database.clock
        self._surprises = Surprises("deadlines")
        self._grace = settings.overdue_seconds
        self._rest = min(max(LONGEST_REST_SECONDS, settings.tick_period), self._grace / 2)
        self._heard = self._clock.monotonic()
        self._time: datetime | None = None
        self._moves = database.servers.moves
        self._wait_until = self._heard + self._grace
        self._began_after: datetime | None = None
        self._report_seconds = min(REPORT_SECONDS, self._grace / 2)

    def step(self) -> float:
        """One look; returns the seconds to rest."""
        seen = self._database.read(partial(deadlines.due, limit=self._settings.batch))
        self._check_clock()
        if not seen:
            return self._rest
        ended = {run.id for run in seen if run.has_ended}
        later: dict[int, datetime] = {}
        for run in seen:
            if not run.has_ended:
                later[run.id] = self._next_look(run)
        settle = partial(_settle, ended=ended, later=later)
        held_up = self._database.write_by_halves([run.id for run in seen], settle, self._not_written, of_instance)
        for run in self._free([run for run in seen if run.id in later and self._is_overdue(run)]):
            self._end(run)
        return 0 if len(held_up) < len(seen) == self._settings.batch else self._rest

    def _next_look(self, run: Watched) -> datetime:
        longest = run.now + timedelta(seconds=LONGEST_WAIT_SECONDS)
        over_at = run.over_at(self._grace)
        if over_at is None:
            return min(longest, run.now + timedelta(seconds=run.limit_seconds))
        return min(longest, max(over_at, run.now + timedelta(seconds=self._rest)))

    def _is_overdue(self, run: Watched) -> bool:
        over_at = run.over_at(self._grace)
        if over_at is None or run.now < over_at or self._clock.monotonic() < self._wait_until:
            return False
        return self._began_after is None or run.gmt_started >= self._began_after

    def _free(self, overdue: Sequence[Watched]) -> Sequence[Watched]:
        """Those that nobody has locked, when their workers have had time to report them.

        A report that waited for a lock comes soon after it, and must come before the end that is written here.
        """
        if not overdue:
            return ()
        locked = self._database.read(partial(reports.locked, instance_ids=[run.id for run in overdue]))
        free = [run for run in overdue if run.id not in locked]
        if free:
            self._clock.sleep(self._report_seconds)
        return free

    def _end(self, run: Watched) -> None:
        try:
            node, cleanup = self._database.read(partial(deadlines.cut_off, instance_id=run.id))
            if node is None or node.always:
                return
            report = deadlines.overdue(run, node, self._grace, cleanup)
            if self._database.write_by_halves(
                [run.id], lambda c, _: deadlines.end_overdue(c, run=run, node=node, report=report), None, of_instance
            ):
                return
            said = None if report.instance is None else report.instance.reason
            log.warning("deadlines: instance %d, attempt %d: %s", run.id, report.attempt, said)
            self._surprises.over(of_instance(run.id))
        except Unexpected:  # its worker has ended it, or gone on, since it was read
            return
        except (DatabaseProblem, DBAPIError) as error:  # the others should not wait for this one
            self._not_written(run.id, error)

    def _not_written(self, instance_id: int, error: DatabaseProblem | DBAPIError) -> None:
        self._surprises.say(of_instance(instance_id), error)

    def _check_clock(self) -> None:
        """Note whether the database was away, or its clock was set, since the last look."""
        time, now = self._database.read(database_time), self._clock.monotonic()
        passed = now - self._heard
        if passed > self._rest + self._settings.liveness_seconds / 2:
            self._wait_until = now + self._grace
        if self._time is not None and abs((time - self._time).total_seconds() - passed) > STEP_SECONDS:
            self._began_after, self._wait_until = time, now + self._grace
        if self._database.servers.moves != self._moves:
            self._moves, self._began_after = self._database.servers.moves, time
        self._heard, self._time = now, time


def _settle(
    connection: Connection, instance_ids: Sequence[int], ended: Collection[int], later: Mapping[int, datetime]
) -> None:
    some = {i: later[i] for i in instance_ids if i in later}
    deadlines.settle(connection, ended=[i for i in instance_ids if i in ended], later=some)
