"""Claiming: the worker claims queued instances in batches, just before they are due and as slots become free."""

import logging
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from rota.shared.clock import FAR_SECONDS, Clock
from rota.shared.database.refusals import is_refusal, sentence
from rota.shared.domain.errors import RotaError
from rota.shared.store.overlap import Waiting
from rota.shared.store.runs import Skip, Wanted
from rota.shared.surprises import Surprises
from rota.worker_service.pulling.backlog import Backlog
from rota.worker_service.pulling.delay_queue import Others
from rota.worker_service.pulling.fair_queue import Rank
from rota.worker_service.pulling.pacing import (
    LONGEST_PACE_SECONDS,
    MIXED_BATCH,
    PACE_SECONDS,
    PUT_OFF,
    ClaimPace,
    is_time_to_poll,
)
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.starter import Starter
from rota.worker_service.rows import WorkerRows

log = logging.getLogger(__name__)


class Claimer:
    """Takes instances from the backlog, claims them, and gives the claimed ones to the starter.

    It calls ``poll_now`` in two cases. The backlog has become short, so that there is room for more. Or a claim has
    raised an error, so that its instances must be read again: the backlog has forgotten them.
    """

    def __init__(
        self,
        rows: WorkerRows,
        backlog: Backlog,
        slots: Slots,
        starter: Starter,
        clock: Clock,
        *,
        poll_now: Callable[[], None],
    ) -> None:
        self._rows = rows
        self._backlog = backlog
        self._slots = slots
        self._starter = starter
        self._clock = clock
        self._poll_now = poll_now
        self.skipped: Callable[[Sequence[Skip]], None] = lambda _: None
        """Is told of the fires that a claim has skipped for another run of their task."""

        self._pace = ClaimPace()
        self._surprises = Surprises("claim")
        slots.on_free(backlog.room_made)

    def claim(self) -> float:
        """Wait until there are instances to claim and slots for them, and claim them. Returns the seconds to rest."""
        taken = self._backlog.take(self._room, self._others)
        if not taken:
            return 0
        began = self._clock.monotonic()
        try:
            self._claim(taken)
        except BaseException:
            self._poll_now()
            raise
        finally:
            self._backlog.release(taken)
            self._pace.note(began, self._clock.monotonic(), self._clock.round_trip())
        if is_time_to_poll(len(taken) + len(self._backlog), len(self._backlog)):
            self._poll_now()
        rest = self._pace.rest(self._slots.busy, self._slots.capacity, self._slots.lasting(LONGEST_PACE_SECONDS))
        return min(rest, PACE_SECONDS) if self._backlog.crowds else rest

    def _room(self) -> int:
        room = self._slots.claimable(
            self._pace.ahead(self._clock.monotonic()), hopeful=self._clock.round_trip() >= FAR_SECONDS
        )
        crowds = self._backlog.crowds
        return min(room - self._slots.kept_from(crowds), MIXED_BATCH) if crowds else room

    def _others(self, _: int) -> Others[int]:
        """What may be claimed of groups that are no crowds and of which nothing waits for a slot.

        They have slots of their own; and where a crowd has been claimed far ahead, they have turns before its rest.
        """
        crowds = self._backlog.crowds
        if not crowds:
            return Others()
        waiting = self._starter.groups
        is_ahead = not waiting.isdisjoint(crowds)
        room = self._slots.claimable_beside() if is_ahead else self._slots.kept_from(crowds)
        return Others(room, crowds | waiting, self._backlog.weight_of)

    def _claim(self, taken: Mapping[int, Rank]) -> None:
        """Claim these. If that fails because of a row, claim each half of them, until the row at fault is alone."""
        claimed: set[int] = set()
        try:
            self._claim_all(taken, claimed)
        except Exception as error:
            if isinstance(error, RotaError) or (isinstance(error, DBAPIError) and not is_refusal(error)):
                raise  # the database's fault, and no row's
            left = [instance_id for instance_id in taken if instance_id not in claimed]
            if not left:
                raise
            if len(left) == 1:
                self._give_up({left[0]: taken[left[0]]}, error)
                return
            for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                self._claim({instance_id: taken[instance_id] for instance_id in half})

    def _claim_all(self, taken: Mapping[int, Rank], claimed: set[int]) -> None:
        """Claim these, start what was ``claimed``, and put the others back.

        The claim also tells the database's time: a clock that was set back must start nothing early.
        """
        asked = self._clock.monotonic()
        began = self._clock.at(asked)
        waiting: list[Waiting] = []
        following: list[Wanted] = []
        for claim in self._rows.claim(taken.keys(), began, self._backlog.skip_candidates, room=self._slots.room):
            if claim.time is not None:
                self._clock.observe(asked, claim.time, self._clock.monotonic())
            self._backlog.begin(claim.runs)
            self._starter.put(claim.runs, self._clock.now(), taken)
            claimed.update(run.id for run in claim.runs)
            waiting += claim.waiting
            following += claim.following
            self.skipped(claim.skipped)
        self._backlog.settle(taken, waiting, self._clock.at(asked), self._clock.now(), following)

    def _give_up(self, taken: Mapping[int, Rank], error: Exception) -> None:
        """Cancel an instance whose claim the database refuses. Put off one that fails for another reason."""
        [instance_id] = taken
        if isinstance(error, DBAPIError):
            reason = f"the database refuses its claim: {sentence(error)}"
            log.warning("claim: instance %d: %s", instance_id, reason)
            if self._rows.skip(instance_id, reason):
                return
        else:
            self._surprises.say(f"instance {instance_id}", error)
        self._backlog.put_off(taken, self._clock.now() + PUT_OFF)
