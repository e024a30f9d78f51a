"""The fair queue: of what is due, the most urgent comes first, and groups of the same priority take turns."""

import heapq
import itertools
import sys
from collections.abc import Callable, Container, Iterator
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from rota.shared.domain.groups import Group

T = TypeVar("T")

NO_ROOM = sys.maxsize
"""What ``needs`` returns for an item that must wait, however much room there is."""


class Rank(NamedTuple):
    """How urgent something is, and the group with which it takes turns."""

    priority: int
    """0 is the most urgent."""

    group: Group = None
    """None: no group, or that of a crowd."""

    share: int = 1
    """How many items of its kind count as one item of another group."""


Entry = tuple[datetime, int, float, T]
"""What waits in a line: its moment, when it came, what it costs its group, the item."""


class FairQueue(Generic[T]):
    """What waits for room. Of a group the earliest comes first, and of those the one that came first.

    The groups of a priority take turns. The queue counts what each group has used: an item adds its ``weight``, divided
    by its share. The group that has used least has the next turn. A group that comes to the queue starts with the count
    of the group that had the last turn, or with its own, if that is higher. So where all items count the same, an item
    waits for at most one item of each other group. (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.)

        queue = FairQueue()
        queue.put(Rank(5, "flood"), moment, order, item)
        queue.take()
    """

    def __init__(self) -> None:
        self._lines: dict[int, Lines[T]] = {}
        """Those of each priority of which something waits."""

    def __len__(self) -> int:
        return sum(lines.size for lines in self._lines.values())

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[tuple[datetime, int, T]]:
        """The moment, the order and the item of all."""
        entries = (one for lines in self._lines.values() for line in lines.by_group.values() for one in line)
        return ((moment, order, item) for moment, order, _, item in entries)

    def put(self, rank: Rank, moment: datetime, order: int, item: T, *, weight: int = 1) -> None:
        """Let an item wait. ``moment``: naive UTC; ``order``: when it came, a number that no other item has."""
        lines = self._lines.get(rank.priority)
        if lines is None:
            lines = self._lines[rank.priority] = Lines()
        lines.put(rank.group, (moment, order, weight / rank.share, item))

    def keep(self, wanted: Callable[[datetime, int], bool]) -> None:
        """Forget the items of which ``wanted(moment, order)`` does not hold. The groups keep their turns."""
        for lines in self._lines.values():
            lines.keep(wanted)
        self._lines = {priority: lines for priority, lines in self._lines.items() if lines.size}

    @property
    def first(self) -> T:
        """The next item. Raises ValueError if there is none."""
        lines = self._lines[min(self._lines)]
        return lines.by_group[lines.next_group()][0][-1]

    def take(self) -> T:
        """Take out the next item. Raises ValueError if there is none."""
        priority = min(self._lines)
        return self._take(priority, self._lines[priority].next_group())

    def take_due(self, room: int, needs: Callable[[T], int]) -> list[T]:
        """Take out the next items as long as there is ``room``; ``needs``: how much of it an item needs.

        The next one is taken unless that is ``NO_ROOM``, those behind it if there is so much left.
        """
        items: list[T] = []
        while room > 0 and self._lines:
            priority = min(self._lines)
            lines = self._lines[priority]
            taken, room, goes_on = lines.take_due(room, needs, is_first=not items)
            items += taken
            if not lines.size:
                del self._lines[priority]
            if not goes_on:
                break
        return items

    def take_others(self, room: int, but: Container[Group], needs: Callable[[T], int]) -> list[T]:
        """Take out what there is ``room`` for, of all groups ``but`` these, in the order of ``take``.

        ``needs``: how much room an item needs. A group whose next one needs more than is left is passed over.
        """
        items: list[T] = []
        while room > 0:
            fits = partial(_needs_at_most, room, needs)
            turns = ((priority, self._lines[priority].next_but(but, fits)) for priority in sorted(self._lines))
            priority, turn = next(((p, turn) for p, turn in turns if turn is not None), (0, None))
            if turn is None:
                break
            item = self._take(priority, turn[1], beside=True)
            items.append(item)
            room -= needs(item)
        return items

    @property
    def groups(self) -> set[Group]:
        """The groups of which something waits."""
        return {group for lines in self._lines.values() for group in lines.by_group}

    def _take(self, priority: int, group: Group, *, beside: bool = False) -> T:
        lines = self._lines[priority]
        item = lines.take(group, beside=beside)
        if not lines.size:
            del self._lines[priority]
        return item


