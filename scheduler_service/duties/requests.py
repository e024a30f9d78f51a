"""Requests: do what programs have asked for in transactions of their own, since those were committed."""

import math
from collections.abc import Callable

from rota.shared.control import requests as control
from rota.shared.control.requests import HeldUp
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import requests
from rota.shared.store.requests import Request, What
from rota.shared.surprises import Surprises

ROUND_SECONDS = 5.0
"""After so long what was locked is tried again, though there is always a page of others."""


class Requests:
    """The duty: read the requests in their order, do each and remove it in one transaction.

    The assigner sees in each of its passes whether there are any, and wakes this duty. Several schedulers may do so at
    once; a request is done by that whose transaction removes it. ``assign`` is called when there may
    be runs to assign.
    """

    def __init__(self, database: Database, settings: Settings, assign: Callable[[], None] = lambda: None) -> None:
        self._assign = assign
        self._database = database
        self._settings = settings
        self._surprises = Surprises("requests")
        self._held_up = HeldUp()
        """What this round leaves."""

        self._round_began = database.clock.monotonic()

    def step(self) -> float:
        """One page; returns the seconds to rest. After the last page, that is until the assigner sees more."""
        if self._database.clock.monotonic() - self._round_began > ROUND_SECONDS:
            self._begin_round()
        batch, left = self._settings.batch, self._held_up.ids
        found = self._database.read(lambda c: requests.waiting(c, batch + len(left)))
        found = [one for one in found if one.id not in left]
        if found:
            control.apply(self._database, found, self._refused, self._held_up)
            if any(one.what == What.ONCE for one in found):
                self._assign()
        if len(found) >= batch:
            return 0
        self._begin_round()
        return math.inf

    def _begin_round(self) -> None:
        self._held_up, self._round_began = HeldUp(), self._database.clock.monotonic()

    def _refused(self, request: Request, said: str) -> None:
        told = f"request {request.id} is refused, key {request.key[1]!r}: {said}"
        self._surprises.warn(f"request {request.id}", told)
