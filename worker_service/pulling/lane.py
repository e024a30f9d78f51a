"""A lane: how instances come to the slots of a worker, or to those of one of its pools.

A worker has a lane for its own slots and one for each pool of its app. Each polls, claims and starts for itself, so
that nothing that waits in one holds up what is in another. They share the runner: no instance runs twice in a process.
"""

from collections.abc import Callable, Iterator, Sequence, Set

from rota.shared.clock import Clock, Timer
from rota.shared.loop import Loop
from rota.shared.settings import Settings
from rota.shared.store.runs import Run
from rota.worker_service.pulling.backlog import Backlog
from rota.worker_service.pulling.claimer import Claimer
from rota.worker_service.pulling.fetcher import Fetcher
from rota.worker_service.pulling.pacing import PollPace
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.starter import Starter
from rota.worker_service.rows import QueueRows, WorkerRows
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.runner import Runner


class Lane:
    """The parts of one lane, composed. Its engine starts and stops them.

    ``looks`` is called before each poll. ``queue``: what is assigned for this lane (``WorkerRows.queue``).
    """

    def __init__(
        self,
        rows: WorkerRows,
        runner: Runner,
        listeners: Listeners,
        clock: Clock,
        settings: Settings,
        *,
        backlog: Backlog,
        slots: Slots,
        queue: QueueRows,
        looks: Callable[[], None] = lambda: None,
    ) -> None:
        self.backlog, self.slots, self._looks = backlog, slots, looks
        self.starter = Starter(rows, runner, slots, clock, listeners, crowds=lambda: backlog.crowds)
        pace = PollPace.of_worker(rows.worker_id, settings.poll_period)
        self._fetcher = Fetcher(queue, backlog, clock, pace, settings.lookahead_seconds, slots=slots, running=runner)
        name = "" if slots.pool is None else f" {slots.pool}"
        self.poll_loop = Loop(f"poll{name}", self._poll, clock)
        self._claimer = Claimer(rows, backlog, slots, self.starter, clock, poll_now=self.poll_loop.wake)
        self._claimer.skipped = listeners.skipped
        self.claim_loop = Loop(f"claim{name}", self._claimer.claim, clock)
        self.start_name = f"start{name}"

    def _poll(self) -> float:
        self._looks()
        return self._fetcher.fetch()


class Lanes:
    """All lanes of a worker: that of its own slots, and those of its pools.

    for lane in Lanes(own, of_pools, clock): lane.poll_loop.start()
    """

    def __init__(self, own: Lane, of_pools: Sequence[Lane], timer: Timer) -> None:
        self._timer = timer
        self.own = own
        self._all = (own, *of_pools)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._all)

    @property
    def loops(self) -> list[Loop]:
        """The loops that poll and claim."""
        return [loop for lane in self._all for loop in (lane.poll_loop, lane.claim_loop)]

    def join_claims(self, seconds: float) -> None:
        """Wait until the loops that claim have ended, which are stopped, for so long at most."""
        self._join([lane.claim_loop for lane in self._all], seconds)

    def join_polls(self, seconds: float, *others: Loop) -> None:
        """Wait until the loops that poll have ended and these others, which are stopped, for so long at most in all."""
        self._join([*(lane.poll_loop for lane in self._all), *others], seconds)

    def _join(self, loops: Sequence[Loop], seconds: float) -> None:
        until = self._timer.monotonic() + seconds
        for loop in loops:
            loop.join(max(0.0, until - self._timer.monotonic()))

    def give_up(self, instance_ids: Set[int]) -> Set[int]:
        """Claim these no more, in no lane; returns them without those in a claim (``Backlog.give_up``)."""
        for lane in self._all:
            instance_ids = lane.backlog.give_up(instance_ids)
        return instance_ids

    @property
    def closed(self) -> bool:
        """Whether the worker claims nothing more."""
        return self.own.backlog.closed

    @property
    def started(self) -> int:
        """How many instances have been started."""
        return sum(lane.slots.started for lane in self._all)

    def run_over(self, run: Run) -> None:
        """This run has ended here: try what waited for it, in whatever lane."""
        for lane in self._all:
            lane.backlog.run_over(run)
