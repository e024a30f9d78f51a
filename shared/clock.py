"""The one clock of Rota is the database's. Each process measures its offset to it, and never compares host clocks.

The offset is that of the database's clock to CLOCK_BOOTTIME, which nobody can set and which runs through suspend. The
process takes the database's time as that of the middle of the round trip (Cristian's algorithm, 1989). So a wrong host
clock changes nothing.

The composition root hands a ``Clock`` to every object that needs the time, a duration or a rest. So a test can hand in
a clock that it sets (``rota.shared.settable_clock``).
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Protocol

from rota.shared.offset import CALIBRATIONS, Offset, Sample

CALIBRATION_SECONDS = 0.25
"""A database that seems to be far away after a few measurements is measured again for so long: on a busy machine it
answers late at times."""

MICROSECOND = timedelta(microseconds=1)

NOISE = timedelta(milliseconds=10)
"""The offset is measured again and again. It moves by no more than this while nobody sets a clock."""


FAR_SECONDS = 0.005
"""From such a round trip on, the database is far away. Services then open connections before they are needed, and
workers claim without reading first (``Claims``) and are hopeful when they have just started (``Slots.expected``)."""

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - as all times here, naive UTC


TICK_PHASE_SECONDS = 0.5
"""Schedulers tick half way between two full seconds, because most fires start at a full second. Workers poll a little
later. So an ad-hoc run waits at most one period."""


WATCH_SECONDS = 0.1
"""``HostTimer.wait_until`` may return so late after a moment that came while the machine was suspended."""


boottime: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, suspended time included. It is for durations, not for the time of day."""


def host_now() -> datetime:
    """The host's own time, naive UTC. It is for ``rota cron``, which has no database; Rota decides nothing by it."""
    return datetime.now(UTC).replace(tzinfo=None)


def seconds_to_next(now: datetime, period: float, phase: float = 0.0) -> float:
    """Seconds from ``now`` (naive UTC) to the next moment that is ``phase`` seconds after a multiple of ``period``.

    So several processes can look for work at the same moment, or one a fixed time after another.

    seconds_to_next(datetime(2026, 11, 21, 0, 0, 0, 250_000), period=1)   # 0.75
    """
    every = round(period * 1_000_000)  # in whole microseconds: floats could put the moment just after the wake-up
    since = (now - EPOCH) // MICROSECOND - round(phase * 1_000_000)
    return (every - since % every) / 1_000_000


class Event(Protocol):
    """A flag to wait for, like ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether the flag is set."""
        ...

    def set(self) -> None:
        """Set the flag, and wake all threads that wait for it."""
        ...

    def clear(self) -> None:
        """Unset the flag."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; False if it is not set within ``timeout`` seconds."""
        ...


class Condition(Protocol):
    """A lock, and a way to wait for changes that other threads make under it, like ``threading.Condition``."""

    def __enter__(self) -> bool:
        """Take the lock."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until another thread notifies; False if none does within ``timeout`` seconds."""
        ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate is true, or for ``timeout`` seconds; returns its last value."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiting threads."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        ...


class Timer(Protocol):
    """Measures durations and waits; it does not know the time of day."""

    def monotonic(self) -> float:
        """Seconds since some moment. It never goes back, and it counts time in suspend."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...

    def wait_until(self, event: Event, moment: float) -> bool:
        """Wait until the event is set; False if ``monotonic`` reaches ``moment`` before."""
        ...

    def event(self) -> Event:
        """A new flag, not set."""
        ...

    def condition(self) -> Condition:
        """A new condition with a lock of its own."""
        ...

    def thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        """A daemon thread, not started, in which ``target`` may wait by this timer."""
        ...


class Clock(Timer, Protocol):
    """A timer that also knows the time, naive UTC. Pure code takes the time as an argument instead."""

    def now(self) -> datetime:
        """The database's time, naive UTC, microseconds."""
        ...

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds; negative when it has passed."""
        ...

    def at(self, monotonic: float) -> datetime:
        """The database's time, naive UTC, at a moment of ``monotonic``."""
        ...

    def measure(self) -> None:
        """Compare with the database's clock once more."""
        ...

    def observe(self, asked: float, time: datetime, answered: float) -> None:
        """Take in a time (naive UTC) that the database told between two moments of ``monotonic``."""
        ...

    def calibrate(self) -> None:
        """Compare with the database's clock several times, for the first and exact measurement."""
        ...

    def round_trip(self) -> float:
        """How long a question to the database and its answer take on the way, in seconds."""
        ...

    def host_offset_seconds(self) -> float:
        """How far the host's own clock is ahead of the database's: for ``rota doctor`` to show, nothing else."""
        ...


