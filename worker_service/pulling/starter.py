"""Starting: a claimed instance waits until it is due and has a slot, and is started at that moment."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

from rota.shared.clock import Clock
from rota.shared.domain.groups import NO_GROUPS, Group, Groups
from rota.shared.store.runs import Run
from rota.worker_service.pulling.delay_queue import FIRST, DelayQueue, Others
from rota.worker_service.pulling.fair_queue import NO_ROOM, Rank
from rota.worker_service.pulling.pacing import GIVE_BACK_AFTER, HOLD_FOR, LONGEST_HOLD
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.runner import Runner

log = logging.getLogger(__name__)

Start = tuple[datetime, Run, Rank]
"""When a claimed instance is started (naive UTC), the instance, and its rank."""


class Starter:
    """Starts claimed instances, on the thread that calls ``run``, as these ``slots`` become free."""

    def __init__(
        self,
        rows: WorkerRows,
        runner: Runner,
        slots: Slots,
        clock: Clock,
        listeners: Listeners,
        *,
        crowds: Callable[[], Collection[Group]] = tuple,
    ) -> None:
        """``crowds``: the groups that are crowds while others wait beside them (``Backlog.crowds``)."""
        self._rows = rows
        self._crowds = crowds
        self._listeners = listeners
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._queue: DelayQueue[Start] = DelayQueue(clock, weigh=lambda start: start[1].weight)
        slots.on_free(self._queue.room_made)

    @property
    def groups(self) -> set[Group]:
        """The groups of which something is due, and waits for a slot."""
        return self._queue.groups

    def put(self, claimed: Sequence[Run], now: datetime, ranks: Mapping[int, Rank]) -> None:
        """Start these when they are due, and not before ``now`` (naive UTC). If the worker stops, hand them back."""
        accepted = self._runner.accept(claimed, self._slots, self._groups_of(ranks))
        starts: list[Start] = [(max(run.due_at, now), run, ranks.get(run.id, FIRST)) for run in accepted]
        if accepted:
            self._put(starts)

    def put_at_once(self, claimed: Sequence[Run], ranks: Mapping[int, Rank]) -> None:
        """Start these, which are due, on this thread; those that get no slot when one is free."""
        accepted = self._runner.accept(claimed, self._slots, self._groups_of(ranks))
        left = {run.id for run in accepted} if self._queue.closed else self._start(accepted)
        if left:
            now = self._clock.now()
            self._put([(max(run.due_at, now), run, ranks.get(run.id, FIRST)) for run in accepted if run.id in left])

    def run(self) -> None:
        """Start instances as they become due, until closed."""
        while not self._queue.closed:
            due = self._queue.take(self._room, self._others, self._needs)
            try:
                left = self._start([run for _, run, _ in due])
            except BaseException:  # this thread must go on: later instances wait for it
                log.exception("%d instances could not be started", len(due))
                continue
            if left:  # a next node has taken the slot meanwhile
                self._put([start for start in due if start[1].id in left])

    def _room(self) -> int:
        idle, crowds = self._slots.idle(), self._crowds()
        return idle - self._slots.kept_from(crowds) if crowds else idle

    def _needs(self, start: Start) -> int:
        """What a run needs of the room. What takes several slots starts when all of them are free."""
        weight = start[1].weight
        if weight == 1:
            return 1
        has_room = self._slots.needs(weight, self._crowds()) <= self._slots.idle()
        return self._slots.takes(weight) if has_room else NO_ROOM

    def _others(self, first: Start) -> Others[Start]:
        """The slots that are kept from crowds; none, while the first in turn takes those as well."""
        crowds = self._crowds()
        if not crowds or self._slots.takes_kept(first[1].weight):
            return Others()
        kept = min(self._slots.idle(), self._slots.kept_from(crowds))
        return Others(kept, crowds, lambda start: self._slots.takes(start[1].weight))

    def _groups_of(self, ranks: Mapping[int, Rank]) -> Groups:
        return {instance_id: rank.group for instance_id, rank in ranks.items()} if self._crowds() else NO_GROUPS

    def give_back_late(self) -> None:
        """Hand back the instances that no slot became free for in time: another worker may have one.

        Also those that are canceled while they wait: the next claim ends them.
        """
        now = self._clock.now()
        canceled = [run for _, run, _ in self._queue.remove(lambda _, start: self._runner.is_to_stop(start[1].id))]
        if canceled:
            self._hand_back(canceled, "canceled while it waited for its slots")
        late = [run for _, run, _ in self._queue.remove(lambda moment, start: moment < now - patience(start[1]))]
        if late:
            number = self._hand_back(late, "its worker had no slot for it")
            log.info("worker: handed back %d instances that it had no slot for", number)

    def close(self, *, hurries: bool = False) -> None:
        """Start no more instances, and hand back those that have not started, unless it ``hurries``."""
        unstarted = [run for _, run, _ in self._queue.close()]
        self._hand_back([] if hurries else unstarted, "its worker stopped", waits=True)

    def _start(self, due: Sequence[Run]) -> set[int]:
        """Start these; returns the ids of those that wait for a slot."""
        self._listeners.hold(due)
        left = self._runner.start(due)
        self._listeners.begun(run for run in due if run.id not in left and run.id in self._runner)
        self._listeners.forget(run for run in due if run.id not in self._runner)
        return left

    def _put(self, starts: Sequence[Start]) -> None:
        if not self._queue.put_all((start[0], start, start[2]) for start in starts):
            self._hand_back([run for _, run, _ in starts], "its worker stopped", waits=True)

    def _hand_back(self, unstarted: Sequence[Run], reason: str, *, waits: bool = False) -> int:
        for run in unstarted:
            self._runner.drop(run.id)
        return self._rows.hand_back([(run.id, run.attempt) for run in unstarted], reason, unstarted=True, waits=waits)


def patience(run: Run) -> timedelta:
    """How long a claimed run waits for its slots.

    One that takes several holds its place meanwhile, and loses it when it is handed back. So each time it waits twice
    as long as before: in the end longer than the runs take that are in its way. But the scheduler counts the run's
    limit from the claim on, so it does not wait for longer than that.
    """
    if run.weight == 1:
        return GIVE_BACK_AFTER
    hold = min(HOLD_FOR * (1 << min(run.attempt - 1, 20)), LONGEST_HOLD)
    return min(hold, timedelta(seconds=run.run_timeout_seconds)) if run.run_timeout_seconds else hold
