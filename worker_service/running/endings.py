"""Turns the outcome of a node's call into the report of the node and its instance. Pure: the time is an argument."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from rota.shared.domain import times
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text, storable
from rota.shared.domain.retry import OF_A_TIMEOUT, RetryPolicy
from rota.shared.domain.states import LEFT, REASON_LIMIT, InstanceStatus, NodeStatus, WorkerLostPolicy
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.executors.base import Failure, Outcome
from rota.worker_service.values import result_text

NO_DETAILS: Mapping[str, Any] = MappingProxyType({})

REFUSAL_LIMIT = 300
"""So much of a reason says at most why a failure is not retried."""

NOTE_LIMIT = 300
"""So much is added to the reason of a run by each of its nodes that run always and that fails."""

NOT_BEGUN_DELAY = timedelta(seconds=5)
"""When a run that its worker had no room for is due again."""


@dataclass(slots=True)
class Ending:
    """How a node ended, ready to be reported. ``result`` is JSON text."""

    status: NodeStatus
    result: str | None
    why: str | None = None
    retry: bool = False
    kinds: Sequence[str] = ()
    retry_in: float | None = None
    """As of ``Failure``."""

    ends_run: bool = False
    """Whether a success ends the run, and the nodes after it are skipped (``EndRun``)."""

    again: datetime | None = None
    """When the task is to run once more, naive UTC, if the handler says so (``RunAgain``)."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is to stop: somebody canceled it, or its node timed out."""

    reason: str
    canceled: bool
    place: str | None = None
    """Where the handler stood that timed out, if that is known yet."""

    since: str = ""
    """The end of the sentence: since when it ran."""

    def sentence(self, place: str | None = None) -> str:
        """The whole reason. ``place``: where the handler stood, if its process has said so."""
        where = self.place or place
        return f"{self.reason}{f' at {where}' if where else ''}{self.since}"


def succeeded_or_failed(node_type: str, outcome: Outcome, result_limit_bytes: int) -> Ending:
    """The ending of a call that was not stopped. A result that cannot be stored is a failure, and is not retried."""
    if outcome.failure is not None:
        return _from_failure(outcome.failure)
    try:
        return Ending(NodeStatus.SUCCEED, result_text(node_type, outcome.result, result_limit_bytes))
    except InvalidInput as error:
        return failed(str(error))


def failed(error: str, *, retry: bool = False, details: Mapping[str, Any] = NO_DETAILS) -> Ending:
    """A failure described in a sentence. By default it is not retried, since the next attempt would fail alike."""
    sentence = storable(error)
    return Ending(NodeStatus.FAILED, json_text({"error": sentence, **details}), sentence, retry)


def stopped(stop: Stop | None, outcome: Outcome | None = None) -> Ending:
    """The ending of a call that was stopped: canceled, or failed and to be retried.

    A failure keeps what the ``outcome`` has to say: where its process stood, or what its command had printed.
    """
    if stop is not None and stop.canceled:
        return Ending(NodeStatus.CANCELED, None, stop.reason)
    why = "stopped" if stop is None else stop.sentence(outcome.place if outcome else None)
    details = outcome.failure.details if outcome and outcome.failure else NO_DETAILS
    return replace(failed(why, retry=True, details=details), kinds=OF_A_TIMEOUT)


def policy_of(run: Run, own: Mapping[str, Any]) -> RetryPolicy:
    """How a node is retried: as its task says, but for what it has of its ``own``.

    A task that may run at most once is not retried, whatever its row or the node declares.
    """
    once = {"retries": 0} if run.on_worker_lost == WorkerLostPolicy.FAIL else {}
    return replace(run.retry, **{**own, **once})


@dataclass(slots=True)
class Span:
    """When a node's handler was entered and left, and when this attempt's first handler was entered (naive UTC).

    None: it was not entered. Then ``left`` is when the node ended.
    """

    entered: datetime | None
    left: datetime
    started: datetime | None


