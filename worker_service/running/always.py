"""Nodes that run always: after a failure, a cancel or an early end of their run, too, which ends when they have ended.

The rows of the nodes say it all, so that another worker can go on. Where a node has failed, was canceled or skipped,
the run has ended; what is still ``pending`` are the nodes that run always.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import LEFT, REASON_LIMIT, InstanceStatus, NodeStatus
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.running import endings
from rota.worker_service.running.endings import Ending, Span

OVER = (NodeStatus.FAILED, NodeStatus.CANCELED, NodeStatus.SKIPPED)
"""A node in one of these states has ended its run, or was not run since another has."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ends when its nodes that run always have ended: those that are ``left``, in their order."""

    status: InstanceStatus
    result: str | None
    reason: str | None
    left: tuple[NodeRun, ...]
    failed: NodeReport | None = None
    """The node that failed first, if that was in this attempt."""

    note: str = ""
    """Which of the nodes that run always have failed since then; ``reason`` has it already."""

    def with_failure(self, end: InstanceReport, failed: NodeReport | None = None) -> "RunEnd":
        """One of the nodes that run always has failed, too. That does not hide how the run had ended before."""
        if self.status is InstanceStatus.SUCCEED:
            return replace(self, status=InstanceStatus.FAILED, result=end.result, reason=end.reason, failed=failed)
        note = f"; then {end.reason}"[: endings.NOTE_LIMIT]
        return replace(self, reason=endings.one_more_failure(self.reason, str(end.reason)), note=self.note + note)


def decided(
    run: Run, node: NodeRun, reported: Report, always: Collection[str], span: Span
) -> tuple[Report, RunEnd | None]:
    """The report of a node, and how the run has ended with it, if nodes that run ``always`` are left then.

    ``reported`` is the report as it would be without them. After a cancel before any handler was entered, nothing is
    to be cleaned up.
    """
    end = reported.instance
    if end is None or end.status is InstanceStatus.PENDING:
        return reported, None
    if end.status is InstanceStatus.CANCELED and span.started is None and run.attempt == 1:
        return reported, None
    left = tuple(one for one in endings.after(run, node) if one.type in always)
    if not left:
        return reported, None
    ids = {one.id for one in left}
    nodes = [one for one in reported.nodes if one.id not in ids]
    failed = nodes[0] if nodes[0].status is NodeStatus.FAILED else None
    if nodes[0].status is NodeStatus.CANCELED:
        nodes[0].result = endings.error_of(end.reason or "canceled")  # whoever goes on elsewhere reads it there
    run_end = RunEnd(end.status, end.result, end.reason, left, failed)
    skips_nothing = end.status is InstanceStatus.SUCCEED and len(nodes) == 1
    return _going_on(run, nodes, run_end, span, fails=True), None if skips_nothing else run_end


def continued(run: Run, reported: Report, end: RunEnd, span: Span) -> tuple[Report, RunEnd]:
    """The report of the first node that is left, and how the run has ended so far: with its last one it ends so.

    ``reported`` is the report of that node as it would be in any other run. If the node is to be retried, that is the
    report: another attempt goes on with it.
    """
    instance, node = reported.instance, reported.nodes[0]
    if instance is not None and instance.status is InstanceStatus.PENDING:
        return reported, end
    fails = end.status is InstanceStatus.SUCCEED
    if instance is not None and node.status is NodeStatus.FAILED:
        end = end.with_failure(instance, node)
    end = replace(end, left=end.left[1:])
    if end.left:
        return _going_on(run, [node], end, span, fails=fails), end
    again = None if instance is None or end.status is not InstanceStatus.SUCCEED else instance.again
    return _ended(run, node, end, span, again, fails=fails), end


def _going_on(run: Run, nodes: list[NodeReport], end: RunEnd, span: Span, *, fails: bool) -> Report:
    """``fails``: if the run has failed, it does so with this report."""
    following = NodeReport(end.left[0].id, NodeStatus.RUNNING, gmt_started=span.left)
    said = None
    if end.status is not InstanceStatus.SUCCEED:
        said = InstanceReport(InstanceStatus.RUNNING, None, end.reason, span.started, None, note=end.note or None)
        said.fails = fails and end.status is InstanceStatus.FAILED
    return Report(run.id, run.attempt, [*nodes, following], said)


