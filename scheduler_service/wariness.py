"""Wariness: for how long the writes of tasks ask first which rows others have locked."""

import logging

from rota.shared.clock import Timer

log = logging.getLogger(__name__)

WARY_SECONDS = 60.0
"""So long after a write that had to wait, or that passed over a task, each write asks what is locked."""

LONG_WAIT_SECONDS = 1.0
"""A write that begins again after so long has waited for a lock in vain. After a deadlock it begins again at once."""


class Wariness:
    """It costs a statement to ask, so a write asks only after a lock had to be waited for.

    wariness = Wariness(clock)
    wariness.is_wary(waited=2.1)          # True, and so it stays for a minute
    wariness.passed_over({"nightly"})     # for a minute more; says so once
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._until = float("-inf")
        self._said: set[str] = set()

    def is_wary(self, waited: float) -> bool:
        """Whether a write that has waited for so many seconds asks first what is locked."""
        if waited >= LONG_WAIT_SECONDS:
            self._until = self._timer.monotonic() + WARY_SECONDS
        is_wary = self._timer.monotonic() < self._until
        if not is_wary:
            self._said.clear()
        return is_wary

    def passed_over(self, names: set[str]) -> None:
        """A write has passed over the tasks of these names."""
        self._until = self._timer.monotonic() + WARY_SECONDS
        for name in sorted(names - self._said):
            log.warning("task %r waits: another session has locked it, or a fire of its old plan", name)
        self._said.update(names)
