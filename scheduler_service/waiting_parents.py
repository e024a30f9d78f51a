"""The instances that wait to run as their shards, as far as a scheduler has to keep them in mind."""

import threading
from collections.abc import Collection, Iterable
from datetime import datetime

from rota.shared.clock import Timer
from rota.shared.store.pending import Pending

OF_ONE_TASK = 20
"""So many of one task are looked at, the first by priority and due time: the others wait behind these."""

MOST_OF_ONE_TASK = 2 * OF_ONE_TASK
MOST = 10_000
"""So many are kept in mind, of one task and in all; with many tasks, fewer of each. The assigner sees the others
again."""

PUT_OFF_SECONDS = 2.0
"""What no live worker can run is forgotten for so long, so that it is not in the way of others of its task."""

Place = tuple[int, datetime]
"""The priority of an instance, and when it is due (naive UTC)."""


class WaitingParents:
    """The assigner notes them, pass after pass, and the spreader looks at those that are due.

    waiting = WaitingParents(clock)
    waiting.note(page)
    ids = waiting.due(now)
    waiting.forget(spread); waiting.put_off(unfit)
    """

    def __init__(self, timer: Timer) -> None:
        self._monotonic = timer.monotonic
        self._lock = threading.Lock()
        self._of_tasks: dict[int, dict[int, Place]] = {}
        """The place of each in the order, by the task and its id."""

        self._number = 0
        self._put_off: dict[int, float] = {}
        """Until when each is not noted again, in seconds of the timer's ``monotonic``."""

    def note(self, found: Iterable[Pending]) -> bool:
        """Note these, due or not; returns whether any is new, or due at another time than before."""
        with self._lock:
            now = self._monotonic()
            self._put_off = {number: until for number, until in self._put_off.items() if until > now}
            noted = [self._note(one) for one in found if one.id not in self._put_off]
        return any(noted)

    def _note(self, one: Pending) -> bool:
        own = self._of_tasks.setdefault(one.task_id, {})
        place = (one.priority, one.due_at)
        if own.get(one.id) == place:
            return False
        self._number += one.id not in own
        own[one.id] = place
        if len(own) > min(MOST_OF_ONE_TASK, MOST // len(self._of_tasks)):
            return self._remove_last(one.task_id) != one.id
        if self._number > MOST:
            self._remove_last(max(self._of_tasks, key=lambda task: len(self._of_tasks[task])))
        return True

    def due(self, now: datetime) -> list[int]:
        """The first of each task that are due (``now``: naive UTC), by priority, and the oldest before the others."""
        with self._lock:
            first = [
                one
                for own in self._of_tasks.values()
                for one in sorted((place, number) for number, place in own.items() if place[1] <= now)[:OF_ONE_TASK]
            ]
        return [number for _, number in sorted(first)]

    def next_due(self, now: datetime) -> datetime | None:
        """When the next one is due, of those that are not yet (``now``: naive UTC)."""
        with self._lock:
            moments = (due_at for own in self._of_tasks.values() for _, due_at in own.values() if due_at > now)
            return min(moments, default=None)

    def forget(self, ids: Collection[int]) -> None:
        """These wait no more."""
        gone = set(ids)
        with self._lock:
            for task, own in list(self._of_tasks.items()):
                for number in gone & own.keys():
                    self._remove(task, number)

    def put_off(self, ids: Collection[int]) -> None:
        """Forget these, and do not note them again for a while."""
        self.forget(ids)
        until = self._monotonic() + PUT_OFF_SECONDS
        with self._lock:
            room = MOST - len(self._put_off)
            self._put_off.update(dict.fromkeys(sorted(ids)[:room], until))

    def _remove_last(self, task: int) -> int:
        own = self._of_tasks[task]
        last = max(own, key=lambda number: (own[number], number))
        self._remove(task, last)
        return last

    def _remove(self, task: int, number: int) -> None:
        own = self._of_tasks[task]
        del own[number]
        self._number -= 1
        if not own:
            del self._of_tasks[task]
