"""``def`` handlers: on threads, as many as the worker's capacity."""

import logging
import queue
import threading
from collections.abc import Callable

from shared.clock import boottime
from worker_service.executors.base import Call, Done, Failure, Outcome

log = logging.getLogger(__name__)


class ThreadExecutor:
    """Runs functions on threads, which are started as they are needed.

    A thread cannot be stopped. A call that is told to has its context's ``cancel_requested`` set and is reported
    stopped at once, but it keeps its place among the threads until it returns: ``abandoned`` counts those. The threads
    are daemons: a process whose executor is closed can end while they still run.
    """

    def __init__(self, threads: int, freed: Callable[[], None] = lambda: None) -> None:
        self._freed = freed
        self._most = threads
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[RunningThread | None] = queue.SimpleQueue()
        self._unfinished: set[RunningThread] = set()
        self._threads = 0
        self._abandoned = 0
        self._closed = False

    @property
    def abandoned(self) -> int:
        """How many stopped calls still occupy a thread."""
        return self._abandoned

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningThread":
        """Start a function on a thread; returns at once."""
        running = RunningThread(self, call, done)
        with self._lock:
            closed = self._closed
            if not closed:
                self._unfinished.add(running)
                self._calls.put(running)
                self._hire()
        if closed:
            running.stop()
        return running

    def begin(self) -> None:
        """Nothing was left for later."""

    def close(self) -> None:
        """Take no more and tell all that they are stopped; threads that run go on until they return."""
        with self._lock:
            self._closed = True
            unfinished = list(self._unfinished)
            for _ in range(self._threads):
                self._calls.put(None)
        for running in unfinished:
            running.stop()

    def count_abandoned(self, change: int) -> None:
        """One more, or one less, stopped call occupies a thread."""
        with self._lock:
            self._abandoned += change
        if change < 0:
            self._freed()

    def _hire(self) -> None:
        """Under the lock: another thread, if all are occupied and there may be more."""
        if self._threads < min(self._most, len(self._unfinished)):
            self._threads += 1
            threading.Thread(target=self._work, name=f"handler-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (running := self._calls.get()) is not None:
            try:
                running.execute()
            except Exception:
                log.exception("telling the end of a call failed")
            with self._lock:
                self._unfinished.discard(running)


class RunningThread:
    """A function on a thread; whoever is first, its end or ``stop``, tells the outcome."""

    def __init__(self, executor: ThreadExecutor, call: Call, done: Done) -> None:
        self._executor = executor
        self._call = call
        self._done = done
        self._lock = threading.Lock()
        self._told = False
        self._entered: float | None = None

    def stop(self) -> None:
        """Report it stopped at once; the thread itself, if it has one, goes on until it returns."""
        self._call.context.cancellation.request()
        with self._lock:
            if self._told:
                return
            self._told = True
            if self._entered is not None:
                self._executor.count_abandoned(+1)
        now = boottime()
        self._done(Outcome(self._entered or now, now, stopped=True))

    def execute(self) -> None:
        """On the thread: run it, unless it was stopped before."""
        with self._lock:
            if self._told:
                return
            self._entered = entered = boottime()
        try:
            context = self._call.checked()
            entered = boottime()
            result = self._call.node.handler(context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            outcome = Outcome(entered, boottime(), failure=Failure.of(error))
        else:
            outcome = Outcome(entered, boottime(), result=result)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        with self._lock:
            first, self._told = not self._told, True
        if first:
            self._done(outcome)
        else:
            self._executor.count_abandoned(-1)
