"""The instances of a worker's backlog that wait for their turns, a line for each task, the oldest first.

Of a task that runs one at a time the backlog also keeps how its instances were read when they were tried in vain. So
the run that ends can hand its slot on to the next one (``rota.shared.store.handing_on``).
"""

from collections.abc import Container, Set
from datetime import datetime
from itertools import islice

from rota.shared.store.runs import Wanted

FRESH_SECONDS = 2.0
"""So long after it was read an instance may be handed a slot: its task may have been edited since."""


class TurnLines:
    """The lines. ``there`` says which instances still wait; the others are passed over, and forgotten.

    lines.join(3, 7, due_at)
    lines.oldest(3, there={7})     # 7
    """

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, datetime]] = {}
        self._orders: dict[int, list[int]] = {}
        """The ids of a line, the oldest last; a line that somebody has joined since has none."""

        self._read: dict[int, tuple[Wanted, float]] = {}
        self._leaders: dict[int, int] = {}
        """For each task that runs one at a time, the instance that tries again and again for all of its line."""

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._lines

    def is_alone(self, task_id: int) -> bool:
        """Whether the task runs one at a time, as far as this worker has seen."""
        return task_id in self._leaders

    def join(self, task_id: int, instance_id: int, due_at: datetime) -> None:
        """This one was tried in vain, and waits for its turn."""
        line = self._lines.setdefault(task_id, {})
        if instance_id not in line:
            line[instance_id] = due_at
            self._orders.pop(task_id, None)

    def know(self, row: Wanted, at: float) -> None:
        """So this one was read, at a moment of the clock's ``monotonic``; its task runs one at a time."""
        self._read[row.id] = (row, at)
        self._leaders.setdefault(row.schedule_task_id, 0)

    def leave(self, instance_ids: Set[int]) -> None:
        """These wait no more."""
        for instance_id in self._read.keys() & instance_ids:
            del self._read[instance_id]

    def first(self, task_id: int, number: int, there: Container[int]) -> list[int]:
        """The oldest of a line."""
        order = self._ordered(task_id, there)
        return list(islice((i for i in reversed(order) if i in there), number))

    def oldest(self, task_id: int, there: Container[int], claiming: Container[int] = ()) -> int | None:
        """The first of a line; None if nobody is there, or if a claim that has not returned has an older one."""
        order = self._ordered(task_id, there, claiming)
        return order[-1] if order and order[-1] in there else None

    def fresh(self, instance_id: int, now: float) -> Wanted | None:
        """How this instance was read, if that was not long ago."""
        row, at = self._read.get(instance_id, (None, 0.0))
        return row if now - at <= FRESH_SECONDS else None

    def may_be_stale(self, task_id: int, place: int, now: float) -> bool:
        """Whether the instance behind so many others of its line was read long ago or never, or is not there."""
        order = self._orders.get(task_id, ())
        return len(order) > place and self.fresh(order[-1 - place], now) is None

    def leader_of(self, task_id: int) -> int | None:
        """Who tries for the line of a task that runs one at a time."""
        return self._leaders.get(task_id)

    def led_by(self, instance_ids: Container[int]) -> list[int]:
        """The tasks for whose lines one of these tries."""
        return [task_id for task_id, leader in self._leaders.items() if leader in instance_ids]

    def lead(self, task_id: int, instance_id: int) -> None:
        """From now on this one tries for its line."""
        self._leaders[task_id] = instance_id

    def retain(self, there: Container[int]) -> list[int]:
        """Forget all that are not there any more. Returns the tasks whose lines have so lost who tries for them."""
        lost = [
            task for task, line in self._lines.items() if (led := self._leaders.get(task)) in line and led not in there
        ]
        lines = ((task, {i: due for i, due in line.items() if i in there}) for task, line in self._lines.items())
        self._lines = {task: line for task, line in lines if line}
        self._orders.clear()
        self._read = {i: read for i, read in self._read.items() if i in there}
        self._leaders = {task: leader for task, leader in self._leaders.items() if task in self._lines}
        return [task for task in lost if task in self._lines]

    def _ordered(self, task_id: int, there: Container[int], claiming: Container[int] = ()) -> list[int]:
        """The ids of a line, the oldest last. The last one is there, or in a claim."""
        line = self._lines.get(task_id)
        if line is None:
            return []
        order = self._orders.get(task_id)
        if order is None:
            order = self._orders[task_id] = sorted(line, key=lambda i: (line[i], i), reverse=True)
        while order and order[-1] not in there and order[-1] not in claiming:
            del line[order.pop()]
        if not order:
            del self._lines[task_id], self._orders[task_id]
            self._leaders.pop(task_id, None)
        return order
