"""Runs ``def`` handlers in child processes. They get SIGTERM at their timeout or when they are canceled, then SIGKILL.

Nothing is pickled: a child is a fork of a process that has imported the app (``fork_server``), and a JSON message says
which node to run (``process_child``). Each child has a keeper: a thread of this process that has the child forked,
gives it one call after another, and ends it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from rota.shared.clock import Timer, boottime
from rota.worker_service.executors.base import Call, Done, Failure, NoThread, Outcome, start_thread
from rota.worker_service.executors.child_process import ChildEnded, ChildProcess
from rota.worker_service.executors.fork_server import ForkServer, NoServer
from rota.worker_service.executors.server_process import ServerProcess

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""A child that had no call for so long is ended."""

HOOKS_SECONDS = 5.0
"""How long the exit hooks of the app may take in a child that ends in order."""

ANSWER_SECONDS = 1.0
"""A child whose call has timed out may take so long to say where its handler stands, before it gets SIGTERM."""

LOOK_SECONDS = 0.05
"""How often ``finish`` looks whether somebody asked a second time."""


class ProcessExecutor:
    """Runs functions in child processes, one call at a time in each.

        executor = ProcessExecutor("jobs:app", most=8, result_limit_bytes=262_144, timer=clock)
        running = executor.start(Call(node, context), done)
        running.stop()   # SIGTERM, to the child and to the processes that it started
        running.kill()   # SIGKILL

    ``target`` is the app, as ``module:app``; without it every call fails. At most ``most`` children live at once, idle
    ones included. Further calls wait for a child, in order. A child refuses a result that has more than
    ``result_limit_bytes`` bytes of JSON. Children take the time from the host. For a call that no child ran, the time
    comes from ``timer``. Children are forked from ``fork_server``; without one, the first call starts one.
    """

    def __init__(
        self,
        target: str | None,
        most: int,
        result_limit_bytes: int,
        timer: Timer,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._target = target
        self._fork_server = fork_server or ForkServer()
        self.result_limit_bytes = result_limit_bytes
        self.monotonic = timer.monotonic
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[RunningProcess] = deque()
        self._keepers: set[_Keeper] = set()
        self._threads: set[threading.Thread] = set()
        self._idle: list[_Keeper] = []
        self._closed = False

    def start(self, call: Call, done: Done, *, later: bool = False) -> "RunningProcess":
        """Start a function in a child; returns at once. Raises NoThread."""
        running = RunningProcess(self, call, done)
        with self._lock:
            closed = self._closed
            if not closed:
                self._wake_keeper()
                self._waiting.append(running)
        if closed:
            running.tell_stopped()
        return running

    def begin(self) -> None:
        """Does nothing: ``start`` left no call for later."""

    def finish(self, stop_now: threading.Event) -> None:
        """Take no more calls, and let the children end in order; kill those that run a call.

        It waits until all have ended, for ``HOOKS_SECONDS`` at most, or until ``stop_now`` is set.
        """
        self._dismiss()
        deadline = boottime() + HOOKS_SECONDS
        with self._lock:
            keepers = list(self._threads)
        for keeper in keepers:
            while keeper.is_alive() and not stop_now.is_set() and boottime() < deadline:
                keeper.join(LOOK_SECONDS)

    def close(self) -> None:
        """End all children. Calls that ran or waited are reported stopped."""
        self._dismiss()
        self._fork_server.close()

    def _dismiss(self) -> None:
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

    def server(self, stopping: Callable[[], bool]) -> ServerProcess:
        """The process to fork a child from; waits until there is one, or until ``stopping``. Raises ChildEnded."""
        if self._target is None:
            raise ChildEnded('execution="process" needs an app that a child can import: load it as module:app')
        self._fork_server.begin(self._target)
        try:
            return self._fork_server.process(stopping)
        except NoServer as error:
            raise ChildEnded(str(error), "ConfigurationError") from None

    def withdraw(self, running: "RunningProcess") -> bool:
        """Take back a call that no child has yet; returns whether it was so."""
        with self._lock:
            if running not in self._waiting:
                return False
            self._waiting.remove(running)
            return True

    def next_call(self, keeper: "_Keeper") -> "RunningProcess | None":
        """Wait for the keeper's next call. None: the keeper must end."""
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

    def _wake_keeper(self) -> None:
        """Wake the idle keeper that worked last, so that others may end; or start one. Called under the lock."""
        if self._idle:
            self._idle.pop().wake.set()
        elif len(self._keepers) < self._most:
            keeper = _Keeper(self)  # it asks for its call when the lock is free
            thread = threading.Thread(target=self._keep, args=[keeper], name="process-keeper", daemon=True)
            start_thread(thread)
            self._keepers.add(keeper)
            self._threads.add(thread)

    def _keep(self, keeper: "_Keeper") -> None:
        keeper.keep()
        with self._lock:
            self._threads.discard(threading.current_thread())


class RunningProcess:
    """A call that waits for a child, or runs in one."""

    def __init__(self, executor: ProcessExecutor, call: Call, done: Done) -> None:
        self.call = call
        self.entered: float | None = None
        self._executor = executor
        self._done = done
        self._place: str | None = None
        self._terminated = False
        self.stopping = False
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def stop(self, *, asks: bool = False) -> None:
        """Terminate the child that runs the call, and the processes that it started. Again it does nothing.

        ``asks``: ask the child first where its handler stands. Who holds Python's lock does not answer in time.
        """
        self.call.context.cancellation.request()
        with self._lock:
            again, self.stopping = self.stopping, True
            if not again and not (asks and self._ask()):
                self._terminate()
        if self._executor.withdraw(self):
            self.tell_stopped()

    def kill(self) -> None:
        """Kill the child that runs the call, and the processes that it started."""
        with self._lock:
            if self._child is not None:  # else the call has ended, and the child may run another by now
                self._child.kill()

    def standing(self) -> None:
        """Not known here: the handler is in another process, which ``stop`` asks."""

    def stands(self, place: str | None) -> None:
        """The child has said where its handler stands: now it is terminated."""
        with self._lock:
            if self.stopping:  # else it is an answer about the call before
                self._place = place
                self._terminate()

    def run_in(self, child: ChildProcess) -> Outcome:
        """Let the child run the call, and wait for its end. The keeper's thread calls it.

        Raises ChildEnded when the process ends first.
        """
        with self._lock:
            self._child = child
            if self.stopping:
                child.kill()
        return child.run(self.call, self)

    def tell(self, outcome: Outcome) -> None:
        """Report how the call ended."""
        with self._lock:
            self._child = None
            stopped = self.stopping and (outcome.failure is not None or outcome.stopped)
        if stopped:
            outcome = Outcome(self.entered, outcome.left, stopped=True, place=self._place)
        else:
            outcome.stopped = False  # somebody else has sent the SIGTERM
        self._done(outcome)

    def tell_stopped(self) -> None:
        """Report the call stopped: it was not begun."""
        self._done(Outcome(None, self._executor.monotonic(), stopped=True))

    def _ask(self) -> bool:
        """Under the lock: ask the child, and terminate it when it has answered, or is late. False: nobody to ask."""
        if self._child is None or self.entered is None:
            return False
        late = threading.Timer(ANSWER_SECONDS, self._terminate_late)
        late.daemon = True
        try:
            start_thread(late)
        except NoThread:
            return False
        self._child.ask()
        return True

    def _terminate_late(self) -> None:
        with self._lock:
            self._terminate()

    def _terminate(self) -> None:
        """Under the lock: terminate the child once, unless the call has ended: then it may run another by now."""
        if self._child is not None and not self._terminated:
            self._terminated = True
            self._child.terminate()


class _Keeper:
    """Keeps one child: starts the child when there is a call, and reaps it when it is no longer needed."""

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
        """Kill the call that runs."""
        if (running := self._running) is not None:
            running.stop()
            running.kill()

    def keep(self) -> None:
        """Serve calls until there are none. Runs on a thread of its own."""
        while (running := self._executor.next_call(self)) is not None:
            self._running = running
            outcome = self._run(running)
            if running.stopping:  # before it is told: no process of an ended run may be left
                self._discard()
            self._running = None
            try:
                running.tell(outcome)
            except BaseException:  # SystemExit, too: the child must be reaped
                log.exception("telling the end of a call failed")
        if self._child is not None:
            self._child.finish(HOOKS_SECONDS)
        self._discard()

    def _run(self, running: RunningProcess) -> Outcome:
        """Run a call. If the idle child has died, or the new one never was, run it in another."""
        reused = self._child is not None
        try:
            try:
                return running.run_in(self._usable(running))
            except ChildEnded as ended:
                again = reused or (self._child is not None and not self._child.was_there)
                self._discard()
                if not again or ended.entered is not None or running.stopping:
                    raise
                return running.run_in(self._usable(running))
        except ChildEnded as ended:
            self._discard()
            return Outcome(ended.entered, self._executor.monotonic(), failure=Failure(ended.sentence, ended.kind, ""))
        except Exception as error:  # noqa: BLE001 - a child that cannot be started is the call's failure
            self._discard()
            return Outcome(None, self._executor.monotonic(), failure=Failure.of(error))

    def _usable(self, running: RunningProcess) -> ChildProcess:
        if self._child is None:
            server = self._executor.server(lambda: running.stopping)
            self._child = ChildProcess(server, self._executor.result_limit_bytes)
        return self._child

    def _discard(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
