"""Successors: the runs to which those of tasks that run one at a time hand their slots on when they end."""

from collections.abc import Callable, Collection, Mapping, Sequence

from rota.shared.store.reports import Report
from rota.shared.store.runs import Run, Wanted
from rota.worker_service.pulling.backlog import Backlog
from rota.worker_service.pulling.fair_queue import Rank
from rota.worker_service.pulling.slots import Slots


class Successors:
    """Takes from the backlog what follows the runs of a batch of reports, and starts what the batch has claimed.

    A worker that is full hands nothing on: then the next instance that starts is chosen by priority.

        following = successors.take(batch)
        successors.settle(following, claimed)   # in any case
    """

    def __init__(self, backlog: Backlog, slots: Slots) -> None:
        self._backlog = backlog
        self._slots = slots
        self.start: Callable[[Sequence[Run], Mapping[int, Rank]], None] = lambda runs, ranks: None
        """Starts claimed runs at once; it is given their ranks by id."""

    def wait(self, report: Report) -> bool:
        """Whether the run is over with it, and others of its task wait for that."""
        return report.is_over and self._backlog.is_waited_for(report.turn_of)

    def take(self, reports: Sequence[Report]) -> list[tuple[Wanted, Rank]]:
        """The next instance of each task of which a run ends, with its rank."""
        tasks = {r.turn_of for r in reports if r.turn_of is not None}
        some = sorted(tasks)[: self._room(len(tasks))] if tasks else []
        return [following for task in some if (following := self._backlog.take_next(task)) is not None]

    def settle(self, taken: Sequence[tuple[Wanted, Rank]], claimed: Collection[int]) -> None:
        """Start those that were claimed, and put the others back."""
        try:
            for row, rank in taken:
                if row.id in claimed:
                    self._backlog.hand_on(row.schedule_task_id)
                else:
                    self._backlog.put_back(row, rank)
            self.start([row.run() for row, _ in taken if row.id in claimed], {row.id: rank for row, rank in taken})
        finally:
            self._backlog.release([row.id for row, _ in taken])

    def _room(self, wanted: int) -> int:
        """For how many of these there is room. The last place is for what is due, if something is."""
        room = self._slots.claimable(0)
        return wanted if room > wanted else max(room - self._backlog.is_crowded, 0)
