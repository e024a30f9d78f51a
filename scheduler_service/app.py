"""The scheduler process: its duties, each a loop of its own, composed and stopped."""

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.backfiller import Backfiller
from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.chains import Chains
from rota.scheduler_service.duties.deadlines import Deadlines
from rota.scheduler_service.duties.edited_calendars import EditedCalendars
from rota.scheduler_service.duties.follower import Follower
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.pool_places import PoolPlaces
from rota.scheduler_service.duties.presence import Presence
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.remover import Remover
from rota.scheduler_service.duties.requests import Requests
from rota.scheduler_service.duties.spreader import Spreader
from rota.scheduler_service.duties.strays import Strays
from rota.scheduler_service.duties.sweeper import Sweeper
from rota.scheduler_service.fleet import SNAPSHOT_SECONDS, FleetCache
from rota.shared import collector, health
from rota.shared.database.transactions import Database
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.events import Listener
from rota.shared.domain.releases import own_version
from rota.shared.loop import Loop
from rota.shared.outdated import EXIT_OUTDATED, Outdated
from rota.shared.settings import Settings
from rota.shared.stopping import wait
from rota.shared.store.schedulers import SchedulerDeclaration
from rota.shared.surprises import Surprises
from rota.shared.telling.teller import Teller
from rota.shared.waking.listener import listen
from rota.shared.waking.pace import REST_SECONDS, rest_after

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
        self._surprises, self._outdated = Surprises("scheduler"), Outdated(database, outdated)
        by = f"scheduler {socket.gethostname()}:{os.getpid()}"[:127]
        fleet_cache = FleetCache(database)
        self._materializer = Materializer(database, settings, fleet_cache)
        self._catcher = Catcher(database, settings, fleet_cache)
        self._backfiller = Backfiller(database, settings)
        self._listener = listen(settings, database.url, database.clock, self._look_now)
        address = None if self._listener is None else self._listener.address
        self._presence = Presence(database, declaration(settings, address), settings.tick_period)
        self._clock = clock = database.clock
        spreader = Spreader(database, settings, fleet_cache, self._assign_now)
        self._assigner = Assigner(database, settings, fleet_cache, self._look_at_requests, spreader.note)
        self._assigner_loop = Loop("assigner", self._assigner.step, clock)
        self._requests_loop = Loop("requests", Requests(database, settings, self._assign_now).step, clock)
        spreader_loop = Loop("spreader", spreader.step, clock)
        spreader.wake = spreader_loop.wake
        self._loops = [
            Loop("clock", self._measure, clock),
            Loop("materializer", self._materialize, clock),
            self._assigner_loop,
            spreader_loop,
            Loop("catch-up", self._catch_up, clock),
            Loop("follower", Follower(database, settings).step, clock),
            Loop("chains", Chains(database, settings, self._assign_now).step, clock),
            Loop("backfiller", self._backfill, clock),
            self._requests_loop,
            Loop("business keys", BusinessKeys(database, settings, self._assign_now).step, clock),
            Loop("calendars", EditedCalendars(database, settings).step, clock),
            Loop("reaper", Reaper(database, settings, by).step, clock),
            Loop("deadlines", Deadlines(database, settings).step, clock),
            Loop("pool places", PoolPlaces(database, settings).step, clock),
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
        if self._listener is not None:
            self._listener.start()

    def stop(self) -> None:
        """End every duty after its present step: a batch is written whole or not at all."""
        if self._listener is not None:
            self._listener.close()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(CLOSING_SECONDS)
        self._presence.leave()

    def _look_now(self) -> float:
        """Look for urgent work; returns how long the next look has to wait."""
        self._assign_now()
        least = SNAPSHOT_SECONDS if self._assigner.is_crowded else REST_SECONDS
        return rest_after(self._assigner_loop.took, least)

    def _assign_now(self) -> None:
        self._assigner.is_woken = True
        self._assigner_loop.wake()

    def _look_at_requests(self) -> None:
        self._requests_loop.wake()

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


def declaration(settings: Settings, wake_address: str | None = None) -> SchedulerDeclaration:
    """This process, as a scheduler registers itself."""
    host, pid = socket.gethostname(), os.getpid()
    return SchedulerDeclaration(
        name=f"{host}-{pid}",
        host=host,
        pid=pid,
        version=own_version(),
        liveness_seconds=settings.liveness_seconds,
        kinds=known_kinds(),
        wake_address=wake_address,
        lookahead_seconds=math.ceil(settings.lookahead_seconds),
    )


def serve(settings: Settings, listeners: Mapping[str, Sequence[Listener]]) -> int:
    """Run a scheduler until SIGTERM or SIGINT, or until the database takes it no more; returns the exit code.

    ``listeners``: those of an app, by their events. They are told what the rows say.
    """
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
    teller = Teller(database, listeners)
    teller.start()
    collector.settle()
    log.info("scheduler: started, look-ahead %g s", settings.lookahead_seconds)
    wait(stopping, "scheduler")
    scheduler.stop()
    teller.stop()
    database.close()
    log.info("scheduler: stopped")
    return EXIT_OUTDATED if outdated.is_set() else 0
