"""The worker's slots: how many are taken, how many are free, and how many are expected to become free soon.

An instance takes a slot from its claim until its last handler has ended. Its report is written later, without a slot.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from rota.shared.clock import Timer

ENDS_KEPT = 500
FEWEST_ENDS = 10
SHORTEST_SECONDS = 0.001
"""Free slots are expected by how long the last ``ENDS_KEPT`` instances took. With fewer than ``FEWEST_ENDS``, none are.
An instance counts as if it took at least ``SHORTEST_SECONDS``."""


CLAIMED, STARTED, ENDED, GONE = range(4)
"""How far an instance has come in this process; a slot never goes back. ``ENDED``: the last handler has ended, and the
report is not written yet. ``GONE``: this process no longer holds the instance."""


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one instance. Only ``Slots`` changes it."""

    stage: int = field(default=CLAIMED, init=False)
    started: float = field(default=0.0, init=False)
    """When the instance was started, in seconds of the timer's ``monotonic``."""


S = TypeVar("S", bound=Slot)


class Slots:
    """Counts the slots of one worker, and calls those who wait for a free one.

        slots = Slots(capacity=50, batch=1000, timer=clock)
        slots.on_free(queue.room_made)
        slots.claim(2); slots.start([slot]); slots.end(slot); slots.leave(slot)

    A thread is abandoned when its call was stopped and has not returned. It takes a slot, as an instance does.
    """

    def __init__(self, capacity: int, batch: int, timer: Timer) -> None:
        self.capacity = capacity
        self._batch = batch
        self._monotonic = timer.monotonic
        self._lock = threading.Lock()
        self._held = 0
        self._ended = 0
        self._running = 0
        self._started = 0
        self._abandoned = 0
        self._ends: deque[tuple[float, float]] = deque()
        """When each of the last instances ended, and how long it took, in seconds."""

        self._took = 0.0
        self._listeners: tuple[Callable[[], None], ...] = ()

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` each time that a slot may have become free or an instance has left, on any thread."""
        self._listeners = (*self._listeners, listener)

    @property
    def busy(self) -> int:
        """How many slots are taken by instances and by abandoned threads."""
        return self._held - self._ended + self._abandoned

    @property
    def started(self) -> int:
        """How many instances have been started."""
        return self._started

    def idle(self) -> int:
        """How many of the claimed instances may start now."""
        return self.capacity - self._running - self._abandoned

    def claimable(self, seconds: float) -> int:
        """How many instances may be claimed: the free slots, and those expected to become free within ``seconds``.

        At most a batch at a time. And at most two batches are held beyond the capacity: when reports cannot be
        written, the worker claims no more.
        """
        free = self.capacity - self.busy
        bound = self.capacity + 2 * self._batch - self._held
        return min(free + self.expected(seconds), bound, self._batch)

    def expected(self, seconds: float) -> int:
        """Slots expected to become free within ``seconds``, beyond those that are free now.

        There are two estimates, and the greater counts. One is the number of instances that ended in the last
        ``seconds``. The other is the number of instances that the idle slots can run one after another in that time,
        if each takes as long as the mean of the last ``ENDS_KEPT``, without those that are claimed already and wait.
        Where handlers take long, both are small.
        """
        idle = max(self.idle(), 0)
        waiting = self._held - self._ended - self._running
        since = self._monotonic() - seconds
        with self._lock:
            if len(self._ends) < FEWEST_ENDS:
                return 0
            mean = self._took / len(self._ends)
            recent = sum(1 for _ in takewhile(lambda end: end[0] > since, reversed(self._ends)))
        return max(recent, int(idle * seconds / max(mean, SHORTEST_SECONDS)) - waiting)

    def claim(self, number: int) -> None:
        """Count so many instances as claimed."""
        with self._lock:
            self._held += number

    def start(self, slots: Iterable[S]) -> list[S]:
        """Count these as started. Returns them without those that have left since their claim."""
        with self._lock:
            now = self._monotonic()
            starting = [slot for slot in slots if slot.stage == CLAIMED]
            for slot in starting:
                slot.stage, slot.started = STARTED, now
            self._running += len(starting)
            self._started += len(starting)
        return starting

    def end(self, slot: Slot) -> None:
        """Free the slot: the instance's last handler has ended. Does nothing when the slot is free already."""
        with self._lock:
            if slot.stage >= ENDED:
                return
            if slot.stage == STARTED:
                self._running -= 1
                self._note_end(slot.started)
            slot.stage = ENDED
            self._ended += 1
        self._notify()

    def leave(self, slot: Slot) -> None:
        """Forget the instance: it is reported, handed back or lost."""
        with self._lock:
            if slot.stage == GONE:
                return
            self._remove(slot)
        self._notify()

    def withdraw(self, slot: Slot) -> bool:
        """Forget the instance if it has not ended; returns whether it was so. Calls nobody: the worker is stopping."""
        with self._lock:
            if slot.stage >= ENDED:
                return False
            self._remove(slot)
            return True

    def abandon(self, change: int) -> None:
        """Count one more (+1) or one less (-1) thread that is occupied by a call which was stopped."""
        with self._lock:
            self._abandoned += change
        if change < 0:
            self._notify()

    def _remove(self, slot: Slot) -> None:
        self._held -= 1
        self._running -= slot.stage == STARTED
        self._ended -= slot.stage == ENDED
        slot.stage = GONE

    def _note_end(self, started: float) -> None:
        now = self._monotonic()
        if len(self._ends) == ENDS_KEPT:
            self._took -= self._ends.popleft()[1]
        self._ends.append((now, now - started))
        self._took += now - started

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
