"""A fork of a run: its nodes that run beside each other, and what is reported of those that have ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store.reports import NodeReport, Report
from rota.shared.store.runs import NodeRun
from rota.worker_service.executors.base import NoThread, Outcome
from rota.worker_service.running.active import Active
from rota.worker_service.running.endings import Ending, Span


@dataclass(frozen=True, slots=True)
class Ended:
    """How the node of a branch has ended, or ends as its handler hangs."""

    branch: Active
    node: NodeRun
    ending: Ending
    outcome: Outcome | None
    span: Span


@dataclass(slots=True, eq=False)
class Fork:
    """The nodes of one run that run beside each other. It is changed under the runner's lock only."""

    trunk: Active
    """The run."""

    done: int
    """How many nodes of the run have succeeded. They stand first."""

    live: dict[int, Active] = field(default_factory=dict)
    """The branches that run, or begin when a report is committed. By the ids of their nodes."""

    ended: list[Ended] = field(default_factory=list)
    """Those that have ended otherwise than with a success after which the run goes on."""

    not_begun: list[NodeRun] = field(default_factory=list)
    """The nodes that are said to run, and whose handlers were not entered."""

    refusal: NoThread | None = None
    """Why one of them was not, if the machine had no thread for it."""

    is_cut: bool = False
    """Whether a handler was stopped since the worker stops: nothing is known of its node."""

    hanging: set[int] = field(default_factory=set)
    """The nodes among ``live`` whose handlers were to stop and did not return within their grace."""

    @property
    def ends(self) -> bool:
        """Whether no further node begins."""
        return bool(self.ended or self.not_begun or self.hanging or self.trunk.stop is not None)


def put_in_place(trunk: Active, place: int, nodes: Sequence[NodeRun]) -> None:
    """Let these nodes of a run stand one after another from this place on, and all others before and behind."""
    ids = {node.id for node in nodes}
    rest = [node for node in trunk.run.nodes if node.id not in ids]
    trunk.run = replace(trunk.run, nodes=(*rest[:place], *nodes, *rest[place:]))


def with_others(trunk: Active, report: Report, others: Sequence[Ended], not_begun: Sequence[NodeRun]) -> Report:
    """The report of a run, with what has become of the other nodes of its fork. They come first in it."""
    end = trunk.run_end or report.instance
    status = InstanceStatus.RUNNING if end is None else end.status
    nodes = [_other(one, status) for one in others]
    if status is InstanceStatus.PENDING:  # else they are among the nodes behind the last
        known = {node.id for node in report.nodes}
        nodes += [NodeReport(node.id, NodeStatus.PENDING) for node in not_begun if node.id not in known]
    return replace(report, nodes=[*nodes, *report.nodes]) if nodes else report


def _other(one: Ended, status: InstanceStatus) -> NodeReport:
    """The report of a node that has ended beside the one with which its run ends, or is retried, with this status."""
    becomes = one.ending.status
    if becomes is NodeStatus.SUCCEED and status is InstanceStatus.PENDING:  # it would end the run early: it runs again
        return NodeReport(one.node.id, NodeStatus.PENDING)
    failures = one.node.failures + 1 if becomes is NodeStatus.FAILED else None
    if becomes is NodeStatus.FAILED and status is not InstanceStatus.FAILED:
        becomes = NodeStatus.PENDING if status is InstanceStatus.PENDING else NodeStatus.CANCELED
    return NodeReport(one.node.id, becomes, one.ending.result, one.span.entered, one.span.left, failures)
