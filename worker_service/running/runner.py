"""Running: a claimed instance goes through its nodes in order. Each starts when the last one's result is committed.

    accept → start → _run_next → _start_node → _node_ended → _report_node → _committed → _run_next, until it is dropped

While a report is written, the run lends its slot to another (``proceeding``).
The runner keeps every instance that it holds in a map. So no instance runs twice in this process. The reconciler
compares that map with the rows that are ``running`` under this worker.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from rota.shared.clock import Clock
from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import UnreadableJson
from rota.shared.domain.nodes import given_param
from rota.shared.domain.states import InstanceStatus, NodeStatus, WorkerLostPolicy
from rota.shared.loop import Loop
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.authoring import Node
from rota.worker_service.executors.base import Call, Executor, NoThread, Outcome, Running
from rota.worker_service.pulling.slots import CLAIMED, Slots
from rota.worker_service.running import endings
from rota.worker_service.running.active import Active, context_of, keep_result
from rota.worker_service.running.endings import Ending, Stop
from rota.worker_service.running.failures import log_failure
from rota.worker_service.running.lingering import Lingering
from rota.worker_service.running.outcomes import Outcomes
from rota.worker_service.running.proceeding import Proceeding
from rota.worker_service.running.reporter import Reports
from rota.worker_service.signatures import Execution

log = logging.getLogger(__name__)

DEADLINE_SECONDS, LONGEST_LOOK_SECONDS = 0.1, 1.0
"""The shortest and, while a node has a timeout, the longest time between two searches for nodes that timed out. (A
thread's wait does not count time in suspend.)"""

THREAD_GRACE_SECONDS = 1.0
"""After its timeout, a function on a thread may look at ``cancel_requested`` and return for so long."""

STOP_SECONDS = 15.0
"""After its stop a coroutine or a process lingers, too, if it has not ended. (A command may need 12 s to end.)"""


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
        ended: Callable[[int], None] = lambda task_id: None,
    ) -> None:
        """``ended`` is called with the task's id when the end of a run is committed."""
        self._nodes = nodes
        self._executors = executors
        self._reports = reports
        self._slots = slots
        self._clock = clock
        self._outcomes = Outcomes(nodes, clock, result_limit_bytes)
        self._ended = ended
        self._lock = threading.Lock()
        self._active: dict[int, Active] = {}
        self.lingering = Lingering(slots, clock)
        self.proceeding = Proceeding(slots, self._run_next, clock)
        self._earliest = math.inf
        self.deadlines = Loop("deadlines", self.expire, clock)
        """Stops the nodes that timed out, once this loop is started."""

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._active

    @property
    def held(self) -> set[tuple[int, int]]:
        """The instances that this process holds: (instance id, attempt)."""
        return {(a.run.id, a.run.attempt) for a in list(self._active.values())}

    def accept(self, claimed: Iterable[Run]) -> list[Run]:
        """Take claimed instances, to be started when they are due. Returns those that this process did not hold yet."""
        new = [run for run in claimed if run.id not in self._active]
        held = [Active(run) for run in new]
        self._slots.claim(held)
        self._active.update((active.run.id, active) for active in held)
        return new

    def start(self, runs: Iterable[Run]) -> set[int]:
        """Start instances that are due, as long as there are slots; returns the ids of those that wait for one."""
        due = [active for run in runs if (active := self._active.get(run.id)) is not None]
        starting = self._slots.start(due)
        for active in starting:
            try:
                self._begin(active)
            except BaseException:  # the others must start all the same
                log.exception("instance %d could not be started", active.run.id)
        for executor in self._executors.values():
            executor.begin()
        return {active.run.id for active in due if active.stage == CLAIMED} if len(starting) < len(due) else set()

    def stop(self, instance_id: int, attempt: int, reason: str, *, canceled: bool) -> None:
        """Stop a run. It ends as canceled if ``canceled``, else as failed."""
        active = self._active.get(instance_id)
        if active is None or active.run.attempt != attempt:
            return
        if active.stop is not None:
            if canceled and active.lingers and not active.stop.canceled:  # nobody waits for its retry any more
                active.stop = Stop(reason, canceled)
                self._set_deadline(active, 0)
            return
        active.stop = Stop(reason, canceled)
        active.cancellation.request()
        if active.running is not None:
            self._stop_call(active, active.running)
        else:
            self.proceeding.stop(active)

    def expire(self) -> float:
        """Stop the nodes that timed out; returns the seconds until the next one will."""
        now, earliest = self._clock.monotonic(), math.inf
        late: list[Running] = []
        lingering: list[Active] = []
        self._earliest = math.inf  # reset before the search: a deadline that is set meanwhile wakes the loop
        with self._lock:
            for active in list(self._active.values()):
                if active.deadline is None:
                    continue
                if active.deadline > now or active.running is None:
                    earliest = min(earliest, active.deadline)
                elif active.stop is not None:
                    self._linger(active)
                    lingering.append(active)
                else:
                    active.stop = self._outcomes.timed_out(active, active.deadline)
                    active.deadline = now + STOP_SECONDS
                    earliest = min(earliest, active.deadline)
                    late.append(active.running)
        for active in lingering:
            self._give_up(active)
        for running in late:
            running.stop()
        self._earliest = min(self._earliest, earliest)
        if self._earliest == math.inf:
            return math.inf
        return min(max(self._earliest - now, DEADLINE_SECONDS), LONGEST_LOOK_SECONDS)

    def detach_unfinished(self) -> list[Active]:
        """At the end of the grace time, stop all instances that have not ended, and return them.

        The runner reports nothing of them. Whoever calls this reports ``last``, hands back the others, or fails them.
        """
        left = []
        for active in list(self._active.values()):
            if self._slots.withdraw(active):
                active.detached = True
                self._active.pop(active.run.id, None)
                left.append(active)
        for active in left:
            if active.running is not None:
                active.running.stop()
        return left

    def drop(self, instance_id: int) -> None:
        """Forget an instance: it has ended, or was not started, or does not belong to this worker any more."""
        active = self._active.pop(instance_id, None)
        if active is not None:
            with self._lock:
                if active.lingers and not active.abandoned:
                    active.abandoned = True
                    self.lingering.abandon(active)
                    self.lingering.settle(active, instance_id)
            self._slots.leave(active)

    def _begin(self, active: Active) -> None:
        """Start the first node. If the run may run at most once, the database must know of it before."""
        run = active.run
        once = run.on_worker_lost == WorkerLostPolicy.FAIL
        first = next((node for node in run.nodes if node.status != NodeStatus.SUCCEED), None) if once else None
        if first is not None:
            self._queue_report(active, endings.begun(run, first, self._clock.now()))
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
            log.warning("instance %d could not be started, and is handed back: %s", active.run.id, error)
            node = nodes[active.done]
            self._queue_report(active, endings.not_begun(active.run, node, str(error), self._clock.now()))
        except RotaError as error:  # of its task's row: a time zone that SQL made up
            self._report_node(active, nodes[active.done], endings.failed(str(error)), None)
        except BaseException as error:  # the start and report threads run this: no instance may end them
            log.exception("instance %d could not be started", active.run.id)
            self._report_node(active, nodes[active.done], endings.failed(f"{type(error).__name__}: {error}"), None)

    def _start_node(self, active: Active, node: NodeRun, later: bool) -> None:
        if active.detached:
            return
        if active.stop is not None:
            self._report_node(active, node, endings.stopped(active.stop), None)
            return
        known = self._nodes.get(node.type)
        if known is None:
            self._report_node(active, node, endings.failed(f"this worker cannot run {node.type}"), None)
            return
        param = given_param(node.param, active.run.param)
        if isinstance(param, UnreadableJson):
            self._report_node(active, node, endings.failed(f"param of {node.type}: {param}"), None)
            return
        if timeout := known.timeout or active.run.timeout_seconds:
            self._set_deadline(active, timeout)
        active.calls = 1
        if active.detached:  # since the first look; who detaches looks at ``calls`` afterwards
            active.calls = 0
            return
        self._call(active, node, Call(known, context_of(active, node, param)), later)

    def _call(self, active: Active, node: NodeRun, call: Call, later: bool) -> None:
        try:
            executor = self._executors[call.node.execution]
            active.running = running = executor.start(call, partial(self._node_ended, active, node), later=later)
        except BaseException:
            active.calls = 0
            raise
        if active.stop is not None or active.detached:  # that came before active.running was set, and missed it
            self._stop_call(active, running)

    def _stop_call(self, active: Active, running: Running) -> None:
        with self._lock:
            if active.calls and not active.detached:
                self._set_deadline(active, STOP_SECONDS)
        running.stop()

    def _set_deadline(self, active: Active, seconds: float) -> None:
        active.deadline = deadline = self._clock.monotonic() + seconds
        if deadline < self._earliest:
            self._earliest = deadline
            self.deadlines.wake()

    def _node_ended(self, active: Active, node: NodeRun, outcome: Outcome) -> None:
        with self._lock:
            if outcome.lingers:
                self._linger(active)
                return
            if active.detached:
                self._keep_success(active, node, outcome)
            active.calls = 0  # the last: who detached it waits for that
            if active.lingers:
                active.lingers = False
                self.lingering.end(active, active.run.id)
            if active.detached or active.abandoned:
                return
            active.running = active.deadline = None
            if not outcome.stopped and active.stop is not None and not active.stop.canceled:
                active.stop = None  # the handler ended by itself just as it timed out: its own ending counts
        try:
            ending = self._outcomes.ending(active, node, outcome)
        except BaseException as error:  # the code of a result's class may raise anything: the run must end all the same
            log.exception("the end of %s of instance %d could not be read from its outcome", node.type, active.run.id)
            ending = endings.failed(f"{type(error).__name__}: {error}")
        self._report_node(active, node, ending, outcome)

    def _keep_success(self, active: Active, node: NodeRun, outcome: Outcome) -> None:
        """The worker is stopping. What succeeds all the same is kept for who detached it."""
        if active.stop is None and not active.abandoned and (outcome.finished or not outcome.stopped):
            try:
                ending = self._outcomes.ending(active, node, replace(outcome, stopped=False))
                if ending.status is NodeStatus.SUCCEED:
                    active.last = self._outcomes.report(active, node, ending, outcome)
            except BaseException:
                log.exception("the end of %s of instance %d could not be read", node.type, active.run.id)

    def _linger(self, active: Active) -> None:
        """Under the lock: its call was stopped, and its handler still runs."""
        if active.calls and not active.lingers:
            active.lingers = True
            self.lingering.begin(active)
            if not active.detached:
                self._set_deadline(active, THREAD_GRACE_SECONDS)

    def _give_up(self, active: Active) -> None:
        """The handler has not returned within its grace. The run ends now; a retry waits, ``running``, until it has."""
        with self._lock:  # held until the report is queued: that of the handler's return must come after it
            if not active.lingers or active.abandoned:
                return
            active.deadline = None
            report = self._outcomes.report(active, active.run.nodes[active.done], endings.stopped(active.stop), None)
            if (end := report.instance) is None:  # a stopped node ends its run, or lets it be retried
                return
            if end.status is InstanceStatus.PENDING:
                self._reports.put(endings.waiting_for_its_handler(report, end), partial(self._noted, active))
                return
            active.abandoned = True
            self.lingering.abandon(active)
            self._queue_report(active, endings.while_its_handler_runs(report, end))

    def _noted(self, active: Active, ours: bool) -> None:
        if not ours and not active.detached:
            self.drop(active.run.id)

    def _report_node(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> None:
        self._queue_report(active, self._outcomes.report(active, node, ending, outcome))

    def _queue_report(self, active: Active, report: Report) -> None:
        if is_over := report.is_over:
            self._slots.end(active)
        else:
            self._slots.lend(active, report.size)
        self._reports.put(report, partial(self._committed, active, ended=is_over))

    def _committed(self, active: Active, ours: bool, *, ended: bool) -> None:
        active.begun = True  # before it looks at detached; _end_the_rest reads the two in the opposite order
        if active.detached:
            return
        if active.abandoned:
            self.lingering.settle(active, active.run.id)
        if not ours:
            log.warning("instance %d is not this worker's any more; its run is dropped", active.run.id)
        if ended or not ours:
            self.drop(active.run.id)
            self._ended(active.run.task_id)
            return
        self.proceeding.go_on(active)
