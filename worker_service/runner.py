"""Running: a claimed instance goes through its nodes in order, each started after the last one's result is committed.

The map of what runs is what keeps an instance from running twice in this process, and what the rows that stand
``running`` under this worker are compared with.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Protocol

from shared.clock import DatabaseClock, boottime
from shared.domain.errors import InvalidInput
from shared.domain.jsontext import UnreadableJson, json_text, storable
from shared.domain.nodes import given_param
from shared.domain.retry import retry_delay
from shared.domain.states import InstanceStatus, NodeStatus, WorkerLostPolicy
from shared.domain.triggers.cron import load_zone
from shared.store.reports import InstanceReport, NodeReport, Report
from shared.store.runs import NodeRun, Run
from worker_service.authoring import Execution, Node
from worker_service.context import Cancellation, NodeContext
from worker_service.executors.base import Call, Executor, Failure, Outcome, Running
from worker_service.values import result_text

log = logging.getLogger(__name__)

REASON_LIMIT = 1000

FORESEEN_BY = 500
FEW_ENDS = 10
SHORTEST_SECONDS = 0.001
"""What is foreseen is foreseen by the last 500 ends, if there were 10, as if none had taken less than a millisecond."""

TIMES_KEPT = 1_000
"""How many times are kept in their zones."""

DEADLINE_SECONDS = 0.1
"""How often the nodes that run are looked at for their timeouts."""


class Reports(Protocol):
    """Where reports go (``reporter.Reporter``)."""

    def put(self, report: Report, written: Callable[[bool], None]) -> None:
        """Queue a report; ``written`` is told once it is committed whether the instance still is ours."""
        ...


@dataclass(slots=True, eq=False)
class Active:
    """An instance that this process runs."""

    run: Run
    results: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    """How many of its nodes have succeeded, in this attempt or an earlier one."""

    deadline: float | None = None
    """When its present node is out of time, in CLOCK_BOOTTIME seconds."""

    entered: datetime | None = None
    running: Running | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    stop_reason: str | None = None
    canceled: bool = False
    forsaken: bool = False
    started: float | None = None
    """When it was, in CLOCK_BOOTTIME seconds."""

    through: bool = False
    """Whether its last handler has ended: it takes no slot any more, though its report is not written yet."""


@dataclass(slots=True)
class Ending:
    """How a node ended, ready to be reported."""

    status: NodeStatus
    result: str | None
    why: str | None = None
    retry: bool = False


class Runner:
    """Runs claimed instances; told of their ends by the executors, and of their commits by the reporter."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        executors: Mapping[Execution, Executor],
        reports: Reports,
        clock: DatabaseClock,
        *,
        result_limit_bytes: int,
        room_made: Callable[[], None],
    ) -> None:
        self._nodes = nodes
        self._executors = executors
        self._reports = reports
        self._clock = clock
        self._result_limit_bytes = result_limit_bytes
        self._room_made = room_made
        self._lock = threading.Lock()
        self._active: dict[int, Active] = {}
        self._through = 0
        self._running = 0
        self._ends: deque[tuple[float, float]] = deque()
        self._took = 0.0

    def __len__(self) -> int:
        return len(self._active)

    @property
    def occupied(self) -> int:
        """How many slots are taken, or spoken for by what is claimed and has not started."""
        return len(self._active) - self._through

    @property
    def running(self) -> int:
        """How many have started and are not through."""
        return self._running

    def foreseen(self, free: int, seconds: float) -> int:
        """How many more will come through within so many seconds than there are free slots for now.

        As many as in the last so many seconds; or, where slots are free, as many as these pass at the pace of the last
        ``FORESEEN_BY`` that ended. So handlers that take long leave nothing to foresee.
        """
        since = boottime() - seconds
        with self._lock:
            if len(self._ends) < FEW_ENDS:
                return 0
            mean = self._took / len(self._ends)
            recent = sum(1 for _ in takewhile(lambda end: end[0] > since, reversed(self._ends)))
        return max(recent, int(max(free, 0) * seconds / max(mean, SHORTEST_SECONDS)))

    @property
    def held(self) -> set[tuple[int, int]]:
        """What this process runs: (instance id, attempt)."""
        with self._lock:
            return {(a.run.id, a.run.attempt) for a in self._active.values()}

    def accept(self, claimed: Iterable[Run]) -> list[Run]:
        """Take claimed instances, to be started when they are due; returns those that this process did not run yet."""
        with self._lock:
            new = [run for run in claimed if run.id not in self._active]
            self._active.update((run.id, Active(run)) for run in new)
        return new

    def start(self, runs: Iterable[Run]) -> None:
        """Start instances that are due."""
        with self._lock:
            starting = [active for run in runs if (active := self._active.get(run.id)) is not None]
            now = boottime()
            for active in starting:
                active.started = now
            self._running += len(starting)
        for active in starting:
            try:
                self._next(active, later=True)
            except BaseException:  # the next ones are to start all the same
                log.exception("instance %d could not be started", active.run.id)
        for executor in self._executors.values():
            executor.begin()

    def stop(self, instance_id: int, attempt: int, reason: str, *, canceled: bool) -> None:
        """Stop a run: as canceled, or, where it merely lost its time, as failed."""
        active = self._active.get(instance_id)
        if active is None or active.run.attempt != attempt or active.stop_reason is not None:
            return
        active.stop_reason, active.canceled = reason, canceled
        active.cancellation.request()
        if active.running is not None:
            active.running.stop()

    def expire(self) -> float:
        """Stop the nodes that are out of time; returns the seconds to rest."""
        now = boottime()
        late: list[Running] = []
        with self._lock:
            for active in self._active.values():
                if active.deadline is None or active.deadline > now or active.running is None:
                    continue
                if active.stop_reason is None:
                    active.stop_reason = f"{active.run.nodes[active.done].type} timed out"
                    late.append(active.running)
        for running in late:
            running.stop()
        return DEADLINE_SECONDS

    def forsake(self) -> list[Active]:
        """At the end of the grace time: stop all that is not through and report nothing of it; returns what it was."""
        with self._lock:
            left = [a for a in self._active.values() if not a.forsaken and not a.through]
            for active in left:
                active.forsaken = True
                del self._active[active.run.id]
            self._running = 0
        for active in left:
            if active.running is not None:
                active.running.stop()
        return left

    def drop(self, instance_id: int) -> None:
        """Forget an instance: it has ended, or was not started, or is not ours any more."""
        with self._lock:
            active = self._active.pop(instance_id, None)
            if active is None:
                return
            if active.through:
                self._through -= 1
            elif active.started is not None:
                self._running -= 1
        self._room_made()

    def _next(self, active: Active, *, later: bool = False) -> None:
        nodes = active.run.nodes
        while active.done < len(nodes) and nodes[active.done].status == NodeStatus.SUCCEED:
            _keep(active, nodes[active.done], nodes[active.done].result)
        if active.done == len(nodes):
            self._end_without_nodes(active)
            return
        try:
            self._execute(active, nodes[active.done], later)
        except BaseException as error:  # the start and report threads call this: no instance may end them
            log.exception("instance %d could not be started", active.run.id)
            self._report(active, nodes[active.done], _failed(f"{type(error).__name__}: {error}"), None)

    def _execute(self, active: Active, node: NodeRun, later: bool) -> None:
        if active.stop_reason is not None:
            self._report(active, node, _stopped(active), None)
            return
        known = self._nodes.get(node.type)
        if known is None:
            self._report(active, node, _failed(f"this worker cannot run {node.type}"), None)
            return
        param = given_param(node.param, active.run.param)
        if isinstance(param, UnreadableJson):
            self._report(active, node, _failed(f"param of {node.type}: {param}"), None)
            return
        timeout = known.timeout or active.run.timeout_seconds
        active.deadline = boottime() + timeout if timeout else None
        call = Call(known, _context(active, node, param))
        executor = self._executors[known.execution]
        active.running = executor.start(call, partial(self._done, active, node), later=later)
        if active.stop_reason is not None:  # it came in between
            active.running.stop()

    def _done(self, active: Active, node: NodeRun, outcome: Outcome) -> None:
        if active.forsaken:
            return
        with self._lock:
            active.running = active.deadline = None
            if not (outcome.stopped or active.canceled):
                active.stop_reason = None  # it ended by itself just as its time was over
        try:
            ending = self._ending(active, node, outcome)
        except BaseException as error:  # a result's own code may raise what it likes: the run must end
            log.exception("the end of %s of instance %d could not be told", node.type, active.run.id)
            ending = _failed(f"{type(error).__name__}: {error}")
        self._report(active, node, ending, outcome)

    def _ending(self, active: Active, node: NodeRun, outcome: Outcome) -> Ending:
        if outcome.stopped:
            return _stopped(active)
        if outcome.failure is not None:
            return _raised(outcome.failure)
        try:
            text = result_text(node.type, outcome.result, self._result_limit_bytes)
        except InvalidInput as error:
            return _failed(str(error))
        if active.done + 1 < len(active.run.nodes):
            _keep(active, node, json.loads(text))
        return Ending(NodeStatus.SUCCEED, text)

    def _report(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> None:
        entered = self._clock.now() if outcome is None else self._clock.at(outcome.entered)
        entered = max(entered, active.run.due_at)  # measured again since, the clock may have moved back a little
        left = max(entered, self._clock.now() if outcome is None else self._clock.at(outcome.left))
        active.entered = active.entered or entered
        rest = active.run.nodes[active.run.nodes.index(node) + 1 :]
        retried = ending.retry and active.run.failures < self._retries(active, node)
        reported = NodeReport(node.id, NodeStatus.PENDING if retried else ending.status, ending.result, entered, left)
        if ending.status is NodeStatus.SUCCEED and rest:
            following = NodeReport(rest[0].id, NodeStatus.RUNNING, gmt_started=left)
            self._put(active, [reported, following], None)
        elif ending.status is NodeStatus.SUCCEED:
            self._put(active, [reported], self._ended(active, InstanceStatus.SUCCEED, ending, left))
        elif retried:
            self._put(active, [reported], self._again(active, node, ending, left))
        else:
            canceled = [NodeReport(n.id, NodeStatus.CANCELED) for n in rest]
            status = InstanceStatus.CANCELED if ending.status is NodeStatus.CANCELED else InstanceStatus.FAILED
            self._put(active, [reported, *canceled], self._ended(active, status, ending, left, node))

    def _retries(self, active: Active, node: NodeRun) -> int:
        if active.run.on_worker_lost == WorkerLostPolicy.FAIL:  # it may run once at most, whatever SQL or the node says
            return 0
        own = self._nodes[node.type].retries if node.type in self._nodes else None
        return active.run.retries if own is None else own

    def _ended(
        self, active: Active, status: InstanceStatus, ending: Ending, left: datetime, node: NodeRun | None = None
    ) -> InstanceReport:
        failed = status is InstanceStatus.FAILED
        reason = None if node is None else _reason(node, ending)
        result = ending.result if node is None else json_text({"error": reason, "node": node.type})
        return InstanceReport(
            status=status,
            result=result,
            reason=reason,
            gmt_started=active.entered,
            gmt_completed=left,
            failures=active.run.failures + 1 if failed else active.run.failures,
        )

    def _again(self, active: Active, node: NodeRun, ending: Ending, left: datetime) -> InstanceReport:
        failures = active.run.failures + 1
        delay = retry_delay(failures, active.run.retry_delay_seconds, active.run.retry_backoff)
        reason = f"retry {failures} of {self._retries(active, node)} after {delay:g} s: {_reason(node, ending)}"
        return InstanceReport(
            status=InstanceStatus.PENDING,
            result=None,
            reason=reason[:REASON_LIMIT],
            gmt_started=None,
            gmt_completed=None,
            failures=failures,
            due_at=left + timedelta(seconds=delay),
        )

    def _put(self, active: Active, nodes: list[NodeReport], instance: InstanceReport | None) -> None:
        report = Report(active.run.id, active.run.attempt, nodes, instance)
        if instance is not None:
            self._come_through(active)
        self._reports.put(report, partial(self._written, active, ended=instance is not None))

    def _come_through(self, active: Active) -> None:
        with self._lock:
            if active.through or active.forsaken:
                return
            active.through = True
            self._through += 1
            if active.started is not None:
                self._running -= 1
                self._note_end(boottime(), active.started)
        self._room_made()

    def _note_end(self, now: float, started: float) -> None:
        if len(self._ends) == FORESEEN_BY:
            self._took -= self._ends.popleft()[1]
        self._ends.append((now, now - started))
        self._took += now - started

    def _written(self, active: Active, ours: bool, *, ended: bool) -> None:
        if active.forsaken:
            return
        if not ours:
            log.warning("instance %d is not this worker's any more; its run is dropped", active.run.id)
        if ended or not ours:
            self.drop(active.run.id)
            return
        self._next(active)

    def _end_without_nodes(self, active: Active) -> None:
        now = self._clock.now()
        reason = "it has no nodes that are left to run"
        result = json_text({"error": reason})
        self._put(active, [], InstanceReport(InstanceStatus.FAILED, result, reason, now, now, active.run.failures + 1))


def _keep(active: Active, node: NodeRun, result: Any) -> None:
    """Its result for the nodes after it, as the database holds it: a retry sees the same."""
    active.done += 1
    active.results[node.type] = active.results[node.type.removeprefix(f"{node.category}_")] = result


def _context(active: Active, node: NodeRun, param: Any) -> NodeContext[Any]:
    run = active.run
    return NodeContext(
        param=param,
        schedule_datetime=_in_zone(run.schedule_datetime, run.timezone),
        due_at=run.due_at.replace(tzinfo=UTC),
        results=dict(active.results),
        task_name=run.task_name,
        node_type=node.type,
        instance_id=run.id,
        run_number=run.run_number,
        attempt=run.attempt,
        origin=run.origin,
        cancellation=active.cancellation,
    )


@lru_cache(TIMES_KEPT)
def _in_zone(moment: datetime, timezone: str) -> datetime:
    """A naive UTC time as an aware one of a zone: the same for all of a herd."""
    return moment.replace(tzinfo=UTC).astimezone(load_zone(timezone))


def _failed(error: str, *, retry: bool = False) -> Ending:
    said = storable(error)
    return Ending(NodeStatus.FAILED, json_text({"error": said}), said, retry)


def _stopped(active: Active) -> Ending:
    reason = active.stop_reason or "stopped"
    return Ending(NodeStatus.CANCELED, None, reason) if active.canceled else _failed(reason, retry=True)


def _raised(failure: Failure) -> Ending:
    if failure.final:
        return _failed(failure.error)
    said = {"error": failure.error, "type": failure.type, "traceback": failure.traceback}
    return Ending(NodeStatus.FAILED, json_text(said), failure.error, retry=True)


def _reason(node: NodeRun, ending: Ending) -> str:
    if ending.status is NodeStatus.CANCELED:
        return (ending.why or "canceled")[:REASON_LIMIT]
    return f"node {node.type} failed: {ending.why}"[:REASON_LIMIT]
