"""The reports of runs that are cut short: by the stop of their worker, or while a handler does not return."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from rota.shared.domain import lingering
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, NodeStatus
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.running.endings import Span
from rota.worker_service.signatures import Execution

HANDLERS: Mapping[Execution, str] = MappingProxyType({"async": "coroutine", "thread": "thread", "process": "process"})


def stopped_at_grace_end(run: Run, done: int, span: Span, *, still_runs: bool = False) -> Report:
    """The report of a run that may run at most once and still runs when its worker's grace time is over.

    The first ``done`` nodes have succeeded. The run fails at the node after them, of which ``span`` tells. If its
    handler ``still_runs``, it keeps its overlap slot.
    """
    reason = "its worker stopped before the run ended; its task says on_worker_lost = fail"
    error = json_text({"error": reason})
    unfinished, rest = run.nodes[done : done + 1], run.nodes[done + 1 :]
    nodes = [NodeReport(node.id, NodeStatus.FAILED, error, span.entered, span.left) for node in unfinished]
    nodes += [NodeReport(node.id, NodeStatus.CANCELED) for node in rest]
    return Report(
        run.id,
        run.attempt,
        nodes,
        InstanceReport(InstanceStatus.FAILED, error, reason, span.started, span.left, lingers=still_runs),
    )


def given_up(run: Run, node: NodeRun, now: datetime) -> Report:
    """The report of a run whose worker stops before the handler of this node was entered: it is pending again."""
    waiting = InstanceReport(InstanceStatus.PENDING, None, "its worker stopped", None, None, due_at=now)
    return Report(run.id, run.attempt, [NodeReport(node.id, NodeStatus.PENDING)], waiting)


def waiting_for_its_handler(retry: Report, end: InstanceReport) -> Report:
    """The report of a run that is to be retried, or to run its nodes that run always, while its handler still runs.

    It has failed, or was canceled, and holds all.

    If the worker ends before the handler does, the retry begins when the worker is dead.
    """
    begins = lingering.RETRY_WAITS if end.status is InstanceStatus.PENDING else lingering.END_WAITS
    reason = f"{begins}: {end.reason}"[:REASON_LIMIT]
    waiting = replace(end, status=InstanceStatus.RUNNING, reason=reason, due_at=None, fails=False)
    nodes = [replace(node, status=NodeStatus.RUNNING, gmt_completed=None) for node in retry.nodes[:1]]
    return replace(retry, nodes=nodes, instance=waiting)


def while_its_handler_runs(report: Report, end: InstanceReport, execution: Execution, worker: str) -> Report:
    """The report of a run that has ended although its handler still runs: its overlap slot stays taken."""
    note = f"; its {HANDLERS[execution]} did not end within the grace and still ran on worker {worker!r}"
    reason = f"{(end.reason or '')[: REASON_LIMIT - len(note)]}{note}"
    return replace(report, instance=replace(end, reason=reason, lingers=True, note=f"{end.note or ''}{note}"))
