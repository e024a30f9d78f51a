"""A worker's reports about its runs: it writes the results and the states of many runs in one transaction, fenced.

The worker still holds a run if the instance's row has its id, the run's attempt and the state ``running``. ``report``
writes only the runs that the worker still holds. It changes neither the nodes nor the instances of the others, and
returns their ids: the worker has lost these runs and must stop them.

A report may be written twice, when the answer to a commit is lost. The second write finds its instances ended, or sets
its nodes to the values that they have already.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from rota.shared.database.constructs import written
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store import fires
from rota.shared.store.failed_attempts import KEPT_BYTES, attempt_end
from rota.shared.store.limits import RANGES
from rota.shared.store.transitions import canceling, keeping, reporting, run_again
from rota.shared.store.transitions.reporting import Success

MOST_FAILURES = RANGES["schedule_instance"]["failures"][1]


@dataclass(slots=True)
class NodeReport:
    """The new state of one node, with its result. ``result`` is JSON text; times are the database's, naive UTC."""

    id: int
    status: NodeStatus
    result: str | None = None
    gmt_started: datetime | None = None
    gmt_completed: datetime | None = None
    failures: int | None = None
    """How many times the node has failed, this time included; None leaves the number as it is."""


@dataclass(slots=True)
class InstanceReport:
    """The new state of an instance: it has ended, is ``pending`` again and due at ``due_at``, or begins (``running``).

    ``result`` is JSON text; times are the database's, naive UTC.
    """

    status: InstanceStatus
    result: str | None
    reason: str | None
    gmt_started: datetime | None
    gmt_completed: datetime | None
    failures: int | None = None
    """How many times the instance has failed, this time included; None leaves the number as it is."""

    due_at: datetime | None = None

    lingers: bool = False
    """Whether it has ended although its thread still runs: its overlap slot stays taken."""

    note: str | None = None
    """Added to the reason that somebody gave for its cancel. ``reason`` has it already."""

    again: datetime | None = None
    """When its task is to run once more, as its handler said, if it succeeded."""

    fails: bool | None = None
    """Whether the attempt fails with this report, which is noted in ``failed_attempts``; None: as the state says. A run
    with nodes that run always fails before it ends, and may end in the attempt of another worker."""


@dataclass(slots=True)
class Report:
    """One report of a run, fenced by the attempt: the nodes that changed, and the instance if it ends or begins."""

    instance_id: int
    attempt: int
    nodes: Sequence[NodeReport]
    instance: InstanceReport | None = None
    turn_of: int | None = None
    """The run's task, if that runs one at a time and another one of it waits for this run's end."""

    beside: Sequence[int] = ()
    """Other nodes of the run that run meanwhile. Ids."""

    @property
    def is_urgent(self) -> bool:
        """Whether something may wait for its commit: the next node, or the next run of its task."""
        return not self.is_over or self.turn_of is not None

    @property
    def is_over(self) -> bool:
        """Whether the run is over with it."""
        return self.instance is not None and self.instance.status is not InstanceStatus.RUNNING

    @property
    def has_failed(self) -> bool:
        """Whether the run failed: for good, or it is to be retried."""
        if (end := self.instance) is None:
            return False
        return end.status is InstanceStatus.FAILED or (
            end.status is InstanceStatus.PENDING and end.failures is not None
        )

    @property
    def fails(self) -> bool:
        """Whether the attempt fails with it."""
        said = None if self.instance is None else self.instance.fails
        return self.has_failed if said is None else said

    @property
    def retry_at(self) -> datetime | None:
        """When the run is to be retried, if it is."""
        end = self.instance
        return end.due_at if end is not None and end.status is InstanceStatus.PENDING else None

    @property
    def is_plain_success(self) -> bool:
        """Whether it reports exactly one node, which succeeded and ended its instance with ``succeed``, and no more."""
        return (
            self.instance is not None
            and len(self.nodes) == 1
            and self.instance.status is InstanceStatus.SUCCEED
            and self.nodes[0].gmt_started is not None
            and self.instance.again is None
        )

    @property
    def is_plain_step(self) -> bool:
        """Whether it reports exactly one node, which succeeded, and the next one, which starts."""
        if self.instance is not None or len(self.nodes) != 2:
            return False
        done, following = self.nodes
        return (
            done.status is NodeStatus.SUCCEED
            and following.status is NodeStatus.RUNNING
            and done.gmt_started is not None
            and done.failures is None
        )

    @property
    def size(self) -> int:
        """About how many bytes the report takes in a statement."""
        size = 200 * (len(self.nodes) + 1)
        for node in self.nodes:
            if node.result is not None:
                size += 2 * len(node.result)
        if (end := self.instance) is not None:
            size += 2 * len(end.result or "")
            if end.status is not InstanceStatus.SUCCEED:
                size += KEPT_BYTES * self.fails
        return size


def report(connection: Connection, worker_id: int, reports: Collection[Report], *, at_once: bool = False) -> set[int]:
    """Write a batch of reports; returns the ids of the instances that this worker no longer holds.

    With ``at_once`` it relies on the worker's still holding all of them: then the transaction is one packet, and no
    lock is held over a round trip. Where the worker has lost one, the transaction raises Unexpected.
    """
    plain: list[Report] = []
    steps: list[Report] = []
    rest: list[Report] = []
    several = _with_several(reports)
    for one in reports:
        if one.instance_id in several:
            rest.append(one)
        else:
            (plain if one.is_plain_success else steps if one.is_plain_step else rest).append(one)
    lost = _succeed(connection, worker_id, plain, at_once=at_once) if plain else set()
    if steps:
        lost |= _proceed(connection, worker_id, steps, at_once=at_once)
    return lost | _report(connection, worker_id, rest, at_once=at_once) if rest else lost


