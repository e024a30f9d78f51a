"""``def`` handlers in processes of their own, which can be killed at their timeout or when they are canceled.

Nothing is pickled: a child imports the app by its name and is told which node to run, in JSON (``process_child``).
Each child has a thread of this process that starts it, gives it one call after the other and sees it end.
"""

import logging
import threading
from collections import deque

from shared.clock import boottime
from worker_service.executors.base import Call, Done, Failure, Outcome
from worker_service.executors.child_process import ChildEnded, ChildProcess

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""After so long without a call a child is ended."""


class ProcessExecutor:
    """Runs functions in child processes, one call at a time in each.

        executor = ProcessExecutor("jobs:app", most=8, result_limit_bytes=262_144)
        running = executor.start(Call(node, context), done)
        running.stop()   # SIGKILL, to the child and to what it started

    ``target`` is the app, as ``module:app``; without one every call fails, in a sentence. At most ``most`` children
    live at once, idle ones included; calls beyond that wait for a child, in order. A result of more than
    ``result_limit_bytes`` bytes of JSON is refused by the child.
    """

    def __init__(self, target: str | None, most: int, result_limit_bytes: int) -> None:
        self.target = target
        self.result_limit_bytes = result_limit_bytes
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[RunningProcess] = deque()
        self._keepers: set[_Keeper] = set()
        self._idle: list[_Keeper] = []
        self._closed = False

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningProcess":
        """Start a function in a child; returns at once."""
        running = RunningProcess(self, call, done)
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting.append(running)
                self._rouse()
        if closed:
            running.tell_stopped()
        return running

    def begin(self) -> None:
        """Nothing was left for later."""

    def close(self) -> None:
        """Kill all children; what ran or waited is told that it was stopped."""
        with self._lock:
            self._closed = True
            waiting, idle = list(self._waiting), list(self._idle)
            busy = [keeper for keeper in self._keepers if keeper not in idle]
            self._waiting.clear()
            self._idle.clear()
        for running in waiting:
            running.tell_stopped()
        for keeper in idle:
            keeper.wake.set()
        for keeper in busy:
            keeper.stop()

    def withdraw(self, running: "RunningProcess") -> bool:
        """Take a call back that no child has yet; whether there was one to take."""
        with self._lock:
            if running not in self._waiting:
                return False
            self._waiting.remove(running)
            return True

    def next_call(self, keeper: "_Keeper") -> "RunningProcess | None":
        """Wait for the keeper's next call; None: it shall end."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                if self._closed or not keeper.has_child:
                    self._keepers.discard(keeper)
                    return None
                keeper.wake.clear()
                self._idle.append(keeper)
            if not keeper.wake.wait(IDLE_SECONDS):
                with self._lock:
                    if keeper in self._idle:
                        self._idle.remove(keeper)
                        self._keepers.discard(keeper)
                        return None

    def _rouse(self) -> None:
        """Under the lock: let a keeper come for a call; the one that worked last, so that the others may end."""
        if self._idle:
            self._idle.pop().wake.set()
        elif len(self._keepers) < self._most:
            keeper = _Keeper(self)
            self._keepers.add(keeper)
            threading.Thread(target=keeper.keep, name="process-keeper", daemon=True).start()


class RunningProcess:
    """A call that waits for a child, or runs in one."""

    def __init__(self, executor: ProcessExecutor, call: Call, done: Done) -> None:
        self.call = call
        self._executor = executor
        self._done = done
        self.stopping = False
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def stop(self) -> None:
        """Kill the process that runs it, and what that started."""
        self.call.context.cancellation.request()
        with self._lock:
            self.stopping = True
            if self._child is not None:
                self._child.kill()
        if self._executor.withdraw(self):
            self.tell_stopped()

    def run_in(self, child: ChildProcess) -> Outcome:
        """On the keeper's thread: have it run, and wait for its end.

        Raises ChildEnded when the process ends first.
        """
        with self._lock:
            self._child = child
            if self.stopping:
                child.kill()
        return child.run(self.call)

    def tell(self, outcome: Outcome) -> None:
        """It has ended."""
        with self._lock:
            self._child = None
            stopped = self.stopping and outcome.failure is not None
        if stopped:
            outcome = Outcome(outcome.entered, outcome.left, stopped=True)
        self._done(outcome)

    def tell_stopped(self) -> None:
        """It was not begun, and will not be."""
        now = boottime()
        self._done(Outcome(now, now, stopped=True))


class _Keeper:
    """Keeps one child: starts it when there is a call, and reaps it when it is no longer needed."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self.wake = threading.Event()
        self._executor = executor
        self._child: ChildProcess | None = None
        self._running: RunningProcess | None = None

    @property
    def has_child(self) -> bool:
        """Whether there is a child to keep."""
        return self._child is not None

    def stop(self) -> None:
        """Kill what runs."""
        if (running := self._running) is not None:
            running.stop()

    def keep(self) -> None:
        """On a thread of its own: serve calls until there are none."""
        while (running := self._executor.next_call(self)) is not None:
            self._running = running
            outcome = self._run(running)
            self._running = None
            try:
                running.tell(outcome)
            except Exception:
                log.exception("telling the end of a call failed")
        self._discard()

    def _run(self, running: RunningProcess) -> Outcome:
        """Run a call, in a new child if the one that idled has died meanwhile."""
        entered = boottime()
        reused = self._child is not None
        try:
            try:
                return running.run_in(self._usable())
            except ChildEnded as ended:
                self._discard()
                if not reused or ended.entered is not None or running.stopping:
                    raise
                return running.run_in(self._usable())
        except ChildEnded as ended:
            self._discard()
            return Outcome(ended.entered or entered, boottime(), failure=Failure(ended.sentence, ended.kind, ""))
        except Exception as error:  # noqa: BLE001 - a child that cannot be started is the call's failure
            self._discard()
            return Outcome(entered, boottime(), failure=Failure.of(error))

    def _usable(self) -> ChildProcess:
        if self._child is None:
            self._child = ChildProcess(self._executor.target, self._executor.result_limit_bytes)
        return self._child

    def _discard(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
