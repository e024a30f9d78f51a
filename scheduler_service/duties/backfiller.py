"""Backfilling: write the next instances of backfills, as those before them end."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import plan_calendars
from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected
from rota.shared.database.refusals import is_refusal
from rota.shared.database.transactions import Database
from rota.shared.domain.backfilling import Step, finish, fires_in, go_on, settled, to_look_at, why_not_only_missing
from rota.shared.domain.errors import DatabaseProblem, InvalidInput, RotaError
from rota.shared.domain.planning import TICK
from rota.shared.domain.states import REASON_LIMIT, BackfillStatus
from rota.shared.settings import Settings
from rota.shared.store import backfills, fires, plans, spoiled_backfills, turns
from rota.shared.store.backfills import Found
from rota.shared.store.fires import Fire
from rota.shared.store.transitions import canceling
from rota.shared.surprises import Surprises

BACKFILLS = 20
"""One step looks at so many backfills at most; the next step at those after them."""

EARLIER_SECONDS = 0.15
"""It ticks so much before the assigner, which then gives what was written in the same period."""

LOOK_SECONDS = 3.0
"""How often it looks while there is no backfill."""

REASON = "it is a backfill's, and waits behind what is due now"


class Backfiller:
    """The duty: count which fires of each backfill have ended, and write as many more as may then be in flight.

    It writes them as pending instances of the backfill's own, low priority, which the assigner gives out. Each backfill
    is a transaction of its own, fenced by its row: so a task's lease is not needed, and stays free for its plan.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._surprises = Surprises("backfill")
        self._after = 0

    def step(self) -> float:
        """One page; returns the seconds to rest: none where more is to be looked at."""
        page = self._database.read(lambda c: backfills.page(c, self._after, BACKFILLS))
        is_idle = not page and self._after == 0
        self._after = page[-1].backfill.id if len(page) == BACKFILLS else 0
        have_more = [self._try_to_move_on(found) for found in page]
        if any(have_more) or self._after:
            return 0
        period = self._settings.tick_period
        if is_idle:
            return max(LOOK_SECONDS, period)
        return seconds_to_next(self._database.clock.now(), period, TICK_PHASE_SECONDS - EARLIER_SECONDS)

    def _try_to_move_on(self, found: Found) -> bool:
        """One step of a backfill, of which no fault stops the others; True if there is more to do at once."""
        subject = f"backfill {found.backfill.id}"
        try:
            with suppress(Unexpected):  # another scheduler, or a person, was quicker: the next step reads it again
                return self._give_up(found) if found.spoiled else self._move_on(found)
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            self._surprises.say(subject, error)
        except DatabaseProblem:
            raise
        except Exception as error:  # noqa: BLE001 - SQL has written something odd, or it is a fault of Rota's
            self._surprises.say(subject, error)
        return False

    def _give_up(self, found: Found) -> bool:
        """Cancel a backfill whose row SQL has spoiled, with the reason; False."""
        _, waiting = self._database.read(lambda c: backfills.in_flight(c, found.backfill))
        reason = f"its row holds what cannot be, in {', '.join(found.spoiled)}"[:REASON_LIMIT]

        def write(connection: Connection) -> None:
            read = (found.backfill.id, found.backfill.status)
            spoiled_backfills.give_up(connection, read, found.spoiled, reason)
            _drop(connection, found, waiting)

        self._database.write_undisturbed(write)
        return False

    def _move_on(self, found: Found) -> bool:
        backfill = replace(found.backfill, inputs=plan_calendars.on(self._database, found.backfill.inputs))
        found = replace(found, backfill=backfill)
        statuses, waiting = self._database.read(lambda c: backfills.in_flight(c, backfill))
        step = settled(backfill, statuses)
        room = backfill.concurrency - len(step.in_flight)
        if found.is_deleted and step.status not in backfills.OVER:
            step.status, step.reason = BackfillStatus.CANCELED, "its task was deleted"
        elif step.status == BackfillStatus.RUNNING:
            if found.inputs_text is not None:
                if (first := self._first(found, step)) is not None:
                    return bool(self._database.write_undisturbed(lambda c: _adopt(c, found, *first)))
            else:
                self._begin(found, step, room)
        finish(step)
        dropped = waiting if step.status == BackfillStatus.CANCELED else []
        if step.changes(backfill) or dropped or found.is_by_sql:
            begun = self._fires(found, step)
            if not self._database.write_undisturbed(lambda c: _write(c, found, step, begun, dropped)):
                return False
        return step.status == BackfillStatus.RUNNING and bool(step.not_missing) and len(step.fires) < room

    def _first(self, found: Found, step: Step) -> tuple[datetime, int] | None:
        """Of what SQL has inserted the first fire that is to run, and how many there are.

        One that cannot be planned is to be canceled, with the reason: None.
        """
        one, inputs = found.backfill, plan_calendars.on(self._database, plans.inputs_in(found.inputs_text or ""))
        try:
            if found.param_is_odd:
                raise InvalidInput("its param is no JSON object")
            if inputs is None:
                raise InvalidInput("the plan of its task cannot be read")
            fires = fires_in(inputs, one.from_at, one.to_at, self._database.clock.now())
            if one.only_missing and (unknown := why_not_only_missing(found.complete_from, one.from_at)):
                raise InvalidInput(unknown)
        except RotaError as error:
            step.status, step.reason = BackfillStatus.CANCELED, str(error)[:REASON_LIMIT]
            return None
        return fires.last if one.newest_first else fires.counted[0], fires.number

    def _begin(self, found: Found, step: Step, room: int) -> None:
        """Decide which fires are written; a plan that SQL has spoiled pauses the backfill."""
        try:
            look = to_look_at(found.backfill, room)
            past = None
            if found.backfill.only_missing:
                past = self._database.read(lambda c: backfills.past(c, found, look[0]))
            go_on(step, room, look, past)
        except RotaError as error:
            step.status, step.reason = BackfillStatus.PAUSED, str(error)[:REASON_LIMIT]

    def _fires(self, found: Found, step: Step) -> list[Fire]:
        """The fires in the order in which they are to run: each is due a tick after the one before."""
        in_turn = turns.waits_in_turn(found.overlap_policy, found.max_instances)
        now, task_id = self._database.clock.now(), found.backfill.task_id
        return [
            Fire(task_id, moment, found.priority, None, None, (), REASON, in_turn, now + number * TICK)
            for number, moment in enumerate(step.fires)
        ]


def _write(connection: Connection, found: Found, step: Step, begun: Sequence[Fire], dropped: Sequence[int]) -> bool:
    backfills.advance(connection, found, step)
    fires.backfill(connection, found.backfill.id, begun)
    _drop(connection, found, dropped)
    return True


def _adopt(connection: Connection, found: Found, first: datetime, fires_total: int) -> bool:
    backfills.adopt(connection, found, first, fires_total)
    return True


def _drop(connection: Connection, found: Found, waiting: Sequence[int]) -> None:
    canceling.pass_over(connection, dict.fromkeys(waiting, f"backfill {found.backfill.id} was canceled"))
