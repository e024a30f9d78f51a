"""Reporting: results and states together, many runs in one commit.

Group commit: while one batch is being written the next gathers, so batches grow under load and vanish when idle, and a
first after a pause waits for nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from sqlalchemy.exc import DBAPIError

from shared.clock import boottime
from shared.domain.errors import DatabaseProblem
from shared.domain.jsontext import json_text
from shared.domain.states import InstanceStatus, NodeStatus
from shared.store import reports
from shared.store.database import Database, is_refusal, sentence
from shared.store.reports import InstanceReport, Report

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
BATCH_ROWS = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Below ``max_allowed_packet``, whose default is 16 MiB, with room for JSON within JSON."""

PACE_SECONDS = 0.02
LONGEST_REST_SECONDS = 0.2
"""The least time between two batches of ends, which hold up no next node; the first after a while is written at once. A
batch that takes longer is followed by a rest as long as itself, for then many workers are at the database, and batches
are to grow; but not by a long one, for a batch also takes as long as the database is away."""

Written = Callable[[bool], None]
"""Told when a report is written; False: the instance is not ours any more."""


class Reporter:
    """Writes reports from a queue, batch after batch, on the thread that calls ``run``."""

    def __init__(self, database: Database, worker_id: int) -> None:
        self._database = database
        self._worker_id = worker_id
        self._queue: deque[tuple[Report, Written]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._flushing = False
        self._closed = False
        self._urgent = 0
        """How many that are queued hold up a next node."""

    def put(self, report: Report, written: Written) -> None:
        """Queue a report; ``written`` is called once it is committed."""
        with self._changed:
            self._queue.append((report, written))
            self._urgent += report.instance is None
            if self._urgent or not self._busy or len(self._queue) == BATCH_ROWS:
                self._changed.notify_all()

    def run(self) -> None:
        """Write until closed and empty."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                self._busy = True
                batch = self._gather()
            began = boottime()
            self._write(batch)
            took = boottime() - began
            with self._changed:
                rest = min(max(took, PACE_SECONDS - took), LONGEST_REST_SECONDS)
                self._changed.wait_for(self._is_pressing, rest)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put is written; False if it is not within ``timeout`` seconds."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            written = self._changed.wait_for(lambda: not self._queue and not self._busy, timeout)
            self._flushing = False
            return written

    def close(self) -> None:
        """Let ``run`` end once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_pressing(self) -> bool:
        return bool(self._urgent or self._flushing or self._closed or len(self._queue) >= BATCH_ROWS)

    def _gather(self) -> list[tuple[Report, Written]]:
        batch = [self._queue.popleft()]
        size = batch[0][0].size
        while self._queue and len(batch) < BATCH_ROWS and size + self._queue[0][0].size <= BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += batch[-1][0].size
        self._urgent -= sum(report.instance is None for report, _ in batch)
        return batch

    def _write(self, batch: list[tuple[Report, Written]], *, refused: bool = False) -> None:
        """Write a batch. What the database refuses is tried twice, then halved until the culprit fails alone."""
        while True:
            try:
                lost = self._try_twice([report for report, _ in batch])
                break
            except DatabaseProblem as error:
                log.warning("reporter: %s; %d reports wait", error, len(batch))
            except DBAPIError as error:
                if not is_refusal(error):
                    log.warning("reporter: %s; %d reports wait", sentence(error), len(batch))
                    time.sleep(RETRY_SECONDS)
                    continue
                if len(batch) > 1:
                    middle = len(batch) // 2
                    self._write(batch[:middle])
                    self._write(batch[middle:])
                elif refused:
                    log.exception("reporter: not even the failure of instance %d is stored", batch[0][0].instance_id)
                    _tell(*batch[0], ours=False)
                else:
                    self._write([_refused(*batch[0], sentence(error))], refused=True)
                return
        for report, written in batch:
            _tell(report, written, ours=report.instance_id not in lost)

    def _try_twice(self, batch: list[Report]) -> set[int]:
        try:
            return self._database.write(lambda c: reports.report(c, self._worker_id, batch))
        except DBAPIError:
            return self._database.write(lambda c: reports.report(c, self._worker_id, batch))


def _tell(report: Report, written: Written, *, ours: bool) -> None:
    try:
        written(ours)
    except Exception:  # this thread must go on: the other runs wait for it
        log.exception("reporter: what follows instance %d's report failed", report.instance_id)


def _refused(report: Report, written: Written, why: str) -> tuple[Report, Written]:
    """What is reported instead of a result that the database refuses: the node's failure."""
    error = f"the result could not be stored: {why}"
    log.error("reporter: instance %d: %s", report.instance_id, error)
    failed = [replace(n, status=NodeStatus.FAILED, result=json_text({"error": error})) for n in report.nodes[:1]]
    canceled = [replace(n, status=NodeStatus.CANCELED, result=None, gmt_started=None) for n in report.nodes[1:]]
    instance = InstanceReport(
        status=InstanceStatus.FAILED,
        result=json_text({"error": error}),
        reason=error[:1000],
        gmt_started=None,
        gmt_completed=report.nodes[0].gmt_completed if report.nodes else None,
    )
    return replace(report, nodes=[*failed, *canceled], instance=instance), lambda ours: written(False)
