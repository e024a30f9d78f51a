"""What pulls for one worker, composed as the worker does it, with rows and slots that a test watches."""

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from rota.shared.clock import Clock, seconds_to_next
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store.polling import Polled, Queue
from rota.shared.store.runs import Claim
from rota.worker_service.pulling.backlog import Backlog
from rota.worker_service.pulling.claimer import Claimer
from rota.worker_service.pulling.fetcher import Fetcher
from rota.worker_service.pulling.pacing import QUEUE_LIMIT, PollPace
from rota.worker_service.pulling.reconciler import Reconciler
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.starter import Starter
from rota.worker_service.rows import QueueRows, WorkerRows
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.runner import Runner
from tests.harness.runs import Reports


class WatchedRows(WorkerRows):
    """A worker's rows; a test sees what is asked of them, and comes in between."""

    def __init__(self, database: Database, worker: int) -> None:
        super().__init__(database, worker)
        self.asked: list[list[int]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def claim(self, ids: Any, *rest: Any, room: float = math.inf) -> Iterator[Claim]:
        self.asked.append(list(ids))
        self.meanwhile()
        return super().claim(ids, *rest, room=room)

    def queue(self, *, pool: str | None = None, pools: Iterable[str] = ()) -> "WatchedQueue":
        return WatchedQueue(self, Queue(self.worker_id, pool, tuple(pools)))

    def held(self) -> list[Any]:
        found = super().held()
        self.meanwhile()
        return found


class WatchedQueue(QueueRows):
    """What is assigned to it; the test comes in between behind each poll."""

    def __init__(self, rows: WatchedRows, queue: Queue) -> None:
        super().__init__(rows._database, queue)
        self._rows = rows

    def poll(self, horizon: datetime, limit: int) -> Polled:
        found = super().poll(horizon, limit)
        self._rows.meanwhile()
        return found


class WatchedSlots(Slots):
    """Slots that note how they are asked for expected slots, and answer what a test says."""

    expects: int | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[float] = []

    def expected(self, seconds: float, *, hopeful: bool = False) -> int:
        self.asked.append(seconds)
        return super().expected(seconds, hopeful=hopeful) if self.expects is None else self.expects


class Puller:
    """What pulls for one worker, with a runner that starts nothing by itself.

    It lives by the database's clock, or by ``clock``, whose time only its own decisions go by.
    """

    def __init__(
        self,
        database: Database,
        worker: int,
        clock: Clock | None = None,
        limit: int = QUEUE_LIMIT,
        capacity: int | None = None,
        **given: Any,
    ) -> None:
        self.clock = clock = clock or database.clock
        settings = Settings.load(capacity=capacity, **given)
        self.slots = WatchedSlots(settings.capacity, settings.batch, clock)
        self.runner = Runner({}, {}, Reports(), self.slots, clock, result_limit_bytes=1000, grace_seconds=10)
        self.rows = WatchedRows(database, worker)
        self.starter = Starter(
            self.rows,
            self.runner,
            self.slots,
            clock,
            Listeners({}, clock, worker="w"),
            crowds=lambda: self.backlog.crowds,
        )
        self.backlog = Backlog(clock, limit)
        self.reconciler = Reconciler(self.rows, self.runner, self.backlog, clock, settings.heartbeat_seconds)
        self.pace = PollPace.of_worker(worker, settings.poll_period)
        seconds = settings.lookahead_seconds
        self.fetcher = Fetcher(self.rows.queue(), self.backlog, clock, self.pace, seconds, slots=self.slots)
        self.polls_asked_for: list[str] = []
        self.claimer = Claimer(
            self.rows,
            self.backlog,
            self.slots,
            self.starter,
            clock,
            poll_now=lambda: self.polls_asked_for.append("now"),
        )

    def claim(self) -> list[int]:
        """Claim once; returns what is to start, in the order in which it is to, and forgets it."""
        self.claimer.claim()
        queue = self.starter._queue
        claimed = [run.id for _, run, _ in queue.take(lambda: 1000)] if len(queue) else []
        for instance in claimed:
            self.runner.drop(instance)
        return claimed

    def until_the_next_tick(self) -> float:
        """How long a poll rests that has no reason to hurry."""
        return seconds_to_next(self.clock.now(), self.pace.period, self.pace.phase)
