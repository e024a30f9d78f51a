"""The scheduler process: its duties, each a loop of its own, composed and stopped."""

import logging
import os
import signal
import socket
import threading
from types import FrameType

from scheduler_service.assigner import Assigner
from scheduler_service.materializer import Materializer
from scheduler_service.reaper import Reaper
from scheduler_service.world import Worlds
from shared import collector, health
from shared.loop import Loop
from shared.settings import Settings
from shared.store.database import Database

log = logging.getLogger(__name__)

CLOCK_SECONDS = 5.0
"""How often the offset to the database's clock is measured."""

CLOSING_SECONDS = 10.0


class Scheduler:
    """The duties of a scheduler over one database. Any number of schedulers may run at once.

    scheduler = Scheduler(database, settings)
    scheduler.start(); scheduler.stop()
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._settings = settings
        by = f"scheduler {socket.gethostname()}:{os.getpid()}"[:127]
        worlds = Worlds(database)
        self._materializer = Materializer(database, settings, worlds)
        self._clock = database.clock
        self._loops = [
            Loop("clock", self._measure),
            Loop("materializer", self._materialize),
            Loop("assigner", Assigner(database, settings, worlds).step),
            Loop("reaper", Reaper(database, settings, by).step),
        ]

    def start(self) -> None:
        """Start every duty."""
        self._clock.calibrate()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End every duty after its present step: a batch is written whole or not at all."""
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(CLOSING_SECONDS)

    def _measure(self) -> float:
        self._clock.measure()
        return CLOCK_SECONDS

    def _materialize(self) -> float:
        rest = self._materializer.step()
        health.beat(self._settings.health_file)
        return rest


def serve(settings: Settings) -> int:
    """Run a scheduler until SIGTERM or SIGINT; returns the exit code."""
    database = Database(settings.database_url.get_secret_value(), call_timeout=settings.call_timeout_seconds)
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("scheduler: stopping on %s", signal.Signals(number).name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    scheduler = Scheduler(database, settings)
    scheduler.start()
    collector.settle()
    log.info("scheduler: started, look-ahead %g s", settings.lookahead_seconds)
    stopping.wait()
    scheduler.stop()
    database.close()
    log.info("scheduler: stopped")
    return 0
