"""A clock that stands still until a test sets it, so that whole schedulers and workers can run in simulated time.

The time advances only while every thread of the simulation waits. Then it jumps to the next moment for which a thread
waits, and wakes only that thread. So days pass in seconds, and nothing depends on the speed of the machine.

The threads of the simulation are those made by ``SettableClock.thread``. Any other thread, such as the test's own,
advances the time while it waits: ``clock.sleep(60)`` in a test runs a simulated minute.
"""

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from types import TracebackType

from rota.shared.clock import Event

AT_REST_SECONDS = 60.0
"""The most real seconds that the threads of a simulation may work before they wait again."""


class NotAtRest(Exception):
    """Threads of the simulation neither end nor wait by its clock: they block elsewhere."""


class SettableClock:
    """A clock for tests and simulations.

    clock = SettableClock(datetime(2026, 11, 21))
    clock.advance(60)
    """

    def __init__(self, moment: datetime, *, monotonic: float = 1000.0) -> None:
        self._zero = moment - timedelta(seconds=monotonic)
        self._passed = microseconds(monotonic)
        self._lock = threading.Lock()
        self._at_rest = threading.Condition(self._lock)
        self._members: set[threading.Thread] = set()
        self._awake: set[threading.Thread] = set()
        self._sleepers: list[tuple[int, int, _Waiter]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        """The simulated time, naive UTC."""
        return self._zero + timedelta(microseconds=self._passed)

    def at(self, monotonic: float) -> datetime:
        """The time, naive UTC, at a moment of ``monotonic``."""
        return self._zero + timedelta(seconds=monotonic)

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds."""
        return (moment - self.now()).total_seconds()

    def round_trip(self) -> float:
        """0: nothing is far away."""
        return 0.0

    def monotonic(self) -> float:
        """The seconds that have passed, added to those that the clock began with."""
        return self._passed / 1_000_000

    def measure(self) -> None:
        """Nothing to do: this clock is always right."""

    def observe(self, asked: float, time: datetime, answered: float) -> None:
        """Does nothing: the database follows this clock."""

    def calibrate(self) -> None:
        """Nothing to do: this clock is always right."""

    def host_offset_seconds(self) -> float:
        """0: a simulation has only this clock."""
        return 0.0

    def set_to(self, moment: datetime) -> None:
        """Set the time (naive UTC), as an administrator sets a server's clock: no time passes, and no thread wakes."""
        with self._lock:
            self._zero = moment - timedelta(microseconds=self._passed)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, moment by moment. A thread that waits for a moment goes on before the next comes.

        Raises NotAtRest if a thread of the simulation does not wait again.
        """
        end = self._passed + microseconds(seconds)
        while self._pass_until(end):
            pass

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``; a thread outside of the simulation advances the time meanwhile."""
        waiter = self.enlist(seconds)
        self.rest(waiter)

    def wait_until(self, event: Event, moment: float) -> bool:
        """Wait until the event is set; False if ``monotonic`` reaches ``moment`` before."""
        while not event.is_set():
            left = moment - self.monotonic()
            if left <= 0:
                return False
            event.wait(left)
        return True

    def event(self) -> "SettableEvent":
        """A new flag, not set."""
        return SettableEvent(self)

    def condition(self) -> "SettableCondition":
        """A new condition with a lock of its own."""
        return SettableCondition(self)

    def thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        """A daemon thread of the simulation, not started."""
        return _Member(self, name, target)

    def enlist(self, seconds: float | None) -> "_Waiter":
        """Register that the calling thread will wait for ``seconds`` (None: for ever), or until it is roused."""
        waiter = _Waiter(threading.current_thread())
        if seconds is not None:
            with self._lock:
                deadline = self._passed + max(microseconds(seconds), 0)
                heapq.heappush(self._sleepers, (deadline, next(self._order), waiter))
        return waiter

    def rest(self, waiter: "_Waiter") -> None:
        """Wait until the waiter is roused or its time has come."""
        if waiter.thread not in self._members:
            while not waiter.roused and self._pass_until(None, waiter):
                pass
        else:
            with self._lock:
                if not waiter.roused:
                    self._awake.discard(waiter.thread)
                    self._at_rest.notify_all()
        waiter.gate.acquire()

    def rouse(self, waiter: "_Waiter") -> bool:
        """Let a waiting thread continue; False if it was roused before."""
        with self._lock:
            return self._rouse(waiter)

    def join_in(self, thread: threading.Thread) -> None:
        """Add a thread to the simulation when it starts."""
        with self._lock:
            self._members.add(thread)
            self._awake.add(thread)

    def leave(self, thread: threading.Thread) -> None:
        """Remove a thread from the simulation when it has ended."""
        with self._lock:
            self._members.discard(thread)
            self._awake.discard(thread)
            self._at_rest.notify_all()

    def _rouse(self, waiter: "_Waiter") -> bool:
        if waiter.roused:
            return False
        waiter.roused = True
        if waiter.thread in self._members:
            self._awake.add(waiter.thread)
        waiter.gate.release()
        return True

    def _pass_until(self, end: int | None, own: "_Waiter | None" = None) -> bool:
        """Wait until all threads rest, then advance to the next moment that a thread waits for, if not after ``end``.

        False if there is no such moment. If ``own``, the waiter of the calling thread, was roused meanwhile, no time
        passes.
        """
        with self._lock:
            if not self._at_rest.wait_for(lambda: not self._awake, AT_REST_SECONDS):
                names = ", ".join(sorted(thread.name for thread in self._awake))
                raise NotAtRest(f"after {AT_REST_SECONDS:g} s these threads neither wait by the clock nor end: {names}")
            if own is not None and own.roused:
                return True
            while self._sleepers and self._sleepers[0][2].roused:
                heapq.heappop(self._sleepers)
            if self._sleepers and (end is None or self._sleepers[0][0] <= end):
                deadline, _, waiter = heapq.heappop(self._sleepers)
                self._passed = max(self._passed, deadline)
                self._rouse(waiter)
                return True
            self._passed = self._passed if end is None else max(self._passed, end)
            return False


def microseconds(seconds: float) -> int:
    """A duration in whole microseconds, the unit of the simulated time.

    It is rounded up, so that no thread wakes too early. A wait is at least one microsecond, so that a thread never
    wakes at the moment at which it began to wait.
    """
    if seconds <= 0:
        return 0
    return max(1, math.ceil(seconds * 1_000_000 - 0.01))  # 0.29 s in floating point may be more than 290,000 µs


class _Waiter:
    """A waiting thread; it waits to acquire ``gate``, a lock that is taken from the beginning."""

    __slots__ = ("gate", "roused", "thread")

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.gate = threading.Lock()
        self.gate.acquire()
        self.roused = False


class _Member(threading.Thread):
    def __init__(self, clock: SettableClock, name: str, target: Callable[[], object]) -> None:
        super().__init__(name=name, target=target, daemon=True)
        self._clock = clock

    def start(self) -> None:
        self._clock.join_in(self)
        super().start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._clock.leave(self)


class SettableCondition:
    """A ``threading.Condition`` whose timeouts are simulated time."""

    def __init__(self, clock: SettableClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until another thread notifies; False if none does within ``timeout`` seconds."""
        waiter = self._clock.enlist(timeout)
        self._waiters.append(waiter)
        self._lock.release()
        try:
            self._clock.rest(waiter)
        finally:
            self._lock.acquire()
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            return False
        return True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate is true, or for ``timeout`` seconds; returns its last value."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        while not predicate():
            left = None if end is None else end - self._clock.monotonic()
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiting threads."""
        while n > 0 and self._waiters:
            n -= self._clock.rouse(self._waiters.popleft())

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        self.notify(len(self._waiters))


class SettableEvent:
    """A ``threading.Event`` whose timeouts are simulated time."""

    def __init__(self, clock: SettableClock) -> None:
        self._changed = SettableCondition(clock)
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, and wake all threads that wait for it."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Unset the flag."""
        with self._changed:
            self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; False if it is not set within ``timeout`` seconds."""
        with self._changed:
            return self._is_set or self._changed.wait(timeout)
