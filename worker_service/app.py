"""The worker process: registers, starts its engine, and stops everything in order."""

import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType

from rota.shared import collector
from rota.shared.clock import Clock
from rota.shared.database.transactions import Database
from rota.shared.domain.releases import own_version
from rota.shared.loop import Loop
from rota.shared.outdated import EXIT_OUTDATED, Outdated
from rota.shared.settings import Settings
from rota.shared.stopping import wait
from rota.shared.store import node_types, workers
from rota.shared.store.node_types import versions_of
from rota.shared.store.workers import WorkerDeclaration
from rota.shared.telling.teller import Teller
from rota.shared.waking.listener import WakeListener, listen
from rota.worker_service import builtin, process_groups, registration
from rota.worker_service.authoring import Rota
from rota.worker_service.contents import Node
from rota.worker_service.declarations import declarations_of
from rota.worker_service.engine import CLOSING_SECONDS, Engine, attempt
from rota.worker_service.executors.fork_server import ForkServer
from rota.worker_service.guarded import Guarded
from rota.worker_service.leaving import leave
from rota.worker_service.liveness import Liveness, Unguarded, die
from rota.worker_service.rows import WorkerRows

log = logging.getLogger(__name__)

EXIT_ABANDONED = 75
"""The exit code of a worker that ended itself because of a thread, or for want of a fork server (EX_TEMPFAIL). A
supervisor starts another."""


