"""Proceeding: a run between two nodes. It has no slot while its report is written, and gets one for its next node.

Runs that have begun go before new ones. If no slot is free, they wait in a line, in the order of their commits.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

from rota.shared.clock import Timer
from rota.shared.loop import Loop
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running.active import Active


class Proceeding:
    """Lets runs go on at their next node, each when it has a slot. ``run_next`` starts that node.

    proceeding.go_on(active)   # its report is committed
    proceeding.stop(active)    # it is to run no further node, so it needs no slot
    """

    def __init__(self, run_next: Callable[[Active], None], timer: Timer) -> None:
        self._slots: tuple[Slots, ...] = ()
        self._run_next = run_next
        self.loop = Loop("proceed", self._serve, timer)
        """Serves those that wait in a line, once this loop is started."""

    def serve(self, slots: Slots) -> None:
        """Serve those that wait for these slots, too."""
        self._slots = (*self._slots, slots)
        slots.on_free(partial(self._slot_free, slots))

    def go_on(self, active: Active) -> None:
        """Start the next node now if a slot is free, otherwise in turn."""
        if active.stop is not None or active.of.take_back(active):
            self._run_next(active)
        elif active.stop is not None:  # since the first look: whoever stopped it did not find it in the line
            self.stop(active)

    def stop(self, active: Active) -> None:
        """If it waits in the line, let it go on without a slot: it is stopped, and enters no handler."""
        if active.of.leave_line(active):
            self._run_next(active)

    def _slot_free(self, slots: Slots) -> None:
        if slots.line:
            self.loop.wake()

    def _serve(self) -> float:
        for slots in self._slots:
            while (active := slots.next_in_line()) is not None:
                self._run_next(cast("Active", active))
        return math.inf
