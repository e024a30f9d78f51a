"""Wariness: for how long writes wait for nobody's lock, because somebody has locked what a batch writes."""

import logging
from collections.abc import Iterable

from rota.shared.clock import Timer

log = logging.getLogger(__name__)

MOST_SAID = 1_000
"""How many names are remembered as said."""

WARY_SECONDS = 60.0
"""So long after a lock was in the way, no batch waits for one."""


class Wariness:
    """A lock may stand for long: that of a console with an open transaction, or of a frozen process.

    wariness = Wariness(clock)
    wariness.met()                              # a batch has waited for a lock in vain
    wariness.is_wary()                          # True, and so it stays for a minute
    wariness.passed_over(["task 'nightly'"])    # for a minute more; says so once

    A session that waits for no lock meets many of Rota's own, which are gone at once. They do not prolong the minute.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._until = float("-inf")
        self._said: set[str] = set()

    def is_wary(self) -> bool:
        """Whether a lock was in the way within the last minute."""
        if self._timer.monotonic() < self._until:
            return True
        self._said.clear()
        return False

    def met(self) -> None:
        """Somebody's lock was in the way."""
        self._until = self._timer.monotonic() + WARY_SECONDS

    def passed_over(self, what: Iterable[str]) -> None:
        """Nothing was written of these, because somebody has locked them."""
        for one in what:
            self.met()
            if one not in self._said:
                if len(self._said) >= MOST_SAID:
                    self._said.clear()
                log.warning("%s waits: another session has locked it, or what is written with it", one)
                self._said.add(one)
