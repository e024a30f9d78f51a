"""``async def`` handlers: one event loop on a thread of its own, so that a handler that blocks holds up only others."""

import asyncio
import threading

from shared.clock import boottime
from worker_service.executors.base import Call, Done, Failure, Outcome


class EventLoopExecutor:
    """Runs coroutines on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._thread.start()

    def start(self, call: Call, done: Done) -> "RunningTask":
        """Start a coroutine; returns at once."""
        running = RunningTask(self._loop, call, done)
        self._loop.call_soon_threadsafe(running.begin)
        return running

    def close(self) -> None:
        """Cancel what runs and end the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class RunningTask:
    """A coroutine on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Call, done: Done) -> None:
        self._loop = loop
        self._call = call
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._entered = False
        self._stopping = False

    def begin(self) -> None:
        """On the loop: make it a task."""
        self._task = self._loop.create_task(self._execute())

    def stop(self) -> None:
        """Cancel the coroutine; it may clean up before it ends."""
        self._call.context.cancel_event.set()
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._stopping = True
        if self._task is not None and self._entered:  # a task canceled before its first step would never tell its end
            self._task.cancel()

    async def _execute(self) -> None:
        entered = boottime()
        self._entered = True
        if self._stopping:
            self._done(Outcome(entered, entered, stopped=True))
            return
        try:
            result = await self._call.node.handler(self._call.context)
        except asyncio.CancelledError as error:
            stopped = self._stopping
            self._done(Outcome(entered, boottime(), failure=Failure.of(error), stopped=stopped))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            self._done(Outcome(entered, boottime(), failure=Failure.of(error)))
        else:
            self._done(Outcome(entered, boottime(), result=result))
