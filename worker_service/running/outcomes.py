"""Reads the outcomes of calls: how a node ended, and what is reported of it. The worker's clock tells the times."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from rota.shared.clock import NOISE, Clock
from rota.shared.domain.errors import RotaError
from rota.shared.domain.states import NodeStatus
from rota.shared.domain.triggers.zones import load_zone
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Outcome
from rota.worker_service.running import endings
from rota.worker_service.running.active import Active, keep_result
from rota.worker_service.running.deadlines import DEADLINE_SECONDS, LONGEST_LOOK_SECONDS
from rota.worker_service.running.endings import Ending, Span, Stop
from rota.worker_service.running.failures import log_failure
from rota.worker_service.verdicts import EndRun, RunAgain

log = logging.getLogger(__name__)


class Outcomes:
    """What the outcomes of one worker's calls mean. A result has at most ``result_limit_bytes`` bytes of JSON."""

    def __init__(self, nodes: Mapping[str, Node], clock: Clock, result_limit_bytes: int) -> None:
        self._nodes = nodes
        self._clock = clock
        self._result_limit_bytes = result_limit_bytes

    def ending(self, active: Active, node: NodeRun, outcome: Outcome) -> Ending:
        """How the node ended. Its result is kept for the next one."""
        if outcome.stopped:
            return endings.stopped(active.stop, outcome)
        again, has_next = outcome.result, active.done + 1 < len(active.run.nodes)
        if isinstance(again, (RunAgain, EndRun)):
            outcome = replace(outcome, result=again.result)
        ending = endings.succeeded_or_failed(node.type, outcome, self._result_limit_bytes)
        if isinstance(again, RunAgain) and ending.status is NodeStatus.SUCCEED:
            ending = self._again(active, node, ending, (again, outcome.left))
        ending.ends_run = isinstance(again, EndRun)
        if has_next and ending.status is NodeStatus.SUCCEED and ending.result is not None:
            keep_result(active, node, json.loads(ending.result))
        return ending

    def _again(self, active: Active, node: NodeRun, ending: Ending, said: tuple[RunAgain, float]) -> Ending:
        """The ending of a node that succeeded and said, when it was left, that its task is to run again."""
        again, left = said
        if active.done + 1 < len(active.run.nodes):
            return endings.failed(f"{node.type} returned RunAgain: only the last node of an instance may")
        if active.run.shard.parent_id is not None:
            return endings.failed(f"{node.type} returned RunAgain: a shard may not, its task would run as a whole")
        try:
            return replace(ending, again=again.moment(self._clock.at(left), load_zone(active.run.timezone)))
        except RotaError as error:
            return endings.failed(f"{node.type} returned RunAgain: {error}")

    def timed_out(self, active: Active, deadline: float) -> Stop:
        """Why a run is stopped whose node has not ended at its deadline: the limit, where it stands, and since when."""
        node = active.run.nodes[active.done]
        if active.over_at is not None and deadline >= active.over_at:
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
        """The worker is stopping: the report of a node that succeeded all the same, for who detached its run."""
        if active.stop is not None or active.abandoned or not (outcome.finished or not outcome.stopped):
            return None
        try:
            ending = self.ending(active, node, replace(outcome, stopped=False))
            return self.report(active, node, ending, outcome) if ending.status is NodeStatus.SUCCEED else None
        except BaseException:
            log.exception("the end of %s of instance %d could not be read", node.type, active.run.id)
            return None

    def report(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> Report:
        """The report of a node that ended so. Without an outcome its handler was not entered, or still runs."""
        run, span = active.run, self.span(active, outcome)
        known = self._nodes.get(node.type)
        policy = endings.policy_of(run, known.own_retry if known else {}) if ending.retry else run.retry
        reported = endings.report(run, node, ending, span, policy)
        reported.turn_of = run.turn_of
        if ending.status is NodeStatus.FAILED and not active.failed:
            active.failed = True
            log_failure(run, node, reported, outcome.failure if outcome and not outcome.stopped else None)
        return reported

    def span(self, active: Active, outcome: Outcome | None) -> Span:
        """When the handler of the present node was entered and left. Without an outcome, it is left now."""
        run, moment = active.run, active.entered_now if outcome is None else outcome.entered
        left = self._clock.now() if outcome is None else self._clock.at(outcome.left)
        if moment is None:
            return Span(None, left, active.entered)
        entered = self._clock.at(moment)
        if run.due_at - NOISE < entered < run.due_at:  # the offset was measured anew since, and has moved a little
            entered = run.due_at
        active.entered = active.entered or entered
        return Span(entered, max(entered, left), active.entered)
