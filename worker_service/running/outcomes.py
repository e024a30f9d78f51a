"""Reads the outcomes of calls: how a node ended, and what is reported of it. The worker's clock tells the times."""

import json
from collections.abc import Mapping

from rota.shared.clock import NOISE, Clock
from rota.shared.domain.states import NodeStatus
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun
from rota.worker_service.authoring import Node
from rota.worker_service.executors.base import Outcome
from rota.worker_service.running import endings
from rota.worker_service.running.active import Active, keep_result
from rota.worker_service.running.endings import Ending, Span, Stop
from rota.worker_service.running.failures import log_failure


class Outcomes:
    """What the outcomes of one worker's calls mean. A result has at most ``result_limit_bytes`` bytes of JSON."""

    def __init__(self, nodes: Mapping[str, Node], clock: Clock, result_limit_bytes: int) -> None:
        self._nodes = nodes
        self._clock = clock
        self._result_limit_bytes = result_limit_bytes

    def ending(self, active: Active, node: NodeRun, outcome: Outcome) -> Ending:
        """How the node ended. Its result is kept for the next one."""
        if outcome.stopped:
            return endings.stopped(active.stop)
        ending = endings.succeeded_or_failed(node.type, outcome, self._result_limit_bytes)
        has_next = active.done + 1 < len(active.run.nodes)
        if has_next and ending.status is NodeStatus.SUCCEED and ending.result is not None:
            keep_result(active, node, json.loads(ending.result))
        return ending

    def timed_out(self, active: Active, deadline: float) -> Stop:
        """Why a run is stopped whose node has not ended at its deadline: the limit, where it stands, and since when."""
        node = active.run.nodes[active.done]
        known = self._nodes.get(node.type)
        limit = (known.timeout if known else None) or active.run.timeout_seconds or 0
        since = self._clock.at(deadline - limit).isoformat(" ", "milliseconds")
        place = None if active.running is None else active.running.standing()
        where = f" at {place}" if place else ""
        return Stop(f"{node.type} timed out after {limit:g} s{where}; it began at {since} UTC", canceled=False)

    def report(self, active: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> Report:
        """The report of a node that ended so. Without an outcome, no handler was entered."""
        run = active.run
        entered = self._clock.now() if outcome is None else self._clock.at(outcome.entered)
        if run.due_at - NOISE < entered < run.due_at:  # the offset was measured anew since, and has moved a little
            entered = run.due_at
        left = max(entered, self._clock.now() if outcome is None else self._clock.at(outcome.left))
        active.entered = active.entered or entered
        known = self._nodes.get(node.type)
        retries = endings.retries_of(run, known.retries if known else None) if ending.retry else 0
        reported = endings.report(run, node, ending, Span(entered, left, active.entered), retries)
        if ending.status is NodeStatus.FAILED and not active.failed:
            active.failed = True
            log_failure(run, node, reported, outcome.failure if outcome and not outcome.stopped else None)
        return reported
