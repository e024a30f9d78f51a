"""The fair queue: of what is due, the most urgent comes first, and groups of the same priority take turns."""

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterator
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from rota.shared.domain.groups import Group

T = TypeVar("T")


class Rank(NamedTuple):
    """How urgent something is, and the group with which it takes turns."""

    priority: int
    """0 is the most urgent."""

    group: Group = None
    """None: no group, or that of a crowd."""


class FairQueue(Generic[T]):
    """What waits for room. Of a group the earliest comes first, and of those the one that came first.

    The groups of a priority take turns: each gives out one item. So an item waits for one of each other group at most,
    however many of those wait. (Nagle, "On Packet Switches With Infinite Storage", RFC 970, 1985.)

        queue = FairQueue()
        queue.put(Rank(5, "flood"), moment, order, item)
        queue.take()
    """

    def __init__(self) -> None:
        self._lines: dict[Rank, list[tuple[datetime, int, T]]] = {}
        self._turns: dict[int, deque[Rank]] = {}
        """Of each priority the groups of which something waits, the next one first."""

        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[Rank, datetime, int, T]]:
        return ((rank, *entry) for rank, line in self._lines.items() for entry in line)

    def put(self, rank: Rank, moment: datetime, order: int, item: T) -> None:
        """Let an item wait. ``moment``: naive UTC; ``order``: when it came, a number that no other item has."""
        line = self._lines.get(rank)
        if line is None:
            line = self._lines[rank] = []
            self._turns.setdefault(rank.priority, deque()).append(rank)
        heapq.heappush(line, (moment, order, item))
        self._size += 1

    def keep(self, wanted: Callable[[datetime, int], bool]) -> None:
        """Forget the items of which ``wanted(moment, order)`` does not hold. The groups keep their turns."""
        lines = {rank: [one for one in line if wanted(one[0], one[1])] for rank, line in self._lines.items()}
        self._lines = {rank: line for rank, line in lines.items() if line}
        for line in self._lines.values():
            heapq.heapify(line)
        turns = ((priority, deque(r for r in some if r in self._lines)) for priority, some in self._turns.items())
        self._turns = {priority: some for priority, some in turns if some}
        self._size = sum(map(len, self._lines.values()))

    @property
    def first(self) -> T:
        """The next item. Raises ValueError if there is none."""
        return self._lines[self._turns[min(self._turns)][0]][0][2]

    def take(self) -> T:
        """Take out the next item. Raises ValueError if there is none."""
        return self._take(self._turns[min(self._turns)][0])

    def take_others(
        self, but: Container[Group], room: int, weigh: Callable[[T], int] = lambda _: 1, *, must_fit: bool = False
    ) -> list[T]:
        """Take out what there is ``room`` for, of all groups ``but`` these, in the order of ``take``.

        ``weigh``: how much room an item takes. The last one may take more than is left, unless it ``must_fit``.
        """
        items: list[T] = []
        while room > 0:
            turns = (rank for priority in sorted(self._turns) for rank in self._turns[priority])
            rank = next((rank for rank in turns if rank.group not in but), None)
            if rank is None:
                break
            room -= weigh(self._lines[rank][0][2])
            if room < 0 and must_fit:
                break
            items.append(self._take(rank))
        return items

    @property
    def groups(self) -> set[Group]:
        """The groups of which something waits."""
        return {rank.group for rank in self._lines}

    def _take(self, rank: Rank) -> T:
        line, turns = self._lines[rank], self._turns[rank.priority]
        _, _, item = heapq.heappop(line)
        self._size -= 1
        turns.remove(rank)
        if line:
            turns.append(rank)
            return item
        del self._lines[rank]
        if not turns:
            del self._turns[rank.priority]
        return item