class Worker:
    """A worker over one database.

        worker = Worker(settings, app)
        worker.start(); worker.stop()

    ``liveness`` keeps it live: the worker's own heartbeats if it has no guardian. ``clock`` is for simulations: the
    worker and its database sessions take the time from it. ``lost`` is called when the worker must not go on, and ends
    the process. ``stuck`` is called when a thread has not returned for ``abandoned_seconds``: the worker should stop,
    and its process end. ``outdated`` is called when the database takes this Rota no more: the worker
    should stop. ``fork_server`` forks the processes of nodes; without one, the first such node starts one.
    """

    def __init__(
        self,
        settings: Settings,
        app: Rota,
        *,
        liveness: Liveness | None = None,
        clock: Clock | None = None,
        lost: Callable[[str], None] = die,
        stuck: Callable[[], None] = lambda: None,
        outdated: Callable[[], None] = lambda: None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._settings = settings
        self._fork_server = fork_server
        self._app = app
        self._lost = lost
        self._liveness = liveness or Unguarded(settings, clock, lost)
        self._stuck = stuck
        limit = settings.call_limit
        url = settings.database_url.get_secret_value()
        self._database = Database(url, call_timeout=limit, retry_seconds=limit, clock=clock)
        self._clock = self._database.clock
        self._outdated = Outdated(self._database, outdated)
        self._measure_loop = Loop("clock", self._measure, self._clock)
        self._listener: WakeListener | None = None
        nodes = {n.type: n for n in builtin.nodes(settings, app)} | dict(app.nodes)
        self._nodes: dict[str, Node] = {type_: self._liveness.watched(node) for type_, node in nodes.items()}
        self.stop_now = threading.Event()
        """Set it to end the grace time at once."""

    def start(self, registered: Callable[[], None] = lambda: None) -> None:
        """Register and begin to pull. ``registered`` is called in between.

        Raises NameTaken, and InvalidInput for a task that does not fit its type.
        """
        name = self._settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"
        self._clock.calibrate()
        self._database.connect_ahead()
        declarations = [node.declaration() for node in self._nodes.values()]
        self._database.write(lambda c: node_types.register(c, declarations, name[:127]))
        versions = versions_of(declarations)
        declared = declarations_of(self._app, self._database, name[:127], self._settings, versions)
        declared.declare()
        self._listener = listen(self._settings, self._database.url, self._clock, self._look_now)
        mine = self._declaration(name, versions, declared.versions)
        self._liveness.registering()
        try:
            self.id, asked = registration.register(self._database, mine)
        except BaseException:
            if self._listener is not None:
                self._listener.close()
            raise
        registered()
        self._engine = self._new_engine(name)
        self._liveness.begin(self.id, asked, self._engine.load, self._engine.silent_seconds)
        self._engine.start()
        if self._listener is not None:
            self._listener.start()
        self._measure_loop.start()
        self._types = registration.RegisteredTypes(self._database, declarations, by=name[:127])
        self._types_loop = Loop("node types", self._look_rarely, self._clock)
        self._types_loop.start()
        self._teller = Teller(self._database, self._app.listeners)
        self._teller.start()
        self._declarations = Loop("declarations", declared.look, self._clock)
        if self._app.schedules or self._app.limits:
            self._declarations.start()
        log.info("worker %r: started as #%d, capacity %d", name, self.id, self._settings.capacity)

    def _new_engine(self, name: str) -> Engine:
        return Engine(
            WorkerRows(self._database, self.id),
            self._settings,
            self._app,
            self._nodes,
            self._clock,
            name=name,
            lost=self._lost,
            stuck=self._stuck,
            fork_server=self._fork_server,
        )

    def stop(self) -> None:
        """Stop in order.

        The worker claims no more instances and hands back those that have not started. The running ones may end within
        the grace time. The others are stopped, and then fail or are handed back. Then the worker's row becomes dead;
        but if a handler still runs, only when the process is gone: what it runs must begin nowhere else before that.
        """
        deadline = self._clock.monotonic() + self._settings.grace_seconds
        if self._listener is not None:
            self._listener.close()
        self._declarations.stop()
        self._types_loop.stop()
        drain = partial(workers.drain, worker_id=self.id, reason=workers.STOPPING, by="worker")
        attempt(lambda: self._database.write_one(drain), unless=self.stop_now)
        self._engine.stop_pulling(self.stop_now)
        attempt(lambda: self._database.write(partial(workers.leave, worker_id=self.id)), unless=self.stop_now)
        all_ended = self._engine.finish(deadline, self.stop_now)
        self._measure_loop.stop()
        self._liveness.end(all_ended=all_ended)
        self._engine.close(self.stop_now)
        self._declarations.join(CLOSING_SECONDS)
        self._types_loop.join(CLOSING_SECONDS)
        process_groups.kill_all()
        self._teller.stop()
        self._database.close()

    def _look_now(self) -> float:
        return self._engine.look_now()

    def _look_rarely(self) -> float:
        self._outdated.look()
        return self._types.look()

    def _measure(self) -> float:
        self._clock.measure()
        return 2 * self._settings.heartbeat_seconds  # an idle worker should send few statements

    def _declaration(
        self, name: str, type_versions: Mapping[str, str], schedules: Mapping[str, str]
    ) -> WorkerDeclaration:
        return WorkerDeclaration(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_identity=registration.process_identity(os.getpid()) or "",
            version=own_version(),
            capacity=self._settings.capacity,
            prefetch=self._settings.prefetch,
            liveness_seconds=self._settings.liveness_seconds,
            node_types=sorted(self._nodes),
            labels=self._settings.labels,
            type_versions=type_versions,
            schedules=schedules,
            wake_address=None if self._listener is None else self._listener.address,
            pools=self._app.pools,
        )


def serve(settings: Settings, app: Rota, guarded: Guarded, fork_server: ForkServer) -> int:
    """Run a worker until SIGTERM or SIGINT. A second signal ends its grace time. Returns the exit code.

    Before the worker has registered, which may take long, a signal ends it as any program.
    Raises RotaError when the worker cannot start. A worker that must not go on ends the process with the exit code
    ``liveness.EXIT_LEASE_LOST``, one that is stuck (a thread, the fork server) with ``EXIT_ABANDONED``, and one
    that the database takes no more with ``EXIT_OUTDATED``.
    """
    stopping, codes = threading.Event(), [0]
    signals = itertools.count(1)

    def end(code: int) -> None:
        codes.append(code)
        stopping.set()

    stuck, outdated = partial(end, EXIT_ABANDONED), partial(end, EXIT_OUTDATED)
    worker = Worker(settings, app, liveness=guarded, stuck=stuck, outdated=outdated, fork_server=fork_server)
    fork_server.when_unusable(stuck)

    def stop(times: int) -> None:
        """Stop the worker. Once, and the same again by way of the guardian, is once."""
        stopping.set()
        if times > 1:
            worker.stop_now.set()

    def signaled(number: int, frame: FrameType | None) -> None:
        stop(next(signals))

    def take_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signaled)

    guarded.asked_to_stop = stop
    worker.start(take_signals)
    collector.settle()
    wait(stopping, "worker")
    log.info("worker: stopping; running work has %g s", settings.grace_seconds)
    worker.stop()
    log.info("worker: stopped")
    leave(codes[-1])
