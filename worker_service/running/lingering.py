"""Lingering: handlers that were to stop and have not returned. A thread cannot be stopped, nor a coroutine that blocks.

While its handler lingers, a run must not begin again, here or elsewhere. So its slots stay taken, that of the worker
or of its pool, and that of its task. A run that is retried keeps them because it goes on being ``running`` until its
handler returns. A run that has ended is *abandoned*: its handler is counted apart, and the database keeps its task's
slot until then.
"""

import threading
from collections.abc import Collection, Iterable

from rota.shared.clock import Timer
from rota.worker_service.pulling.slot import Slot
from rota.worker_service.pulling.slots import Slots


class Lingering:
    """The handlers of one worker that linger, from any thread's view.

    lingering.begin(active); lingering.abandon(active); lingering.settle([active], 7); lingering.end(active, 7)
    lingering.returned()   # {7}: its overlap slot may be freed
    """

    def __init__(self, timer: Timer) -> None:
        self._monotonic = timer.monotonic
        self._lock = threading.Lock()
        self._since: dict[Slot, float] = {}
        self._abandoned: set[Slot] = set()
        self._half: dict[Slot, int] = {}
        self._returned: set[int] = set()

    def __len__(self) -> int:
        return len(self._since)

    def within(self, slots: Slots) -> int:
        """How many of these slots are taken by handlers that linger."""
        return sum(run.weight for run in list(self._since) if run.of is slots)

    @property
    def longest(self) -> float:
        """For how many seconds the handler has lingered that was to stop first; 0 if none lingers."""
        since = list(self._since.values())
        return self._monotonic() - min(since) if since else 0.0

    def begin(self, run: Slot) -> None:
        """The call of this run was to stop, and its handler still runs."""
        with self._lock:
            self._since[run] = self._monotonic()

    def abandon(self, run: Slot) -> None:
        """The run ends, and its handler lingers on."""
        with self._lock:
            self._abandoned.add(run)
        run.of.abandon(+run.weight)

    def settle(self, runs: Iterable[Slot], instance_id: int) -> None:
        """The end of an abandoned instance is committed, with all that runs of it."""
        with self._lock:
            for run in runs:
                self._pair(run, instance_id)

    def end(self, run: Slot, instance_id: int) -> None:
        """The handler has returned."""
        with self._lock:
            self._since.pop(run, None)
            if run not in self._abandoned:
                return
            self._abandoned.discard(run)
            self._pair(run, instance_id)
        run.of.abandon(-run.weight)

    def returned(self) -> set[int]:
        """The instances whose ends are committed and whose handlers have all returned since the last call."""
        with self._lock:
            open_still = self._returned.intersection(self._half.values())
            returned, self._returned = self._returned - open_still, open_still
        return returned

    def put_back(self, instance_ids: Collection[int]) -> None:
        """Let ``returned`` tell these once more: their slots could not be freed."""
        with self._lock:
            self._returned.update(instance_ids)

    def _pair(self, run: Slot, instance_id: int) -> None:
        """The second of the two events, commit and return, whichever that is, lets the slot be freed."""
        if run in self._half:
            del self._half[run]
            self._returned.add(instance_id)
        else:
            self._half[run] = instance_id
