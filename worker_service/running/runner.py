"""Running: a claimed instance goes through its nodes in order. Each starts when the last one's result is committed.

    accept → start → _run_next → _start_node → _node_ended → _report_node → _committed → _run_next, until it is dropped

While a report is written, the run lends its slot to another (``proceeding``). The runner keeps every instance that it
holds in a map, so none runs twice in this process. The reconciler compares it with the rows.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rota.shared.clock import Clock
from rota.shared.domain.groups import NO_GROUPS, Groups
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Call, Executor, NoThread, Outcome, Running
from rota.worker_service.pulling.slot import BETWEEN, CLAIMED
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running import cut_short, endings
from rota.worker_service.running.active import Active, keep_result
from rota.worker_service.running.deadlines import Deadlines
from rota.worker_service.running.endings import Ending, Stop
from rota.worker_service.running.failures import log_failure
from rota.worker_service.running.lingering import Lingering
from rota.worker_service.running.lost import LostAttempts
from rota.worker_service.running.outcomes import Outcomes
from rota.worker_service.running.proceeding import Proceeding
from rota.worker_service.running.reporter import Reports
from rota.worker_service.signatures import Execution

log = logging.getLogger(__name__)

KILLED_SECONDS = 5.0
"""A coroutine or a process that has not ended so long after it was killed lingers, as a thread does."""


class Runner:
    """Runs claimed instances. The executors call it when a handler ends, the reporter when a report is committed."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        executors: Mapping[Execution, Executor],
        reports: Reports,
        slots: Slots,
        clock: Clock,
        *,
        result_limit_bytes: int,
        grace_seconds: float,
        worker: str = "",
        gone: Callable[[Run], None] = lambda run: None,
    ) -> None:
        """``slots``: the worker's own. ``grace_seconds``: how long a handler that was stopped may tidy up, until it is
        killed. ``worker`` is the worker's name, for reasons. ``gone`` is called for each run that the runner forgets.
        """
        self._nodes, self._executors = nodes, executors
        self._reports = reports
        self._slots, self._clock = slots, clock
        self._grace_seconds, self._worker = grace_seconds, worker
        self.outcomes = Outcomes(nodes, clock, result_limit_bytes)
        self._gone = gone
        self._lock = threading.Lock()
        self._active: dict[int, Active] = {}
        self._lost = LostAttempts()
        self.lingering = Lingering(clock)
        self.proceeding = Proceeding(self._run_next, clock)
        self.proceeding.serve(slots)
        self.deadlines = Deadlines(self.expire, clock)

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._active

    @property
    def held(self) -> set[tuple[int, int]]:
        """The instances that this process holds: (instance id, attempt)."""
        return {(a.run.id, a.run.attempt) for a in list(self._active.values())}

    def accept(self, claimed: Iterable[Run], slots: Slots | None = None, groups: Groups = NO_GROUPS) -> list[Run]:
        """Take claimed instances, to be started when they are due. Returns those that this process did not hold yet.

        They take ``slots`` of a pool, or else the worker's own. ``groups``: those of some of them. Nor does it take an
        attempt that it has dropped as lost. The reconciler hands that back.
        """
        new = [run for run in claimed if run.id not in self._active and run not in self._lost]
        held = [Active(run, group=groups.get(run.id)) for run in new] if groups else [Active(run) for run in new]
        (slots or self._slots).claim(held)
        self._active.update((active.run.id, active) for active in held)
        return new

    def start(self, runs: Iterable[Run]) -> set[int]:
        """Start instances that are due, as long as there are slots; returns the ids of those that wait for one."""
        due = [active for run in runs if (active := self._active.get(run.id)) is not None]
        starting = due[0].of.start(due) if due else []  # who starts them has had them accepted for the same slots
        for active in starting:
            try:
                self._begin(active)
            except BaseException:  # the others must start all the same
                log.exception("instance %d could not be started", active.run.id)
                if not active.calls:  # the reconciler finds its row, and hands it back
                    self.drop(active.run.id)
        for executor in self._executors.values():
            executor.begin()
        return {active.run.id for active in due if active.stage == CLAIMED} if len(starting) < len(due) else set()

    def stop(self, instance_id: int, attempt: int, reason: str, *, canceled: bool) -> None:
        """Stop a run. It ends as canceled if ``canceled``, else as failed."""
        active = self._active.get(instance_id)
        if active is None or active.run.attempt != attempt:
            return
        with self._lock:
            if active.has_begun and self.outcomes.is_uncut(active):
                active.asked = Stop(reason, canceled)
                return
            if active.stop is not None:
                if canceled and active.lingers and not active.stop.canceled:  # nobody waits for its retry any more
                    active.stop = Stop(reason, canceled)
                    self.deadlines.within(active, 0)
                return
            active.stop, running, cancellation = Stop(reason, canceled), active.running, active.cancellation
        cancellation.request()
        if running is not None:  # it may end now
            self._stop_call(active, running)
        else:
            self.proceeding.stop(active)

    def expire(self) -> float:
        """Stop, kill or give up the runs whose time is over; returns the seconds until the next search."""
        with self._lock:
            over = [self._over(active) for active in self.deadlines.over(list(self._active.values()))]
        for act in over:
            act()
        return self.deadlines.rest()

    def _over(self, active: Active) -> Callable[[], None]:
        """Under the lock: what is to be done about a run whose deadline is over, as soon as the lock is free."""
        if active.running is None or active.deadline is None:
            return partial(self._stop_between, active)
        if active.stop is None:
            active.stop = self.outcomes.timed_out(active, active.deadline)
            self.deadlines.within(active, self._grace_seconds)
            return partial(active.running.stop, asks=True)
        if not active.lingers and not active.killed:
            active.killed = True
            self.deadlines.within(active, KILLED_SECONDS)
            return active.running.kill
        self._linger(active)
        return partial(self._give_up, active)

    def _stop_between(self, active: Active) -> None:
        """The run's time is over while it waits: for a slot, or for a commit."""
        at, active.deadline = active.over_at, None
        may_stop = active.done < len(active.run.nodes) and not self.outcomes.is_uncut(active)
        if at is not None and active.stop is None and may_stop:
            active.stop = self.outcomes.timed_out(active, at)
            self.proceeding.stop(active)

    def detach_unfinished(self) -> list[Active]:
        """At the end of the grace time, stop all instances that have not ended, and return them.

        The runner reports nothing of them. Whoever calls this reports ``last``, hands back the others, or fails them.
        """
        left = []
        for active in list(self._active.values()):
            if active.of.withdraw(active):
                active.detached = True
                self._active.pop(active.run.id, None)
                left.append(active)
        for running in filter(None, [active.running for active in left]):
            running.stop()
        return left

    def kill(self, detached: Iterable[Active]) -> None:
        """Kill the calls of detached instances that still run."""
        for running in filter(None, [active.running for active in detached if active.calls]):
            running.kill()

    def drop(self, instance_id: int) -> None:
        """Forget an instance: it has ended, or was not started, or does not belong to this worker any more."""
        active = self._active.pop(instance_id, None)
        if active is not None:
            with self._lock:
                if active.lingers and not active.abandoned:
                    active.abandoned = True
                    self.lingering.abandon(active)
                    self.lingering.settle(active, instance_id)
            active.of.leave(active)
            self._gone(active.run)

    def _begin(self, active: Active) -> None:
        """Start the first node. If the run may run at most once, or anew, the database must know of it before."""
        active.begin(self._clock.monotonic(), self.outcomes.always)
        if active.run_end is None and endings.restarts(active.run):
            active.run = endings.anew(active.run)
            self._queue_report(active, endings.begun_anew(active.run, self._clock.now()))
        elif (first := endings.first_of_once(active.run, active.done if active.run_end else 0)) is not None:
            self._queue_report(active, endings.begun(active.run, first, self._clock.now()))
        else:
            self._run_next(active, later=True)

    def _run_next(self, active: Active, *, later: bool = False) -> None:
        nodes = active.run.nodes
        while active.done < len(nodes) and nodes[active.done].status == NodeStatus.SUCCEED:
            keep_result(active, nodes[active.done], nodes[active.done].result)
        if active.done == len(nodes):
            report = endings.without_nodes(active.run, self._clock.now())
            log_failure(active.run, None, report)
            self._queue_report(active, report)
            return
        try:
            self._start_node(active, nodes[active.done], later)
        except NoThread as error:
            self._queue_report(active, self.outcomes.not_begun(active, error))
        except BaseException as error:  # noqa: BLE001 - the start and report threads run this: no instance may end them
            self._report_node(active, nodes[active.done], self.outcomes.not_started(active, error), None)

    def _start_node(self, active: Active, node: NodeRun, later: bool) -> None:
        if active.detached or not self._may_start(active, node):
            return
        call = self.outcomes.call(active, node)
        if isinstance(call, Ending):
            self._report_node(active, node, call, None)
            return
        active.deadline = None
        if (until := self.outcomes.until(active, call.node)) is not None:
            self.deadlines.at(active, until)
        active.calls = 1
        if active.detached:  # since the first look; who detaches looks at ``calls`` afterwards
            active.calls = 0
            return
        self._call(active, node, call, later)

    def _may_start(self, active: Active, node: NodeRun) -> bool:
        """Whether the handler of the next node may be entered. If the run was to stop, the node ends so instead."""
        if (active.stop is None or active.has_begun) and self.outcomes.is_uncut(active):
            with self._lock:
                active.put_off_stop()
            if has_no_slot := active.stage == BETWEEN:  # who stopped it has let it go on without one
                self.proceeding.go_on(active)
            return not has_no_slot
        active.stop = active.stop or active.asked
        if active.stop is None and active.over_at is not None and active.over_at <= self._clock.monotonic():
            active.stop = self.outcomes.timed_out(active, active.over_at)  # the node before it ended in its grace
        if (stop := active.stop) is not None:
            self._report_node(active, node, endings.stopped(stop), None)
        return stop is None

    def _call(self, active: Active, node: NodeRun, call: Call, later: bool) -> None:
        try:
            executor = self._executors[call.node.execution]
            running = executor.start(call, partial(self._node_ended, active, node), later=later)
        except BaseException:
            active.calls = 0
            raise
        with self._lock:
            active.running = running if active.calls else None  # a quick handler has ended by now
        is_stopped = active.stop is not None and not self.outcomes.is_uncut(active)
        if is_stopped or active.detached:  # that came before active.running was set, and missed it
            self._stop_call(active, running)

    def _stop_call(self, active: Active, running: Running) -> None:
        with self._lock:
            if active.calls and not active.detached:
                self.deadlines.within(active, self._grace_seconds)
        running.stop()

    def _node_ended(self, active: Active, node: NodeRun, outcome: Outcome) -> None:
        with self._lock:
            if outcome.lingers:
                self._linger(active)
                return
            if active.abandoned:
                words = "instance %d: its handler has returned after the run had ended; that is not recorded"
                log.warning(words, active.run.id)
            if active.detached and (kept := self.outcomes.kept(active, node, outcome)) is not None:
                active.last, active.running = kept, None  # the handler of the next node is not entered here
            active.calls = 0  # the last: who detached it waits for that
            if active.lingers:
                active.lingers = False
                self.lingering.end(active, active.run.id)
            if active.detached or active.abandoned:
                return
            outcome = self.outcomes.or_timed_out(active, node, outcome)
            active.running, active.deadline, active.killed = None, active.over_at, False
            if not outcome.stopped and active.stop is not None and not active.stop.canceled:
                active.stop = None  # the handler ended by itself just as it timed out: its own ending counts
        self._report_node(active, node, self.outcomes.ending(active, node, outcome), outcome)

    def _linger(self, active: Active) -> None:
        """Under the lock: its call was stopped, and its handler still runs."""
        if active.calls and not active.lingers:
            active.lingers = True
            self.lingering.begin(active)
            if not active.detached:
                self.deadlines.within(active, self._grace_seconds)

    def _give_up(self, active: Active) -> None:
        """The handler has not returned within its grace. The run ends now; a retry waits, ``running``, until it has."""
        with self._lock:  # held until the report is queued: that of the handler's return must come after it
            if not active.lingers or active.abandoned:
                return
            active.deadline = None
            node = active.run.nodes[active.done]
            report = self.outcomes.report(active, node, endings.stopped(active.stop), None, moves_on=False)
            if (end := report.instance) is None:  # a stopped node ends its run, or lets it be retried
                return
            if end.status in (InstanceStatus.PENDING, InstanceStatus.RUNNING):
                self._reports.put(cut_short.waiting_for_its_handler(report, end), partial(self._noted, active))
                return
            active.abandoned = True
            self.lingering.abandon(active)
            what = self._nodes[node.type].execution
            self._queue_report(active, cut_short.while_its_handler_runs(report, end, what, self._worker))

    def _noted(self, active: Active, ours: bool) -> None:
        if not ours and not active.detached:
            self._lost.note(active.run)
            self.drop(active.run.id)

    def _report_node(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> None:
        self._queue_report(active, self.outcomes.report(active, node, ending, outcome))

    def _queue_report(self, active: Active, report: Report) -> None:
        if is_over := report.is_over:
            active.of.end(active)
        else:
            active.of.lend(active, report.size)
        active.queued = report
        self._reports.put(report, partial(self._committed, active, ended=is_over))

    def _committed(self, active: Active, ours: bool, *, ended: bool) -> None:
        active.queued = None
        active.begun = True  # before it looks at detached; _end_the_rest reads the two in the opposite order
        if active.detached:
            return
        if active.abandoned:
            self.lingering.settle(active, active.run.id)
        if not ours:
            log.warning("instance %d is not this worker's any more; its run is dropped", active.run.id)
            self._lost.note(active.run)
        if ended or not ours:
            self.drop(active.run.id)
            return
        self.proceeding.go_on(active)
