"""Business keys: when what ran under a key has ended, begin what is kept as its next run, or free the key."""

import logging
from collections.abc import Callable, Sequence
from secrets import token_hex

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import Database
from rota.shared.domain.business_keys import Asked, Standing
from rota.shared.domain.times import EARLIEST
from rota.shared.loop import sparing_rest
from rota.shared.settings import Settings
from rota.shared.store import business_keys, params, standing_keys
from rota.shared.store.business_keys import Call
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

SHARE = 0.1
"""The part of its time that it spends on pages of which no run has ended: many runs may wait for workers for long."""

BY = "scheduler"


class BusinessKeys:
    """The duty: page through the keys that are due, and go on with those whose runs have ended.

    Its writes rely on what it has read, so a key is gone on with once, however many schedulers do so at once. What is
    not due yet costs nothing: an index leads past it. ``assign`` is called when a next run may have begun.
    """

    def __init__(self, database: Database, settings: Settings, assign: Callable[[], None] = lambda: None) -> None:
        self._assign = assign
        self._database = database
        self._settings = settings
        self._surprises = Surprises("business keys")
        self._after = (EARLIEST, 0)

    def step(self) -> float:
        """One page; returns the seconds to rest. After the last page, that is until the next tick."""
        clock = self._database.clock
        began, now = clock.monotonic(), clock.now()
        page = self._database.read(lambda c: standing_keys.due(c, self._after, now, self._settings.batch))
        self._after = page.following or (EARLIEST, 0)
        ready = [one for one in page.standings if one.has_ended or one.follower is not None]
        for some in params.in_portions(ready, lambda one: one.next_bytes):
            self._go_on(some)
        if any(one.next_at is not None for one in ready):
            self._assign()
        if page.following is None:
            return seconds_to_next(clock.now(), self._settings.tick_period, TICK_PHASE_SECONDS)
        return 0 if ready else sparing_rest(clock.monotonic() - began, SHARE)

    def _go_on(self, ready: Sequence[Standing]) -> None:
        """Go on with keys; with all but those that a program or another scheduler has changed since they were read."""
        try:
            self._database.write_by_halves(ready, _go_on, self._refused, _name)
        except Unexpected:
            middle = len(ready) // 2
            for some in (ready[:middle], ready[middle:]) if middle else ():
                self._go_on(some)

    def _refused(self, one: Standing, error: DBAPIError) -> None:
        """The database refuses what SQL has made of a key: the others go on."""
        self._surprises.say(_name(one), error)


def _name(one: Standing) -> str:
    return f"the key {one.key} of {one.type}"


def _go_on(connection: Connection, ready: Sequence[Standing]) -> None:
    """Go on with each key, as far as nobody has changed it since it was read.

    The call that is kept as the next run of a key also moves the run that a handler has asked for: it came later.
    """
    calls, followed, free, token = [], [], [], token_hex(16)
    next_params = standing_keys.next_params(connection, [one for one in ready if one.begins_next])
    for one in ready:
        if one.next_at is not None and one.begins_next:
            asked = Asked(one.next_at, next_params.get(one.key_id))
            calls.append(Call(one.type, one.key, asked, one, one.task_id, f"{token}-{one.key_id}"))
        elif one.has_ended:
            free.append(one)
        else:
            followed.append(one)
    business_keys.put(connection, calls, BY)
    business_keys.take_over(connection, followed, BY)
    business_keys.remove(connection, free, expected=False)
