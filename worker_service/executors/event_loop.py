"""Runs ``async def`` handlers on one event loop, on a thread of its own: a handler that blocks holds up only these."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from rota.shared.clock import Timer, boottime
from rota.worker_service.executors import standing
from rota.worker_service.executors.base import Call, Done, Failure, Outcome

log = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS = 10.0
"""After its grace, a coroutine is canceled again so often: it may have swallowed its cancellation."""

STAMP_SECONDS = 0.5
"""How often the loop notes that it goes on."""

HELD_UP_SECONDS = 2.0
"""A coroutine that blocks the loop for so long is named in a warning."""

CLOSING_SECONDS = 1.0
"""How long coroutines may clean up when the executor is closed."""


_owners: "WeakKeyDictionary[asyncio.Task[Any], RunningTask]" = WeakKeyDictionary()
"""The calls to which the tasks belong that handlers have started."""


def _started_by_a_handler(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """The loop's task factory: notes whose task it is, so that one that blocks the loop can be named."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    if (owner := _owner_of(asyncio.current_task(loop))) is not None:
        _owners[task] = owner
    return task


def _owner_of(task: "asyncio.Task[Any] | None") -> "RunningTask | None":
    """The call that a task executes, or that has started it."""
    if task is None:
        return None
    frame = getattr(task.get_coro(), "cr_frame", None)
    if frame is not None and frame.f_code is RunningTask.execute.__code__:
        owner: RunningTask = frame.f_locals["self"]
        return owner
    return _owners.get(task)


class EventLoopExecutor:
    """Runs coroutines on one event loop, which waits by the host's time. ``timer`` says when calls began and ended."""

    def __init__(self, timer: Timer) -> None:
        self._monotonic = timer.monotonic
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(_started_by_a_handler)
        self._running: set[RunningTask] = set()
        self._unstarted: deque[RunningTask] = deque()
        self._wake_sent = False
        self._closing = False
        self._ended = False
        self._stamped = boottime()
        self._blocker: tuple[str, float] | None = None
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._thread.start()

    @property
    def silent_seconds(self) -> float:
        """For how long the loop has not gone on, by the host's time: a coroutine blocks it. 0 when it has ended."""
        return 0.0 if self._ended else boottime() - self._stamped

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningTask":
        """Start a coroutine; returns at once."""
        running = RunningTask(self._loop, call, done, self._running.discard, self._monotonic)
        running.thread = self._thread
        self._unstarted.append(running)
        if not later:
            self.begin()
        return running

    def begin(self) -> None:
        """Wake the loop, once for all calls that wait to start: a wake-up costs more than a coroutine."""
        if self._unstarted and not self._wake_sent:
            self._wake_sent = True
            try:
                self._loop.call_soon_threadsafe(self._begin)
            except RuntimeError:  # the loop is closed
                self._begin()

    def close(self) -> None:
        """Cancel all coroutines and end the loop. Those that run on after ``CLOSING_SECONDS`` are reported stopped."""
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # it was closed before
            return

    def look(self) -> None:
        """Name the handler that blocks the loop, if one does, in a warning. Call it now and then, on another thread."""
        since = self._stamped
        if self._ended or boottime() - since < HELD_UP_SECONDS or self._blocker is not None:
            return
        blocker = next((running for running in list(self._running) if running.is_current), None)
        where = standing.on_thread(self._thread.ident) if blocker is None else blocker.standing()
        if blocker is None and where is None:  # the loop waits: the whole process did not go on
            return
        name = "a callback, or a task that a handler left behind," if blocker is None else blocker.name
        self._blocker = (name, since)
        words = "%s has blocked the event loop for %.1f s, at %s: all other coroutines wait"
        log.warning(words, name, boottime() - since, where or "a place that is not known")

    def _begin(self) -> None:
        self._wake_sent = False  # first: a call that comes from now on must wake the loop again
        while self._unstarted:
            running = self._unstarted.popleft()
            if self._closing:
                running.tell_stopped()
            else:
                self._running.add(running)
                running.begin()

    def _stamp(self) -> None:
        if self._blocker is not None:
            blocker, since = self._blocker
            log.warning("%s no longer blocks the event loop, after %.1f s", blocker, boottime() - since)
            self._blocker = None
        self._stamped = boottime()
        self._loop.call_later(STAMP_SECONDS, self._stamp)

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
        self._loop.call_soon(self._stamp)
        while not self._ended:
            try:
                self._loop.run_forever()
            except BaseException:
                # A task that a handler left behind raised SystemExit, which asyncio lets through. The others go on.
                log.exception("a task that a handler started ended the event loop; it is started again")
        self._loop.close()


