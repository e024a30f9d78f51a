"""The delay queue: things that wait for their moment. A cache of rows; what is in it is in the database too."""

import heapq
import itertools
import threading
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from shared.clock import Clock

T = TypeVar("T")


class DelayQueue(Generic[T]):
    """Gives out each thing at its moment, by the database's clock, ``ahead_seconds`` early if asked, never earlier.

    queue = DelayQueue(clock)
    queue.put(run.due_at, run)
    queue.take(most=10)      # waits until something is due; [] when woken or closed
    """

    def __init__(self, clock: Clock, ahead_seconds: float = 0) -> None:
        self._clock = clock
        self._ahead = timedelta(seconds=ahead_seconds)
        self._heap: list[tuple[datetime, int, T]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def closed(self) -> bool:
        """Whether nothing more is given out."""
        return self._closed

    def put(self, moment: datetime, thing: T) -> None:
        """Let a thing wait until a moment (naive UTC)."""
        with self._changed:
            heapq.heappush(self._heap, (moment, next(self._order), thing))
            if self._heap[0][2] is thing:
                self._changed.notify()

    def take(self, most: int) -> list[T]:
        """Wait until something is due; give out what is, at most ``most`` (0: wait to be woken). [] when woken."""
        with self._changed:
            while not self._woken and not self._closed:
                rest = self._rest() if most > 0 else None
                if rest is not None and rest <= 0:
                    return self._due(most)
                self._changed.wait(rest)
            self._woken = False
            return []

    def wake(self) -> None:
        """End a present or the next wait: something else has changed."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> list[T]:
        """Give out nothing more; returns what was waiting."""
        with self._changed:
            self._closed = True
            waiting = [thing for _, _, thing in self._heap]
            self._heap.clear()
            self._changed.notify()
            return waiting

    def _rest(self) -> float | None:
        return self._clock.seconds_until(self._heap[0][0] - self._ahead) if self._heap else None

    def _due(self, most: int) -> list[T]:
        horizon = self._clock.now() + self._ahead
        due: list[T] = []
        while self._heap and len(due) < most and self._heap[0][0] <= horizon:
            due.append(heapq.heappop(self._heap)[2])
        return due
