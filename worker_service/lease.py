"""The worker's lease on life: renewed by heartbeats from a thread of its own, ended hard by a watchdog.

Somebody else may run this worker's instances once it is silent for its liveness limit. So when the lease ends the
process must have stopped by itself: Python threads cannot be stopped, so the process is. The lease counts from the
start of its renewal, not from the answer, on CLOCK_BOOTTIME, which runs through suspend and SIGSTOP; and it ends
``MARGIN_SECONDS`` before the limit, so that the process is gone by then.
"""

import logging
import os
import threading
from collections.abc import Callable

from shared import health
from shared.clock import boottime
from shared.domain.errors import RotaError
from shared.store import workers
from shared.store.database import Database
from worker_service import children

log = logging.getLogger(__name__)

EXIT_LEASE_LOST = 70
"""The exit code of a worker that lost its lease (EX_SOFTWARE): its supervisor should start it again."""

WATCH_SECONDS = 0.1
SAYING_SECONDS = 0.25
MARGIN_SECONDS = 0.5
"""The watchdog may look so late, the farewell take so long; the rest is for the children to be killed."""

RETRY_SECONDS = 1.0


def die(reason: str) -> None:
    """Kill the children and end this process at once, whatever its threads do."""
    children.kill_all()
    said = "worker: %s; this process ends now, others run its work"
    saying = threading.Thread(target=log.critical, args=(said, reason), daemon=True)
    saying.start()
    saying.join(SAYING_SECONDS)  # no longer: who reads the log may be stuck, and a handler may hold its lock
    os._exit(EXIT_LEASE_LOST)


class Lease:
    """Heartbeats and the watchdog, on two daemon threads; ``lost`` ends the process (replaced in tests)."""

    def __init__(
        self,
        database: Database,
        worker_id: int,
        *,
        heartbeat_seconds: float,
        liveness_seconds: float,
        load: Callable[[], int],
        health_file: str | None = None,
        lost: Callable[[str], None] = die,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._heartbeat_seconds = heartbeat_seconds
        self._lasts_seconds = liveness_seconds - MARGIN_SECONDS
        self._load = load
        self._health_file = health_file
        self._lost = lost
        self._ends = boottime() + self._lasts_seconds
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, name="heartbeat", daemon=True),
            threading.Thread(target=self._watch, name="watchdog", daemon=True),
        ]

    def start(self) -> None:
        """Start beating and watching."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both: the worker has deregistered."""
        self._stopping.set()

    def renew(self) -> None:
        """One heartbeat. Ends the process if the worker was declared dead."""
        began = boottime()
        load = self._load()
        if self._database.write_one(lambda c: workers.heartbeat(c, self._worker_id, load)):
            self._ends = began + self._lasts_seconds
            health.beat(self._health_file)
        elif not self._stopping.is_set():
            self._lost("it was declared dead")

    def _beat(self) -> None:
        failing = False
        measure = True
        while not self._stopping.is_set():
            try:
                self.renew()
                if measure:  # at every other beat: an idle worker asks little
                    self._database.clock.measure()
                measure = not measure
                rest, failing = self._heartbeat_seconds, False
            except Exception as error:  # noqa: BLE001 - the watchdog judges; this thread must go on beating
                if not failing:
                    log.warning("heartbeat: failed and will be tried again: %s", _sentence(error))
                rest, failing = RETRY_SECONDS, True
            self._stopping.wait(rest)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            if boottime() > self._ends:
                self._lost(f"it could not renew its lease for {self._lasts_seconds:g} s")
                return


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, RotaError) else f"{type(error).__name__}: {error}"
