"""Stopping: a run that is canceled, or whose time is over, is asked to stop, then killed, and then given up."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from rota.shared.clock import Timer
from rota.worker_service.executors.base import Running
from rota.worker_service.running.active import Active
from rota.worker_service.running.deadlines import Deadlines
from rota.worker_service.running.endings import Stop
from rota.worker_service.running.lingering import Lingering
from rota.worker_service.running.outcomes import Outcomes
from rota.worker_service.running.proceeding import Proceeding

KILLED_SECONDS = 5.0
"""A coroutine or a process that has not ended so long after it was killed lingers, as a thread does."""


class Stopping:
    """Stops the runs of one worker. It shares their ``lock`` with the runner.

    stopping.stop(active, Stop("canceled", canceled=True))
    stopping.deadlines.loop.start()
    """

    def __init__(
        self,
        actives: Mapping[int, Active],
        outcomes: Outcomes,
        proceeding: Proceeding,
        timer: Timer,
        *,
        lock: threading.Lock,
        grace_seconds: float,
        give_up: Callable[[Active], None],
    ) -> None:
        """``give_up`` is called for a handler that lingers and whose grace is over."""
        self._actives, self._outcomes, self._proceeding = actives, outcomes, proceeding
        self._lock, self._grace_seconds, self._give_up = lock, grace_seconds, give_up
        self._orphans: list[Active] = []
        self.deadlines = Deadlines(self.expire, timer)
        self.lingering = Lingering(timer)

    def stop(self, active: Active, stop: Stop) -> None:
        """Stop a run: what runs of it now, or else its next node."""
        with self._lock:
            parts = active.parts
            if active.branches:  # no other node of it begins
                active.stop = stop if active.stop is None or stop.canceled else active.stop
            stopped = [(part, part.running, part.cancellation) for part in parts if self._is_stopped(part, stop)]
        for part, running, cancellation in stopped:
            cancellation.request()
            if running is not None:  # it may end now
                self.stop_call(part, running)
            else:
                self._proceeding.stop(part)

    def _is_stopped(self, active: Active, stop: Stop) -> bool:
        """Under the lock: stop it so, if it is not to stop before, and if its present node does not run always."""
        if active.has_begun and self._outcomes.is_uncut(active):
            active.asked = stop
            return False
        if active.stop is not None:
            if stop.canceled and not active.stop.canceled:  # nobody waits for its retry any more
                active.stop = stop
                if active.lingers and active.deadline is None:  # its grace was over before
                    self.deadlines.within(active, 0)
            return False
        active.stop = stop
        return True

    def orphan(self, active: Active) -> None:
        """Stop what still runs of a run that is not this worker's any more. Nothing that it does counts."""
        with self._lock:
            left = [branch for branch in active.branches if branch.calls and not branch.abandoned]
            for branch in left:
                branch.abandoned, branch.stop = True, branch.stop or Stop("its run was dropped", canceled=True)
                if not branch.lingers:
                    self.lingering.begin(branch)
                self.lingering.abandon(branch)
            self.lingering.settle(left, active.run.id)
            self._orphans = [one for one in [*self._orphans, *left] if one.calls]
            running = [(branch, branch.running) for branch in left if branch.running is not None]
        for branch in left:
            branch.cancellation.request()
        for branch, call in running:
            self.stop_call(branch, call)
        if active.order is not None and not left:  # the slot of its task is kept if its report was refused
            self.lingering.put_back({active.run.id})

    def stop_call(self, active: Active, running: Running) -> None:
        """Ask the handler that runs to end: it has its grace for that."""
        with self._lock:
            if active.calls and not active.detached:
                self.deadlines.within(active, self._grace_seconds)
        running.stop()

    def linger(self, active: Active) -> None:
        """Under the lock: its call was stopped, and its handler still runs."""
        if active.calls and not active.lingers:
            active.lingers = True
            self.lingering.begin(active)
            if not active.detached:
                self.deadlines.within(active, self._grace_seconds)

    def expire(self) -> float:
        """Stop, kill or give up the runs whose time is over; returns the seconds until the next search."""
        with self._lock:
            over = [self._over(active) for active in self.deadlines.over(self._each())]
        for act in over:
            act()
        return self.deadlines.rest()

    def _each(self) -> Iterator[Active]:
        for active in list(self._actives.values()):
            yield from active.parts
        yield from [one for one in self._orphans if one.calls]

    def _over(self, active: Active) -> Callable[[], None]:
        """Under the lock: what is to be done about a run whose deadline is over, as soon as the lock is free."""
        if active.running is None or active.deadline is None:
            return partial(self._stop_between, active)
        if active.stop is None:
            active.stop = self._outcomes.timed_out(active, active.deadline)
            self.deadlines.within(active, self._grace_seconds)
            return partial(active.running.stop, asks=True)
        if not active.lingers and not active.killed:
            active.killed = True
            self.deadlines.within(active, KILLED_SECONDS)
            return active.running.kill
        self.linger(active)
        return partial(self._give_up, active)

    def _stop_between(self, active: Active) -> None:
        """The run's time is over while it waits: for a slot, or for a commit."""
        at, active.deadline = active.over_at, None
        may_stop = active.done < len(active.run.nodes) and not self._outcomes.is_uncut(active)
        if at is not None and active.stop is None and may_stop:
            active.stop = self._outcomes.timed_out(active, at)
            self._proceeding.stop(active)
