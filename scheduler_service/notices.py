"""Saying a thing once, not once a tick."""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


class Notices:
    """What a duty complains about: logged when it begins, and when it is over.

    notices = Notices("assigner")
    notices.complain({"no live worker can run REPORT_SEND"})   # as often as it is found
    notices.looked_at_all()                                    # what was not found since the last time is over
    """

    def __init__(self, duty: str) -> None:
        self._duty = duty
        self._standing: set[str] = set()
        self._found: set[str] = set()

    def complain(self, complaints: Iterable[str]) -> None:
        """These were found; what is new among them is logged."""
        found = set(complaints) - self._found
        for complaint in sorted(found - self._standing):
            log.warning("%s: %s", self._duty, complaint)
        self._found |= found

    def looked_at_all(self) -> None:
        """What there is to complain about has been found by now; what was not, is over."""
        for complaint in sorted(self._standing - self._found):
            log.info("%s: over: %s", self._duty, complaint)
        self._standing, self._found = self._found, set()
