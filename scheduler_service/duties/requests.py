"""Requests: do what programs have asked for in transactions of their own, since those were committed."""

from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.control import requests as control
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import requests
from rota.shared.store.requests import Request
from rota.shared.surprises import Surprises

EARLIER_SECONDS = 0.2
"""It looks so much before the assigner, which so finds the new runs in the same tick."""


class Requests:
    """The duty: read the requests in their order, do each and remove it in one transaction.

    Several schedulers may do so at once; a request is done by that whose transaction removes it.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._surprises = Surprises("requests")

    def step(self) -> float:
        """One page; returns the seconds to rest. After the last page, that is until the next tick."""
        batch = self._settings.batch
        found = self._database.read(lambda c: requests.waiting(c, batch))
        if found:
            control.apply(self._database, found, self._refused)
        if len(found) == batch:
            return 0
        phase = TICK_PHASE_SECONDS - EARLIER_SECONDS
        return seconds_to_next(self._database.clock.now(), self._settings.tick_period, phase)

    def _refused(self, request: Request, said: str) -> None:
        told = f"request {request.id} is refused, key {request.key[1]!r}: {said}"
        self._surprises.warn(f"request {request.id}", told)
