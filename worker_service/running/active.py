"""An instance that a worker holds, and what its handlers are given."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rota.shared.domain.states import NodeStatus
from rota.shared.domain.triggers.zones import load_zone
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.context import Cancellation, NodeContext
from rota.worker_service.executors.base import Running
from rota.worker_service.pulling.slot import STARTED, Slot
from rota.worker_service.running.always import RunEnd, end_of, revived
from rota.worker_service.running.endings import Stop
from rota.worker_service.running.ordering import Order

if TYPE_CHECKING:
    from rota.worker_service.running.fork import Fork

TIMES_KEPT = 1_000
"""How many converted times are kept."""


@dataclass(slots=True, eq=False)
class Active(Slot):
    """An instance that this process holds."""

    run: Run
    results: dict[str, Any] = field(default_factory=dict)
    by_node: dict[int, Any] = field(default_factory=dict)
    """The results by the ids of their nodes, where these do not all wait for all before them."""

    done: int = 0
    """How many of the instance's nodes are over, in this attempt or an earlier one: the place of the present one."""

    deadline: float | None = None
    """When the node that runs now times out, or its grace is over, in seconds of the clock's ``monotonic``."""

    over_at: float | None = None
    """When the whole run times out, in seconds of the clock's ``monotonic``."""

    entered: datetime | None = None
    """When the first handler of this attempt was entered."""

    begun: bool = False
    """Whether it is committed that a run which may run at most once begins. Before that no handler is entered."""

    running: Running | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    stop: Stop | None = None
    asked: Stop | None = None
    """The cancel that somebody asked for while a node ran that runs always: the next other node is canceled."""

    run_end: RunEnd | None = None
    """How the run has ended, but for its nodes that run always, which run now."""

    detached: bool = False
    """Whether the runner reports nothing of it any more: the worker is stopping."""

    last: Report | None = None
    """The success of its last call, which ended while the worker was stopping."""

    queued: Report | None = None
    """Its report that is not committed yet."""

    killed: bool = False
    """Whether its grace was over before its handler had ended."""

    lingers: bool = False
    """Whether its handler was to stop and has not returned."""

    abandoned: bool = False
    """Whether it has ended for the runner, although its handler lingered."""

    failed: bool = False
    """Whether the failure of the present node is logged. A handler that lingers is reported twice."""

    calls: int = 0
    """How many of its calls may be running: 1 from just before a call is started until its handler has ended."""

    order: Order | None = None
    """The order of its nodes, unless each waits for all before it."""

    fork: "Fork | None" = None
    """Its nodes that run beside each other now; or, of a branch, those of which it is one."""

    partial: list[Report] = field(default_factory=list)
    """Its reports that are not committed yet, and for whose commit it does not wait."""

    @classmethod
    def branch_of(cls, trunk: "Active", node: NodeRun) -> "Active":
        """Make the ``Active`` for one node of a run that runs beside others. It takes one of the slots of the run."""
        branch = cls(trunk.run, group=trunk.group)
        branch.of, branch.stage, branch.weight, branch.large = trunk.of, STARTED, 1, 0
        branch.done = next(at for at, one in enumerate(trunk.run.nodes) if one is node)
        branch.order, branch.results, branch.by_node = trunk.order, trunk.results, dict(trunk.by_node)
        branch.over_at, branch.entered, branch.begun = trunk.over_at, trunk.entered, trunk.begun
        branch.stop, branch.detached = trunk.stop, trunk.detached
        return branch

    @property
    def trunk(self) -> "Active":
        """The run of which it is a branch, or itself."""
        return self if self.fork is None else self.fork.trunk

    @property
    def branches(self) -> "Sequence[Active]":
        """Its nodes that run beside each other now, each as an ``Active`` of its own."""
        return () if self.fork is None or self.fork.trunk is not self else list(self.fork.live.values())

    @property
    def parts(self) -> "Sequence[Active]":
        """Its branches; or itself, if it has none."""
        return self.branches or (self,)

    @property
    def node(self) -> NodeRun:
        """The present node."""
        return self.run.nodes[self.done]

    @property
    def is_called(self) -> bool:
        """Whether a handler of it may be running."""
        return any(part.calls for part in self.parts)

    @property
    def unwritten(self) -> list[Report]:
        """What is to be reported of it when its worker stops."""
        last = self.last or self.queued
        return [*self.partial, *([] if last is None else [last])]

    @property
    def entered_now(self) -> float | None:
        """When the handler that runs was entered, in seconds of the clock's ``monotonic``. None: it was not, so far."""
        if self.running is None:
            return min((at for one in self.branches if (at := one.entered_now) is not None), default=None)
        return self.running.entered

    def until(self, now: float, seconds: float | None) -> float | None:
        """The earlier of a node's deadline, so many seconds from ``now``, and the run's; None if it has neither."""
        if not seconds:
            return self.over_at
        return now + seconds if self.over_at is None else min(now + seconds, self.over_at)

    @property
    def has_begun(self) -> bool:
        """Whether any handler of the run may have been entered, in this attempt or an earlier one."""
        return self.run.attempt > 1 or self.calls > 0 or self.entered is not None

    def end_but_for(self, end: RunEnd) -> None:
        """The run has ended so, but for the nodes that are left: neither its limit nor a cancel stops these."""
        self.run_end, self.stop, self.over_at, self.deadline = end, None, None, None
        self.cancellation, self.failed = Cancellation(), False
        self.done = next(at for at, node in enumerate(self.run.nodes) if node is end.left[0])

    def begin(self, now: float, always: Collection[str]) -> None:
        """This attempt begins, ``now`` by ``monotonic``: the run has its limit, or goes on after its end.

        ``always``: the node types that run always.
        """
        if limit := self.run.run_timeout_seconds:
            self.over_at = now + limit
        if len(self.run.nodes) > 1 and (end := end_of(self.run, always)) is not None:
            for node in self.run.nodes:
                if node.status == NodeStatus.SUCCEED:
                    keep_result(self, node, node.result)
            self.end_but_for(end)
        elif always:
            self.run = revived(self.run, always)

    def put_off_stop(self) -> None:
        """The next node runs always: a cancel is put off until another node is to run, and so is the run's limit."""
        if self.stop is not None:
            self.asked = self.stop if self.stop.canceled else self.asked
            self.let_go_on()

    def let_go_on(self) -> None:
        """It is not to stop any more: its next handler is not asked to."""
        self.stop, self.cancellation = None, Cancellation()

    def __post_init__(self) -> None:
        """It takes room from its claim on."""
        self.large, self.weight = self.run.large, self.run.weight