Turn = tuple[float, int]
"""When a group has its next turn: by what it has used, and of those that have used the same, who came first."""

FEWEST_KEPT, MOST_KEPT = 100, 1_000


class Lines(Generic[T]):
    """The lines of one priority, one for each group of which something waits; forgotten when nothing does."""

    def __init__(self) -> None:
        self.by_group: dict[Group, list[Entry[T]]] = {}
        self.size = 0
        self._order = itertools.count()
        self._turns: dict[Group, Turn] = {}
        self._next: list[tuple[float, int, Group]] = []
        """All turns of ``_turns``, as a heap, and some that are no turns any more."""

        self._now = 0.0
        """What the group had used that had its turn last."""

        self._used: dict[Group, float] = {}
        """What groups have used of which nothing waits, if it is more than ``_now``."""

    def put(self, group: Group, one: Entry[T]) -> None:
        """Let it wait."""
        line = self.by_group.get(group)
        if line is None:
            line = self.by_group[group] = []
            self._give_turn(group, max(self._now, self._used.pop(group, 0.0)))
        heapq.heappush(line, one)
        self.size += 1

    def keep(self, wanted: Callable[[datetime, int], bool]) -> None:
        """Forget what is not wanted (``FairQueue.keep``)."""
        lines = {group: [one for one in line if wanted(one[0], one[1])] for group, line in self.by_group.items()}
        for group, line in lines.items():
            heapq.heapify(line)
            if not line:
                self._leave(group, self._turns[group][0])
        self.by_group = {group: line for group, line in lines.items() if line}
        self.size = sum(map(len, self.by_group.values()))

    def next_group(self) -> Group:
        """The group that has the next turn. There is one."""
        while True:
            used, order, group = self._next[0]
            if self._turns.get(group) == (used, order):
                return group
            heapq.heappop(self._next)

    def next_but(self, but: Container[Group], fits: Callable[[T], bool]) -> tuple[Turn, Group] | None:
        """The first turn of all groups ``but`` these whose next item fits; None, if there is none."""
        groups = (group for group in self._turns if group not in but and fits(self.by_group[group][0][-1]))
        return min(((self._turns[group], group) for group in groups), key=itemgetter(0), default=None)

    def take_due(self, room: int, needs: Callable[[T], int], *, is_first: bool) -> tuple[list[T], int, bool]:
        """Take items in turn (``FairQueue.take_due``): these, the room that is left, and whether nothing held back."""
        items: list[T] = []
        while room > 0 and self.size:
            group, is_alone = self.next_group(), len(self.by_group) == 1
            line = self.by_group[group]
            has_turn = True
            while has_turn and room > 0:
                needed = needs(line[0][-1])
                if needed == NO_ROOM or (needed > room and not is_first):
                    return items, room, False
                room, is_first = room - needed, False
                has_turn = is_alone and len(line) > 1
                if has_turn:  # nobody to take turns with, so nothing is charged
                    items.append(heapq.heappop(line)[-1])
                    self.size -= 1
                else:
                    items.append(self.take(group))
        return items, room, True

    def take(self, group: Group, *, beside: bool = False) -> T:
        """The first item of a group. ``beside``: out of turn, so it puts the group back by one turn at most."""
        line = self.by_group[group]
        _, _, cost, item = heapq.heappop(line)
        self.size -= 1
        used = self._turns[group][0]
        if beside:
            used = max(used, self._now + cost)
        else:
            self._now, used = used, used + cost
        if line:
            self._give_turn(group, used)
        else:
            del self.by_group[group]
            self._leave(group, used)
        return item

    def _give_turn(self, group: Group, used: float) -> None:
        self._turns[group] = turn = (used, next(self._order))
        if len(self._next) > 2 * len(self._turns) + FEWEST_KEPT:
            self._next = sorted((*one, group) for group, one in self._turns.items())
        else:
            heapq.heappush(self._next, (*turn, group))

    def _leave(self, group: Group, used: float) -> None:
        del self._turns[group]
        self._used[group] = used
        if len(self._used) > MOST_KEPT:
            self._used = {one: used for one, used in self._used.items() if used > self._now}
        if len(self._used) > MOST_KEPT:  # each is put back by a turn at most
            self._used = {group: used}


def _needs_at_most(room: int, needs: Callable[[T], int], item: T) -> bool:
    return needs(item) <= room