def _with_several(reports: Collection[Report]) -> Collection[int]:
    """The instances with several of these reports, whose order counts: their nodes run beside each other."""
    ids = [report.instance_id for report in reports]
    return () if len(set(ids)) == len(ids) else {i for i, count in Counter(ids).items() if count > 1}


def _succeed(connection: Connection, worker_id: int, reports: Collection[Report], *, at_once: bool) -> set[int]:
    return reporting.succeed(connection, worker_id, successes(reports), at_once=at_once)


def successes(reports: Iterable[Report]) -> list[Success]:
    """What is written of plain successes."""
    return [
        (
            r.instance_id, r.attempt, i.result, i.gmt_started, i.gmt_completed,
            n.id, n.result, n.gmt_started, n.gmt_completed,
        )
        for r in reports
        if (i := r.instance) is not None
        for n in r.nodes
    ]  # fmt: skip


def _proceed(connection: Connection, worker_id: int, reports: Collection[Report], *, at_once: bool) -> set[int]:
    held = reporting.lock(connection, worker_id, [(r.instance_id, r.attempt) for r in reports], at_once=at_once)
    kept = [r.nodes for r in reports if (r.instance_id, r.attempt) in held]
    reporting.proceed(
        connection,
        [
            (done.id, done.result, done.gmt_started, done.gmt_completed, following.id, following.gmt_started)
            for done, following in kept
        ],
    )
    return {r.instance_id for r in reports if (r.instance_id, r.attempt) not in held}


def _report(connection: Connection, worker_id: int, reports: Collection[Report], *, at_once: bool) -> set[int]:
    held = reporting.lock(connection, worker_id, [(r.instance_id, r.attempt) for r in reports], at_once=at_once)
    kept = [r for r in reports if (r.instance_id, r.attempt) in held]
    # Only the last report of each node: of several rows for one node, an UPDATE by a join would take the first.
    latest = {n.id: n for r in kept for n in r.nodes}
    nodes = [
        (n.id, n.status.value, n.result, n.gmt_started, n.gmt_completed, _counted(n.failures))
        for _, n in sorted(latest.items())
    ]
    failing = {r.instance_id: r for r in kept if r.fails}
    latest_ends = {r.instance_id: r for r in kept if r.instance is not None}
    keeping.keep(connection, worker_id, [i for i, r in latest_ends.items() if r.instance and r.instance.lingers])
    canceling.add_to_reasons(
        connection,
        {
            i: r.instance.note
            for i, r in latest_ends.items()
            if r.instance and r.instance.note and r.instance.status is InstanceStatus.CANCELED
        },
    )
    ended = sorted(
        (
            r.instance_id, r.attempt, i.status.value, i.result, i.reason,
            i.gmt_started, i.gmt_completed, _counted(i.failures), i.due_at,
            _failed_attempt(worker_id, failing.get(r.instance_id)),
        )
        for r in latest_ends.values()
        if (i := r.instance) is not None
    )  # fmt: skip
    reporting.report(connection, worker_id, nodes, ended)
    run_again.ask(
        connection,
        worker_id,
        [(i, r.attempt, r.instance.again) for i, r in latest_ends.items() if r.instance and r.instance.again],
    )
    return {r.instance_id for r in reports if (r.instance_id, r.attempt) not in held}


def _counted(failures: int | None) -> int | None:
    """A number of failures that its column takes, also where SQL wrote a greater one past the check."""
    return None if failures is None else min(failures, MOST_FAILURES)


def _failed_attempt(worker_id: int, report: Report | None) -> str | None:
    """The end of the attempt that fails with this report, as JSON text; None if none does."""
    if report is None or (instance := report.instance) is None:
        return None
    failed = (NodeStatus.FAILED, NodeStatus.PENDING)
    node = next((n for n in reversed(report.nodes) if n.status in failed and n.result is not None), None)
    return attempt_end(
        instance.result if node is None else node.result,
        attempt=report.attempt,
        worker_id=worker_id,
        node_id=None if node is None else node.id,
        gmt_started=written(instance.gmt_started if node is None or node.gmt_started is None else node.gmt_started),
        gmt_completed=written(instance.gmt_completed if node is None else node.gmt_completed),
        reason=instance.reason,
    )


def locked(connection: Connection, instance_ids: Collection[int]) -> set[int]:
    """Those of the instances whose reports would have to wait now: somebody else has locked their rows."""
    return reporting.locked(connection, instance_ids)


def hand_back(
    connection: Connection,
    worker_id: int,
    held: Collection[tuple[int, int]],
    reason: str,
    *,
    unstarted: bool = False,
    at_once: bool = False,
) -> int:
    """Put runs that this worker holds and will not run, (instance id, attempt), back to pending; returns how many.

    ``unstarted``: the worker has entered no handler of these attempts. At the first attempt nobody has, so the nodes
    are deleted: a run that nobody began is bound to no list of nodes. ``at_once``: as of ``report``.
    """
    still_held = reporting.lock(connection, worker_id, held, at_once=at_once)
    changed = reporting.hand_back(connection, worker_id, still_held, reason)
    if unstarted:
        fires.unpin(connection, [instance_id for instance_id, attempt in still_held if attempt == 1], attempt=1)
    return changed
