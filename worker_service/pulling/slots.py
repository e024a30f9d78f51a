"""The worker's slots, or a pool's: how many are taken, how many are free, how many are expected to become free soon.

An instance takes a slot, or as many as its weight says, from its claim until its last handler has ended. While the
report of a node is written, it lends its slot to another instance. It gets one again before its next node starts, and
before any new instance does.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from rota.shared.clock import Timer
from rota.shared.domain.groups import Group
from rota.worker_service.pulling.ends import SHORTEST_SECONDS, Ends
from rota.worker_service.pulling.slot import BETWEEN, CLAIMED, ENDED, GONE, STARTED, Slot

KEPT_SHARE = 10
"""One slot of so many is kept from crowds while others wait beside them: the handlers of a crowd may take long."""

LENT_SECONDS = 0.1
"""More instances may have begun than there are slots: as many as the slots serve in this time, one after another, at
the mean time of the last ones. So an instance waits about this long for its next slot at most. Where handlers take
long, no new one begins beyond the slots."""

LENT_BYTES = 16 * 1024 * 1024
"""Nothing more is lent while the results of the instances between two nodes take so many bytes."""

HELD_BYTES = 64 * 1024 * 1024
"""While the instances that the worker holds have so many bytes of large params and results, as JSON texts, no other one
with large ones is claimed. As Python's values they take more than that."""

S = TypeVar("S", bound=Slot)


