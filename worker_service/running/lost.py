"""The attempts that a worker has dropped, because their reports said that they are not its own any more.

A row may say afterwards that such an attempt runs under this worker: it was read where the worker's own commits are not
seen at once, as on another node of a cluster. The attempt must not run a second time.
"""

from rota.shared.store.runs import Run

KEPT = 10_000


class LostAttempts:
    """The newest ``KEPT`` of them.

    lost = LostAttempts()
    lost.note(run)
    run in lost   # True; of a further attempt False
    """

    def __init__(self) -> None:
        self._attempts: dict[int, tuple[object, ...]] = {}

    def __contains__(self, run: Run) -> bool:
        return run.id in self._attempts and self._attempts[run.id] == _of(run)

    def note(self, run: Run) -> None:
        """This attempt was dropped."""
        self._attempts[run.id] = _of(run)
        if len(self._attempts) > KEPT:
            del self._attempts[next(iter(self._attempts))]


def _of(run: Run) -> tuple[object, ...]:
    """Which attempt it is, and of what: after TRUNCATE the database gives ids again."""
    return (run.attempt, run.task_id, run.schedule_datetime, run.run_number)
