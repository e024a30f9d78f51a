"""The delay queue: items that wait for their moment. It is a cache: every item is a row of the database, too."""

import heapq
import itertools
from collections.abc import Callable, Container, Iterable
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from rota.shared.clock import Clock
from rota.shared.domain.groups import Group
from rota.worker_service.pulling.fair_queue import FairQueue, Rank

T = TypeVar("T")

NOT_EARLY = timedelta(0)
FIRST = Rank(0)


class Others(NamedTuple, Generic[T]):
    """The room for items of some groups, while the next item has none."""

    room: int = 0
    but: Container[Group] = ()
    """The groups that have no part in it."""

    needs: Callable[[T], int] = lambda _: 1
    """How much of it an item needs."""


class DelayQueue(Generic[T]):
    """Gives out each item at its moment, by the database's clock. Among due items, the rank decides (``FairQueue``).

    ``early`` lets an item leave before its moment, together with another whose moment has come. That makes batches.
    ``longest_early`` is the longest ``early`` of any item. ``weigh`` tells how much room an item takes, by which groups
    take turns. If the next item has no room, it holds its place: all items behind it wait.

        queue = DelayQueue(clock)
        queue.put(run.due_at, run)
        queue.take(lambda: 10)   # waits until something is due; [] when closed
    """

    def __init__(
        self,
        clock: Clock,
        longest_early: timedelta = NOT_EARLY,
        *,
        weigh: Callable[[T], int] = lambda _: 1,
    ) -> None:
        self._clock = clock
        self._weigh = weigh
        self._longest_early = longest_early
        self._waiting: list[tuple[datetime, int, timedelta, Rank, T]] = []
        self._ready: FairQueue[T] = FairQueue()
        self._order = itertools.count()
        self._changed = clock.condition()
        self._needs_room = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ready)

    @property
    def closed(self) -> bool:
        """Whether the queue gives out no more items."""
        return self._closed

    @property
    def is_due(self) -> bool:
        """Whether an item is due, and waits to be taken."""
        with self._changed:
            rest = self._rest()
            return rest is not None and rest <= 0

    def put(self, moment: datetime, item: T, *, early: timedelta = NOT_EARLY, rank: Rank = FIRST) -> bool:
        """Let an item wait until a moment (naive UTC), or leave ``early`` with others. False: the queue is closed."""
        return self.put_all([(moment, item, rank)], early=early)

    def put_all(self, items: Iterable[tuple[datetime, T, Rank]], *, early: timedelta = NOT_EARLY) -> bool:
        """Let items wait, each until its moment, each with its rank. False: the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            now, before = self._clock.now(), self._waiting[0][0] if self._waiting else None
            some_are_due = False
            for moment, item, rank in items:
                if moment <= now:
                    self._ready.put(rank, moment, next(self._order), item, weight=self._weigh(item))
                    some_are_due = True
                else:
                    heapq.heappush(self._waiting, (moment, next(self._order), early, rank, item))
            if some_are_due or (self._waiting and (before is None or self._waiting[0][0] < before)):
                self._changed.notify()
            return True

    @property
    def groups(self) -> set[Group]:
        """The groups of which something is due, and waits for room."""
        with self._changed:
            self._make_ready()
            return self._ready.groups

    def take(
        self,
        room: Callable[[], int],
        others: Callable[[T], Others[T]] = lambda _: Others(),
        needs: Callable[[T], int] | None = None,
    ) -> list[T]:
        """Wait until an item is due and there is room for it; returns as many due items as there is room for.

        Returns [] when closed. ``room`` says how much room there is. Whoever makes room must call ``room_made``
        afterwards. ``needs`` says what an item needs of it: the next one is taken unless that is ``NO_ROOM``, those
        behind it as long as there is so much left. Where the next one has no room, ``others`` is given that, and says
        for which others there is some.
        """
        needs = needs or self._weigh
        with self._changed:
            while not self._closed:
                self._needs_room = True  # set before asking: room that is made after that is notified
                most = room()
                rest = self._rest()
                if rest is None or rest > 0:
                    self._needs_room = False
                    self._changed.wait(rest)
                    continue
                self._make_ready()
                beside = Others[T]()
                if not (items := self._ready.take_due(most, needs)):
                    beside = others(self._ready.first)
                    items = self._ready.take_others(beside.room, beside.but, beside.needs)
                if items:
                    self._needs_room = False
                    return items
                self._changed.wait(self._seconds_to_next() if max(most, beside.room) > 0 else None)
            self._needs_room = False
            return []

    def retain(self, wanted: Container[T]) -> None:
        """Forget the items that are not in ``wanted``. Of an item that was put twice, only the second entry stays."""
        with self._changed:
            put = [(order, item) for _, order, _, _, item in self._waiting]
            put += [(order, item) for _, order, item in self._ready]
            latest = {item: order for order, item in sorted(put, key=itemgetter(0))}
            kept = {order for item, order in latest.items() if item in wanted}
            self._waiting = [entry for entry in self._waiting if entry[1] in kept]
            heapq.heapify(self._waiting)
            self._ready.keep(lambda _, order: order in kept)

    def remove(self, late: Callable[[datetime, T], bool]) -> list[T]:
        """Take out the items that are due, wait for room, and are too late by their moments (naive UTC)."""
        with self._changed:
            self._make_ready()
            found = {order: item for moment, order, item in self._ready if late(moment, item)}
            if found:
                self._ready.keep(lambda _, order: order not in found)
            return list(found.values())

    def room_made(self) -> None:
        """Tell ``take`` to ask again for ``room``: there may be some now."""
        if self._needs_room:
            with self._changed:
                self._needs_room = False  # until take has asked again
                self._changed.notify()

    def close(self) -> list[T]:
        """Give out no more items; returns those that were waiting."""
        with self._changed:
            self._closed = True
            waiting = [item for _, _, item in self._ready] + [entry[-1] for entry in self._waiting]
            self._waiting.clear()
            self._ready.keep(lambda *_: False)
            self._changed.notify()
            return waiting

    def _rest(self) -> float | None:
        return 0 if self._ready else self._seconds_to_next()

    def _seconds_to_next(self) -> float | None:
        return self._clock.seconds_until(self._waiting[0][0]) if self._waiting else None

    def _make_ready(self) -> None:
        now = self._clock.now()
        not_yet = []
        while self._waiting and self._waiting[0][0] <= now + self._longest_early:
            entry = heapq.heappop(self._waiting)
            moment, order, early, rank, item = entry
            if moment - early <= now:
                self._ready.put(rank, moment, order, item, weight=self._weigh(item))
            else:
                not_yet.append(entry)
        for entry in not_yet:
            heapq.heappush(self._waiting, entry)
