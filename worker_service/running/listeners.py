"""Listeners: functions of the app that are told what becomes of runs, on a thread of their own.

They cannot slow or break what they listen to: a listener that is slow fills a bounded queue, what comes then is dropped
and counted, and what a listener raises is logged.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rota.shared.clock import Clock
from rota.shared.domain.events import RUN_EVENTS, EventName, FiresEvent, Listener, RunEvent
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.reports import InstanceReport, Report
from rota.shared.store.runs import Run, Skip
from rota.shared.telling.calls import Calls

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""So many events wait for the listeners at most."""

CLOSING_SECONDS = 2.0
"""How long a stopping worker waits for its listeners."""

TOLD_BY_WORKERS = RUN_EVENTS | {EventName.SKIPPED}
"""Of these a worker tells its own. That a person has skipped a fire is told from the rows."""

ENDS = {
    InstanceStatus.SUCCEED: EventName.SUCCEEDED,
    InstanceStatus.FAILED: EventName.FAILED,
    InstanceStatus.CANCELED: EventName.CANCELED,
}


class Listeners:
    """Tells an app's listeners what becomes of the runs of a worker, each event at most once.

    listeners = Listeners({"failed": [alert]}, clock, worker="eu-1")
    listeners.start(); listeners.hold([run]); listeners.begun([run]); listeners.reported(report)
    """

    def __init__(self, by_event: Mapping[str, Sequence[Listener]], clock: Clock, *, worker: str) -> None:
        self._by_event = {event: heard_by for event, heard_by in by_event.items() if event in TOLD_BY_WORKERS}
        self._clock = clock
        self._worker = worker
        self._runs: dict[int, Run] = {}
        self._begun: set[int] = set()
        self._waiting: deque[RunEvent | FiresEvent] = deque()
        self._changed = clock.condition()
        self._thread = clock.thread("listeners", self._run)
        self._closed = False
        self._dropped, self._say_at = 0, 1
        self._calls = Calls()

    def start(self) -> None:
        """Start the thread, if there are listeners."""
        if self._by_event:
            self._thread.start()

    def hold(self, runs: Iterable[Run]) -> None:
        """These runs are claimed, and are to be started."""
        if self._by_event:
            self._runs.update((run.id, run) for run in runs)

    def begun(self, runs: Iterable[Run]) -> None:
        """These have been started."""
        if not self._by_event:
            return
        with self._changed:
            for run in runs:
                self._begin(run.id)

    def reported(self, report: Report) -> None:
        """This report is committed, and its run was this worker's."""
        if not self._by_event:
            return
        with self._changed:
            run, end = self._runs.get(report.instance_id), report.instance
            if run is None or run.attempt != report.attempt or end is None:
                return
            name = ENDS.get(end.status)
            if report.retry_at is not None and report.has_failed:
                name = EventName.RETRIED
            if name is not None:
                self._begin(run.id)
                self._tell(name, run, end)

    def skipped(self, skips: Iterable[Skip]) -> None:
        """A claim of this worker's has skipped these fires."""
        if EventName.SKIPPED not in self._by_event:
            return
        with self._changed:
            for row, reason in skips:
                fire = _aware(row.schedule_datetime)
                self._put(
                    FiresEvent(
                        event=EventName.SKIPPED.value,
                        at=_aware(self._clock.now()),
                        task_id=row.schedule_task_id,
                        task_name=row.task_name,
                        reason=reason,
                        first_fire=fire,
                        last_fire=fire,
                        fires=1,
                        instance_id=row.id,
                    )
                )

    def forget(self, runs: Iterable[Run]) -> None:
        """The worker has nothing more to do with these."""
        if self._by_event:
            for run in runs:
                self._runs.pop(run.id, None)
                self._begun.discard(run.id)

    def close(self) -> None:
        """Let them hear what waits, for ``CLOSING_SECONDS`` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)
        if missed := len(self._waiting) + self._dropped:
            log.warning("listeners: %d events were not heard before the worker stopped", missed)

    def _begin(self, instance_id: int) -> None:
        """Under the lock: tell that a run has started, unless that was told. Its end may be reported before."""
        run = self._runs.get(instance_id)
        if run is not None and instance_id not in self._begun:
            self._begun.add(instance_id)
            self._tell(EventName.STARTED, run, None)

    def _tell(self, name: EventName, run: Run, end: InstanceReport | None) -> None:
        if name in self._by_event:
            self._put(self._event(name, run, end))

    def _put(self, event: RunEvent | FiresEvent) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            if self._dropped == self._say_at:
                self._say_at *= 10
                log.warning("listeners: they are slower than the runs; events are dropped, so far %d", self._dropped)
            return
        self._waiting.append(event)
        self._changed.notify_all()

    def _event(self, name: EventName, run: Run, end: InstanceReport | None) -> RunEvent:
        is_retried = name is EventName.RETRIED
        return RunEvent(
            event=name.value,
            at=_aware(self._clock.now()),
            instance_id=run.id,
            task_name=run.task_name,
            schedule_datetime=_aware(run.schedule_datetime),
            due_at=_aware(run.due_at),
            attempt=run.attempt,
            worker=self._worker,
            reason=None if end is None else end.reason,
            retry_at=_aware(end.due_at) if is_retried and end is not None and end.due_at is not None else None,
            result_json=end.result if end is not None and name is EventName.SUCCEEDED else None,
        )

    def _run(self) -> None:
        while (event := self._next()) is not None:
            self._calls.tell(self._by_event[event.event], event)

    def _next(self) -> RunEvent | FiresEvent | None:
        with self._changed:
            while not self._waiting and not self._closed:
                if self._dropped:
                    log.warning("listeners: they keep up again; %d events were dropped", self._dropped)
                    self._dropped, self._say_at = 0, 1
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