def report(run: Run, node: NodeRun, ending: Ending, span: Span, policy: RetryPolicy) -> Report:
    """The report of a node that ended: the node, the nodes after it, and the instance if it has ended, too.

    ``policy`` is how this node is retried. Only its own failures count, not those of other nodes.
    """
    rest = after(run, node)
    retried = ending.retry and node.failures < policy.retries
    if retried and (refusal := policy.why_not(ending.kinds)) is not None:
        retried, ending = False, _not_retried(node, ending, refusal)
    status = NodeStatus.PENDING if retried else ending.status
    failures = node.failures + 1 if ending.status is NodeStatus.FAILED else None
    reported = NodeReport(node.id, status, ending.result, span.entered, span.left, failures)
    if ending.status is NodeStatus.SUCCEED:
        if rest and not ending.ends_run:
            following = NodeReport(rest[0].id, NodeStatus.RUNNING, gmt_started=span.left)
            return Report(run.id, run.attempt, [reported, following], None)
        success = InstanceReport(InstanceStatus.SUCCEED, ending.result, None, span.started, span.left, run.failures)
        success.again = ending.again
        skipped = [NodeReport(n.id, NodeStatus.SKIPPED) for n in rest]
        return Report(run.id, run.attempt, [reported, *skipped], success)
    if retried:
        return Report(run.id, run.attempt, [reported], _instance_retry(run, node, ending, span, policy))
    canceled = [NodeReport(n.id, NodeStatus.CANCELED) for n in rest]
    return Report(run.id, run.attempt, [reported, *canceled], instance_end(run, node, ending, span))


def _not_retried(node: NodeRun, ending: Ending, refusal: str) -> Ending:
    """The ending, with why it is not retried. That stays although the reason of the failure is cut."""
    told = refusal if len(refusal) <= REFUSAL_LIMIT else refusal[: REFUSAL_LIMIT - 1] + "…"
    end = f"; not retried: {told}"
    room = REASON_LIMIT - len(end) - len(_failed(node))
    return replace(ending, why=f"{str(ending.why)[:room]}{end}")


def after(run: Run, node: NodeRun) -> Sequence[NodeRun]:
    """The nodes behind this one."""
    if run.nodes[-1] is node:
        return ()
    return run.nodes[next(at for at, one in enumerate(run.nodes) if one is node) + 1 :]


def begun(run: Run, first: NodeRun, now: datetime) -> Report:
    """The report that the first handler of a run is about to be entered. Without its commit, none was."""
    began = max(now, run.due_at)
    instance = InstanceReport(InstanceStatus.RUNNING, None, None, began, None)
    return Report(run.id, run.attempt, [NodeReport(first.id, NodeStatus.RUNNING, gmt_started=began)], instance)


def first_of_once(run: Run, done: int) -> NodeRun | None:
    """The node with which a run begins that may run at most once, and whose first nodes are ``done``; None for any
    other run."""
    if run.on_worker_lost != WorkerLostPolicy.FAIL:
        return None
    return next((node for node in run.nodes[done:] if node.status != NodeStatus.SUCCEED), None)


def restarts(run: Run, always: Collection[str] = ()) -> bool:
    """Whether nodes have succeeded before that are to run again.

    What a replay has kept does not, nor what may run at most once: that has been given to another worker for the nodes
    that are left. Nor does a run of which only nodes are left that run ``always``: it has ended but for these.
    """
    if run.on_worker_lost == WorkerLostPolicy.FAIL:
        return False
    left = [node for node in run.nodes if node.status in LEFT]
    if left and all(node.type in always for node in left):
        return False
    first = run.from_sequence or 0
    return run.retry.restarts and any(n.status == NodeStatus.SUCCEED and n.sequence >= first for n in run.nodes)


def anew(run: Run) -> Run:
    """The run as if none of its nodes had succeeded, but for those that a replay has kept. How often each has failed
    stays."""
    first = run.from_sequence or 0
    status = NodeStatus.PENDING.value
    nodes = (n if n.sequence < first else replace(n, status=status, result=None) for n in run.nodes)
    return replace(run, nodes=tuple(nodes))


def begun_anew(run: Run, now: datetime) -> Report:
    """The report that a further attempt begins with the first node, and that all nodes are to run again."""
    first, *rest = [node for node in run.nodes if node.status != NodeStatus.SUCCEED]
    began = max(now, run.due_at)
    nodes = [
        NodeReport(first.id, NodeStatus.RUNNING, gmt_started=began),
        *(NodeReport(node.id, NodeStatus.PENDING) for node in rest),
    ]
    return Report(run.id, run.attempt, nodes, InstanceReport(InstanceStatus.RUNNING, None, None, began, None))


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