def keep_result(active: Active, node: NodeRun, result: Any) -> None:
    """Keep a node's result for the nodes after it, as the database's JSON, so that a retry sees the same."""
    active.done += 1
    if active.order is not None:
        active.by_node[node.id] = result
    active.results[node.type] = active.results[node.type.removeprefix(f"{node.category}_")] = result


def context_of(active: Active, node: NodeRun, param: Any) -> NodeContext[Any]:
    run, end, context = active.run, active.run_end, NodeContext.__new__(NodeContext)
    vars(context).update(  # all fields at once: the __init__ of a frozen dataclass takes thrice as long
        param=param,
        schedule_datetime=_in_zone(run.schedule_datetime, run.timezone),
        due_at=_in_utc(run.due_at),
        results=dict(active.results) if active.order is None else active.order.seen_by(node, run, active.by_node),
        task_name=run.task_name,
        node_type=node.type,
        instance_id=run.id,
        run_number=run.run_number,
        attempt=run.attempt,
        origin=run.origin,
        shard_index=run.shard.index,
        shard_total=run.shard.total,
        run_status="running" if end is None else end.status.value,
        run_reason=None if end is None else end.reason,
        cancellation=active.cancellation,
    )
    return context


@lru_cache(TIMES_KEPT)
def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


@lru_cache(TIMES_KEPT)
def _in_zone(moment: datetime, timezone: str) -> datetime:
    """A naive UTC time as an aware one of a zone. Cached, because all instances of a herd share one time."""
    return moment.replace(tzinfo=UTC).astimezone(load_zone(timezone))
