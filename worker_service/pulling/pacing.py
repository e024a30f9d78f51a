"""Every rule about when a worker asks the database again. The rules are pure: the time is an argument.

The worker polls once a period, and sooner while it has a backlog to catch up with. It claims in batches, just before
the due time. A batch is as large as the number of slots that are free or expected to be. An instance that could not be
claimed is tried again after a pause.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next

CLAIM_AHEAD = timedelta(seconds=0.1)
"""An instance is claimed at most so long before it is due, or before a slot is expected to become free for it. The
worker expects slots further ahead where claims take long (``ClaimPace.ahead``)."""

CLAIM_TIME = timedelta(seconds=0.05)
"""An instance is claimed so long before it is due at the latest. One claim takes less, so that the instance starts on
time. From ``CLAIM_AHEAD`` until then, an instance may join the batch of another."""

CLAIM_EARLY = CLAIM_AHEAD - CLAIM_TIME
"""How much earlier than its own latest moment an instance may be claimed, in a batch with others."""

CLAIM_ROUND_TRIPS = 1
"""A claim is on the way for so many round trips."""

PACE_SECONDS = 0.02
LONGEST_PACE_SECONDS = 0.5
"""The claimer rests while claimed instances wait for slots: as long as the last claim took, within these bounds. Where
many workers share the database, claims take long; the longer rests make the batches larger. But it begins again when
those that wait will last only as long as another claim takes. Slots are expected twice as far ahead as the last claim
took, up to the second bound."""

MIXED_BATCH = 100
"""While others wait beside a crowd, a claim takes at most so many instances, and the claimer rests for at most
``PACE_SECONDS``. So what falls due meanwhile waits for a short claim only."""

CROWD_SHARE = 0.03
LONGEST_CROWD_SECONDS = 2.0
"""The worker looks for crowds again after a rest, so that this takes no more than ``CROWD_SHARE`` of the time. The rest
is ``LONGEST_CROWD_SECONDS`` at most."""

GIVE_BACK_AFTER = timedelta(seconds=1)
"""A claimed instance that has waited so long for a slot is handed back at the next poll."""

HOLD_FOR = timedelta(seconds=30)
LONGEST_HOLD = timedelta(days=1)
"""A claimed instance that takes several slots waits ``HOLD_FOR`` for them. Each time that its worker hands it back
doubles that, up to ``LONGEST_HOLD``."""

FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 0.5
"""The pauses before an instance that is due and could not be claimed is tried again. The first is short: a transaction
may hold the task's row for a moment. Each is twice the one before: the instance's predecessor may run for hours."""

PUT_OFF = timedelta(seconds=5)
"""The pause before an instance is tried again whose claim fails alone, for a reason that is not expected."""

QUEUE_LIMIT = 5000
"""How many assigned instances the worker keeps in its queue. The others stay in the database until there is room."""

LOW_WATER = QUEUE_LIMIT // 5
"""With fewer instances than this in the queue, another poll is worth while."""

CATCH_UP_SECONDS = 0.1
CATCH_UP_SHARE = 0.1
LONGEST_CATCH_UP_SECONDS = 0.5
"""While it catches up with a backlog, the worker polls every ``CATCH_UP_SECONDS``. Where a poll takes long, the rest is
longer, up to ``LONGEST_CATCH_UP_SECONDS``: polling should take no more than ``CATCH_UP_SHARE`` of the time.

The worker catches up after a poll that brought overdue instances and left fewer than ``LOW_WATER`` in the queue. A
backlog is assigned in pieces, and a poll between two of them finds nothing new. So after a poll that brought many
overdue instances (``period / CATCH_UP_SECONDS`` or more), the worker goes on catching up for one more period."""

POLL_PHASE_SECONDS = TICK_PHASE_SECONDS + 0.075
POLL_SPREAD_SECONDS = 0.05
"""When in its period a worker polls, by the database's clock: a little after the schedulers tick, spread by the
workers' ids. An instance that no scheduler has assigned by then waits for the next poll, a period later. A tick takes
some 15 ms, and 40 ms on a slow machine."""


@dataclass(slots=True)
class PollPace:
    """When a worker polls next. ``period`` and ``phase`` are in seconds."""

    period: float
    phase: float
    catching_up_until: float = 0.0
    """In seconds of the clock's ``monotonic``."""

    @classmethod
    def of_worker(cls, worker_id: int, period: float) -> "PollPace":
        """The pace of one worker. Its id says where in ``POLL_SPREAD_SECONDS`` it polls."""
        return cls(period, POLL_PHASE_SECONDS + worker_id % 16 / 16 * POLL_SPREAD_SECONDS)

    def rest(self, began: float, ended: float, now: datetime, *, late: int, queued: int) -> float:
        """Seconds until the next poll, after one that ran from ``began`` to ``ended`` (monotonic). ``now``: naive UTC.

        ``late`` is how many new instances the poll brought that were due already. There may be more behind them.
        ``queued`` is how many instances now wait for their claim.
        """
        if late * CATCH_UP_SECONDS >= self.period:
            self.catching_up_until = ended + self.period
        rest = seconds_to_next(now, self.period, self.phase)
        if queued < LOW_WATER and (late or ended < self.catching_up_until):
            rest = min(rest, _catch_up_rest(took=ended - began))
        return rest


