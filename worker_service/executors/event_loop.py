"""``async def`` handlers: one event loop on a thread of its own, so that a handler that blocks holds up only others."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from shared.clock import boottime
from worker_service.executors.base import Call, Done, Failure, Outcome

log = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS = 10.0
"""How long a canceled coroutine may clean up before it is canceled again: it may have swallowed the first. (A command
has 5 s between SIGTERM and SIGKILL.)"""

CLOSING_SECONDS = 1.0
"""How long coroutines may clean up when the executor is closed."""


class EventLoopExecutor:
    """Runs coroutines on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._running: set[RunningTask] = set()
        self._coming: deque[RunningTask] = deque()
        self._called = False
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._thread.start()

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningTask":
        """Start a coroutine; returns at once."""
        running = RunningTask(self._loop, call, done, self._running.discard)
        self._coming.append(running)
        if not later:
            self.begin()
        return running

    def begin(self) -> None:
        """Wake the loop for what is to start: that costs more than a coroutine, so once for all that come together."""
        if self._coming and not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._begin)
            except RuntimeError:  # the loop is closed
                self._begin()

    def close(self) -> None:
        """Cancel what runs and end the loop; what has not cleaned up after ``CLOSING_SECONDS`` is told stopped."""
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # it was closed before
            return

    def _begin(self) -> None:
        self._called = False  # first: what comes from now on calls again
        while self._coming:
            running = self._coming.popleft()
            if self._closing:
                running.tell_stopped()
            else:
                self._running.add(running)
                running.begin()

    def _end(self) -> None:
        if self._closing:
            return
        self._closing = True
        for running in self._running:
            running.cancel()
        self._closer = self._loop.create_task(self._wind_up())

    async def _wind_up(self) -> None:
        tasks = [running.task for running in self._running if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING_SECONDS)
        for running in list(self._running):
            running.tell_stopped()
        self._running.clear()
        self._ended = True
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ended:
            try:
                self._loop.run_forever()
            except BaseException:
                # A task that a handler left behind raised SystemExit, which asyncio lets through: the others go on.
                log.exception("a task that a handler started ended the event loop; it is started again")
        self._loop.close()


class RunningTask:
    """A coroutine on the loop; its outcome is told once."""

    __slots__ = ("_again", "_call", "_done", "_ended", "_entered", "_loop", "_stopping", "_told", "task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        done: Done,
        ended: Callable[["RunningTask"], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._loop = loop
        self._call = call
        self._done = done
        self._ended = ended
        self._entered = False
        self._stopping = False
        self._again: asyncio.TimerHandle | None = None
        self._told = False

    def stop(self) -> None:
        """Cancel the coroutine, again and again until it ends; it may clean up for ``CANCEL_AGAIN_SECONDS``."""
        self._call.context.cancellation.request()
        try:
            self._loop.call_soon_threadsafe(self.cancel)
        except RuntimeError:  # the loop is closed, and its outcome told
            return

    def begin(self) -> None:
        """On the loop: make it a task."""
        self.task = self._loop.create_task(self._execute())

    def cancel(self) -> None:
        """On the loop: cancel it; a coroutine that was not entered yet never will be."""
        self._stopping = True
        if self._again is not None:
            self._again.cancel()
        if self.task is not None and self._entered and not self.task.done():
            self.task.cancel()
            self._again = self._loop.call_later(CANCEL_AGAIN_SECONDS, self.cancel)

    def tell_stopped(self) -> None:
        """It was not begun, or does not end."""
        now = boottime()
        self._tell(Outcome(now, now, stopped=True))

    async def _execute(self) -> None:
        try:
            if self._stopping:
                self.tell_stopped()
                return
            self._entered = True
            entered = boottime()
            try:
                context = self._call.checked()
                entered = boottime()
                result = await self._call.node.handler(context)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
                self._tell(Outcome(entered, boottime(), failure=Failure.of(error), stopped=self._stopping))
            else:
                self._tell(Outcome(entered, boottime(), result=result))
        finally:
            self._ended(self)

    def _tell(self, outcome: Outcome) -> None:
        if not self._told:
            self._told = True
            self._done(outcome)
