"""Since when no live worker can run tasks whose fires wait for each other.

A fire of such a task may have waited for its turn for long. Only if it fell due while nobody could run the task has it
waited for a worker, and may be missed. A scheduler that starts anew does not know since when, and begins to count.
"""

from collections.abc import Iterable
from datetime import datetime


class OutOfReach:
    """What one scheduler has seen, pass by pass. Times are naive UTC."""

    def __init__(self) -> None:
        self._since: dict[int, datetime] = {}
        self._seen: set[int] = set()

    def note(self, task_ids: Iterable[int], now: datetime) -> dict[int, datetime]:
        """No worker can run these tasks; returns since when it is so."""
        since = {task_id: self._since.setdefault(task_id, now) for task_id in task_ids}
        self._seen.update(since)
        return since

    def looked_at_all(self) -> None:
        """The pass saw everything that is pending: the tasks that were not noted are within reach again."""
        self._since = {task_id: since for task_id, since in self._since.items() if task_id in self._seen}
        self._seen.clear()
