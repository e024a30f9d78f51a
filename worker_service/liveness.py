"""The worker's liveness lease: heartbeats renew it, and a watchdog ends the worker when it has run out.

When a worker is silent for its liveness limit, another worker may run its instances. By then its process must have
ended: it cannot stop a Python thread, so it ends as a whole. The lease counts from the start of a heartbeat, not from
the database's answer. It counts on a timer that goes on during suspend and SIGSTOP. It ends ``MARGIN_SECONDS`` before
the liveness limit, so that there is time for the process to end.

The worker's guardian holds the lease, in a process of its own (``guardian``). A worker without a guardian, as in a
simulation, holds it itself (``Unguarded``).
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from rota.shared import health
from rota.shared.clock import Clock
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseAway, RotaError
from rota.shared.settings import Settings
from rota.shared.store import workers
from rota.shared.store.workers import Load
from rota.worker_service import process_groups
from rota.worker_service.contents import Node

log = logging.getLogger(__name__)

EXIT_LEASE_LOST = 70
"""The exit code of a worker that lost its lease (EX_SOFTWARE). Its supervisor should start it again."""

LAST_LOG_SECONDS = 0.25
MARGIN_SECONDS = 0.5
"""The watchdog may notice the end ``clock.WATCH_SECONDS`` late. The last log line takes up to ``LAST_LOG_SECONDS``. The
rest of the margin is for killing the children."""

RETRY_SECONDS = 1.0
LAST_BEAT_SECONDS = 1.0
"""How long to wait for a heartbeat that is under way before the row is marked dead: a death passes over such a beat."""


class Liveness(Protocol):
    """What keeps a worker live, and ends it when its lease is over."""

    def registering(self) -> None:
        """From now on the worker may have a row."""
        ...

    def begin(self, worker_id: int, asked: float, load: Callable[[], Load], silent: Callable[[], float]) -> None:
        """Begin when the worker has registered. ``load`` returns what each heartbeat says of the worker.

        The lease counts from ``asked`` (the clock's ``monotonic``), which was before the row's first beat.
        ``silent`` returns for how many seconds the worker's event loop has been blocked.
        """
        ...

    def watched(self, node: Node) -> Node:
        """The node as the worker is to run it."""
        ...

    def end(self, *, all_ended: bool) -> None:
        """End when the worker takes nothing any more: its row becomes dead, now or when its process has ended.

        ``all_ended``: whether all handlers have ended. Otherwise it must not become dead before the process has ended.
        """
        ...


def die(reason: str) -> None:
    """Log the reason, kill the children, and end this process at once, whatever its threads do.

    The children die last: a thread that sees the end of one could still report that its run has failed.
    """
    message = "worker: %s; this process ends now, others run its work"
    try:
        logging_thread = threading.Thread(target=log.critical, args=(message, reason), daemon=True)
        logging_thread.start()
        logging_thread.join(LAST_LOG_SECONDS)  # no longer: the log's reader may be stuck, or a handler hold its lock
    except RuntimeError:  # this process can start no thread any more
        pass
    finally:
        _end()


def _end() -> None:
    try:
        process_groups.kill_all()
    finally:
        os._exit(EXIT_LEASE_LOST)


def lease_database(settings: Settings, clock: Clock | None = None) -> Database:
    """The database for heartbeats alone: a call fails early enough for another try before the lease ends."""
    limit = min(settings.call_timeout_seconds, settings.liveness_seconds / 3)
    url = settings.database_url.get_secret_value()
    return Database(url, call_timeout=limit, retry_seconds=limit, clock=clock)


def lease_seconds(settings: Settings) -> float:
    """How long the lease lasts from the start of a heartbeat."""
    return settings.liveness_seconds - MARGIN_SECONDS


class Lease:
    """Heartbeats and the watchdog, on two daemon threads. When the lease ends, ``lost`` is called with the reason.

    It ends at ``expires`` (the clock's ``monotonic``), if no heartbeat renews it. ``load`` returns what each heartbeat
    says of the worker. ``renewed`` is called after each heartbeat with the moment at which the lease now ends.
    """

    def __init__(
        self,
        database: Database,
        worker_id: int,
        settings: Settings,
        load: Callable[[], Load],
        lost: Callable[[str], None] = die,
        *,
        expires: float,
        renewed: Callable[[float], None] = lambda expires: None,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._heartbeat_seconds = settings.heartbeat_seconds
        self._lease_seconds = lease_seconds(settings)
        self._health_file = settings.health_file
        self._load = load
        self._lost = lost
        self._renewed = renewed
        self._clock = clock = database.clock
        self._expires = expires
        self._stopping = clock.event()
        self._threads = [clock.thread("heartbeat", self._beat), clock.thread("watchdog", self._watch)]

    @property
    def is_over(self) -> bool:
        """Whether the lease has ended."""
        return self._clock.monotonic() >= self._expires

    def start(self) -> None:
        """Start beating and watching."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads. Call it before the worker's row is marked dead: else a heartbeat would find it dead."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Wait until no heartbeat is under way any more, for ``timeout`` seconds at most."""
        self._threads[0].join(timeout)

    def renew(self) -> None:
        """Send one heartbeat. Calls ``lost`` if the worker was declared dead."""
        began = self._clock.monotonic()
        load = self._load()
        if self._database.write_one(lambda c: workers.heartbeat(c, self._worker_id, load)):
            self._expires = began + self._lease_seconds
            self._renewed(self._expires)
            health.beat(self._health_file, self._clock.monotonic())
        elif not self._stopping.is_set():
            self._lost("it was declared dead")

    def _beat(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self.renew()
                rest, failing = self._heartbeat_seconds, False
            except Exception as error:  # noqa: BLE001 - the watchdog decides; this thread must go on beating
                if not failing and not isinstance(error, DatabaseAway):
                    log.warning("heartbeat: failed and will be tried again: %s", _sentence(error))
                rest, failing = RETRY_SECONDS, True
            self._stopping.wait(rest)

    def _watch(self) -> None:
        while not self._clock.wait_until(self._stopping, self._expires):
            if self.is_over:  # else a heartbeat has renewed it
                self._lost(f"it could not renew its lease for {self._lease_seconds:g} s")
                return


class Unguarded:
    """The liveness of a worker that has no guardian: it sends its heartbeats itself, from a thread."""

    def __init__(self, settings: Settings, clock: Clock | None, lost: Callable[[str], None]) -> None:
        self._settings = settings
        self._lost = lost
        self._database = lease_database(settings, clock)

    def registering(self) -> None:
        """Nothing: nobody would see this process end."""

    def begin(self, worker_id: int, asked: float, load: Callable[[], Load], silent: Callable[[], float]) -> None:
        """Send heartbeats."""
        self._worker_id = worker_id
        expires = asked + lease_seconds(self._settings)
        self._lease = Lease(self._database, worker_id, self._settings, load, self._lost, expires=expires)
        self._lease.start()

    def watched(self, node: Node) -> Node:
        """The node as it is."""
        return node

    def end(self, *, all_ended: bool) -> None:
        """Send no more heartbeats, and mark the worker's row dead, unless a handler still runs."""
        self._lease.stop()
        self._lease.join(LAST_BEAT_SECONDS)
        bury = partial(workers.bury, worker_ids=[self._worker_id], reason=workers.STOPPED, by="worker")
        try:
            if all_ended:
                self._database.write(bury)
        except Exception as error:  # noqa: BLE001 - the scheduler declares it dead when its lease is over
            log.warning("worker: while stopping: %s", _sentence(error))
        self._database.close()


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, RotaError) else f"{type(error).__name__}: {error}"
