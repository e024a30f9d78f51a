"""The instances that are assigned to this worker and wait for their claim, by id, in the order of their claims."""

import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from datetime import datetime

from rota.shared.clock import Clock
from rota.shared.domain.groups import Group
from rota.shared.store.crowds import NOBODY, Beside
from rota.shared.store.overlap import REPORTED_WITHIN, SkipCandidate, Waiting, at_the_next_look, note_candidate
from rota.shared.store.polling import NO_WEIGHTS
from rota.shared.store.runs import Run, Wanted
from rota.worker_service.pulling.delay_queue import DelayQueue, Others
from rota.worker_service.pulling.fair_queue import Rank
from rota.worker_service.pulling.limit_lines import LimitLines
from rota.worker_service.pulling.pacing import (
    CLAIM_EARLY,
    PUT_OFF,
    QUEUE_LIMIT,
    claim_before,
    next_try,
    on_the_way,
    retry_pause,
)
from rota.worker_service.pulling.turn_lines import TurnLines

Assigned = tuple[int, datetime, int]
"""A row as the poll reads it: id, due_at (naive UTC), priority."""

READ_AT_ONCE = 100
FEWEST_READ = 50
"""Of a line whose task runs one at a time so many are tried, and so read, at once: when a run has ended that could not
hand its slot on, and when fewer than the second number have been read."""


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
        self._weights: Mapping[int, int] = NO_WEIGHTS
        self._queue: DelayQueue[int] = DelayQueue(clock, CLAIM_EARLY, weigh=self.weight_of)
        self._lock = threading.Lock()
        self._waiting: dict[int, Rank] = {}
        self._claiming: set[int] = set()
        self._claimed_since_fetch: set[int] = set()
        self._tries: dict[int, int] = {}
        self._skip_candidates: dict[int, SkipCandidate] = {}
        self._looked_at, self._is_looking = clock.monotonic(), False
        """When a claim began or returned last, and whether the last one has not returned, or has failed."""

        self._lines = TurnLines()
        self._begun: set[int] = set()
        """The tasks that run one at a time and of which this worker has a run. Its end lets the next one be tried."""

        self._handed_on: set[int] = set()
        """Those of which a run is about to end that has handed its slot on."""

        self._limited = LimitLines()
        self.crowds: Set[Group] = frozenset()
        """The groups that are crowds beside which others wait, as far as the last fetch has seen. Then groups take
        turns, and others come first where there is no room for more of a crowd."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether the backlog gives out no more instances."""
        return self._queue.closed

    @property
    def skip_candidates(self) -> Mapping[int, SkipCandidate]:
        """The fires that may be skipped, by id. Each waits until a moment for the report of the run before it."""
        return self._skip_candidates

    def weight_of(self, instance_id: int) -> int:
        """How many slots an instance takes."""
        return self._weights.get(instance_id, 1)

    def begin_fetch(self) -> None:
        """Call it before a fetch reads: from now on the backlog notes which instances are claimed."""
        with self._lock:
            self._claimed_since_fetch = set(self._claiming)

    def keep(
        self,
        rows: Sequence[Assigned],
        running: Container[int] = (),
        beside: Beside = NOBODY,
        weights: Mapping[int, int] = NO_WEIGHTS,
    ) -> list[Assigned]:
        """Put in the rows that a fetch read; returns the new ones. Those that are still ``running`` here are none.

        ``beside``: the groups of some of them, which take turns with all others (``FairQueue``). ``weights``: how many
        slots those of them take that take several.

        Instances that are not among the rows any more were taken back, and are forgotten. But when a fetch reads
        ``limit`` rows it may not have read all, and nothing is forgotten until the backlog holds twice the limit.
        """
        with self._lock:
            waiting, claimed = self._waiting, self._claimed_since_fetch
            self._weights = weights
            new = [row for row in rows if row[0] not in waiting and row[0] not in claimed and row[0] not in running]
            # Made before anything is noted: an instance that waits and is not in the queue would never be claimed.
            before = claim_before(self._clock.round_trip())
            if beside.members:
                ranked = [(at, i, Rank(rank, *beside.members.get(i, beside.rest))) for i, at, rank in new]
            else:
                ranks = {priority: Rank(priority, *beside.rest) for priority in {row[2] for row in new}}
                ranked = [(due_at, i, ranks[priority]) for i, due_at, priority in new]
            regrouped = self._regrouped(rows, beside) if beside.members or beside.rest.share > 1 else []
            ranked += regrouped
            entries = [(due_at - before, instance_id, rank) for due_at, instance_id, rank in ranked]
            if len(rows) < self.limit or len(self._waiting) > 2 * self.limit:
                self._forget_all_but({row[0] for row in rows})
            self._waiting.update((instance_id, rank) for _, instance_id, rank in ranked)
            self._queue.put_all(entries, early=CLAIM_EARLY)
            if regrouped:
                self._queue.retain(self._waiting)  # each in one line alone: else its group would have the turns of two
        return new

    def take(
        self, room: Callable[[], int], others: Callable[[int], Others[int]] = lambda _: Others()
    ) -> dict[int, Rank]:
        """Wait until there are instances to claim and room for them; returns their ranks by id.

        ``room`` says how many slots they may take, ``others`` for which there are some all the same
        (``DelayQueue.take``). When the claim is done, call ``settle``, and in any case ``release``.
        """
        ids = self._queue.take(room, others)
        with self._lock:
            taken = {instance_id: self._waiting.pop(instance_id) for instance_id in ids if instance_id in self._waiting}
            self._look_again(begins=bool(taken))
            self._claiming.update(taken)
            self._claimed_since_fetch.update(taken)
        return taken

    def settle(
        self,
        taken: Mapping[int, Rank],
        left: Sequence[Waiting],
        began: datetime,
        ended: datetime,
        following: Sequence[Wanted] = (),
    ) -> None:
        """A claim of ``taken`` ran from ``began`` to ``ended`` (naive UTC). Those in ``left`` are to be tried again.

        To those of them that are ``following`` a run that ends may hand its slot on.
        """
        gone = taken.keys() - {one.id for one in left}
        with self._lock:
            self._look_again()
            read_at = self._clock.monotonic()
            known = {row.id: row.schedule_task_id for row in following}
            for row in following:
                self._lines.know(row, read_at)
            self._forget(gone)
            reported = ended + REPORTED_WITHIN + 3 * on_the_way(self._clock.round_trip())
            for one in left:
                instance_id, due_at, _, task_id, limit_name, _ = one
                note_candidate(self._skip_candidates, one, reported)
                if task_id is not None:
                    self._lines.join(task_id, instance_id, due_at)
                moment = self._next_try(instance_id, due_at, began)
                if instance_id in known and not self._leads(known[instance_id], instance_id):
                    moment = began + PUT_OFF
                if limit_name is not None and not self._limited.join(limit_name, instance_id):
                    moment = max(moment, began + PUT_OFF)
                self._put_back(instance_id, taken[instance_id], moment)
            self._let_others_on(gone, known.values())

    def _look_again(self, *, begins: bool = False) -> None:
        """Under the lock: a claim begins, or has returned. The time in one that failed counts nothing."""
        passed, self._looked_at = self._clock.monotonic() - self._looked_at, self._clock.monotonic()
        has_failed, self._is_looking = begins and self._is_looking, begins
        self._skip_candidates = at_the_next_look(self._skip_candidates, passed, has_failed=has_failed)

    def give_up(self, instance_ids: Set[int]) -> set[int]:
        """Claim these no more; returns them without those in a claim that has not returned yet.

        A fetch that is under way leaves them out, too: it may have read them before they were running.
        """
        with self._lock:
            given_up = {*instance_ids} - self._claiming
            self._claimed_since_fetch |= given_up
            self._waiting = {i: rank for i, rank in self._waiting.items() if i not in given_up}
            self._forget(given_up)
            self._let_others_on(given_up)
        return given_up

    def _let_others_on(self, gone: Set[int], lines: Iterable[int] = ()) -> None:
        """Under the lock: these are gone. Try the next ones of their tasks' lines, of their limits and of ``lines``."""
        for task_id in {*lines, *self._lines.led_by(gone)}:
            self._lead(task_id)
        for instance_id in self._limited.leave(gone):
            self._try_now(instance_id)

    def _forget(self, instance_ids: Set[int]) -> None:
        """Under the lock: these wait no more."""
        self._lines.leave(instance_ids)
        for instance_id in self._tries.keys() & instance_ids:
            del self._tries[instance_id]
        for instance_id in self._skip_candidates.keys() & instance_ids:
            del self._skip_candidates[instance_id]

    def begin(self, runs: Sequence[Run]) -> None:
        """These were claimed, and will end here."""
        self._begun.update(run.turn_of for run in runs if run.turn_of is not None)

    def put_off(self, taken: Mapping[int, Rank], until: datetime) -> None:
        """These cannot be claimed for a reason of their own: try them again at a moment (naive UTC)."""
        with self._lock:
            for instance_id, rank in taken.items():
                self._put_back(instance_id, rank, until)

    def run_over(self, run: Run) -> None:
        """This run has ended here: try what waited for it."""
        self.turn_over(run.task_id)
        if run.limit_name is not None:
            with self._lock:
                following = self._limited.next_of(run.limit_name)
                if following is not None:
                    self._try_now(following)

    def turn_over(self, task_id: int) -> None:
        """A run of this task has ended here: try the oldest of its instances that wait for their turn now."""
        if task_id not in self._lines and task_id not in self._begun and task_id not in self._handed_on:
            return
        with self._lock:
            if task_id in self._handed_on:
                self._handed_on.discard(task_id)
                return
            self._begun.discard(task_id)
            number = READ_AT_ONCE if self._lines.is_alone(task_id) else 1
            now = self._clock.monotonic()
            for place, instance_id in enumerate(self._lines.first(task_id, number, self._waiting)):
                if place == 0 or self._lines.fresh(instance_id, now) is None:
                    self._try_now(instance_id)

    def is_waited_for(self, task_id: int | None) -> bool:
        """Whether instances of this task wait here for their turn."""
        return task_id in self._lines

    @property
    def is_crowded(self) -> bool:
        """Whether an instance that is due waits for room."""
        return self._queue.is_due

    def take_next(self, task_id: int) -> tuple[Wanted, Rank] | None:
        """Take the next instance of a task that runs one at a time, as it was read, and its rank.

        None: none has been read so recently. When its claim is done, call ``hand_on`` or ``put_back``, and in any case
        ``release``.
        """
        with self._lock:
            if self._queue.closed or (oldest := self._lines.oldest(task_id, self._waiting, self._claiming)) is None:
                return None
            now = self._clock.monotonic()
            if (row := self._lines.fresh(oldest, now)) is None:
                return None
            if self._lines.may_be_stale(task_id, FEWEST_READ, now):
                later = self._lines.first(task_id, FEWEST_READ + READ_AT_ONCE, self._waiting)[FEWEST_READ:]
                if later and self._lines.fresh(later[0], now) is None:
                    for instance_id in later:
                        self._try_now(instance_id)
            self._lines.leave({oldest})
            self._tries.pop(oldest, None)
            self._claiming.add(oldest)
            self._claimed_since_fetch.add(oldest)
            return row, self._waiting.pop(oldest)

    def hand_on(self, task_id: int) -> None:
        """A run of this task, whose end is still to be told, has handed its slot on."""
        self._handed_on.add(task_id)

    def put_back(self, row: Wanted, rank: Rank) -> None:
        """This one, which was taken as the next, was not claimed: try it again."""
        with self._lock:
            self._lines.join(row.schedule_task_id, row.id, row.due_at)
            self._put_back(row.id, rank, self._clock.now())

    def _try_now(self, instance_id: int) -> None:
        if instance_id in self._waiting:
            self._tries.pop(instance_id, None)
            self._queue.put(self._clock.now(), instance_id, rank=self._waiting[instance_id])

    def release(self, taken: Collection[int]) -> None:
        """The claim of these has returned, or has failed."""
        self._claiming.difference_update(taken)

    def room_made(self) -> None:
        """Tell ``take`` to ask again for ``room``: a slot may have become free."""
        self._queue.room_made()

    def close(self) -> None:
        """Give out no more instances."""
        self._queue.close()

    def _put_back(self, instance_id: int, rank: Rank, moment: datetime) -> None:
        self._queue.put(moment, instance_id, rank=rank)
        self._waiting[instance_id] = rank

    def _regrouped(self, rows: Sequence[Assigned], beside: Beside) -> list[tuple[datetime, int, Rank]]:
        """Those that wait already, and of which more is known now."""
        ranked = []
        for i, due_at, priority in rows:
            if (before := self._waiting.get(i)) is None:
                continue
            rank = Rank(priority, *beside.members.get(i, beside.rest if before.group is None else before[1:]))
            if rank != before:
                ranked.append((due_at, i, rank))
        return ranked

    def _forget_all_but(self, there: Collection[int]) -> None:
        self._waiting = {i: rank for i, rank in self._waiting.items() if i in there}
        self._tries = {i: tries for i, tries in self._tries.items() if i in there}
        self._skip_candidates = {i: candidate for i, candidate in self._skip_candidates.items() if i in there}
        for task_id in self._lines.retain(self._waiting):
            self._lead(task_id)
        self._limited.retain(there)
        if len(self._queue) > 2 * len(self._waiting):
            self._queue.retain(self._waiting)

    def _lead(self, task_id: int) -> None:
        """Let the oldest of a line that runs one at a time be tried again and again, and no other."""
        oldest = self._lines.oldest(task_id, self._waiting)
        if oldest is not None and task_id not in self._begun and self._lines.leader_of(task_id) != oldest:
            self._lines.lead(task_id, oldest)
            self._try_now(oldest)

    def _leads(self, task_id: int, instance_id: int) -> bool:
        return task_id not in self._begun and self._lines.leader_of(task_id) == instance_id

    def _next_try(self, instance_id: int, due_at: datetime, now: datetime) -> datetime:
        pause = 0.0
        if due_at <= now:
            tries = self._tries[instance_id] = self._tries.get(instance_id, 0) + 1
            pause = retry_pause(tries)
        candidate = self._skip_candidates.get(instance_id)
        return next_try(due_at, now, pause, None if candidate is None else candidate.until, self._clock.round_trip())