class Slots:
    """Counts the slots of one worker, or of one of its pools, and calls those who wait for a free one.

        slots = Slots(capacity=50, batch=1000, timer=clock)
        slots.on_free(queue.room_made)
        slots.claim([slot, other]); slots.start([slot]); slots.end(slot); slots.leave(slot)
        slots.lend(slot, size=200); slots.take_back(slot) or slots.next_in_line()   # between two nodes

    A thread is abandoned when its call was stopped and has not returned. It takes a slot, as an instance does.
    """

    def __init__(self, capacity: int, batch: int, timer: Timer, *, pool: str | None = None) -> None:
        """``pool``: the pool whose threads they are; None: they are the worker's own."""
        self.capacity, self.pool = capacity, pool
        self._batch = batch
        self._monotonic = timer.monotonic
        self._lock = threading.Lock()
        self._held = 0
        self._large = 0
        self._ended = 0
        self._running = 0
        self._running_of: dict[Group, int] = {}
        """How many slots the instances of each group have that run, without those whose group is not known."""

        self._between = 0
        self._between_size = 0
        self._started = 0
        self._abandoned = 0
        self._line: dict[Slot, None] = {}
        """Those between two nodes that wait for a slot, in their order."""

        self._in_line = 0
        """How many slots they take together."""

        self._ends = Ends()
        self._listeners: tuple[Callable[[], None], ...] = ()

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` each time that a slot may have become free or an instance has left, on any thread."""
        self._listeners = (*self._listeners, listener)

    @property
    def busy(self) -> int:
        """How many slots are taken by instances and by abandoned threads. More than there are, if some are lent."""
        return self._held - self._ended + self._abandoned

    @property
    def started(self) -> int:
        """How many instances have been started."""
        return self._started

    @property
    def line(self) -> int:
        """How many instances wait for the slot of their next node."""
        return len(self._line)

    def idle(self) -> int:
        """How many slots are free for claimed instances. Those that wait for their next node come before them."""
        beyond = self._between - self._lendable() if self._between else 0
        return self.capacity - self._running - max(self._abandoned + self._in_line, beyond)

    def takes(self, weight: int) -> int:
        """How many slots must be free for a run of this weight: as many, or all, if there are fewer."""
        return min(weight, max(self.capacity - self._abandoned, 1))

    @property
    def kept(self) -> int:
        """How many slots no crowd gets while others wait beside it."""
        return max(self.capacity - self._abandoned, 0) // KEPT_SHARE

    def needs(self, weight: int, crowds: Collection[Group] = ()) -> int:
        """How many slots must be free for a run of this weight in turn: what it takes, and what is kept from crowds.

        One that takes the kept slots, too, does not wait for them twice.
        """
        takes = self.takes(weight)
        return takes + self.kept_from(crowds) if crowds and not self.takes_kept(weight) else takes

    def takes_kept(self, weight: int) -> bool:
        """Whether a run of this weight takes some of the slots that are kept from crowds."""
        return self.takes(weight) > self.takes(self.capacity) - self.kept

    def kept_from(self, crowds: Collection[Group]) -> int:
        """How many of the kept slots no instance beside these crowds has. All other slots go by turns."""
        others = sum(slots for group, slots in list(self._running_of.items()) if group not in crowds)
        return max(self.kept - others, 0)

    def claimable(self, seconds: float, *, hopeful: bool = False) -> int:
        """How many slots may be claimed: those that are free, and those expected to become free within ``seconds``.

        At most a batch at a time. And at most two batches are held beyond the capacity: when reports cannot be
        written, the worker claims no more.
        """
        lent = min(self._between, self._lendable()) if self._between else 0
        free = self.capacity + lent - self.busy
        bound = self.capacity + 2 * self._batch - self._held
        return min(free + self.expected(seconds, hopeful=hopeful), bound, self._batch)

    def claimable_beside(self) -> int:
        """How many instances of a group may be claimed although others that are claimed wait for slots."""
        return min(self.capacity, self.capacity + 2 * self._batch - self._held)

    def expected(self, seconds: float, *, hopeful: bool = False) -> int:
        """Slots expected to become free within ``seconds``, beyond those that are free now.

        There are two estimates, and the greater counts. One is the number of instances that ended in the last
        ``seconds``. The other is the number of instances that the idle slots can run one after another in that time,
        if each takes as long as the mean of the last ``ENDS_KEPT``, without those that are claimed already and wait.
        Where handlers take long, both are small.

        A worker that has run next to nothing expects none, unless it is ``hopeful``: then each instance counts as the
        shortest. With the database far away, the rest of its first herd would else be late by a round trip. A pool is
        never hopeful: it is for what takes long, and what is claimed for it in vain waits until it is handed back.
        """
        idle = max(self.idle(), 0)
        waiting = self._waiting
        since = self._monotonic() - seconds
        with self._lock:
            if not self._ends.is_known and (not hopeful or self.pool is not None):
                return 0
            mean = self._ends.mean if self._ends.is_known else SHORTEST_SECONDS
            recent = len(self._ends.since(since))
        return max(recent, int(idle * seconds / mean) - waiting)

    def lasting(self, seconds: float) -> float:
        """For how many seconds the claimed instances that wait will last, if they end as the last ones did.

        Those that ended within the last ``seconds`` count, of ``ENDS_KEPT`` at most; inf if none did.
        """
        now = self._monotonic()
        with self._lock:
            recent = self._ends.since(now - seconds)
        return self._waiting * (now - recent[-1]) / len(recent) if recent else math.inf

    @property
    def _waiting(self) -> int:
        """How many instances are claimed and have not started."""
        return self._held - self._ended - self._running - self._between

    @property
    def room(self) -> int:
        """For how many bytes of large params and results more there is room."""
        return HELD_BYTES - self._large

    def claim(self, slots: Collection[Slot]) -> None:
        """Count these as claimed."""
        with self._lock:
            for slot in slots:
                slot.of = self
            self._held += sum(slot.weight for slot in slots)
            self._large += sum(slot.large for slot in slots)

    def start(self, slots: Iterable[S]) -> list[S]:
        """Give these their slots, in their order, until too few are free for one; returns those that got them.

        The others stay ``CLAIMED``, or have left since their claim.
        """
        starting: list[S] = []
        with self._lock:
            now = self._monotonic()
            free = self.capacity - self._running - self._abandoned - self._in_line
            for slot in slots:
                if slot.stage != CLAIMED:
                    continue
                free -= 1 if slot.weight == 1 else self.takes(slot.weight)
                if free < 0:
                    break
                slot.stage, slot.since = STARTED, now
                self._run(slot, slot.weight)
                starting.append(slot)
            self._started += len(starting)
        if any(slot.group is not None for slot in starting):
            self._notify()  # fewer slots are kept from crowds
        return starting

    def lend(self, slot: Slot, size: int) -> None:
        """Free the slot until the instance's next node. ``size``: about how many bytes this node's result is."""
        with self._lock:
            if slot.stage != STARTED:
                return
            slot.stage = BETWEEN
            slot.had += self._monotonic() - slot.since
            slot.size += size
            self._run(slot, -slot.weight)
            self._between += slot.weight
            self._between_size += slot.size
        self._notify()

    def take_back(self, slot: Slot) -> bool:
        """Give a slot to an instance between two nodes. False: it waits in the line for one, or has left."""
        with self._lock:
            if slot.stage != BETWEEN:
                return False
            if self._line or not self._has_room(slot):
                if slot not in self._line:
                    self._line[slot] = None
                    self._in_line += slot.weight
                return False
            self._serve(slot)
            return True

    def next_in_line(self) -> Slot | None:
        """Give a free slot to the first that waits for its next node; returns it, or None."""
        with self._lock:
            first = next(iter(self._line), None)
            if first is None or not self._has_room(first):
                return None
            self._serve(first)
            return first

    def leave_line(self, slot: Slot) -> bool:
        """Let it wait for no slot any more: it will run no node. Returns whether it waited."""
        with self._lock:
            return self._out_of_line(slot)

    def end(self, slot: Slot) -> None:
        """Free the slot: the instance's last handler has ended. Does nothing when the slot is free already."""
        with self._lock:
            if slot.stage >= ENDED:
                return
            if slot.stage != CLAIMED:
                self._note_end(slot)
            self._part(slot)
            slot.stage = ENDED
            self._ended += slot.weight
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
        """Count more (+) or fewer (-) slots whose threads are occupied by calls that were stopped."""
        with self._lock:
            self._abandoned += change
        if change < 0:
            self._notify()

    def _lendable(self) -> int:
        """How many instances may be between two nodes at most while new ones start. In a pool none may."""
        if self.pool is not None or not self._ends.is_known or self._between_size > LENT_BYTES:
            return 0
        return min(int(self.capacity * LENT_SECONDS / self._ends.mean), self._batch)

    def _has_room(self, slot: Slot) -> bool:
        return self._running + self._abandoned + self.takes(slot.weight) <= self.capacity

    def _serve(self, slot: Slot) -> None:
        """Under the lock: give a slot to an instance between two nodes."""
        self._part(slot)
        slot.stage, slot.since = STARTED, self._monotonic()
        self._run(slot, slot.weight)

    def _run(self, slot: Slot, change: int) -> None:
        """Under the lock: an instance has so many slots more that run, or fewer."""
        self._running += change
        if slot.group is None:
            return
        of_group = self._running_of.get(slot.group, 0) + change
        if of_group:
            self._running_of[slot.group] = of_group
        else:
            del self._running_of[slot.group]

    def _part(self, slot: Slot) -> None:
        """Under the lock: the instance is not ``STARTED`` or ``BETWEEN`` any more."""
        if slot.stage == STARTED:
            self._run(slot, -slot.weight)
        elif slot.stage == BETWEEN:
            self._between -= slot.weight
            self._between_size -= slot.size
            self._out_of_line(slot)

    def _out_of_line(self, slot: Slot) -> bool:
        """Under the lock: it waits in the line no more; returns whether it did."""
        if slot not in self._line:
            return False
        del self._line[slot]
        self._in_line -= slot.weight
        return True

    def _remove(self, slot: Slot) -> None:
        self._held -= slot.weight
        self._large -= slot.large
        self._part(slot)
        if slot.stage == ENDED:
            self._ended -= slot.weight
        slot.stage = GONE

    def _note_end(self, slot: Slot) -> None:
        now = self._monotonic()
        took = slot.had + (now - slot.since if slot.stage == STARTED else 0.0)
        self._ends.note(now, took)

    def look_again(self) -> None:
        """Call those who wait for a free slot: another part of the slots is kept than before."""
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
