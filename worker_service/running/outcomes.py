"""Reads the outcomes of calls: how a node ended, and what is reported of it. The worker's clock tells the times."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from rota.shared.clock import NOISE, Clock
from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import UnreadableJson, json_text
from rota.shared.domain.nodes import given_param
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.domain.triggers.zones import load_zone
from rota.shared.store.reports import InstanceReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Call, NoThread, Outcome
from rota.worker_service.running import always, cut_short, endings
from rota.worker_service.running.active import Active, context_of, keep_result
from rota.worker_service.running.deadlines import DEADLINE_SECONDS, LONGEST_LOOK_SECONDS
from rota.worker_service.running.endings import Ending, Span, Stop
from rota.worker_service.running.failures import log_failure
from rota.worker_service.running.ordering import Orders
from rota.worker_service.values import read_again
from rota.worker_service.verdicts import EndRun, RunAgain

log = logging.getLogger(__name__)


class Outcomes:
    """What the outcomes of one worker's calls mean. A result has at most ``result_limit_bytes`` bytes of JSON."""

    def __init__(self, nodes: Mapping[str, Node], clock: Clock, result_limit_bytes: int, worker: str = "") -> None:
        self._nodes, self._worker = nodes, worker
        self.always = frozenset(node.type for node in nodes.values() if node.always)
        """The node types that run always."""

        self.orders = Orders(nodes, self.always)
        self._clock = clock
        self._result_limit_bytes = result_limit_bytes

    def is_uncut(self, active: Active) -> bool:
        """Whether the present node of a run runs always: neither the limit of the run nor a cancel stops it."""
        if active.run_end is not None or not self.always:
            return active.run_end is not None
        return active.done < len(active.run.nodes) and active.run.nodes[active.done].type in self.always

    def call(self, active: Active, node: NodeRun) -> Call | Ending:
        """The call of a node; or how the node ends, if it cannot be called."""
        known = self._nodes.get(node.type)
        if known is None:
            return endings.failed(f"this worker cannot run {node.type}")
        param = given_param(node.param, active.run.param)
        if isinstance(param, UnreadableJson):
            return endings.failed(f"param of {node.type}: {param}")
        return Call(known, context_of(active, node, param), active.of.pool)

    def until(self, active: Active, node: Node) -> float | None:
        """When the call of a node that begins now times out, in seconds of ``monotonic``; None: it does not."""
        seconds = node.timeout or active.run.timeout_seconds
        if not seconds and active.over_at is None:
            return None
        now = self._clock.monotonic()
        if self.is_uncut(active):
            return now + seconds if seconds else None
        return active.until(now, seconds)

    def not_started(self, active: Active, error: BaseException) -> Ending:
        """How a node ends that could not be started: for what its task's row says, such as a time zone of SQL's."""
        if isinstance(error, RotaError):
            return endings.failed(str(error))
        log.error("instance %d could not be started", active.run.id, exc_info=error)
        return endings.failed(f"{type(error).__name__}: {error}")

    def not_begun(self, active: Active, error: NoThread) -> Report:
        """The report of a run whose machine had no room for its handler. It is handed back."""
        log.warning("instance %d could not be started, and is handed back: %s", active.run.id, error)
        return endings.not_begun(active.run, active.run.nodes[active.done], str(error), self._clock.now())

    def ending(self, active: Active, node: NodeRun, outcome: Outcome) -> Ending:
        """How the node ended, whatever its result is. Its result is kept for the next one."""
        try:
            return self._ending(active, node, outcome)
        except BaseException as error:  # the code of a result's class may raise anything: the run must end all the same
            log.exception("the end of %s of instance %d could not be read from its outcome", node.type, active.run.id)
            return endings.failed(f"{type(error).__name__}: {error}")

    def _ending(self, active: Active, node: NodeRun, outcome: Outcome) -> Ending:
        if outcome.stopped:
            return endings.stopped(active.stop, outcome)
        again = outcome.result
        if isinstance(again, (RunAgain, EndRun)):
            outcome = replace(outcome, result=again.result)
        ending = endings.succeeded_or_failed(node.type, outcome, self._result_limit_bytes)
        if isinstance(again, RunAgain) and ending.status is NodeStatus.SUCCEED:
            ending = self._again(active, node, ending, (again, outcome.left))
        ending.ends_run = isinstance(again, EndRun)
        has_next = active.done + 1 < len(active.run.nodes) and active.fork is None  # a fork keeps those of its branches
        if has_next and ending.status is NodeStatus.SUCCEED and ending.result is not None:
            keep_result(active, node, read_again(outcome.result, ending.result))
        return ending

    def _again(self, active: Active, node: NodeRun, ending: Ending, said: tuple[RunAgain, float]) -> Ending:
        """The ending of a node that succeeded and said, when it was left, that its task is to run again."""
        again, left = said
        if active.done + 1 < len(active.run.nodes) or not (active.order is None or active.order.is_last(node)):
            return endings.failed(f"{node.type} returned RunAgain: only the last node of an instance may")
        if active.run.shard.is_part:
            return endings.failed(f"{node.type} returned RunAgain: a shard may not, its task would run as a whole")
        try:
            return replace(ending, again=again.moment(self._clock.at(left), load_zone(active.run.timezone)))
        except RotaError as error:
            return endings.failed(f"{node.type} returned RunAgain: {error}")

    def timed_out(self, active: Active, deadline: float) -> Stop:
        """Why a run is stopped whose node has not ended at its deadline: the limit, where it stands, and since when."""
        node = active.run.nodes[active.done]
        if active.over_at is not None and deadline >= active.over_at and not self.is_uncut(active):
            return self._run_timed_out(active, node, active.over_at)
        known = self._nodes.get(node.type)
        limit = (known.timeout if known else None) or active.run.timeout_seconds or 0
        reason = f"{node.type} timed out after {limit:g} s"
        entered = active.entered_now
        moment = self._clock.at(deadline - limit if entered is None else entered).isoformat(" ", "milliseconds")
        if active.running is None or entered is None:
            return Stop(f"{reason} before its handler began; it waited since {moment} UTC", canceled=False)
        return Stop(reason, canceled=False, place=active.running.standing(), since=f"; it began at {moment} UTC")

    def or_timed_out(self, active: Active, node: NodeRun, outcome: Outcome) -> Outcome:
        """The outcome, as timed out if it came so late that nobody can have looked at the deadline.

        So it is where the handler kept the interpreter for itself, in one long call of C, until it returned.
        """
        at = active.deadline
        if active.stop is not None or at is None or outcome.left <= at + LONGEST_LOOK_SECONDS + DEADLINE_SECONDS:
            return outcome
        if self._nodes[node.type].execution == "process":  # another handler kept this process from looking
            return outcome
        active.stop = self.timed_out(active, at)
        return replace(outcome, stopped=True)

    def _run_timed_out(self, active: Active, node: NodeRun, over_at: float) -> Stop:
        limit = active.run.run_timeout_seconds or 0
        since = f"; the run began at {self._clock.at(over_at - limit).isoformat(' ', 'milliseconds')} UTC"
        reason = f"the run timed out after {limit:g} s in {node.type}"
        if active.running is None or active.entered_now is None:
            return Stop(f"{reason} before its handler began", canceled=False, since=since)
        return Stop(reason, canceled=False, place=active.running.standing(), since=since)

    def kept(self, active: Active, node: NodeRun, outcome: Outcome) -> Report | None:
        """The worker is stopping: the report of a node that succeeded all the same, for who detached its run.

        Or of one that had been stopped before, if its run has ended with it but for nodes that run always.
        """
        try:
            return None if active.abandoned else self._kept(active, node, outcome)
        except BaseException:
            log.exception("the end of %s of instance %d could not be read", node.type, active.run.id)
            return None

    def kept_ending(self, branch: Active, node: NodeRun, outcome: Outcome) -> Ending | None:
        """The worker is stopping: how the node of a branch has succeeded all the same; None: it has not."""
        if not _ended_by_itself(branch, outcome):
            return None
        ending = self.ending(branch, node, replace(outcome, stopped=False))
        return ending if ending.status is NodeStatus.SUCCEED else None

    def _kept(self, active: Active, node: NodeRun, outcome: Outcome) -> Report | None:
        moves_on = active.stop is not None and self._has_left(active, node)
        if not (moves_on or _ended_by_itself(active, outcome)):
            return None
        ending = self._ending(active, node, outcome if moves_on else replace(outcome, stopped=False))
        if ending.status is not NodeStatus.SUCCEED and not moves_on:
            return None
        report = self.report(active, node, ending, outcome)
        return report if ending.status is NodeStatus.SUCCEED or active.run_end is not None else None

    def _has_left(self, active: Active, node: NodeRun) -> bool:
        """Whether nodes that run always are left behind this one."""
        return active.run_end is not None or any(one.type in self.always for one in endings.after(active.run, node))

    def report(
        self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None, *, moves_on: bool = True
    ) -> Report:
        """The report of a node that ended so. Without an outcome its handler was not entered, or still runs.

        If the run has ended with it but for nodes that run always, the run ``moves_on`` to these.
        """
        run, span, end = active.run, self.span(active, outcome), active.run_end
        policy = self._policy(run, node, ending)
        if active.asked is not None or (end is not None and end.status is InstanceStatus.CANCELED):
            policy = replace(policy, retries=0)  # a run that is to be canceled waits for no further attempt
        reported = endings.report(run, node, ending, span, policy)
        if ending.status is NodeStatus.FAILED and not active.failed:
            active.failed = True
            log_failure(run, node, reported, outcome.failure if outcome and not outcome.stopped else None)
        if end is not None:
            reported, end = always.continued(run, reported, end, span)
        elif self.always:
            self._keep_own_result(active, node, reported)
            reported, end = always.decided(run, node, reported, self.always, span)
        if end is not None and moves_on and not reported.is_over:
            active.end_but_for(end)
        reported.turn_of = run.turn_of
        return reported

    def _policy(self, run: Run, node: NodeRun, ending: Ending) -> RetryPolicy:
        known = self._nodes.get(node.type)
        return endings.policy_of(run, known.own_retry if known else {}) if ending.retry else run.retry

    def retry_at(self, active: Active, node: NodeRun, ending: Ending, span: Span) -> datetime | None:
        """When a run is to be retried with a node that has ended so; None: it is not."""
        return endings.report(active.run, node, ending, span, self._policy(active.run, node, ending)).retry_at

    def while_handler_runs(self, report: Report, end: InstanceReport, node: NodeRun) -> Report:
        """The report of a run that has ended although the handler of this node still runs."""
        return cut_short.while_its_handler_runs(report, end, self._nodes[node.type].execution, self._worker)

    def now(self) -> datetime:
        """The database's time, naive UTC."""
        return self._clock.now()

    def _keep_own_result(self, active: Active, node: NodeRun, reported: Report) -> None:
        """A node that runs always is the last to succeed: the run's result stays that of the last other node."""
        run, instance = active.run, reported.instance
        if instance is None or instance.status is not InstanceStatus.SUCCEED or node.type not in self.always:
            return
        others = [one.type for one in run.nodes if one.type not in self.always]
        if others and run.nodes[-1] is node:
            instance.result = json_text(active.results[others[-1]])

    def is_to_be_canceled(self, active: Active) -> bool:
        """Whether somebody has asked to cancel a run, and its present node does not go on all the same."""
        return any(s is not None and s.canceled for s in (active.stop, active.asked)) and not self.is_uncut(active)

    def failed_at_grace_end(self, active: Active, *, still_runs: bool) -> Report | None:
        """The report of a run that may run at most once and still runs when its worker's grace time is over.

        If a node that runs always is next, and its handler was not entered, another worker goes on with it. None: such
        nodes are left, and nobody may run them beside its handler. The scheduler decides when the worker is dead.
        """
        span = self.span(active, None)
        if span.entered is None and not still_runs and self.is_uncut(active):
            return cut_short.given_up(active.run, active.run.nodes[active.done], span.left)
        failure = cut_short.stopped_at_grace_end(active.run, active.done, span, still_runs=still_runs)
        return always.handed_over(active.run, failure, active.run_end, self.always, active.done)

    def span(self, active: Active, outcome: Outcome | None) -> Span:
        """When the handler of the present node was entered and left. Without an outcome, it is left now."""
        run, moment = active.run, active.entered_now if outcome is None else outcome.entered
        left = self._clock.now() if outcome is None else self._clock.at(outcome.left)
        if moment is None:
            return Span(None, left, active.entered)
        entered = self._clock.at(moment)
        if entered < run.due_at < entered + NOISE:  # the offset was measured anew since, and has moved a little
            entered = run.due_at
        active.entered = active.entered or entered
        return Span(entered, max(entered, left), active.entered)


def _ended_by_itself(active: Active, outcome: Outcome) -> bool:
    """Whether a handler has ended by itself, while its worker stops. ``finished`` says so only of what was not to stop
    before: else it may have left its work undone, because it was asked to."""
    return not outcome.stopped or (outcome.finished and active.stop is None)