class RunningTask:
    """A coroutine on the loop. Its outcome is reported once."""

    __slots__ = (
        "_asked",
        "_call",
        "_cancel_timer",
        "_done",
        "_ended",
        "_loop",
        "_monotonic",
        "_reported",
        "_stopping",
        "entered",
        "task",
        "thread",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        done: Done,
        ended: Callable[["RunningTask"], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.thread: threading.Thread | None = None
        self._loop = loop
        self._call = call
        self._done = done
        self._ended = ended
        self._monotonic = monotonic
        self.entered: float | None = None
        self._asked = False
        self._stopping = False
        self._cancel_timer: asyncio.TimerHandle | None = None
        self._reported = False

    def stop(self, *, asks: bool = False) -> None:
        """Cancel the coroutine, which may clean up. A second call does nothing: it would break off the cleaning."""
        if self._asked:
            return
        self._asked = True  # before the loop knows: a coroutine that blocks the loop is not canceled before it returns
        self._call.context.cancellation.request()
        self._soon(self.cancel)

    def kill(self) -> None:
        """Cancel the coroutine again, every ``CANCEL_AGAIN_SECONDS`` until it ends."""
        self._soon(self._cancel_on)

    @property
    def is_current(self) -> bool:
        """Whether the loop executes it now, or a task that it has started."""
        current = asyncio.current_task(self._loop)
        return current is not None and (current is self.task or _owners.get(current) is self)

    @property
    def name(self) -> str:
        """What runs, for the log."""
        context = self._call.context
        where = f"task {context.task_name!r}, instance {context.instance_id}, attempt {context.attempt}"
        return f"{where}: {self._call.node.type}"

    def standing(self) -> str | None:
        """The line of its own code in which the handler is now. None: not known."""
        task, handler = self.task, self._call.node.handler
        if task is None or self.entered is None:
            return None
        if self.is_current:
            found = standing.in_thread(None if self.thread is None else self.thread.ident, handler)
        else:
            found = standing.in_coroutine(task.get_coro(), handler)
        return None if self._reported else found

    def begin(self) -> None:
        """Start the coroutine as a task. Call it on the loop."""
        self.task = asyncio.Task(self.execute(), loop=self._loop)

    def cancel(self) -> None:
        """Cancel the coroutine. One that was not entered yet never will be. Call it on the loop."""
        self._stopping = True
        if self._cancel_timer is not None:
            self._cancel_timer.cancel()
        if self.task is not None and self.entered is not None and not self.task.done():
            self.task.cancel()

    def _cancel_on(self) -> None:
        self.cancel()
        if self.task is not None and not self.task.done():
            self._cancel_timer = self._loop.call_later(CANCEL_AGAIN_SECONDS, self._cancel_on)

    def _soon(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the outcome reported
            self._loop.call_soon_threadsafe(work)

    def tell_stopped(self) -> None:
        """Report the call stopped: it was not begun, or does not end."""
        now = self._monotonic()
        self._tell(Outcome(self.entered, now, stopped=True))

    async def execute(self) -> None:
        """Run the handler, and tell how it ended."""
        try:
            if self._stopping:
                self.tell_stopped()
                return
            self.entered = entered = self._monotonic()
            try:
                context = self._call.checked()
                entered = self._monotonic()
                result = await self._call.node.handler(context)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
                self._tell(
                    Outcome(
                        entered, self._monotonic(), failure=Failure.of(error), stopped=self._asked or self._stopping
                    )
                )
            else:
                missed = self._asked and not self._stopping
                finished = missed and not self._call.context.cancellation.noticed
                self._tell(Outcome(entered, self._monotonic(), result=result, stopped=missed, finished=finished))
        finally:
            self._ended(self)

    def _tell(self, outcome: Outcome) -> None:
        if not self._reported:
            self._reported = True
            self._done(outcome)
