"""Turns the outcome of a node's call into the report of the node and its instance. Pure: the time is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rota.shared.domain import times
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text, storable
from rota.shared.domain.retry import retry_delay
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, NodeStatus, WorkerLostPolicy
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.executors.base import Failure, Outcome
from rota.worker_service.values import result_text

NOT_BEGUN_DELAY = timedelta(seconds=5)
"""When a run that its worker had no room for is due again."""


@dataclass(slots=True)
class Ending:
    """How a node ended, ready to be reported. ``result`` is JSON text."""

    status: NodeStatus
    result: str | None
    why: str | None = None
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is to stop: somebody canceled it, or its node timed out."""

    reason: str
    canceled: bool


def succeeded_or_failed(node_type: str, outcome: Outcome, result_limit_bytes: int) -> Ending:
    """The ending of a call that was not stopped. A result that cannot be stored is a failure, and is not retried."""
    if outcome.failure is not None:
        return _from_failure(outcome.failure)
    try:
        return Ending(NodeStatus.SUCCEED, result_text(node_type, outcome.result, result_limit_bytes))
    except InvalidInput as error:
        return failed(str(error))


def failed(error: str, *, retry: bool = False) -> Ending:
    """A failure described in a sentence. By default it is not retried, since the next attempt would fail alike."""
    sentence = storable(error)
    return Ending(NodeStatus.FAILED, json_text({"error": sentence}), sentence, retry)


def stopped(stop: Stop | None) -> Ending:
    """The ending of a call that was stopped: canceled, or failed and to be retried."""
    if stop is not None and stop.canceled:
        return Ending(NodeStatus.CANCELED, None, stop.reason)
    return failed("stopped" if stop is None else stop.reason, retry=True)


def retries_of(run: Run, own: int | None) -> int:
    """How often a node is retried: its ``own`` number, or else its task's.

    A task that may run at most once is not retried, whatever its row or the node declares.
    """
    if run.on_worker_lost == WorkerLostPolicy.FAIL:
        return 0
    return run.retries if own is None else own


@dataclass(slots=True)
class Span:
    """When a node's handler was entered and left, and when this attempt's first handler was entered (naive UTC)."""

    entered: datetime
    left: datetime
    started: datetime


def report(run: Run, node: NodeRun, ending: Ending, span: Span, retries: int) -> Report:
    """The report of a node that ended: the node, the nodes after it, and the instance if it has ended, too.

    ``retries`` is how often this node is retried. Only its own failures count, not those of other nodes.
    """
    rest = run.nodes[_place(run, node) + 1 :]
    retried = ending.retry and node.failures < retries
    status = NodeStatus.PENDING if retried else ending.status
    failures = node.failures + 1 if ending.status is NodeStatus.FAILED else None
    reported = NodeReport(node.id, status, ending.result, span.entered, span.left, failures)
    if ending.status is NodeStatus.SUCCEED:
        if rest:
            following = NodeReport(rest[0].id, NodeStatus.RUNNING, gmt_started=span.left)
            return Report(run.id, run.attempt, [reported, following], None)
        success = InstanceReport(InstanceStatus.SUCCEED, ending.result, None, span.started, span.left, run.failures)
        return Report(run.id, run.attempt, [reported], success)
    if retried:
        return Report(run.id, run.attempt, [reported], _instance_retry(run, node, ending, span.left, retries))
    canceled = [NodeReport(n.id, NodeStatus.CANCELED) for n in rest]
    return Report(run.id, run.attempt, [reported, *canceled], _instance_end(run, node, ending, span))


def _place(run: Run, node: NodeRun) -> int:
    return next(at for at, one in enumerate(run.nodes) if one is node)


def begun(run: Run, first: NodeRun, now: datetime) -> Report:
    """The report that the first handler of a run is about to be entered. Without its commit, none was."""
    began = max(now, run.due_at)
    instance = InstanceReport(InstanceStatus.RUNNING, None, None, began, None)
    return Report(run.id, run.attempt, [NodeReport(first.id, NodeStatus.RUNNING, gmt_started=began)], instance)


def without_nodes(run: Run, now: datetime) -> Report:
    """The report of an instance that has no node left to run. It fails: otherwise it would never end."""
    reason = "the instance has no nodes that are left to run"
    result = json_text({"error": reason})
    instance = InstanceReport(InstanceStatus.FAILED, result, reason, now, now, run.failures + 1)
    return Report(run.id, run.attempt, [], instance)


