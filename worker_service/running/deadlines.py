"""Deadlines: when a worker's runs have to be stopped, killed, or given up. They are looked for by a loop."""

import math
from collections.abc import Callable, Iterable, Iterator

from rota.shared.clock import Timer
from rota.shared.loop import Loop
from rota.worker_service.running.active import Active

DEADLINE_SECONDS, LONGEST_LOOK_SECONDS = 0.1, 1.0
"""The shortest and the longest time between two searches for what is over: a thread's wait omits suspend."""


class Deadlines:
    """The deadlines of the runs that a worker holds. ``expire`` goes through those that are over.

    deadlines.loop.start()
    deadlines.within(active, 60)
    for active in deadlines.over(runs): …
    rest = deadlines.rest()
    """

    def __init__(self, expire: Callable[[], float], timer: Timer) -> None:
        self._monotonic = timer.monotonic
        self._earliest = math.inf
        self.loop = Loop("deadlines", expire, timer)

    def within(self, active: Active, seconds: float) -> None:
        """Set the deadline of a run, from now."""
        self.at(active, self._monotonic() + seconds)

    def at(self, active: Active, deadline: float) -> None:
        """Set the deadline of a run, in seconds of ``monotonic``."""
        active.deadline = deadline
        if deadline < self._earliest:
            self._earliest = deadline
            self.loop.wake()

    def over(self, runs: Iterable[Active]) -> Iterator[Active]:
        """The runs whose deadline is over, but those whose call is just being started."""
        now, self._earliest = self._monotonic(), math.inf  # first: a deadline that is set meanwhile wakes the loop
        for active in runs:
            if active.deadline is None:
                continue
            if active.deadline > now or (active.running is None and active.calls):
                self._earliest = min(self._earliest, active.deadline)
            else:
                yield active

    def rest(self) -> float:
        """The seconds until the next search."""
        if self._earliest == math.inf:
            return math.inf
        return min(max(self._earliest - self._monotonic(), DEADLINE_SECONDS), LONGEST_LOOK_SECONDS)
