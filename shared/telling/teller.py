"""Tells an app's listeners what the rows say: fires that were missed, tasks, workers and schedulers that come and go.

Each process that has loaded the app has a ``Teller``. Each listener is told by one of them at a time (see
``rota.shared.store.listeners``), on a thread of its own: one that is slow holds up no other.
"""

import itertools
import logging
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from rota.shared.database.transactions import Database
from rota.shared.domain.events import ROW_EVENTS, EventName, Listener, name_of
from rota.shared.loop import Loop
from rota.shared.store import listeners
from rota.shared.store.listeners import LEASE_SECONDS
from rota.shared.telling.hearing import Hearing
from rota.shared.telling.sparing import Sparing

log = logging.getLogger(__name__)

RENEW_SECONDS = LEASE_SECONDS / 4
"""How often a process says that it still holds its listeners."""

LONG_SECONDS = 60.0
"""A call that lasts for longer is said in the log."""

CLOSING_SECONDS = 2.0
"""How long a process that stops waits for the listeners that are being called."""

_number = itertools.count(1)


class Teller:
    """The duties: tell each listener, and hold the listeners on while they are called.

    teller = Teller(database, app.listeners)
    teller.start(); teller.stop()
    """

    def __init__(self, database: Database, by_event: Mapping[str, Sequence[Listener]]) -> None:
        self._database = database
        self._clock = clock = database.clock
        self._holder = f"{socket.gethostname()[:24]}:{os.getpid()}:{next(_number)}:{uuid.uuid4().hex[:8]}"
        self._stopping = clock.event()
        named: dict[str, dict[EventName, list[Listener]]] = {}
        for event in sorted(ROW_EVENTS & by_event.keys()):
            for listener in by_event[event]:
                named.setdefault(name_of(listener), {}).setdefault(EventName(event), []).append(listener)
        sparing = Sparing(database)
        self.hearings = [
            Hearing(sparing, name, heard, self._holder, self._stopping.is_set) for name, heard in named.items()
        ]
        self._said: set[str] = set()
        self._loops = [Loop(f"listener {hearing.name}"[:60], hearing.step, clock) for hearing in self.hearings]
        self._renewing = Loop("listeners' leases", self.renew, clock)

    def start(self) -> None:
        """Start the threads, if there are listeners for them."""
        for loop in self._loops:
            loop.start()
        if self._loops:
            self._renewing.start()

    def stop(self) -> None:
        """Tell no more, and let other processes have the listeners.

        It waits ``CLOSING_SECONDS`` at most for those that are being called. These other processes get when the leases
        are over, and are told the event again.
        """
        if not self._loops:
            return
        self._stopping.set()
        for loop in (*self._loops, self._renewing):
            loop.stop()
        until = self._clock.monotonic() + CLOSING_SECONDS
        has_ended = [loop.join(max(0.0, until - self._clock.monotonic())) for loop in self._loops]
        called = [hearing.name for hearing in self.hearings if hearing.called_at is not None]
        if called:
            log.warning("listeners: %s did not return; another process tells the event again", ", ".join(called))
        held = [one.name for one, ended in zip(self.hearings, has_ended, strict=True) if ended and one.is_held]
        if held:
            self._release(held)

    def renew(self) -> float:
        """Hold the listeners on; returns the seconds to rest."""
        held = {hearing.name: hearing for hearing in self.hearings if hearing.is_held}
        if held:
            asked = self._clock.monotonic()
            kept = self._database.write(partial(listeners.renew, names=list(held), holder=self._holder))
            for name, hearing in held.items():
                hearing.seen(asked, is_held=name in kept)
        self._say_long()
        return RENEW_SECONDS

    def _say_long(self) -> None:
        now = self._clock.monotonic()
        for hearing in self.hearings:
            since = hearing.called_at
            if since is None or now - since < LONG_SECONDS:
                self._said.discard(hearing.name)
            elif hearing.name not in self._said:
                self._said.add(hearing.name)
                log.warning(
                    "listeners: %s has not returned for %.0f s; what it is to hear waits", hearing.name, now - since
                )

    def _release(self, names: list[str]) -> None:
        try:
            self._database.write_undisturbed(partial(listeners.release, names=names, holder=self._holder))
        except Exception as error:  # noqa: BLE001 - the process stops all the same, and the leases end by themselves
            log.warning("listeners: other processes get them in %.0f s: %s", LEASE_SECONDS, error)
