"""The scheduler process: its duties, each a loop of its own, composed and stopped."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.backfiller import Backfiller
from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.deadlines import Deadlines
from rota.scheduler_service.duties.edited_calendars import EditedCalendars
from rota.scheduler_service.duties.follower import Follower
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.presence import Presence
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.remover import Remover
from rota.scheduler_service.duties.requests import Requests
from rota.scheduler_service.duties.strays import Strays
from rota.scheduler_service.duties.sweeper import Sweeper
from rota.scheduler_service.fleet import FleetCache
from rota.shared import collector, health
from rota.shared.database.transactions import Database
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.releases import own_version
from rota.shared.loop import Loop
from rota.shared.outdated import EXIT_OUTDATED, Outdated
from rota.shared.settings import Settings
from rota.shared.store.schedulers import SchedulerDeclaration
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

CLOCK_SECONDS = 5.0
"""How often the offset to the database's clock is measured; less often where ticks are."""

CLOSING_SECONDS = 10.0


class Scheduler:
    """The duties of a scheduler over one database. Any number of schedulers may run at once.

    scheduler = Scheduler(database, settings)
    scheduler.start(); scheduler.stop()

    ``outdated`` is called when the database takes this Rota no more: the scheduler should stop.
    """

    def __init__(self, database: Database, settings: Settings, outdated: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._settings = settings
        self._surprises = Surprises("scheduler")
        by = f"scheduler {socket.gethostname()}:{os.getpid()}"[:127]
        fleet_cache = FleetCache(database)
        self._materializer = Materializer(database, settings, fleet_cache)
        self._catcher = Catcher(database, settings, fleet_cache)
        self._backfiller = Backfiller(database, settings)
        self._presence = Presence(database, declaration(settings), settings.tick_period)
        self._outdated = Outdated(database, outdated)
        self._clock = clock = database.clock
        self._loops = [
            Loop("clock", self._measure, clock),
            Loop("materializer", self._materialize, clock),
            Loop("assigner", Assigner(database, settings, fleet_cache).step, clock),
            Loop("catch-up", self._catch_up, clock),
            Loop("follower", Follower(database, settings).step, clock),
            Loop("backfiller", self._backfill, clock),
            Loop("requests", Requests(database, settings).step, clock),
            Loop("business keys", BusinessKeys(database, settings).step, clock),
            Loop("calendars", EditedCalendars(database, settings).step, clock),
            Loop("reaper", Reaper(database, settings, by).step, clock),
            Loop("deadlines", Deadlines(database, settings).step, clock),
            Loop("strays", Strays(database, settings.liveness_seconds).step, clock),
            Loop("presence", self._presence.step, clock),
            Loop("kinds", self._look_rarely, clock),
            Loop("sweeper", Sweeper(database, settings).step, clock),
            Loop("remover", Remover(database, settings).step, clock),
        ]

    def start(self) -> None:
        """Start every duty."""
        self._clock.calibrate()
        self._database.connect_ahead()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End every duty after its present step: a batch is written whole or not at all."""
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(CLOSING_SECONDS)
        self._presence.leave()

    def _measure(self) -> float:
        self._clock.measure()
        return max(CLOCK_SECONDS, self._settings.tick_period)

    def _look_rarely(self) -> float:
        self._outdated.look()
        return self._materializer.unknown_kinds.step()

    def _catch_up(self) -> float:
        return self._settings.tick_period if self._presence.is_paused else self._catcher.step()

    def _backfill(self) -> float:
        return self._settings.tick_period if self._presence.is_paused else self._backfiller.step()

    def _materialize(self) -> float:
        rest = self._settings.tick_period if self._presence.is_paused else self._materializer.step()
        self._presence.ticked()
        try:
            health.beat(self._settings.health_file, self._clock.monotonic())
        except OSError as error:  # a full disk: the fires should not wait for it
            self._surprises.say("the health file", error)
        else:
            self._surprises.over("the health file")
        return rest


def declaration(settings: Settings) -> SchedulerDeclaration:
    """This process, as a scheduler registers itself."""
    host, pid = socket.gethostname(), os.getpid()
    return SchedulerDeclaration(f"{host}-{pid}", host, pid, own_version(), settings.liveness_seconds, known_kinds())


def serve(settings: Settings) -> int:
    """Run a scheduler until SIGTERM or SIGINT, or until the database takes it no more; returns the exit code."""
    database = Database(settings.database_url.get_secret_value(), call_timeout=settings.call_limit)
    stopping, outdated = threading.Event(), threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("scheduler: stopping on %s", signal.Signals(number).name)
        stopping.set()

    def end() -> None:
        outdated.set()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    scheduler = Scheduler(database, settings, end)
    scheduler.start()
    collector.settle()
    log.info("scheduler: started, look-ahead %g s", settings.lookahead_seconds)
    stopping.wait()
    scheduler.stop()
    database.close()
    log.info("scheduler: stopped")
    return EXIT_OUTDATED if outdated.is_set() else 0
