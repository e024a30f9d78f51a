"""The offset of the database's clock to another one: several measurements of it, and which of them is believed."""

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

SAMPLES = 60
"""How many measurements are kept."""

CALIBRATIONS = 5
"""After so many measurements it is known how far away the database is."""

DRIFT = 0.00002
"""Two clocks run apart by about so many seconds in each second, so a measurement gets worse with its age. The offset is
that of the measurement which may be wrong by the least: by half of its round trip, and by the drift since."""

MOST_CAUTION_SECONDS = 0.001
"""The clock is late by half of the round trip, up to this. A measurement may be wrong by half of it at most. So no
start is early where the database is near. Far away that would cost more than a millisecond, and the two ways differ by
less. A late start is better than an early one."""

RESOLUTION = timedelta(milliseconds=1)
"""A database may cut its time to milliseconds. The true time is up to so much later."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: its round trip in seconds, and the database's time at 0 of the other clock, naive UTC."""

    round_trip: float
    zero: datetime
    taken: float
    """When, in seconds of the other clock."""

    @classmethod
    def of(cls, asked: float, time: datetime, answered: float) -> "Sample":
        """The measurement in which the database told this time between two moments of the other clock."""
        return cls(answered - asked, time - timedelta(seconds=(asked + answered) / 2), answered)

    @property
    def error(self) -> float:
        """By how much it may be wrong now, in seconds, less something that is the same for all."""
        return self.round_trip / 2 - DRIFT * self.taken

    def meets(self, other: "Sample") -> bool:
        """Whether one offset explains both: each is right to half of its round trip."""
        furthest = timedelta(seconds=(self.round_trip + other.round_trip) / 2)
        return abs(self.zero - other.zero) <= furthest + RESOLUTION


class Offset:
    """The offset, by the last ``SAMPLES`` measurements: that which may be wrong by the least counts.

    Each measurement leaves an interval in which the offset must lie. An older one whose interval does not meet that of
    a new one is dropped: a clock was set since, or has drifted away, or another server answers.

        offset = Offset()
        offset.take(Sample.of(asked, time, answered))
        offset.zero   # the database's time at 0 of the other clock, a little late
    """

    def __init__(self) -> None:
        self.zero: datetime | None = None
        """The database's time at 0 of the other clock, naive UTC. None: it was not measured yet."""

        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._shortest = math.inf
        """The shortest round trip of those before the last step of a clock."""

    @property
    def round_trip(self) -> float:
        """The shortest round trip of the measurements that are kept, in seconds; 0 before the first."""
        return min((sample.round_trip for sample in self._samples), default=0.0)

    def take_if_contradicted(self, new: Sample) -> None:
        """Take a measurement only if one that is kept cannot be right by it."""
        if not all(old.meets(new) for old in self._samples):
            self.take(new)

    def take(self, new: Sample) -> None:
        """Take a measurement, and drop those that it contradicts."""
        meeting = [old for old in self._samples if old.meets(new)]
        if len(meeting) < len(self._samples):
            self._shortest = min(self.round_trip, self._shortest if self._is_vague() else math.inf)
        self._samples = deque([*meeting, new], maxlen=SAMPLES)
        best = min(reversed(self._samples), key=attrgetter("error"))
        longer = max(best.round_trip - self._shortest, 0.0) if self._is_vague() else 0.0
        caution = MOST_CAUTION_SECONDS + longer / 2
        self.zero = best.zero - timedelta(seconds=min(best.round_trip / 2, caution))

    def _is_vague(self) -> bool:
        """Whether a round trip may have been so long for another reason than the distance.

        By what it took longer than those before a step, the time may have been told late: a new connection was made, or
        the server was busy. Where another server answers, farther away, ``CALIBRATIONS`` measurements show that.
        """
        return len(self._samples) < CALIBRATIONS
