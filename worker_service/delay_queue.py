"""The delay queue: things that wait for their moment. A cache of rows; what is in it is in the database too."""

import heapq
import itertools
import threading
from collections.abc import Callable, Container, Iterable
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Generic, TypeVar

from shared.clock import Clock

T = TypeVar("T")

NOT_EARLY = timedelta(0)


class DelayQueue(Generic[T]):
    """Gives out each thing at its moment, by the database's clock; of those that are due, the lowest rank first.

    Things may be put so that they go along a little early, when another's moment has come: so they come in batches.

        queue = DelayQueue(clock)
        queue.put(run.due_at, run)
        queue.take(lambda: 10)   # waits until something is due; [] when woken or closed
    """

    def __init__(self, clock: Clock, longest_early: timedelta = NOT_EARLY) -> None:
        self._clock = clock
        self._longest_early = longest_early
        self._waiting: list[tuple[datetime, int, timedelta, int, T]] = []
        self._ready: list[tuple[int, datetime, int, T]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._hungry = False
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ready)

    @property
    def closed(self) -> bool:
        """Whether nothing more is given out."""
        return self._closed

    def put(self, moment: datetime, thing: T, *, early: timedelta = NOT_EARLY, rank: int = 0) -> bool:
        """Let a thing wait until a moment (naive UTC), or go along so much earlier; False: the queue is closed."""
        return self.put_all([(moment, thing, rank)], early=early)

    def put_all(self, things: Iterable[tuple[datetime, T, int]], *, early: timedelta = NOT_EARLY) -> bool:
        """Let things wait, each until its moment, each with its rank; False: the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            before = self._waiting[0][0] if self._waiting else None
            for moment, thing, rank in things:
                heapq.heappush(self._waiting, (moment, next(self._order), early, rank, thing))
            if self._waiting and (before is None or self._waiting[0][0] < before):
                self._changed.notify()
            return True

    def take(self, room: Callable[[], int]) -> list[T]:
        """Wait until something is due and there is room for it; give out as much as there is room for. [] when woken.

        Who makes room calls ``room_made`` afterwards.
        """
        with self._changed:
            while not self._woken and not self._closed:
                self._hungry = True  # before the look: room that is made after it is told
                most = room()
                self._hungry = most <= 0
                rest = None if self._hungry else self._rest()
                if rest is not None and rest <= 0:
                    return self._due(most)
                self._changed.wait(rest)
            self._woken = self._hungry = False
            return []

    def retain(self, wanted: Container[T]) -> None:
        """Forget what is not among these, and of what was put twice what was put first."""
        with self._changed:
            latest = {thing: order for _, order, _, _, thing in sorted(self._waiting, key=itemgetter(1))}
            latest.update((thing, order) for _, _, order, thing in self._ready)
            kept = {order for thing, order in latest.items() if thing in wanted}
            self._waiting = [entry for entry in self._waiting if entry[1] in kept]
            self._ready = [entry for entry in self._ready if entry[2] in kept]
            heapq.heapify(self._waiting)
            heapq.heapify(self._ready)

    def remove(self, before: datetime) -> list[T]:
        """Take out what should have been given out before a moment (naive UTC), for want of room still waits."""
        with self._changed:
            late = [thing for _, moment, _, thing in self._ready if moment < before]
            late += [entry[-1] for entry in self._waiting if entry[0] < before]
            if late:
                self._ready = [entry for entry in self._ready if entry[1] >= before]
                self._waiting = [entry for entry in self._waiting if entry[0] >= before]
                heapq.heapify(self._ready)
                heapq.heapify(self._waiting)
            return late

    def room_made(self) -> None:
        """There may be room where there was none."""
        if self._hungry:
            with self._changed:
                self._hungry = False  # until it has looked again
                self._changed.notify()

    def wake(self) -> None:
        """End a present or the next wait: something else has changed."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> list[T]:
        """Give out nothing more; returns what was waiting."""
        with self._changed:
            self._closed = True
            waiting = [entry[-1] for entry in self._ready] + [entry[-1] for entry in self._waiting]
            self._waiting.clear()
            self._ready.clear()
            self._changed.notify()
            return waiting

    def _rest(self) -> float | None:
        if self._ready:
            return 0
        return self._clock.seconds_until(self._waiting[0][0]) if self._waiting else None

    def _due(self, most: int) -> list[T]:
        now = self._clock.now()
        not_yet = []
        while self._waiting and self._waiting[0][0] <= now + self._longest_early:
            entry = heapq.heappop(self._waiting)
            moment, order, early, rank, thing = entry
            if moment - early <= now:
                heapq.heappush(self._ready, (rank, moment, order, thing))
            else:
                not_yet.append(entry)
        for entry in not_yet:
            heapq.heappush(self._waiting, entry)
        return [heapq.heappop(self._ready)[-1] for _ in range(min(most, len(self._ready)))]
