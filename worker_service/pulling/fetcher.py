"""Fetching: once a period the worker reads which instances are assigned to it, and queues them until their claim."""

from collections.abc import Container, Sequence
from datetime import datetime, timedelta

from rota.shared.clock import Clock
from rota.shared.store.crowds import NOBODY, Beside
from rota.worker_service.pulling.backlog import Assigned, Backlog
from rota.worker_service.pulling.pacing import PollPace, crowd_rest
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.rows import QueueRows


class Fetcher:
    """Reads the assigned instances that are due within the look-ahead, and puts them into the backlog.

    It passes over those that this process still runs (``running``): such a run was taken from the worker, or its row
    was deleted and its id given again. The claim would make the old run's report fit the row.

    Where more is due than there are slots, it asks whether that is a crowd: very many of one group. Then it also reads
    which instances of other groups wait, so that the groups take turns.
    """

    def __init__(
        self,
        queue: QueueRows,
        backlog: Backlog,
        clock: Clock,
        pace: PollPace,
        lookahead_seconds: float,
        *,
        slots: Slots,
        running: Container[int] = (),
    ) -> None:
        self._queue = queue
        self._backlog = backlog
        self._slots = slots
        self._clock = clock
        self._pace = pace
        self._running = running
        self._lookahead = timedelta(seconds=lookahead_seconds)
        self._seen = NOBODY
        """What the last fetch has seen beside crowds."""

        self._look_at = float("-inf")
        """When the next look for crowds is due, in seconds of the clock's ``monotonic``."""

    def fetch(self) -> float:
        """Poll once; returns the seconds to rest until the next poll."""
        began = self._clock.monotonic()
        now = self._clock.at(began)
        self._backlog.begin_fetch()
        rows, weights = self._queue.poll(now + self._lookahead, self._backlog.limit)
        self._seen = beside = self._beside(rows, now)
        if beside.rows:
            there = {row[0] for row in rows}
            rows = [*rows, *(row for row in beside.rows if row[0] not in there)]
        new = self._backlog.keep(rows, self._running, beside, weights)
        if beside.crowds != self._backlog.crowds:
            self._backlog.crowds = beside.crowds
            self._slots.look_again()
        ended = self._clock.monotonic()
        late = sum(due_at <= now for _, due_at, _ in new)
        return self._pace.rest(began, ended, self._clock.at(ended), late=late, queued=len(self._backlog))

    def _beside(self, rows: Sequence[Assigned], now: datetime) -> Beside:
        """What waits beside crowds. Between two looks the crowds are those of the last one."""
        due = [row for row in rows if row[1] <= now]
        if len(due) <= self._slots.capacity:
            return NOBODY
        began = self._clock.monotonic()
        if began < self._look_at:
            return Beside(self._seen.crowds, rest=self._seen.rest)
        most = due[len(due) // 2][2]
        waiting = [i for i, _, priority in due if priority == most]
        beside = self._queue.beside(waiting, most, now + self._lookahead)
        ended = self._clock.monotonic()
        self._look_at = ended + crowd_rest(ended - began)
        return beside
