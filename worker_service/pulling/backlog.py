"""The instances that are assigned to this worker and wait for their claim, by id, in the order of their claims."""

import threading
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from datetime import datetime

from rota.shared.clock import Clock
from rota.shared.store.overlap import REPORTED_WITHIN, SkipCandidate, Waiting
from rota.worker_service.pulling.delay_queue import DelayQueue
from rota.worker_service.pulling.pacing import CLAIM_EARLY, QUEUE_LIMIT, claim_at, next_try, on_the_way, retry_pause

Assigned = tuple[int, datetime, int]
"""A row as the poll reads it: id, due_at (naive UTC), priority."""


class Backlog:
    """The fetcher puts instances in. The claimer takes those that are due, and puts back those that it could not claim.

    The two run on two threads. A fetch may read an instance as assigned just before the claimer claims it. By the time
    the fetch puts its rows in, that instance may be running, or have ended. So the backlog notes what was claimed since
    the fetch began, and leaves that out: it must not be claimed twice.
    """

    def __init__(self, clock: Clock, limit: int = QUEUE_LIMIT) -> None:
        self.limit = limit
        """How many instances one fetch reads. The backlog may hold somewhat more."""

        self._clock = clock
        self._queue: DelayQueue[int] = DelayQueue(clock, CLAIM_EARLY)
        self._lock = threading.Lock()
        self._waiting: dict[int, int] = {}
        self._claiming: set[int] = set()
        self._claimed_since_fetch: set[int] = set()
        self._tries: dict[int, int] = {}
        self._skip_candidates: dict[int, SkipCandidate] = {}
        self._lines: dict[int, dict[int, datetime]] = {}
        """For each task, the instances that wait for their turn, with their due times; some may be gone."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether the backlog gives out no more instances."""
        return self._queue.closed

    @property
    def claiming(self) -> set[int]:
        """The ids in a claim that has not returned yet. Their rows may be ``running``, although nothing runs yet."""
        return set(self._claiming)

    @property
    def skip_candidates(self) -> Mapping[int, SkipCandidate]:
        """The fires that may be skipped, by id. Each waits until a moment for the report of the run before it."""
        return self._skip_candidates

    def begin_fetch(self) -> None:
        """Call it before a fetch reads: from now on the backlog notes which instances are claimed."""
        with self._lock:
            self._claimed_since_fetch = set(self._claiming)

    def keep(self, rows: Sequence[Assigned], running: Container[int] = ()) -> list[Assigned]:
        """Put in the rows that a fetch read; returns the new ones. Those that are still ``running`` here are none.

        Instances that are not among the rows any more were taken back, and are forgotten. But when a fetch reads
        ``limit`` rows it may not have read all, and nothing is forgotten until the backlog holds twice the limit.
        """
        with self._lock:
            waiting, claimed = self._waiting, self._claimed_since_fetch
            new = [row for row in rows if row[0] not in waiting and row[0] not in claimed and row[0] not in running]
            # Made before anything is noted: an instance that waits and is not in the queue would never be claimed.
            far = self._clock.round_trip()
            entries = [(claim_at(due_at, far), instance_id, priority) for instance_id, due_at, priority in new]
            if len(rows) < self.limit or len(self._waiting) > 2 * self.limit:
                self._forget_all_but({row[0] for row in rows})
            self._waiting.update((instance_id, priority) for instance_id, _, priority in new)
            self._queue.put_all(entries, early=CLAIM_EARLY)
        return new

    def take(self, room: Callable[[], int]) -> dict[int, int]:
        """Wait until there are instances to claim and room for them; returns their priorities by id.

        ``room`` says how many may be taken. When the claim is done, call ``settle``, and in any case ``release``.
        """
        ids = self._queue.take(room)
        with self._lock:
            taken = {instance_id: self._waiting.pop(instance_id) for instance_id in ids if instance_id in self._waiting}
            self._claiming.update(taken)
            self._claimed_since_fetch.update(taken)
        return taken

    def settle(self, taken: Mapping[int, int], left: Sequence[Waiting], began: datetime, ended: datetime) -> None:
        """A claim of ``taken`` ran from ``began`` to ``ended`` (naive UTC). Those in ``left`` are to be tried again."""
        waiting = {one.id for one in left}
        with self._lock:
            for instance_id in taken.keys() - waiting:
                self._tries.pop(instance_id, None)
                self._skip_candidates.pop(instance_id, None)
            for instance_id, due_at, holder_id, task_id in left:
                if holder_id is not None:
                    until = ended + REPORTED_WITHIN + 3 * on_the_way(self._clock.round_trip())
                    self._skip_candidates.setdefault(instance_id, SkipCandidate(holder_id, until))
                if task_id is not None:
                    self._lines.setdefault(task_id, {})[instance_id] = due_at
                self._put_back(instance_id, taken[instance_id], self._next_try(instance_id, due_at, began))

    def put_off(self, taken: Mapping[int, int], until: datetime) -> None:
        """These cannot be claimed for a reason of their own: try them again at a moment (naive UTC)."""
        with self._lock:
            for instance_id, priority in taken.items():
                self._put_back(instance_id, priority, until)

    def turn_over(self, task_id: int) -> None:
        """A run of this task has ended here: try the oldest of its instances that wait for their turn now."""
        if task_id not in self._lines:
            return
        with self._lock:
            line = {i: due_at for i, due_at in self._lines.pop(task_id, {}).items() if i in self._waiting}
            if line:
                self._lines[task_id] = line
                oldest = min(line, key=lambda i: (line[i], i))
                self._tries.pop(oldest, None)
                self._queue.put(self._clock.now(), oldest, rank=self._waiting[oldest])

    def release(self, taken: Collection[int]) -> None:
        """The claim of these has returned, or has failed."""
        self._claiming.difference_update(taken)

    def room_made(self) -> None:
        """Tell ``take`` to ask again for ``room``: a slot may have become free."""
        self._queue.room_made()

    def close(self) -> None:
        """Give out no more instances."""
        self._queue.close()

    def _put_back(self, instance_id: int, priority: int, moment: datetime) -> None:
        self._queue.put(moment, instance_id, rank=priority)
        self._waiting[instance_id] = priority

    def _forget_all_but(self, there: Collection[int]) -> None:
        self._waiting = {i: priority for i, priority in self._waiting.items() if i in there}
        self._tries = {i: tries for i, tries in self._tries.items() if i in there}
        self._skip_candidates = {i: candidate for i, candidate in self._skip_candidates.items() if i in there}
        lines = ((task, {i: due for i, due in line.items() if i in there}) for task, line in self._lines.items())
        self._lines = {task: line for task, line in lines if line}
        if len(self._queue) > 2 * len(self._waiting):
            self._queue.retain(self._waiting)

    def _next_try(self, instance_id: int, due_at: datetime, now: datetime) -> datetime:
        pause = 0.0
        if due_at <= now:
            tries = self._tries[instance_id] = self._tries.get(instance_id, 0) + 1
            pause = retry_pause(tries)
        candidate = self._skip_candidates.get(instance_id)
        return next_try(due_at, now, pause, None if candidate is None else candidate.until, self._clock.round_trip())
