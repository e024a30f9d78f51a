"""Runs ``def`` handlers on threads: on the worker's own, up to its capacity, or on those of a pool, up to its size."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from rota.shared.clock import Timer
from rota.worker_service.executors import standing
from rota.worker_service.executors.base import Call, Done, Failure, Outcome, start_thread

log = logging.getLogger(__name__)


class ThreadExecutor:
    """Runs functions on threads, which are started as they are needed.

    A thread cannot be stopped. ``stop`` sets ``cancel_requested`` in the call's context and tells at once that the call
    lingers; its thread stays occupied until the handler returns, and then tells the end. The threads are daemons: a
    process whose executor is closed can end while they still run.
    """

    def __init__(self, threads: int, timer: Timer, *, name: str = "handler") -> None:
        """At most so many ``threads``, each with this name and a number."""
        self._most, self._name = threads, name
        self._timer = timer
        self.monotonic = timer.monotonic
        self._changed = timer.condition()
        self._calls: deque[RunningThread] = deque()
        self._unfinished: set[RunningThread] = set()
        self._threads = 0
        self._idle = 0
        self._waking = False
        self._closed = False

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningThread":
        """Start a function on a thread; returns at once. Raises NoThread."""
        running = RunningThread(self, call, done)
        with self._changed:
            closed = self._closed
            if not closed:
                self._add_thread()
                self._unfinished.add(running)
                self._calls.append(running)
                self._wake()
        if closed:
            running.stop()
        return running

    def begin(self) -> None:
        """Does nothing: ``start`` left no call for later."""

    def close(self) -> None:
        """Take no more calls, and report all as stopped. Handlers that run go on until they return."""
        with self._changed:
            self._closed = True
            unfinished = list(self._unfinished)
            self._changed.notify_all()
        for running in unfinished:
            running.stop()

    def _add_thread(self) -> None:
        """For one more call, start a thread if all are occupied and the limit allows it. Called under the lock."""
        if self._threads < min(self._most, len(self._unfinished) + 1):
            start_thread(self._timer.thread(f"{self._name}-{self._threads + 1}", self._work))
            self._threads += 1

    def _wake(self) -> None:
        """Under the lock: wake one thread for the calls that wait; it wakes the next.

        To wake one for each call takes twice as long, since a thread that is at work takes a short call sooner.
        """
        if self._calls and self._idle and not self._waking:
            self._waking = True
            self._changed.notify()

    def _work(self) -> None:
        running = None
        while (running := self._next(after=running)) is not None:
            try:
                running.execute()
            except BaseException:  # SystemExit, too: the thread must stay for other calls
                log.exception("telling the end of a call failed")

    def _next(self, after: "RunningThread | None") -> "RunningThread | None":
        """Wait for the next call. ``after``: the call that this thread ran before. None: the executor is closed."""
        with self._changed:
            if after is not None:
                self._unfinished.discard(after)
            while not self._calls and not self._closed:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
                self._waking = False
            if self._closed:
                return None
            call = self._calls.popleft()
            self._wake()
            return call


class RunningThread:
    """A function on a thread. Its end tells the outcome; ``stop``, if it comes first, tells that the call lingers."""

    def __init__(self, executor: ThreadExecutor, call: Call, done: Done) -> None:
        self._executor = executor
        self._call = call
        self._done = done
        self._lock = threading.Lock()
        self._stopped = False
        self._ended = False
        self.entered: float | None = None
        self._thread: int | None = None

    def stop(self, *, asks: bool = False) -> None:
        """Tell at once that the call is stopped. It lingers if its handler runs, which goes on until it returns."""
        self._call.context.cancellation.request()
        now = self._executor.monotonic()
        with self._lock:  # held while it is told: the end must not be told before
            if self._stopped or self._ended:
                return
            self._stopped = True
            self._done(Outcome(self.entered, now, stopped=True, lingers=self.entered is not None))

    def kill(self) -> None:
        """Does nothing: a thread cannot be killed."""

    def standing(self) -> str | None:
        """The line of its own code in which the handler is now. None: not known."""
        found = standing.in_thread(self._thread, self._call.node.handler)
        return None if self._ended else found  # in this order: the thread may be in another call by now

    def execute(self) -> None:
        """Run the function on this thread, unless the call was stopped before."""
        with self._lock:
            if self._stopped:
                return
            self.entered = entered = self._executor.monotonic()
            self._thread = threading.get_ident()
        try:
            context = self._call.checked()
            entered = self._executor.monotonic()
            result = self._call.node.handler(context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            outcome = Outcome(entered, self._executor.monotonic(), failure=Failure.of(error))
        else:
            outcome = Outcome(entered, self._executor.monotonic(), result=result)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        with self._lock:
            self._ended = True
            stopped = self._stopped
        if stopped:
            noticed = self._call.context.cancellation.noticed
            outcome = replace(outcome, stopped=True, finished=outcome.failure is None and not noticed)
        self._done(outcome)


class PooledThreads:
    """The threads of a worker with pools: each call runs on those of its pool, or else on the worker's own.

    PooledThreads(own, {"images": ThreadExecutor(2, clock)})
    """

    def __init__(self, own: ThreadExecutor, pools: Mapping[str, ThreadExecutor]) -> None:
        self._own = own
        self._pools = pools

    def start(self, call: Call, done: Done, *, later: bool = False) -> RunningThread:
        """Start a function on a thread; returns at once. Raises NoThread."""
        threads = self._own if call.pool is None else self._pools[call.pool]
        return threads.start(call, done, later=later)

    def begin(self) -> None:
        """Does nothing: ``start`` left no call for later."""

    def close(self) -> None:
        """Take no more calls, and report all as stopped. Handlers that run go on until they return."""
        for threads in (self._own, *self._pools.values()):
            threads.close()