def refused(original: Report, why: str) -> Report:
    """The report that replaces one which the database refuses: its first node and its instance fail.

    A run that had ended before, but for nodes that run always, has ended as it had. The reason adds the refusal. Of a
    run whose other nodes run meanwhile the handlers are stopped: it keeps its overlap slot until they have returned.
    """
    error = f"the result could not be stored: {why}"
    result = json_text({"error": error})
    nodes: Sequence[NodeReport] = original.nodes
    failures = [replace(node, status=NodeStatus.FAILED, result=result) for node in nodes[:1]]
    others = [
        node
        if node.status is NodeStatus.FAILED
        else replace(node, status=NodeStatus.CANCELED, result=None, gmt_started=None)
        for node in nodes[1:]
    ]
    known = {node.id for node in nodes}
    others += [NodeReport(one, NodeStatus.CANCELED) for one in original.beside if one not in known]
    instance = InstanceReport(
        status=InstanceStatus.FAILED,
        result=result,
        reason=error[:REASON_LIMIT],
        gmt_started=None,
        gmt_completed=nodes[0].gmt_completed if nodes else None,
        lingers=bool(original.beside),
    )
    if (end := original.instance) is not None and _had_ended(nodes, end):
        instance.status = end.status if original.is_over else InstanceStatus.FAILED
        instance.result, instance.failures = end.result or result, end.failures
        instance.reason = one_more_failure(end.reason, error)
        instance.note = f"{end.note or ''}; then {error}"[:NOTE_LIMIT]
        instance.fails = False
    return replace(original, nodes=[*failures, *others], instance=instance)


def _had_ended(nodes: Sequence[NodeReport], end: InstanceReport) -> bool:
    """Whether the run had failed, or was canceled, before the first of these nodes, which ran always."""
    if end.status is InstanceStatus.SUCCEED or not nodes:
        return False
    has_note = end.note is not None and not end.lingers  # of another one that ran always, or of this one
    return nodes[0].status is NodeStatus.SUCCEED or has_note or any(n.status is NodeStatus.FAILED for n in nodes[1:])


def one_more_failure(reason: str | None, failure: str) -> str:
    """The reason of a run that had ended so, and that one of its nodes that run always has failed since then, too."""
    note = f"; then {failure}"[:NOTE_LIMIT]
    return f"{(reason or '')[: REASON_LIMIT - len(note)]}{note}"


def _from_failure(failure: Failure) -> Ending:
    if failure.final and not failure.traceback:
        return failed(failure.error)
    result = {"error": failure.error, "type": failure.type, **failure.details, "traceback": failure.traceback}
    told, again = json_text(result), not failure.final
    return Ending(NodeStatus.FAILED, told, failure.error, again, failure.kinds, failure.retry_in)


def error_of(sentence: str) -> str:
    """The result of what ended so, as JSON text."""
    return json_text({"error": sentence})


def instance_end(run: Run, node: NodeRun, ending: Ending, span: Span) -> InstanceReport:
    """How an instance ends whose node has failed for good, or was canceled."""
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


def _instance_retry(run: Run, node: NodeRun, ending: Ending, span: Span, policy: RetryPolicy) -> InstanceReport:
    number = node.failures + 1
    delay = policy.delay(number, run.id) if ending.retry_in is None else ending.retry_in
    reason = f"retry {number} of {policy.retries} after {times.span(delay)}: {_reason(node, ending)}"
    return InstanceReport(
        status=InstanceStatus.PENDING,
        result=None,
        reason=reason[:REASON_LIMIT],
        gmt_started=span.started,
        gmt_completed=None,
        failures=run.failures + 1,
        due_at=span.left + timedelta(seconds=delay),
    )


def _reason(node: NodeRun, ending: Ending) -> str:
    if ending.status is NodeStatus.CANCELED:
        return (ending.why or "canceled")[:REASON_LIMIT]
    why = str(ending.why)
    names_the_node = why.startswith((f"{node.type} timed out", "the run timed out"))
    return (why if names_the_node else f"{_failed(node)}{why}")[:REASON_LIMIT]


def _failed(node: NodeRun) -> str:
    return f"node {node.type} failed: "
