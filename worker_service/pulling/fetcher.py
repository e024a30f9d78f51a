"""Fetching: once a period the worker reads which instances are assigned to it, and queues them until their claim."""

from collections.abc import Callable, Container, Sequence
from datetime import datetime, timedelta

from rota.shared.clock import Clock
from rota.worker_service.pulling.backlog import Assigned, Backlog
from rota.worker_service.pulling.pacing import PollPace


class Fetcher:
    """Reads the assigned instances that are due within the look-ahead, and puts them into the backlog.

    ``poll`` reads at most so many that are due by a horizon (``WorkerRows.poll``). The fetcher passes over those that
    this process still runs (``running``): such a run was taken from the worker, or its row was deleted and its id given
    again. The claim would make the old run's report fit the row.
    """

    def __init__(
        self,
        poll: Callable[[datetime, int], Sequence[Assigned]],
        backlog: Backlog,
        clock: Clock,
        pace: PollPace,
        lookahead_seconds: float,
        *,
        running: Container[int] = (),
    ) -> None:
        self._poll = poll
        self._backlog = backlog
        self._clock = clock
        self._pace = pace
        self._running = running
        self._lookahead = timedelta(seconds=lookahead_seconds)

    def fetch(self) -> float:
        """Poll once; returns the seconds to rest until the next poll."""
        began = self._clock.monotonic()
        now = self._clock.at(began)
        self._backlog.begin_fetch()
        new = self._backlog.keep(self._poll(now + self._lookahead, self._backlog.limit), self._running)
        ended = self._clock.monotonic()
        late = sum(due_at <= now for _, due_at, _ in new)
        return self._pace.rest(began, ended, self._clock.at(ended), late=late, queued=len(self._backlog))
