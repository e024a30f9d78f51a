"""One clock: the database's. A process keeps its offset to it and never compares host clocks.

The offset is measured against CLOCK_BOOTTIME, which no one can set and which runs through suspend, as the middle of
the measuring round trip (Cristian's algorithm, 1989). A wrong host clock therefore changes nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

SAMPLES = 10
"""How many measurements are kept; the one with the shortest round trip is believed."""


EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - as all times here, naive UTC


TICK_PHASE_SECONDS = 0.5
"""Schedulers look for work, every second as they do by default, half way between the full ones, at which most fires
start; workers ask a little later. So what nobody could prepare, a task just created or a run asked for by hand, waits
for one period and not for two."""


def boottime() -> float:
    """Seconds since boot, suspended time included. For leases and timeouts, never for telling the time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def host_now() -> datetime:
    """The host's own time, naive UTC: for ``rota cron``, which has no database to ask. Nothing is decided by it."""
    return datetime.now(UTC).replace(tzinfo=None)


def seconds_to_next(now: datetime, period: float, phase: float = 0.0) -> float:
    """How long from ``now`` (naive UTC) until the next moment that lies ``phase`` seconds behind a multiple of
    ``period`` seconds: for processes that are to look at the same time, or one after another.

    seconds_to_next(datetime(2026, 11, 21, 0, 0, 0, 250_000), period=1)   # 0.75
    """
    since = (now - EPOCH).total_seconds() - phase
    return period - since % period


class Clock(Protocol):
    """What tells the time, as naive UTC. Pure code takes the time as an argument instead."""

    def now(self) -> datetime:
        """The database's time, naive UTC, microseconds."""
        ...

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds; negative when it has passed."""
        ...


class DatabaseClock:
    """The database's time, told from CLOCK_BOOTTIME and a measured offset.

    clock = DatabaseClock(read=lambda: ...)   # a round trip that returns the database's naive UTC time
    clock.measure()
    clock.now()
    """

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, datetime, float]] = deque(maxlen=SAMPLES)
        self._zero: datetime | None = None

    def measure(self) -> None:
        """Take one measurement; believe the one with the shortest round trip among the last ``SAMPLES``."""
        before = boottime()
        database_time = self._read()
        after = boottime()
        zero = database_time - timedelta(seconds=(before + after) / 2)
        with self._lock:
            round_trip = after - before
            if self._zero is not None and abs((zero - self._zero).total_seconds()) > round_trip + 0.5:
                self._samples.clear()  # the database's clock was set, or its host changed
            self._samples.append((round_trip, zero, after))
            self._zero = min(self._samples)[1]

    def calibrate(self, times: int = 5) -> None:
        """Measure several times: the first round trip may have opened a connection."""
        for _ in range(times):
            self.measure()

    def now(self) -> datetime:
        """The database's time, naive UTC, microseconds."""
        while (zero := self._zero) is None:
            self.measure()
        return zero + timedelta(seconds=boottime())

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds; negative when it has passed."""
        return (moment - self.now()).total_seconds()

    def at(self, boottime_seconds: float) -> datetime:
        """The database's time at a CLOCK_BOOTTIME moment of this host, naive UTC."""
        while (zero := self._zero) is None:
            self.measure()
        return zero + timedelta(seconds=boottime_seconds)

    def host_offset_seconds(self) -> float:
        """How far the host's own clock is ahead of the database's: for ``rota doctor`` to show, nothing else."""
        return (host_now() - self.now()).total_seconds()


class SettableClock:
    """A clock for tests, which stands still until it is set.

    clock = SettableClock(datetime(2026, 11, 21))
    clock.advance(60)
    """

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        """The time it was set to, naive UTC."""
        return self._moment

    def seconds_until(self, moment: datetime) -> float:
        """How long until a naive UTC moment, in seconds."""
        return (moment - self._moment).total_seconds()

    def advance(self, seconds: float) -> None:
        """Move it on."""
        self._moment += timedelta(seconds=seconds)
