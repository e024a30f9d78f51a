"""When the last instances ended, and how long they took: by that a worker expects free slots."""

from collections import deque
from itertools import takewhile

ENDS_KEPT = 500
FEWEST_ENDS = 10
SHORTEST_SECONDS = 0.001
"""``ENDS_KEPT`` instances count, the last ones. With fewer than ``FEWEST_ENDS`` nothing is known. An instance counts as
if it took at least ``SHORTEST_SECONDS``."""


class Ends:
    """The ends of the last instances. Times are seconds of a timer's ``monotonic``. Its caller locks.

    ends.note(at=100.0, took=0.2); ends.is_known; ends.mean; ends.since(99.5)
    """

    def __init__(self) -> None:
        self._ends: deque[tuple[float, float]] = deque()
        self._took = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough have ended."""
        return len(self._ends) >= FEWEST_ENDS

    @property
    def mean(self) -> float:
        """How long one took, in seconds, at least ``SHORTEST_SECONDS``. Some must have ended."""
        return max(self._took / len(self._ends), SHORTEST_SECONDS)

    def since(self, moment: float) -> list[float]:
        """When those ended that did after a moment, the last one first."""
        return [end for end, _ in takewhile(lambda one: one[0] > moment, reversed(self._ends))]

    def note(self, at: float, took: float) -> None:
        """An instance has ended that took so many seconds."""
        if len(self._ends) == ENDS_KEPT:
            self._took -= self._ends.popleft()[1]
        self._ends.append((at, took))
        self._took += took
