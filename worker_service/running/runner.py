"""Running: a claimed instance goes through its nodes. Each starts when the results that it waits for are committed.

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
from rota.worker_service.executors.base import Call, Executor, NoThread, Outcome
from rota.worker_service.pulling.slot import BETWEEN, CLAIMED
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running import cut_short, endings
from rota.worker_service.running.active import Active, keep_result
from rota.worker_service.running.endings import Ending, Stop
from rota.worker_service.running.failures import log_failure
from rota.worker_service.running.forks import Forks
from rota.worker_service.running.lost import LostAttempts
from rota.worker_service.running.ordering import in_a_row
from rota.worker_service.running.outcomes import Outcomes
from rota.worker_service.running.proceeding import Proceeding
from rota.worker_service.running.reporter import Reports
from rota.worker_service.running.stopping import Stopping
from rota.worker_service.signatures import Execution

log = logging.getLogger(__name__)


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
        self._executors, self._reports = executors, reports
        self._slots, self._clock = slots, clock
        self.outcomes = Outcomes(nodes, clock, result_limit_bytes, worker)
        self._gone = gone
        self._lock = threading.Lock()
        self._active: dict[int, Active] = {}
        self._lost = LostAttempts()
        self.proceeding = Proceeding(self._run_next, clock)
        self.proceeding.serve(slots)
        self.stopping = Stopping(
            self._active, self.outcomes, self.proceeding, clock,
            lock=self._lock, grace_seconds=grace_seconds, give_up=self._give_up,
        )  # fmt: skip
        self.lingering = self.stopping.lingering
        self._forks = Forks(
            self.outcomes, reports, self.lingering,
            lock=self._lock, start=self._start_branch, finish=self._queue_report, lose=self._lose,
        )  # fmt: skip

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
                if not active.is_called:  # the reconciler finds its row, and hands it back
                    self.drop(active.run.id)
        for executor in self._executors.values():
            executor.begin()
        return {active.run.id for active in due if active.stage == CLAIMED} if len(starting) < len(due) else set()

    def stop(self, instance_id: int, attempt: int, reason: str, *, canceled: bool) -> None:
        """Stop a run. It ends as canceled if ``canceled``, else as failed."""
        active = self._active.get(instance_id)
        if active is not None and active.run.attempt == attempt:
            self.stopping.stop(active, Stop(reason, canceled))

    def is_to_stop(self, instance_id: int) -> bool:
        """Whether an instance that it holds is to stop: somebody has canceled it, or its time is over."""
        active = self._active.get(instance_id)
        return active is not None and active.stop is not None

    def detach_unfinished(self) -> list[Active]:
        """At the end of the grace time, stop all instances that have not ended, and return them.

        The runner reports nothing of them. Whoever calls this reports ``last``, hands back the others, or fails them.
        """
        left = []
        for active in list(self._active.values()):
            with self._lock:
                is_left = active.of.withdraw(active)
                for one in (active, *active.branches) if is_left else ():
                    one.detached = True
            if is_left:
                self._active.pop(active.run.id, None)
                left.append(active)
        for running in filter(None, [part.running for active in left for part in active.parts]):
            running.stop()
        return left

    def kill(self, detached: Iterable[Active]) -> None:
        """Kill the calls of detached instances that still run."""
        for running in filter(None, [part.running for one in detached for part in one.parts if part.calls]):
            running.kill()

    def drop(self, instance_id: int) -> None:
        """Forget an instance: it has ended, or was not started, or does not belong to this worker any more."""
        if (active := self._active.get(instance_id)) is not None:
            self._drop(active)

    def _drop(self, active: Active) -> None:
        if self._active.get(active.run.id) is active:
            del self._active[active.run.id]
            if active.lingers or active.fork is not None:
                self._abandon(active)
            active.of.leave(active)
            self._gone(active.run)

    def _abandon(self, active: Active) -> None:
        """Its handlers that linger are counted apart from now on."""
        with self._lock:
            left = [part for part in active.parts if part.lingers and not part.abandoned]
            for part in left:
                part.abandoned = True
                self.lingering.abandon(part)
            self.lingering.settle(left, active.run.id)

    def _begin(self, active: Active) -> None:
        """Start the first node. If the run may run at most once, or anew, the database must know of it before."""
        if len(active.run.nodes) > 1:
            active.order = self.outcomes.orders.of(active.run)
            if active.order is not None or not in_a_row(active.run):
                active.run = self.outcomes.orders.sorted(active.run)
        active.begin(self._clock.monotonic(), self.outcomes.always)
        if active.run_end is None and endings.restarts(active.run, self.outcomes.always):
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
            if active.order is None or not self._forks.begin(active, later=later):
                self._start_node(active, nodes[active.done], later)
        except NoThread as error:
            self._queue_report(active, self.outcomes.not_begun(active, error))
        except BaseException as error:  # noqa: BLE001 - the start and report threads run this: no instance may end them
            self._report_node(active, nodes[active.done], self.outcomes.not_started(active, error), None)

    def _start_branch(self, branch: Active, node: NodeRun, later: bool) -> None:
        try:
            self._start_node(branch, node, later)
        except NoThread as error:
            self._forks.not_begun(branch, node, error)
        except BaseException as error:  # noqa: BLE001 - the start and report threads run this, too
            self._report_node(branch, node, self.outcomes.not_started(branch, error), None)

    def _start_node(self, active: Active, node: NodeRun, later: bool) -> None:
        if active.detached or not self._may_start(active, node):
            return
        call = self.outcomes.call(active, node)
        if isinstance(call, Ending):
            self._report_node(active, node, call, None)
            return
        active.deadline = None
        if (until := self.outcomes.until(active, call.node)) is not None:
            self.stopping.deadlines.at(active, until)
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
        if is_stopped or active.detached or active.abandoned:  # that came before active.running was set, and missed it
            self.stopping.stop_call(active, running)

    def _node_ended(self, active: Active, node: NodeRun, outcome: Outcome) -> None:
        with self._lock:
            if outcome.lingers:
                self.stopping.linger(active)
                return
            if active.abandoned:
                words = "instance %d: its handler has returned after the run had ended; that is not recorded"
                log.warning(words, active.run.id)
            if active.detached and active.fork is not None:
                self._forks.ended_at_the_end(active, node, outcome)
            elif active.detached and (kept := self.outcomes.kept(active, node, outcome)) is not None:
                active.last, active.running = kept, None  # the handler of the next node is not entered here
            active.calls = 0  # the last: who detached it waits for that
            if active.lingers or active.abandoned:
                active.lingers = False
                self.lingering.end(active, active.run.id)
            if active.detached or active.abandoned:
                return
            outcome = self.outcomes.or_timed_out(active, node, outcome)
            active.running, active.deadline, active.killed = None, active.over_at, False
            if not outcome.stopped and active.stop is not None and not active.stop.canceled:
                active.let_go_on()  # the handler ended by itself just as it timed out: its own ending counts
        self._report_node(active, node, self.outcomes.ending(active, node, outcome), outcome)

    def _give_up(self, active: Active) -> None:
        """The handler has not returned within its grace. The run ends now; a retry waits, ``running``, until it has."""
        with self._lock:  # held until the report is queued: that of the handler's return must come after it
            if not active.lingers or active.abandoned:
                return
            if active.fork is not None:
                self._forks.hangs(active)
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
            self._queue_report(active, self.outcomes.while_handler_runs(report, end, node))

    def _noted(self, active: Active, ours: bool) -> None:
        if not ours and not active.detached:
            self._lose(active)

    def _lose(self, active: Active) -> None:
        """Drop a run that is not this worker's any more, or whose result was refused, and stop what still runs."""
        with self._lock:
            if active.detached:
                return
            active.detached = True  # reports of it that come later say the same
        log.warning("instance %d is not this worker's any more; its run is dropped", active.run.id)
        self._lost.note(active.run)
        self.stopping.orphan(active)
        self._drop(active)

    def _report_node(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> None:
        if active.fork is not None:
            self._forks.ended(active, node, ending, outcome)
        else:
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
            self.lingering.settle(active.parts, active.run.id)
        if not ours:
            self._lose(active)
            return
        if ended:
            self._drop(active)
            return
        self.proceeding.go_on(active)
