"""Saying a thing once, not once a tick."""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


class Notices:
    """What a duty complains about: logged when it begins, and when it is over.

    notices = Notices("assigner")
    notices.now({"no live worker can run REPORT_SEND"})
    """

    def __init__(self, duty: str) -> None:
        self._duty = duty
        self._standing: set[str] = set()

    def now(self, complaints: Iterable[str]) -> None:
        """The complaints of this tick: new ones are logged, and those that are over."""
        present = set(complaints)
        for complaint in sorted(present - self._standing):
            log.warning("%s: %s", self._duty, complaint)
        for complaint in sorted(self._standing - present):
            log.info("%s: over: %s", self._duty, complaint)
        self._standing = present
