"""The offset of the database's clock to another one: several measurements of it, and which of them is believed."""

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

SAMPLES = 60
"""How many measurements are kept."""

CALIBRATIONS = 5
"""After so many measurements since a step of a clock, a long round trip is taken for the way to the database."""

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
    a new one is dropped: the clocks have drifted. If it is the one that counts, all are dropped: a clock was set, or
    another server answers. If it began before the one that counts had ended, and would make the clock show a
    later time, it is not taken: nobody knows which of the two is older.

        offset = Offset()
        offset.take(Sample.of(asked, time, answered))
        offset.zero   # the database's time at 0 of the other clock, a little late
    """

    def __init__(self) -> None:
        self.zero: datetime | None = None
        """The database's time at 0 of the other clock, naive UTC. None: it was not measured yet."""

        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._best: Sample | None = None
        self._taken = 0
        """How many measurements there were since the last step of a clock."""

        self._shortest = math.inf
        """The shortest round trip before that step."""

    @property
    def round_trip(self) -> float:
        """The shortest round trip of the measurements that are kept, in seconds; 0 before the first.

        Soon after a step, it may be one before that.
        """
        kept = min((sample.round_trip for sample in self._samples), default=0.0)
        return min(kept, self._shortest) if self._is_vague() else kept

    def observe(self, new: Sample) -> None:
        """Take what a statement told that also did other work: if a clock was set, and soon after that if it was quick.

        It counts as no measurement.
        """
        if self._best is None:
            return
        is_quicker = self._is_vague() and new.round_trip < min(sample.round_trip for sample in self._samples)
        if is_quicker or not self._best.meets(new):
            self._keep(new, measurements=0)

    def take(self, new: Sample) -> None:
        """Take a measurement, and drop those that it contradicts."""
        self._keep(new, measurements=1)

    def _keep(self, new: Sample, measurements: int) -> None:
        best, kept = self._best, [old for old in self._samples if old.meets(new)]
        if best is not None and not best.meets(new):
            if new.taken - new.round_trip < best.taken and new.zero > best.zero:
                return  # which of the two is older is not known: a late start is better than an early one
            self._shortest, self._taken, kept = self.round_trip, 0, []
        self._samples = deque([*kept, new], maxlen=SAMPLES)  # a new one: other threads read the old one
        self._taken += measurements
        self._best = best = min(reversed(self._samples), key=attrgetter("error"))
        longer = max(best.round_trip - self._shortest, 0.0) if self._is_vague() else 0.0
        self.zero = best.zero - timedelta(seconds=min(best.round_trip / 2, MOST_CAUTION_SECONDS + longer / 2))

    def _is_vague(self) -> bool:
        """Whether a round trip may have been so long for another reason than the distance.

        By what it took longer than those before a step, the time may have been told late: a new connection was made, or
        the server was busy. Where another server answers, farther away, ``CALIBRATIONS`` measurements show that.
        """
        return self._taken < CALIBRATIONS
