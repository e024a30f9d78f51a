"""A worker's engine: the parts that pull and run instances, composed, and stopped in order."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from rota.shared.clock import Clock
from rota.shared.domain.errors import DatabaseAway, RotaError
from rota.shared.domain.states import WorkerLostPolicy
from rota.shared.loop import Loop
from rota.shared.settings import Settings
from rota.shared.store.reports import Report
from rota.shared.store.runs import Run
from rota.shared.store.workers import Load
from rota.shared.surprises import Surprises
from rota.shared.waking.pace import rest_after
from rota.worker_service.authoring import Rota
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Executor
from rota.worker_service.executors.event_loop import EventLoopExecutor
from rota.worker_service.executors.fork_server import ForkServer
from rota.worker_service.executors.process import ProcessExecutor
from rota.worker_service.executors.threads import PooledThreads, ThreadExecutor
from rota.worker_service.pulling.backlog import Backlog
from rota.worker_service.pulling.lane import Lane, Lanes
from rota.worker_service.pulling.reconciler import Reconciler
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.successors import Successors
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.active import Active
from rota.worker_service.running.failures import log_failure
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.reporter import Reporter
from rota.worker_service.running.runner import Runner
from rota.worker_service.signatures import Execution

log = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0
"""How long a stopping worker waits for each of its threads, and for its last reports."""

KILLED_SECONDS = 1.0
"""So long before that it kills the processes that it has stopped."""

QUEUED_SECONDS = 1.0
"""How long it waits for what is queued, before it reports the rest."""

LAST_SECONDS = 0.02
"""How often a stopping worker looks whether the handlers that it stopped have ended."""

STOP_CHECK_SECONDS = 0.5
"""How late a stopping worker may notice ``stop_now``."""


class Engine:
    """The parts that pull and run instances under one worker's id.

    An instance goes through them in this order: the fetcher reads it into the backlog, the claimer claims it from there
    and gives it to the starter, the runner runs its nodes, and the reporter writes how they ended. The first three are
    those of a lane: the worker's own, or that of the pool in which the instance runs.
    """

    def __init__(
        self,
        rows: WorkerRows,
        settings: Settings,
        app: Rota,
        nodes: Mapping[str, Node],
        clock: Clock,
        *,
        name: str,
        lost: Callable[[str], None],
        stuck: Callable[[], None],
        fork_server: ForkServer | None = None,
    ) -> None:
        self._rows, self._lost, self._clock = rows, lost, clock
        self._stuck, self._is_stuck = stuck, False
        self._abandoned_seconds, self._batch = settings.abandoned_seconds, settings.batch
        self._last_grace_seconds = min(settings.cancel_grace_seconds, CLOSING_SECONDS - KILLED_SECONDS)
        self._surprises = Surprises("worker")
        self._slots = slots = Slots(settings.capacity, settings.batch, clock)
        self._event_loop = EventLoopExecutor(clock)
        self._processes = _processes(settings, app, clock, fork_server)
        self._executors = _executors(settings, app, clock, self._event_loop, self._processes)
        backlog = Backlog(clock)
        self._listeners = listeners = Listeners(app.listeners, clock, worker=name)
        self._reporter = Reporter(rows, clock, successors := Successors(backlog, slots), listeners.reported)
        self._runner = self._new_runner(nodes, slots, settings, name)
        self._lanes = self._new_lanes(backlog, settings, app.pools)
        successors.start = self._lanes.own.starter.put_at_once
        self._reconciler = Reconciler(rows, self._runner, self._lanes, clock, settings.heartbeat_seconds)
        self._last_looks = Loop("look", partial(self._look_for_cancels, settings.heartbeat_seconds), clock)
        starts = [self._vital(lane.start_name, lane.starter.run) for lane in self._lanes]
        self._threads = [self._vital("report", self._reporter.run), *starts]

    def _new_lanes(self, backlog: Backlog, settings: Settings, pools: Mapping[str, int]) -> Lanes:
        parts = (self._rows, self._runner, self._listeners, self._clock, settings)
        own = Lane(*parts, backlog=backlog, slots=self._slots, queue=self._rows.queue(pools=pools), looks=self._look)
        others = []
        for pool, size in pools.items():
            slots, waiting = Slots(size, settings.batch, self._clock, pool=pool), Backlog(self._clock)
            self._runner.proceeding.serve(slots)
            others.append(Lane(*parts, backlog=waiting, slots=slots, queue=self._rows.queue(pool=pool)))
        return Lanes(own, others, self._clock)

    def _new_runner(self, nodes: Mapping[str, Node], slots: Slots, settings: Settings, name: str) -> Runner:
        return Runner(
            nodes,
            self._executors,
            self._reporter,
            slots,
            self._clock,
            result_limit_bytes=settings.result_limit_bytes,
            grace_seconds=settings.cancel_grace_seconds,
            worker=name,
            gone=self._gone,
        )

    def _gone(self, run: Run) -> None:
        self._lanes.run_over(run)
        self._listeners.forget([run])

    def start(self) -> None:
        """Start the threads and loops."""
        self._listeners.start()
        for thread in self._threads:
            thread.start()
        for loop in (*self._lanes.loops, self._runner.stopping.deadlines.loop, self._runner.proceeding.loop):
            loop.start()

    def load(self) -> Load:
        """What a heartbeat says of the worker: of its own slots, but what it has started in pools counts, too."""
        return Load(self._slots.busy, self._runner.lingering.within(self._slots), self._lanes.started)

    def look_now(self) -> float:
        """Poll now, since there is urgent work; returns how long the next poll that is asked for has to wait."""
        for lane in self._lanes:
            lane.poll_loop.wake()
        return rest_after(self._lanes.own.poll_loop.took)

    def silent_seconds(self) -> float:
        """For how long a coroutine has blocked the event loop."""
        return self._event_loop.silent_seconds

    def stop_pulling(self, stop_now: threading.Event) -> None:
        """Claim no more instances, and hand back those that have not started, unless ``stop_now`` is set."""
        for loop in self._lanes.loops:
            loop.stop()
        for lane in self._lanes:
            lane.backlog.close()
        self._lanes.join_claims(CLOSING_SECONDS)
        for lane in self._lanes:
            attempt(partial(lane.starter.close, hurries=stop_now.is_set()))
        attempt(lambda: self._rows.hand_back_assigned(self._batch), unless=stop_now)

    def finish(self, deadline: float, stop_now: threading.Event) -> bool:
        """Let running instances end until ``deadline`` (the clock's ``monotonic``), or until ``stop_now`` is set.

        Then stop the rest, and fail them or hand them back. Returns when all is reported: whether all handlers have
        ended.
        """
        some_ended = self._clock.event()
        for lane in self._lanes:
            lane.slots.on_free(some_ended.set)
        self._last_looks.start()
        while len(self._runner) and self._clock.monotonic() < deadline and not stop_now.is_set():
            some_ended.wait(min(STOP_CHECK_SECONDS, max(0.0, deadline - self._clock.monotonic())))
            some_ended.clear()
        self._last_looks.stop()
        # A comparison under way could hand back the runs that end below.
        self._lanes.join_polls(CLOSING_SECONDS, self._last_looks)
        self._runner.stopping.deadlines.loop.stop()
        all_ended = self._end_the_rest(stop_now)
        self._runner.proceeding.loop.stop()
        hurries = stop_now.is_set() and self._rows.away
        self._reporter.flush(0 if hurries else CLOSING_SECONDS)
        self._reporter.close()
        if not hurries:
            attempt(self._free_slots)
        return all_ended and not self._runner.lingering

    def close(self, stop_now: threading.Event) -> None:
        """Close the executors. The children of the nodes in processes end in order, unless ``stop_now`` is set."""
        self._listeners.close()
        self._processes.finish(stop_now)
        for executor in self._executors.values():
            executor.close()

    def _vital(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A thread without which the worker would take work that it never ends. If it fails, the worker ends."""

        def run_or_end() -> None:
            try:
                run()
            except BaseException as error:  # SystemExit, too, which ends a thread without a word
                log.exception("worker: the %s thread has failed", name)
                self._lost(f"its {name} thread has failed: {type(error).__name__}: {error}")

        return self._clock.thread(name, run_or_end)

    def _free_slots(self) -> None:
        """Free the overlap slots that ended runs kept while their handlers ran, and end a worker that is stuck."""
        if returned := self._runner.lingering.returned():
            try:
                left = self._rows.free_slots(returned)
            except BaseException:
                self._runner.lingering.put_back(returned)
                raise
            self._runner.lingering.put_back(left)
        if self._runner.lingering.longest > self._abandoned_seconds and not self._is_stuck:
            self._is_stuck = True
            log.error(
                "worker: a handler was to stop %g s ago and still runs; the worker stops", self._abandoned_seconds
            )
            self._stuck()

    def _look(self) -> None:
        """Before each poll for the worker's own slots."""
        self._event_loop.look()
        self._try(self._free_slots)
        for lane in self._lanes:
            self._try(lane.starter.give_back_late)
        self._try(self._reconciler.compare_when_due)

    def _look_for_cancels(self, rest: float) -> float:
        """While the running instances end, nobody polls. A cancel is to be seen all the same."""
        if len(self._runner):
            self._reconciler.compare_when_due()
        return rest

    def _try(self, part: Callable[[], None]) -> None:
        try:
            part()
            self._surprises.over(part.__name__)
        except DatabaseAway:
            raise
        except Exception as error:  # noqa: BLE001 - one row may be at fault: the others are fetched all the same
            self._surprises.say(part.__name__, error)

    def _end_the_rest(self, stop_now: threading.Event) -> bool:
        """Stop what still runs. What may run at most once and has begun fails; the others are handed back.

        Two kinds stay ``running``, and the scheduler ends them when the worker is dead: what is to be canceled, and
        what may run at most once and has reports that could not be written.

        A handler that succeeds all the same is reported as any other; then its run goes on at the next node elsewhere.
        What has not ended within ``CLOSING_SECONDS``, though it was killed before, is not handed back: it would run
        beside itself. It stays ``running`` until the worker is dead. Returns whether all have ended.
        """
        left = self._runner.detach_unfinished()
        if not left:
            return True
        log.warning("worker: stops with %d instances still running", len(left))
        self._let_end(left, self._last_grace_seconds, stop_now)
        self._runner.kill(left)
        self._let_end(left, CLOSING_SECONDS - self._last_grace_seconds, stop_now)
        if stop_now.is_set() and self._rows.away:
            return not any(a.is_called for a in left)
        over = {a for a in left if not a.is_called}  # what ends from now on counts as still running
        self._reporter.flush(QUEUED_SECONDS)  # what comes after an earlier report must not be written before it
        kept = [report for a in over for report in a.unwritten]
        unwritten = self._report_last(kept)
        left = [a for a in left if a not in over or a.last is None or not a.last.is_over]
        others = [a for a in left if not self._runner.outcomes.is_to_be_canceled(a)]
        once = [a for a in others if a.run.on_worker_lost == WorkerLostPolicy.FAIL and a.begun]
        again = [(a.run.id, a.run.attempt) for a in others if a not in once and a in over]
        attempt(lambda: self._rows.hand_back(again, "its worker stopped", waits=True))
        self._fail([a for a in once if a.run.id not in unwritten and (a in over or not a.unwritten)], over)
        return not any(a.is_called for a in left)

    def _fail(self, once: Collection[Active], over: Collection[Active]) -> None:
        """End these runs, which may run at most once. What they reported before must have been written, because another
        worker reads from the rows which of their nodes are left."""
        failed_at_grace_end = self._runner.outcomes.failed_at_grace_end
        failures = [(a, end) for a in once if (end := failed_at_grace_end(a, still_runs=a not in over)) is not None]
        for active, failure in failures:
            log_failure(active.run, next(iter(active.run.nodes[active.done :]), None), failure)
        self._report_last([failure for _, failure in failures])

    def _report_last(self, last: Sequence[Report]) -> set[int]:
        """Write the last reports; returns the instances whose reports could not be written."""
        unwritten = {report.instance_id for report in last}

        def write() -> None:
            lost, left = self._rows.report_last(last)
            unwritten.intersection_update(left)
            for report in last:
                if report.instance_id not in lost | left:
                    self._listeners.reported(report)

        if last:
            attempt(write)
        return unwritten

    def _let_end(self, left: list[Active], seconds: float, stop_now: threading.Event) -> None:
        """Wait until these handlers have ended, for so long at most."""
        deadline = self._clock.monotonic() + seconds
        while any(a.is_called for a in left) and self._clock.monotonic() < deadline and not stop_now.is_set():
            self._clock.sleep(LAST_SECONDS)


def _processes(settings: Settings, app: Rota, clock: Clock, fork_server: ForkServer | None) -> ProcessExecutor:
    most = settings.capacity + sum(app.pools.values())
    return ProcessExecutor(app.target, most, settings.result_limit_bytes, clock, fork_server)


def _executors(
    settings: Settings, app: Rota, clock: Clock, loop: EventLoopExecutor, processes: ProcessExecutor
) -> dict[Execution, Executor]:
    own = ThreadExecutor(settings.capacity, clock)
    of_pools = {pool: ThreadExecutor(size, clock, name=pool) for pool, size in app.pools.items()}
    return {"async": loop, "thread": PooledThreads(own, of_pools) if of_pools else own, "process": processes}


def attempt(work: Callable[[], object], unless: threading.Event | None = None) -> bool:
    """Try one step of stopping; returns whether it was done. If it fails, the next steps follow, and the scheduler
    recovers what is left.

    ``unless`` this is set: somebody asked a second time, and the step could take as long as the database is away.
    """
    if unless is not None and unless.is_set():
        return False
    try:
        work()
    except Exception as error:
        traceback = None if isinstance(error, RotaError) else error  # it is for what Rota did not expect
        log.warning("worker: while stopping: %s", error, exc_info=traceback)
        return False
    return True