class HostTimer:
    """The timer of the host: CLOCK_BOOTTIME and Python's own threads."""

    def __init__(self, monotonic: Callable[[], float] = boottime) -> None:
        self.monotonic = monotonic
        """Seconds since boot, suspended time included. A function of C's: it is asked four times for each run."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(seconds)

    def wait_until(self, event: Event, moment: float) -> bool:
        """Wait until the event is set; False if ``monotonic`` reaches ``moment`` before.

        Python's own waits do not count time in suspend. So this method reads the clock every ``WATCH_SECONDS``.
        """
        while not event.is_set():
            left = moment - self.monotonic()
            if left <= 0:
                return False
            event.wait(min(left, WATCH_SECONDS))
        return True

    def event(self) -> threading.Event:
        """A new flag, not set."""
        return threading.Event()

    def condition(self) -> threading.Condition:
        """A new condition with a lock of its own."""
        return threading.Condition()

    def thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        """A daemon thread, not started."""
        return threading.Thread(target=target, name=name, daemon=True)


class DatabaseClock(HostTimer):
    """The database's time, computed from CLOCK_BOOTTIME and a measured offset.

    clock = DatabaseClock(read=lambda: ...)   # a round trip that returns the database's naive UTC time
    clock.measure()
    clock.now()
    """

    def __init__(
        self,
        read: Callable[[], datetime],
        *,
        monotonic: Callable[[], float] = boottime,
        host_now: Callable[[], datetime] = host_now,
    ) -> None:
        super().__init__(monotonic)
        self._read = read
        self._host_now = host_now
        self._lock = threading.Lock()
        self._offset = Offset()

    def measure(self) -> None:
        """Take one measurement. Those before it that contradict it are dropped (``Offset``)."""
        asked = self.monotonic()
        time = self._read()
        answered = self.monotonic()
        with self._lock:
            self._offset.take(Sample.of(asked, time, answered))

    def observe(self, asked: float, time: datetime, answered: float) -> None:
        """Take in a time (naive UTC) that the database told between two moments of ``monotonic``.

        It tells whether a clock was set; soon after that a quick one makes the time exact. It is no measurement else:
        the statement that told it also did other work, and many such statements must not displace the measurements.
        """
        with self._lock:
            self._offset.observe(Sample.of(asked, time, answered))

    def calibrate(self) -> None:
        """Measure ``CALIBRATIONS`` times, because the first round trip may include opening a connection.

        If all of them took so long that the database seems to be far away, go on for ``CALIBRATION_SECONDS``.
        """
        until = self.monotonic() + CALIBRATION_SECONDS
        for _ in range(CALIBRATIONS):
            self.measure()
        while self.round_trip() >= FAR_SECONDS and self.monotonic() < until:
            self.measure()

    def now(self) -> datetime:
        """The database's time, naive UTC, microseconds."""
        return self.at(self.monotonic())

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds; negative when it has passed."""
        return (moment - self.now()).total_seconds()

    def at(self, monotonic: float) -> datetime:
        """The database's time at a CLOCK_BOOTTIME moment of this host, naive UTC."""
        while (zero := self._offset.zero) is None:
            self.measure()
        return zero + MICROSECOND * round(monotonic * 1e6)  # takes half as long as timedelta(seconds=monotonic)

    def round_trip(self) -> float:
        """The shortest round trip of the measurements that are kept, in seconds; 0 before the first."""
        return self._offset.round_trip

    def host_offset_seconds(self) -> float:
        """How far the host's own clock is ahead of the database's: for ``rota doctor`` to show, nothing else."""
        return (self._host_now() - self.now()).total_seconds()
