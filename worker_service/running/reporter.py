"""Reporting: the results and states of many runs are written in one commit.

This is group commit. While one batch is being written, the reports of the next one gather. So batches grow under load.
After a pause, the first report is written at once.

Somebody may have locked the rows of a run: a console that was left open in a transaction. Its reports are put aside
until the rows are free, and the others go on. What a lock holds up otherwise is found by halves.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.exc import DBAPIError

from rota.shared.clock import Clock
from rota.shared.database.refusals import is_locked, is_refusal, sentence
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem, RotaError
from rota.shared.store.reports import Report
from rota.shared.surprises import Surprises
from rota.worker_service.pulling.successors import Successors
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running import endings

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""How long to wait after an error of the server, and how often to look whether what was put aside is still locked."""

BATCH_ROWS = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Well below ``max_allowed_packet`` (16 MiB by default): JSON within JSON makes a statement longer than its reports."""

PACE_SECONDS = 0.02
LONGEST_REST_SECONDS = 0.2
"""Two batches begin at least ``PACE_SECONDS`` apart, when no report in the queue holds up a next node. The rest after a
batch is at least as long as the batch took: then many workers use the database, and larger batches help. The rest is
``LONGEST_REST_SECONDS`` at most, because a batch also takes long when the database is away.

A report that holds up a next node waits only for its equals: for as many as the last batch let go on, as long as that
batch took, and ``PACE_SECONDS`` at most. So a lone run waits for nobody, and many runs of quick nodes stay together."""

IDLE_SECONDS = 0.2
"""If no run hands its slot on for so long, the reporter gives back the connection that it keeps for that."""

REPORT_ROUND_TRIPS = 1
"""A batch is on the way to the database and back for so many round trips, which is no sign of a busy database."""

NAMED = 10
"""How many locked instances a line of the log names at most."""

Written = Callable[[bool], None]
"""Called when a report is written; False: the instance does not belong to this worker any more."""

Batch = list[tuple[Report, Written]]


class Reports(Protocol):
    """Takes reports and writes them (``Reporter``)."""

    def put(self, report: Report, written: Written) -> None:
        """Queue a report. On its commit, ``written`` is told whether the instance still belongs to this worker."""
        ...


class Reporter:
    """Writes reports from a queue, batch after batch, on the thread that calls ``run``."""

    def __init__(
        self,
        rows: WorkerRows,
        clock: Clock,
        successors: Successors | None = None,
        told: Callable[[Report], None] = lambda report: None,
    ) -> None:
        """``successors``: the runs to which those that end may hand their slots on; None: there are none.

        ``told`` is called for each report that is committed, if its run was this worker's.
        """
        self._told = told
        self._rows = rows
        self._clock = clock
        self._successors = successors
        self._queue: deque[tuple[Report, Written]] = deque()
        self._changed = clock.condition()
        self._busy = self._flushing = self._closed = False
        self._urgent = 0
        """How many of the queued reports hold up a next node, or the next run of a task that runs one at a time."""

        self._let_go = 0
        """How many reports of the last batch held up a next node, or a next run."""

        self._enough = BATCH_ROWS
        """How many queued reports end a rest."""

        self._gathers = False
        """Whether reports that hold up a next node wait for others, too."""

        self._aside: Batch = []
        """The reports that were put aside, in their order. Only the thread that calls ``run`` changes it."""

        self._alone: set[int] = set()
        """The instances of those that were put aside for a lock that nobody can ask for: they are tried alone."""

        self._look_again = 0.0
        self._handed_on: float | None = None  # when a run did so last, if a connection is kept for the next one
        self._surprises = Surprises("reporter")

    def put(self, report: Report, written: Written) -> None:
        """Queue a report. ``written`` is called when it is committed."""
        if report.turn_of is not None and not (self._successors and self._successors.wait(report)):
            report.turn_of = None
        with self._changed:
            self._queue.append((report, written))
            self._urgent += report.is_urgent
            if not self._busy or (self._urgent and not self._gathers) or len(self._queue) == self._enough:
                self._changed.notify_all()

    def run(self) -> None:
        """Write reports until the reporter is closed and its queue is empty."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._queue and not self._closed and not self._must_look():
                    self._await_more()
                if not self._queue and self._closed:
                    self._give_back(0)
                    return
                self._busy = True
            if self._must_look():
                self._bring_back()
            with self._changed:
                batch = self._next_batch()
            began = self._clock.monotonic()
            if batch:
                self._write(batch)
            took = max(self._clock.monotonic() - began - REPORT_ROUND_TRIPS * self._clock.round_trip(), 0.0)
            self._give_back()
            with self._changed:
                self._rest(took)

    def _await_more(self) -> None:
        """Under the lock: wait for reports."""
        if self._handed_on is not None:
            self._changed.wait(IDLE_SECONDS)
            self._give_back()
        else:
            self._changed.wait(RETRY_SECONDS if self._aside else None)

    def _give_back(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Give back the connection that is kept to hand slots on, if no run has done so for so many seconds."""
        if self._handed_on is not None and self._clock.monotonic() - self._handed_on >= idle_seconds:
            self._handed_on = None
            self._rows.give_back()

    def flush(self, timeout: float) -> bool:
        """Wait until all reports are written; False if that takes longer than ``timeout`` seconds."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            written = self._changed.wait_for(lambda: not (self._queue or self._busy or self._aside), timeout)
            self._flushing = False
            return written

    def close(self) -> None:
        """Let ``run`` end once the queue is empty. It does not wait for what was put aside."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _rest(self, took: float) -> None:
        """Let reports gather, after a batch that took so many seconds."""
        self._changed.wait_for(self._must_write_now, min(max(took, PACE_SECONDS - took), LONGEST_REST_SECONDS))
        if self._urgent and len(self._queue) < self._let_go:
            self._enough, self._gathers = self._let_go, True
            self._changed.wait_for(self._must_write_now, min(took, PACE_SECONDS))
            self._enough, self._gathers = BATCH_ROWS, False

    def _must_write_now(self) -> bool:
        is_full = len(self._queue) >= self._enough
        return bool(is_full or (self._urgent and not self._gathers) or self._flushing or self._closed)

    def _next_batch(self) -> Batch:
        batch: Batch = []
        size = 0
        while self._queue and len(batch) < BATCH_ROWS:
            size += self._queue[0][0].size
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._queue.popleft())
        self._let_go = sum(report.is_urgent for report, _ in batch) if self._urgent else 0
        self._urgent -= self._let_go
        return batch

    def _write(self, batch: Batch, *, refused: bool = False) -> None:
        """Write a batch. If it is refused twice, write its halves, until the refused report is alone.

        Raises an error that is not the database's if a report of nothing but a failure meets it, too.
        """
        waited = False
        while True:
            if (self._aside or waited) and not (batch := self._put_aside(batch)):
                return
            try:
                lost = self._try_twice([report for report, _ in batch])
                break
            except DatabaseAway:  # the database says itself when it goes away and is back
                continue
            except DatabaseProblem as error:  # it has answered
                waited = True
                self._surprises.warn("a batch", f"{error}; reports wait")
            except Exception as error:
                locked = isinstance(error, DBAPIError) and is_locked(error)
                if not (locked and waited) and self._may_pass(error):
                    waited |= locked
                    continue
                if refused and not isinstance(error, DBAPIError):
                    raise
                self._write_apart(batch, error, refused=refused)
                return
        self._surprises.over("a batch")
        for report, written in batch:
            ours = report.instance_id not in lost
            self._surprises.over(f"instance {report.instance_id}")
            _call_back(report, written, ours=ours, told=self._told)

    def _may_pass(self, error: Exception) -> bool:
        """Whether the batch is to be tried again, at once or after this pause."""
        if not isinstance(error, DBAPIError) or is_refusal(error):
            return False
        if not is_locked(error):
            self._surprises.warn("a batch", f"{sentence(error)}; reports wait")
            self._clock.sleep(RETRY_SECONDS)
        return True

    def _must_look(self) -> bool:
        return bool(self._aside) and self._clock.monotonic() >= self._look_again

    def _put_aside(self, batch: Batch) -> Batch:
        """Put aside the reports whose rows somebody else has locked, and those of runs that have one aside already.

        Returns the others.
        """
        aside = {report.instance_id for report, _ in self._aside}
        locked = self._locked(batch)
        if new := locked - aside:
            log.warning("reporter: somebody has locked instances %s; their reports wait", sorted(new)[:NAMED])
            self._look_again = self._clock.monotonic() + RETRY_SECONDS
        self._aside += [entry for entry in batch if entry[0].instance_id in locked | aside]
        return [entry for entry in batch if entry[0].instance_id not in locked | aside]

    def _bring_back(self) -> None:
        """Queue what was put aside and is no longer locked, before all others."""
        locked = self._locked(self._aside)
        free = [entry for entry in self._aside if entry[0].instance_id not in locked]
        alone, self._alone = self._alone - locked, self._alone & locked
        with self._changed:
            self._aside = [entry for entry in self._aside if entry[0].instance_id in locked]
            others = [entry for entry in free if entry[0].instance_id not in alone]
            self._queue.extendleft(reversed(others))
            self._urgent += sum(report.is_urgent for report, _ in others)
        for instance_id in sorted(alone):
            self._write([entry for entry in free if entry[0].instance_id == instance_id])
            if instance_id in self._alone:
                self._rows.note_lock()
        self._look_again = self._clock.monotonic() + RETRY_SECONDS

    def _locked(self, batch: Batch) -> set[int]:
        """The instances of these reports that somebody else has locked. None, if the database cannot say it."""
        try:
            return self._rows.locked({report.instance_id for report, _ in batch})
        except (RotaError, DBAPIError):
            return set()

    def _write_apart(self, batch: Batch, error: Exception, *, refused: bool) -> None:
        """Write the halves of a batch that is refused, or that meets a lock which nobody can ask for.

        One report alone is replaced by that of its node's failure; or put aside, until the lock is gone.
        """
        if len(batch) > 1:
            middle = len(batch) // 2
            self._write(batch[:middle])
            self._write(batch[middle:])
        elif isinstance(error, DBAPIError) and is_locked(error):
            instance_id = batch[0][0].instance_id
            said = f"somebody has locked what goes with the report of instance {instance_id}; it waits"
            self._surprises.warn(f"instance {instance_id}", said)
            self._look_again = self._clock.monotonic() + RETRY_SECONDS
            self._aside += batch
            self._alone.add(instance_id)
        elif refused:
            log.exception("reporter: not even the failure of instance %d is stored", batch[0][0].instance_id)
            _call_back(*batch[0], ours=False)
        else:
            self._write([_refused(*batch[0], sentence(error))], refused=True)

    def _try_twice(self, batch: list[Report]) -> set[int]:
        try:
            return self._report(batch)
        except DBAPIError as error:
            if is_locked(error):
                raise
            return self._rows.report(batch)

    def _report(self, batch: list[Report]) -> set[int]:
        """Write a batch; runs that end in it hand their slots on."""
        following = self._successors.take(batch) if self._successors is not None else ()
        if self._successors is None or not following:
            return self._rows.report(batch)
        claimed: set[int] = set()
        self._handed_on = self._clock.monotonic()
        try:
            lost, claimed = self._rows.report_and_hand_on(batch, [row for row, _ in following])
        finally:
            self._successors.settle(following, claimed)
        return lost


def _call_back(
    report: Report, written: Written, *, ours: bool, told: Callable[[Report], None] = lambda report: None
) -> None:
    if ours:
        try:
            told(report)
        except Exception:  # what follows the report must not wait for it
            log.exception("reporter: the listeners were not told of instance %d", report.instance_id)
    try:
        written(ours)
    except BaseException:  # this thread must go on: other runs wait for their reports
        log.exception("reporter: what follows instance %d's report failed", report.instance_id)


def _refused(report: Report, written: Written, why: str) -> tuple[Report, Written]:
    """The report of the node's failure, in place of a report that the database refuses."""
    log.error("reporter: instance %d: the result could not be stored: %s", report.instance_id, why)
    return endings.refused(report, why), lambda ours: written(False)
