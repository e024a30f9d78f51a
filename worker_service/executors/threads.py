"""``def`` handlers: on threads, as many as the worker's capacity."""

import threading
from concurrent.futures import ThreadPoolExecutor

from shared.clock import boottime
from worker_service.executors.base import Call, Done, Failure, Outcome


class ThreadExecutor:
    """Runs functions on threads.

    A thread cannot be stopped. One that is told to has its context's ``cancel_requested`` set and is reported stopped
    at once, but it keeps its place among the threads until it returns: ``abandoned`` counts those.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="handler")
        self._lock = threading.Lock()
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many stopped calls still occupy a thread."""
        return self._abandoned

    def start(self, call: Call, done: Done) -> "RunningThread":
        """Start a function on a thread; returns at once."""
        running = RunningThread(self, call, done)
        self._pool.submit(running.execute)
        return running

    def close(self) -> None:
        """Take no more; threads that run go on until they return or the process ends."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def count_abandoned(self, change: int) -> None:
        """One more, or one less, stopped call occupies a thread."""
        with self._lock:
            self._abandoned += change


class RunningThread:
    """A function on a thread; whoever is first, its end or ``stop``, tells the outcome."""

    def __init__(self, executor: ThreadExecutor, call: Call, done: Done) -> None:
        self._executor = executor
        self._call = call
        self._done = done
        self._lock = threading.Lock()
        self._told = False
        self._entered = 0.0

    def stop(self) -> None:
        """Report it stopped at once; the thread itself goes on until it returns."""
        self._call.context.cancel_event.set()
        if self._tell():
            self._executor.count_abandoned(+1)
            self._done(Outcome(self._entered or boottime(), boottime(), stopped=True))

    def execute(self) -> None:
        """On the thread: run it."""
        self._entered = boottime()
        if self._told:
            self._executor.count_abandoned(-1)
            return
        try:
            result = self._call.node.handler(self._call.context)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            outcome = Outcome(self._entered, boottime(), failure=Failure.of(error))
        else:
            outcome = Outcome(self._entered, boottime(), result=result)
        if self._tell():
            self._done(outcome)
        else:
            self._executor.count_abandoned(-1)

    def _tell(self) -> bool:
        with self._lock:
            first, self._told = not self._told, True
            return first
