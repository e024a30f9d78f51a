"""The worker process: registration, lease, pulling, running and reporting, composed; and how it stops."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from importlib.metadata import version
from types import FrameType

from shared import collector
from shared.clock import boottime
from shared.domain.errors import RotaError
from shared.domain.jsontext import json_text
from shared.domain.states import InstanceStatus, NodeStatus, WorkerLostPolicy
from shared.loop import Loop
from shared.settings import Settings
from shared.store import assignments, reports, workers
from shared.store.database import Database
from shared.store.reports import InstanceReport, NodeReport, Report
from shared.store.runs import Run
from shared.store.workers import WorkerDeclaration
from worker_service import builtin, children, registration
from worker_service.authoring import Execution, Node, Rota
from worker_service.delay_queue import DelayQueue
from worker_service.executors.base import Executor
from worker_service.executors.event_loop import EventLoopExecutor
from worker_service.executors.process import ProcessExecutor
from worker_service.executors.threads import ThreadExecutor
from worker_service.lease import Lease
from worker_service.poller import Poller
from worker_service.reporter import Reporter
from worker_service.runner import Active, Runner

log = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0


class Worker:
    """A worker over one database.

    worker = Worker(settings, app)
    worker.start(); worker.stop()
    """

    def __init__(self, settings: Settings, app: Rota) -> None:
        self._settings = settings
        self._database = self._connect()
        self._lease_database = self._connect(call_timeout=settings.liveness_seconds / 3)
        self._database.clock = self._lease_database.clock  # which is measured beside the heartbeats
        self._app = app
        self._nodes: dict[str, Node] = {n.type: n for n in builtin.nodes(allow_shell=settings.allow_shell)}
        self._nodes.update(app.nodes)
        self.hurry = threading.Event()
        """Set to end the grace time: stop at once."""

    def start(self) -> None:
        """Register and begin to pull.

        Raises NameTaken, or InvalidInput for a task that the app declares wrongly.
        """
        name = self._settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"
        self._database.clock.calibrate()
        declarations = [node.declaration() for node in self._nodes.values()]
        registration.declare(self._database, self._app, declarations, by=name[:127])
        self.id = registration.register(self._lease_database, self._declaration(name))
        self._compose()
        self._lease = Lease(
            self._lease_database,
            self.id,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            liveness_seconds=self._settings.liveness_seconds,
            load=self._busy,
            health_file=self._settings.health_file,
        )
        self._lease.start()
        for thread in self._threads:
            thread.start()
        for loop in (self._poll_loop, self._claim_loop, self._deadline_loop):
            loop.start()
        log.info("worker %r: started as #%d, capacity %d", name, self.id, self._settings.capacity)

    def stop(self) -> None:
        """Stop in order: take no more, hand back what has not started, finish what runs within the grace time, then
        fail or hand back the rest, and deregister."""
        deadline = boottime() + self._settings.grace_seconds
        self._stopping = True
        self._attempt(
            lambda: self._database.write(partial(workers.drain, worker_id=self.id, reason="stopping", by="worker"))
        )
        self._poll_loop.stop()
        self._claim_loop.stop()
        self._poller.close()
        self._claim_loop.join(CLOSING_SECONDS)
        self._hand_back_unstarted()
        while len(self._runner) and boottime() < deadline and not self.hurry.is_set():
            self._fewer.wait(min(0.5, max(0.0, deadline - boottime())))
            self._fewer.clear()
        self._poll_loop.join(CLOSING_SECONDS)  # a comparison under way would hand back what is being ended
        self._end_the_rest()
        self._reporter.flush(CLOSING_SECONDS)
        self._reporter.close()
        self._lease.stop()  # before the row is dead: a heartbeat that found it so would end the process as lost
        self._attempt(
            lambda: self._database.write(partial(workers.bury, worker_ids=[self.id], reason="stopped", by="worker"))
        )
        for executor in self._executors.values():
            executor.close()
        children.kill_all()
        self._starts.close()
        self._database.close()
        self._lease_database.close()

    def _connect(self, call_timeout: float | None = None) -> Database:
        url = self._settings.database_url.get_secret_value()
        limit = min(call_timeout or self._settings.call_timeout_seconds, self._settings.call_timeout_seconds)
        return Database(url, call_timeout=limit, retry_seconds=limit)

    def _declaration(self, name: str) -> WorkerDeclaration:
        return WorkerDeclaration(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_identity=registration.process_identity(os.getpid()) or "",
            version=version("rota"),
            capacity=self._settings.capacity,
            prefetch=self._settings.prefetch,
            liveness_seconds=self._settings.liveness_seconds,
            node_types=sorted(self._nodes),
            labels=self._settings.labels,
        )

    def _compose(self) -> None:
        clock = self._database.clock
        self._fewer = threading.Event()
        self._stopping = False
        self._starts: DelayQueue[Run] = DelayQueue(clock)
        self._thread_executor = ThreadExecutor(self._settings.capacity, freed=self._room_made)
        self._executors: dict[Execution, Executor] = {
            "async": EventLoopExecutor(),
            "thread": self._thread_executor,
            "process": ProcessExecutor(self._app.target, self._settings.capacity, self._settings.result_limit_bytes),
        }
        self._reporter = Reporter(self._database, self.id)
        self._runner = Runner(
            self._nodes,
            self._executors,
            self._reporter,
            clock,
            result_limit_bytes=self._settings.result_limit_bytes,
            room_made=self._room_made,
        )
        self._poller = Poller(
            self._database, self._settings, self.id, runner=self._runner, starts=self._starts, busy=self._busy
        )
        self._poll_loop = Loop("poll", self._poller.poll)
        self._claim_loop = Loop("claim", self._poller.claim)
        self._poller.wake_poll = self._poll_loop.wake
        self._deadline_loop = Loop("deadlines", self._runner.expire)
        self._threads = [
            threading.Thread(target=self._reporter.run, name="report", daemon=True),
            threading.Thread(target=self._start_when_due, name="start", daemon=True),
        ]

    def _start_when_due(self) -> None:
        while not self._starts.closed:
            due = self._starts.take(self._idle_slots)
            try:
                self._runner.start(due)
            except BaseException:  # the next ones wait for this thread
                log.exception("%d instances could not be started", len(due))

    def _busy(self) -> int:
        return self._runner.occupied + self._thread_executor.abandoned

    def _idle_slots(self) -> int:
        return self._settings.capacity - self._runner.running - self._thread_executor.abandoned

    def _room_made(self) -> None:
        self._starts.room_made()
        self._poller.room_made()
        if self._stopping:
            self._fewer.set()

    def _hand_back_unstarted(self) -> None:
        unstarted = [(run.id, run.attempt) for run in self._starts.close()]
        for instance_id, _ in unstarted:
            self._runner.drop(instance_id)
        self._attempt(lambda: self._hand_back(unstarted))
        self._attempt(self._hand_back_assigned)

    def _hand_back_assigned(self) -> None:
        batch = self._settings.batch
        take_back = partial(assignments.take_back_assigned, worker_id=self.id, limit=batch)
        while self._database.write(take_back) == batch:
            pass

    def _end_the_rest(self) -> None:
        """What still runs after the grace time: failed where it may run only once, else handed back."""
        left = self._runner.forsake()
        if not left:
            return
        log.warning("worker: stops with %d instances still running", len(left))
        once = [active for active in left if active.run.on_worker_lost == WorkerLostPolicy.FAIL]
        again = [(a.run.id, a.run.attempt) for a in left if a not in once]
        self._attempt(lambda: self._hand_back(again))
        if once:
            now = self._database.clock.now()
            failures = [_failed_by_stop(active, now) for active in once]
            self._attempt(lambda: self._database.write(lambda c: reports.report(c, self.id, failures)))

    def _hand_back(self, held: list[tuple[int, int]]) -> int:
        if not held:
            return 0
        return self._database.write(lambda c: reports.hand_back(c, self.id, held, "its worker stopped"))

    @staticmethod
    def _attempt(work: Callable[[], object]) -> None:
        """Do what can be done on the way out; what cannot, the scheduler recovers."""
        try:
            work()
        except RotaError as error:
            log.warning("worker: while stopping: %s", error)


def _failed_by_stop(active: Active, now: datetime) -> Report:
    reason = "its worker stopped before it ended; its task says on_worker_lost = fail"
    error = json_text({"error": reason})
    begun, rest = active.run.nodes[active.done : active.done + 1], active.run.nodes[active.done + 1 :]
    nodes = [NodeReport(node.id, NodeStatus.FAILED, error, gmt_completed=now) for node in begun]
    nodes += [NodeReport(node.id, NodeStatus.CANCELED) for node in rest]
    instance = InstanceReport(InstanceStatus.FAILED, error, reason, active.entered, now)
    return Report(active.run.id, active.run.attempt, nodes, instance)


def serve(settings: Settings, app: Rota) -> int:
    """Run a worker until SIGTERM or SIGINT; a second signal ends its grace time. Returns the exit code.

    Raises RotaError where it cannot start. A worker that loses its lease ends by itself (``lease.EXIT_LEASE_LOST``).
    """
    worker = Worker(settings, app)
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            worker.hurry.set()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    worker.start()
    collector.settle()
    stopping.wait()
    log.info("worker: stopping; running work has %g s", settings.grace_seconds)
    worker.stop()
    log.info("worker: stopped")
    logging.shutdown()
    os._exit(0)  # threads that still run cannot be stopped, and would keep the process
