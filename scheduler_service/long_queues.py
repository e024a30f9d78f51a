"""Long queues: about how many instances those workers hold that have more than a snapshot of the fleet counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from rota.shared.clock import Timer
from rota.shared.store import loads
from rota.shared.store.loads import LiveWorker

ROWS_AT_ONCE = 25_000
"""A snapshot counts at most so many assigned instances of all workers together, and where queues are longer at most so
many more: as many as two full workers with default settings have."""

ROWS_A_SECOND = 40_000
"""The longer a count was, the later is the next one: so many instances of long queues are counted a second at most."""

LEAST_COUNTED = 100
"""But so many are counted of each worker, however many workers there are."""


def counted(workers: int) -> int:
    """How many assigned instances of each worker a snapshot counts, of so many workers. Below that loads are exact."""
    return max(LEAST_COUNTED, min(loads.COUNTED, ROWS_AT_ONCE // max(1, workers)))


class LongQueues:
    """Estimates the loads of workers that hold more than was counted, and counts their queues in turn.

    Until a queue is counted, its worker has the load that this scheduler knew before, with what it has given since.
    What the worker has begun since is not taken off: so it is given too little rather than too much. It has work
    meanwhile, and as soon as it has little, each snapshot counts all of it. A queue that nobody has counted yet counts
    as full.

        queues = LongQueues(clock)
        queues.estimated(connection, loads.fleet(connection), known=fleet.load_of)
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._counted_at: dict[int, float] = {}
        self._next_count = float("-inf")

    def estimated(
        self, connection: Connection, live: Sequence[LiveWorker], known: Callable[[int], int | None]
    ) -> list[LiveWorker]:
        """The workers with their loads, of which those of long queues are estimated.

        ``known`` tells the load of a worker as it was known before, with what was given since; None: nobody knows.
        """
        long = [worker for worker in live if worker.holds_more]
        self._counted_at = {w.id: self._counted_at[w.id] for w in long if w.id in self._counted_at}
        least = self._count(connection, long)
        return [_estimated(worker, least.get(worker.id, worker), known(worker.id)) for worker in live]

    def _count(self, connection: Connection, long: Sequence[LiveWorker]) -> dict[int, LiveWorker]:
        """Count the queues that were counted longest ago, if it is time for it: their workers by id."""
        now = self._timer.monotonic()
        if not long or now < self._next_count:
            return {}
        chosen = self._chosen(long)
        most = _most(chosen)
        assigned = loads.assigned_to(connection, [worker.id for worker in chosen], most)
        self._counted_at |= dict.fromkeys(assigned, now)
        self._next_count = now + sum(most if number is None else number for number in assigned.values()) / ROWS_A_SECOND
        return {worker.id: worker.counted(assigned.get(worker.id), most) for worker in chosen}

    def _chosen(self, long: Sequence[LiveWorker]) -> list[LiveWorker]:
        chosen: list[LiveWorker] = []
        for worker in sorted(long, key=lambda one: self._counted_at.get(one.id, float("-inf"))):
            more = [*chosen, worker]
            if chosen and len(more) * _most(more) > ROWS_AT_ONCE:
                break
            chosen = more
        return chosen


def _most(workers: Sequence[LiveWorker]) -> int:
    """How far the queues of these workers are counted: a worker that has so many more is full."""
    return min(ROWS_AT_ONCE, max(worker.room for worker in workers))


def _estimated(worker: LiveWorker, counted: LiveWorker, known: int | None) -> LiveWorker:
    if not counted.holds_more:
        return counted
    return replace(counted, load=max(counted.load, worker.room if known is None else known))
