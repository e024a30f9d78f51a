"""Notices: a duty logs a complaint once, not once a tick."""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


def of_instance(instance_id: int) -> str:
    """An instance, as the log names it."""
    return f"instance {instance_id}"


class Notices:
    """The complaints of a duty. Each is logged when it first appears and when it is over.

    notices = Notices("assigner")
    notices.complain({"no live worker can run REPORT_SEND"})   # as often as it is found
    notices.looked_at_all()                                    # complaints not found since the last call are over
    """

    def __init__(self, duty: str) -> None:
        self._duty = duty
        self._standing: set[str] = set()
        self._found: set[str] = set()

    def complain(self, complaints: Iterable[str]) -> None:
        """Log those of these complaints that are new."""
        found = set(complaints) - self._found
        for complaint in sorted(found - self._standing):
            log.warning("%s: %s", self._duty, complaint)
        self._found |= found

    def looked_at_all(self) -> None:
        """The duty has looked at everything since the last call. A complaint that it did not find again is over."""
        for complaint in sorted(self._standing - self._found):
            log.info("%s: over: %s", self._duty, complaint)
        self._standing, self._found = self._found, set()