def not_begun(run: Run, node: NodeRun, why: str, now: datetime) -> Report:
    """The report of a run whose machine had no room for its handler: it is pending again, and nothing has failed."""
    waiting = InstanceReport(
        status=InstanceStatus.PENDING,
        result=None,
        reason=f"its worker could not start {node.type}: {why}"[:REASON_LIMIT],
        gmt_started=None,
        gmt_completed=None,
        due_at=now + NOT_BEGUN_DELAY,
    )
    return Report(run.id, run.attempt, [NodeReport(node.id, NodeStatus.PENDING)], waiting)


def stopped_at_grace_end(
    run: Run, done: int, started: datetime | None, now: datetime, *, still_runs: bool = False
) -> Report:
    """The report of a run that may run at most once and still runs when its worker's grace time is over.

    The first ``done`` nodes have succeeded. The run fails at the node after them. If its handler ``still_runs``, it
    keeps its overlap slot.
    """
    reason = "its worker stopped before the run ended; its task says on_worker_lost = fail"
    error = json_text({"error": reason})
    unfinished, rest = run.nodes[done : done + 1], run.nodes[done + 1 :]
    nodes = [NodeReport(node.id, NodeStatus.FAILED, error, gmt_completed=now) for node in unfinished]
    nodes += [NodeReport(node.id, NodeStatus.CANCELED) for node in rest]
    return Report(
        run.id,
        run.attempt,
        nodes,
        InstanceReport(InstanceStatus.FAILED, error, reason, started, now, lingers=still_runs),
    )


def waiting_for_its_handler(retry: Report, end: InstanceReport) -> Report:
    """The report of a run that is to be retried, while its handler still runs: it has failed, and holds all.

    If the worker ends before the handler does, the retry begins when the worker is dead.
    """
    reason = f"waits until its handler returns: {end.reason}"[:REASON_LIMIT]
    waiting = replace(end, status=InstanceStatus.RUNNING, reason=reason, due_at=None)
    nodes = [replace(node, status=NodeStatus.RUNNING, gmt_completed=None) for node in retry.nodes]
    return replace(retry, nodes=nodes, instance=waiting)


def while_its_handler_runs(report: Report, end: InstanceReport) -> Report:
    """The report of a run that has ended although its handler still runs: its overlap slot stays taken."""
    return replace(report, instance=replace(end, lingers=True))


def refused(original: Report, why: str) -> Report:
    """The report that replaces one which the database refuses: its first node and its instance fail."""
    error = f"the result could not be stored: {why}"
    result = json_text({"error": error})
    nodes: Sequence[NodeReport] = original.nodes
    failures = [replace(node, status=NodeStatus.FAILED, result=result) for node in nodes[:1]]
    canceled = [replace(node, status=NodeStatus.CANCELED, result=None, gmt_started=None) for node in nodes[1:]]
    instance = InstanceReport(
        status=InstanceStatus.FAILED,
        result=result,
        reason=error[:REASON_LIMIT],
        gmt_started=None,
        gmt_completed=nodes[0].gmt_completed if nodes else None,
    )
    return replace(original, nodes=[*failures, *canceled], instance=instance)


def _from_failure(failure: Failure) -> Ending:
    if failure.final:
        return failed(failure.error)
    result = {"error": failure.error, "type": failure.type, **failure.details, "traceback": failure.traceback}
    return Ending(NodeStatus.FAILED, json_text(result), failure.error, retry=True)


def _instance_end(run: Run, node: NodeRun, ending: Ending, span: Span) -> InstanceReport:
    canceled = ending.status is NodeStatus.CANCELED
    reason = _reason(node, ending)
    return InstanceReport(
        status=InstanceStatus.CANCELED if canceled else InstanceStatus.FAILED,
        result=json_text({"error": reason, "node": node.type}),
        reason=reason,
        gmt_started=span.started,
        gmt_completed=span.left,
        failures=run.failures if canceled else run.failures + 1,
    )


def _instance_retry(run: Run, node: NodeRun, ending: Ending, left: datetime, retries: int) -> InstanceReport:
    number = node.failures + 1
    delay = retry_delay(number, run.retry_delay_seconds, run.retry_backoff)
    reason = f"retry {number} of {retries} after {times.span(delay)}: {_reason(node, ending)}"
    return InstanceReport(
        status=InstanceStatus.PENDING,
        result=None,
        reason=reason[:REASON_LIMIT],
        gmt_started=None,
        gmt_completed=None,
        failures=run.failures + 1,
        due_at=left + timedelta(seconds=delay),
    )


def _reason(node: NodeRun, ending: Ending) -> str:
    if ending.status is NodeStatus.CANCELED:
        return (ending.why or "canceled")[:REASON_LIMIT]
    why = str(ending.why)
    names_the_node = why.startswith(f"{node.type} timed out")
    return (why if names_the_node else f"node {node.type} failed: {why}")[:REASON_LIMIT]