def _catch_up_rest(took: float) -> float:
    """Seconds between two polls while the worker catches up; ``took``: seconds of the last poll."""
    return min(max(CATCH_UP_SECONDS, took / CATCH_UP_SHARE), LONGEST_CATCH_UP_SECONDS)


def crowd_rest(took: float) -> float:
    """Seconds until the worker looks for crowds again; ``took``: seconds of the last look."""
    return min(took / CROWD_SHARE, LONGEST_CROWD_SECONDS)


def is_time_to_poll(before: int, after: int) -> bool:
    """Whether a claim shortened the queue from ``LOW_WATER`` instances or more (``before``) to fewer (``after``).

    Then there is room again for instances that had to stay in the database.
    """
    return after < LOW_WATER <= before


def on_the_way(round_trip: float) -> timedelta:
    """How long a claim is on the way to a database at this distance (seconds), beyond what the claim itself takes."""
    return timedelta(seconds=CLAIM_ROUND_TRIPS * round_trip)


def claim_before(round_trip: float) -> timedelta:
    """How long before it is due an instance is claimed at the latest, with the database so far away (seconds).

    A claim may have begun just before, without it. So the time on the way counts twice.
    """
    return CLAIM_TIME + 2 * on_the_way(round_trip)


@dataclass(slots=True)
class ClaimPace:
    """How long the claimer rests, and how far ahead it expects free slots. Both follow from the last claim's duration.

    ``took`` is in seconds, ``ended`` in seconds of the clock's ``monotonic``. ``way`` is how long a claim is on the
    way, in seconds: that is no sign of a busy database.
    """

    took: float = 0.0
    ended: float = float("-inf")
    way: float = 0.0

    def note(self, began: float, ended: float, round_trip: float = 0) -> None:
        """Note that a claim ran from ``began`` to ``ended`` (monotonic seconds), with the database so far away."""
        self.way = on_the_way(round_trip).total_seconds()
        self.took, self.ended = max(ended - began - self.way, 0), ended

    def ahead(self, now: float) -> float:
        """How many seconds ahead the claimer expects slots to become free. A claim of long ago is not counted."""
        is_recent = now - self.ended < LONGEST_PACE_SECONDS + PACE_SECONDS
        took = self.took if is_recent else 0.0
        return 2 * self.way + max(CLAIM_AHEAD.total_seconds(), min(2 * took, LONGEST_PACE_SECONDS))

    def rest(self, busy: int, capacity: int, lasting: float = math.inf) -> float:
        """Seconds until the next claim: 0, unless more instances are claimed than there are slots.

        Those that are claimed and wait will last for ``lasting`` seconds.
        """
        if busy <= capacity:
            return 0
        return min(max(min(self.took, lasting - self.took), PACE_SECONDS), LONGEST_PACE_SECONDS)


def retry_pause(tries: int) -> float:
    """Seconds until an instance that is due is tried again, after ``tries`` claims that failed to get it."""
    doublings = min(tries - 1, 10)
    return min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * float(2**doublings))


def next_try(
    due_at: datetime, now: datetime, pause: float, skip_at: datetime | None, round_trip: float = 0
) -> datetime:
    """When an instance is tried again: ``pause`` seconds after it is due, or after now. Times are naive UTC.

    If the claim waits for a report of the instance's predecessor, it waits until ``skip_at``. Then it tries at once.
    With the database so far away (seconds), it begins so much earlier that it may come in time.
    """
    moment = max(due_at - on_the_way(round_trip), now) + timedelta(seconds=pause)
    return moment if skip_at is None or skip_at <= now else min(moment, skip_at)
