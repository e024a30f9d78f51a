"""Calls an app's listeners."""

import logging
import traceback
from collections.abc import Iterable
from typing import Any

from rota.shared.domain.events import Listener

log = logging.getLogger(__name__)


class Calls:
    """Calls listeners one after another. What one raises is logged, unless it was the same the last time.

    Calls().tell([alert, count], event)
    """

    def __init__(self) -> None:
        self._failures: dict[int, str] = {}

    def tell(self, heard_by: Iterable[Listener], event: Any) -> None:
        """Tell an event to these listeners. None of them keeps the others from hearing it."""
        for listener in heard_by:
            try:
                listener(event)
            except BaseException as error:  # noqa: BLE001 - SystemExit too: the others are told all the same
                self._say(listener, error)

    def _say(self, listener: Listener, error: BaseException) -> None:
        said = "".join(traceback.format_exception_only(error)).strip()  # also of one whose __str__ raises
        if self._failures.get(id(listener)) != said:
            self._failures[id(listener)] = said
            name = getattr(listener, "__qualname__", type(listener).__qualname__)
            log.error("listeners: %s has raised %s; the event is not told again", name, said, exc_info=error)
