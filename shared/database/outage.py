"""Outages of the database: one line when one begins and one when it ends, however many threads meet it."""

import logging
import threading

from rota.shared.clock import Timer
from rota.shared.domain.times import span

log = logging.getLogger(__name__)

CALM_SECONDS = 1.0
"""The database is back when an answer comes and no call has failed for so long. At a server with too many connections,
calls on open connections succeed while others fail."""


class Outage:
    """Whether one database is away, as this process has seen it. All objects that use the database share one.

    outage = Outage("mysql://rota@db/rota", clock)
    outage.note("Can't connect to MySQL server on 'db'")   # logged, if it is the first
    outage.over()                                          # after each answer; logged, if it is the first
    """

    def __init__(self, name: str, timer: Timer) -> None:
        self._name = name
        self._timer = timer
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failed = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the database is away."""
        return self._since is not None

    def note(self, why: str) -> None:
        """A call has failed because the database is away, ``why`` in its own words."""
        with self._lock:
            self._failed = self._timer.monotonic()
            if self._since is not None:
                return
            self._since = self._failed
        log.warning("the database is away: %s: %s", self._name, why)

    def over(self) -> None:
        """The database has answered."""
        if self._since is None:
            return
        with self._lock:
            now = self._timer.monotonic()
            if self._since is None or now - self._failed < CALM_SECONDS:
                return
            away, self._since = now - self._since, None
        log.info("the database is back: %s, after %s", self._name, span(away))