def _ended(run: Run, node: NodeReport, end: RunEnd, span: Span, again: datetime | None, *, fails: bool) -> Report:
    failures = run.failures + (end.status is InstanceStatus.FAILED)
    instance = InstanceReport(end.status, end.result, end.reason, span.started, span.left, failures)
    instance.note, instance.again = end.note or None, again
    instance.fails = fails and end.status is InstanceStatus.FAILED
    first = [end.failed] if end.failed is not None and end.failed.id != node.id else []
    return Report(run.id, run.attempt, [node, *first], instance)


def end_of(run: Run, always: Collection[str]) -> RunEnd | None:
    """How a run had ended before this attempt, as its nodes say; None: it had not, or none of its nodes is left.

    Nodes that are left may stand before those that were skipped or canceled. If one of these does not run ``always``,
    SQL has revived the run, and it goes on as any other.
    """
    at = next((at for at, node in enumerate(run.nodes) if node.status in OVER), None)
    if at is None or any(node.status in LEFT and node.type not in always for node in run.nodes[:at]):
        return None
    left = tuple(node for node in run.nodes if node.status in LEFT)
    if not left:
        return None
    end = RunEnd(InstanceStatus.SUCCEED, _result_before(run.nodes[:at], always), None, left)
    if run.nodes[at].status == NodeStatus.CANCELED:
        why = _said_by(run.nodes[at]) or "canceled"
        end = replace(end, status=InstanceStatus.CANCELED, result=endings.error_of(why), reason=why)
    for node in run.nodes[at:]:
        if node.status == NodeStatus.FAILED:
            end = end.with_failure(endings.instance_end(run, node, _failure_of(node), Span(None, run.due_at, None)))
    return end


def revived(run: Run, always: Collection[str]) -> Run:
    """The run; if SQL has revived it at a node that had failed, nodes behind that ran ``always`` run once more."""
    first = next((at for at, node in enumerate(run.nodes) if node.status != NodeStatus.SUCCEED), len(run.nodes))
    if all(node.status != NodeStatus.SUCCEED for node in run.nodes[first:]):
        return run
    nodes = [
        replace(node, status=NodeStatus.PENDING.value, result=None)
        if at > first and node.status == NodeStatus.SUCCEED and node.type in always
        else node
        for at, node in enumerate(run.nodes)
    ]
    return replace(run, nodes=tuple(nodes))


def _result_before(nodes: Sequence[NodeRun], always: Collection[str]) -> str | None:
    """The result of the node that ended the run early."""
    done = [node for node in nodes if node.status == NodeStatus.SUCCEED]
    others = [node for node in done if node.type not in always] or done
    return json_text(others[-1].result) if others else None


def _failure_of(node: NodeRun) -> Ending:
    return endings.failed(_said_by(node) or "its result does not say why")


def _said_by(node: NodeRun) -> str:
    """Why a node has ended, as its result says."""
    said = node.result.get("error") if isinstance(node.result, dict) else None
    return str(said or "")[:REASON_LIMIT]


def handed_over(run: Run, reported: Report, end: RunEnd | None, always: Collection[str], done: int) -> Report | None:
    """The report of a run that may run at most once, and whose worker stops: another worker runs the nodes left.

    ``reported`` is the report that it fails at its node ``done``. It stands if no node is left. None: nodes are left,
    and the handler lingers.
    """
    instance, rest = reported.instance, run.nodes[done + 1 :]
    left = tuple(one for one in rest if one.type in always) if end is None else end.left[1:]
    if instance is None or not reported.nodes or (end is None and not left):
        return reported
    if left and instance.lingers:
        return None
    ids = {one.id for one in left}
    nodes = [reported.nodes[0], *(one for one in reported.nodes[1:] if end is None and one.id not in ids)]
    fails = end is None or end.status is InstanceStatus.SUCCEED
    if left or end is None:
        waiting = InstanceReport(InstanceStatus.PENDING, None, instance.reason, None, None, fails=fails)
        waiting.due_at = instance.gmt_completed
        return replace(reported, nodes=nodes, instance=waiting)
    end = end.with_failure(instance)
    said = replace(instance, status=end.status, result=end.result, reason=end.reason, note=end.note or None)
    said.fails = fails and end.status is InstanceStatus.FAILED
    return replace(reported, nodes=nodes, instance=said)
