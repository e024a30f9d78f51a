"""Deadlines: the runs of tasks with a limit for the whole run, which the scheduler ends if their workers do not.

An instance of such a task gets a row of ``schedule_deadline`` in the transaction that gives it to a worker. The row
says when the scheduler looks at it next, so that a look reads what may be overdue, and not all that runs. Instances of
other tasks have no row.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    type_coerce,
    update,
)
from sqlalchemy.types import String

from rota.shared.database.constructs import (
    SecondsBefore,
    UtcNow,
    among,
    bound,
    by_index,
    found_by,
    ignore_conflicts,
    json_rows,
)
from rota.shared.database.later import execute_later
from rota.shared.domain import lingering, times
from rota.shared.domain.jsontext import json_text, object_in
from rota.shared.domain.retry import OF_A_TIMEOUT, RetryPolicy
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, NodeStatus, WorkerLostPolicy
from rota.shared.store import cleanups, reports, retry_policies
from rota.shared.store.cleanups import Cleanup
from rota.shared.store.limits import YEAR_SECONDS
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.tables import (
    owns_node,
    schedule_deadline,
    schedule_instance,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_node,
)
from rota.shared.store.transitions import reporting

_deadline = schedule_deadline.c
_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c
_worker = schedule_worker_node.c

LONGEST_WAIT_SECONDS = 600
"""A row is looked at this often at least, and deleted when its instance has ended."""

_scheduler: Any = literal_column("'scheduler'")
_COLUMNS = ["schedule_instance_id", "run_timeout_seconds", "check_at", "creator", "modifier"]


def _noting(rows: Any, chosen: Any) -> Any:
    at = SecondsBefore(UtcNow(), literal_column("-1") * rows.c.wait)
    return ignore_conflicts(insert(schedule_deadline)).from_select(
        _COLUMNS, chosen.add_columns(rows.c.seconds, at, _scheduler, _scheduler), include_defaults=False
    )


_given = json_rows("given", id="id", seconds="int", wait="int")
_fired = json_rows("fired", task="id", moment="time", worker="id", seconds="int", wait="int")
_note = _noting(_given, select(_given.c.id))
_note_fires = _noting(
    _fired,
    by_index(
        select(_instance.id)
        .select_from(_fired)
        .join(
            schedule_instance,
            and_(
                _instance.schedule_task_id == _fired.c.task,
                _instance.schedule_datetime == _fired.c.moment,
                _instance.fire_key == literal_column("''"),
                _instance.run_number == literal_column("0"),
                _instance.schedule_worker_node_id == _fired.c.worker,
            ),
        ),
        schedule_instance,
        "uq_schedule_instance_fire",
    ),
)


def note(connection: Connection, limits: Mapping[int, int]) -> None:
    """Note instances that are given to workers: the limit in seconds of each."""
    if limits:
        rows = [(instance_id, seconds, min(seconds, LONGEST_WAIT_SECONDS)) for instance_id, seconds in limits.items()]
        execute_later(connection, _note, {"rows": bound(sorted(rows))})


def note_fires(connection: Connection, fires: Iterable[tuple[int, datetime, int | None, int]]) -> None:
    """Note fires that this transaction inserts: (task id, time, worker id, limit in seconds)."""
    rows = [(*fire, min(fire[3], LONGEST_WAIT_SECONDS)) for fire in fires]
    if rows:
        execute_later(connection, _note_fires, {"rows": bound(rows)})


@dataclass(frozen=True, slots=True)
class Watched:
    """An instance with a deadline, whose next look is due. Times are naive UTC."""

    id: int
    noted_seconds: int
    status: str | None
    """None: the instance was deleted."""

    attempt: int | None
    worker_id: int | None
    gmt_started: Any
    is_cancel_requested: bool
    reason: str | None
    failures: int | None
    task_seconds: int | None
    on_worker_lost: str | None
    retry: RetryPolicy
    now: datetime

    @property
    def runs(self) -> bool:
        """Whether it runs, and its worker has not stopped it."""
        waits = lingering.waits(self.reason)
        return self.status == InstanceStatus.RUNNING and not waits and self.task_seconds is not None

    @property
    def has_ended(self) -> bool:
        """Whether nobody need look at it any more."""
        live = (InstanceStatus.PENDING, InstanceStatus.ASSIGNED, InstanceStatus.RUNNING)
        return self.status not in [status.value for status in live]

    @property
    def limit_seconds(self) -> int:
        """The limit: its task's, or the one when it was given to its worker, if that is longer."""
        return max(self.noted_seconds, self.task_seconds or 0)

    def over_at(self, grace_seconds: float) -> datetime | None:
        """When the scheduler ends it; None: not as things are."""
        if not self.runs or not times.is_time(self.gmt_started):
            return None
        return self.gmt_started + timedelta(seconds=self.limit_seconds + grace_seconds)


_due = (
    select(_deadline.schedule_instance_id, _deadline.run_timeout_seconds)
    .where(_deadline.check_at <= UtcNow())
    .order_by(_deadline.check_at)
    .limit(bindparam("rows"))
)
_watched = by_index(
    select(
        _instance.id,
        type_coerce(_instance.status, String),
        _instance.attempt,
        _instance.schedule_worker_node_id,
        _instance.gmt_started,
        _instance.gmt_cancel_requested,
        _instance.reason,
        _instance.failures,
        _task.run_timeout_seconds,
        type_coerce(_task.on_worker_lost, String),
        retry_policies.term,
        UtcNow(),
    )
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id, isouter=True)
    .where(among(_instance.id)),
    schedule_instance,
)


def due(connection: Connection, limit: int) -> list[Watched]:
    """At most ``limit`` of the instances that are to be looked at now, the longest due first."""
    noted = dict(map(tuple, connection.execute(_due, {"rows": limit})))
    if not noted:
        return []
    found = {row[0]: row for row in connection.execute(_watched, {"ids": sorted(noted)})}
    return [_of_row(instance_id, _number(seconds), found.get(instance_id)) for instance_id, seconds in noted.items()]


def _number(seconds: Any) -> int:
    """The limit that was noted; 0 for what SQL has written in its place."""
    return min(max(seconds, 0), YEAR_SECONDS) if isinstance(seconds, int) else 0


def _of_row(instance_id: int, seconds: int, row: Any) -> Watched:
    if row is None:
        plain = retry_policies.PLAIN
        return Watched(
            instance_id, seconds, None, None, None, None, False, None, None, None, None, plain, times.EARLIEST
        )
    _, status, attempt, worker, started, requested, reason, failures, limit, lost, retry, now = row
    policy = retry_policies.read(retry)
    asked = requested is not None
    return Watched(
        instance_id, seconds, status, attempt, worker, started, asked, reason, failures, limit, lost, policy, now
    )


_later = json_rows("later", id="id", check_at="time")
_postpone = (
    update(schedule_deadline)
    .where(_deadline.schedule_instance_id == _later.c.id)
    .values(check_at=_later.c.check_at, gmt_modified=UtcNow())
)
_forget = found_by(delete(schedule_deadline).where(among(_deadline.schedule_instance_id)))


def settle(connection: Connection, ended: Collection[int], later: Mapping[int, datetime]) -> None:
    """Forget the instances that have ended, and say when to look at the others again (naive UTC)."""
    if later:
        execute_later(connection, _postpone, {"rows": bound(sorted(later.items()))})
    if ended:
        execute_later(connection, _forget, {"ids": sorted(ended)})


@dataclass(frozen=True, slots=True)
class RunningNode:
    """The node of an overdue run that its worker says runs, the first of several, with the name of that worker."""

    id: int
    type: str
    failures: int
    gmt_started: Any
    own_retry: Mapping[str, Any]
    worker: str | None
    always: bool
    """Whether it runs always: no limit of the run ends it."""

    beside: tuple[tuple[int, int], ...] = ()
    """The nodes that run beside it, and how often each has failed."""


_running_node = by_index(
    select(_node.id, _type.type, _node.failures, _node.gmt_started, _type.defaults, _worker.name)
    .join_from(schedule_instance, schedule_task_node, owns_node)
    .join(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .outerjoin(schedule_worker_node, _worker.id == _instance.schedule_worker_node_id)
    .where(among(_instance.id), _node.status == NodeStatus.RUNNING.value),
    schedule_instance,
)


def cut_off(connection: Connection, instance_id: int) -> tuple[RunningNode | None, Cleanup | None]:
    """The node that runs, and what is left to clean up behind it."""
    return running_node(connection, instance_id), cleanups.of_runs(connection, [instance_id]).get(instance_id)


def running_node(connection: Connection, instance_id: int) -> RunningNode | None:
    """The node that runs, or the first of several; None if there is none any more."""
    found = sorted(connection.execute(_running_node, {"ids": [instance_id]}), key=itemgetter(0))
    for node_id, name, failures, started, defaults, worker in found:
        declared = object_in(defaults)
        own = {f: v for f, v in declared.items() if f in RetryPolicy.__dataclass_fields__}
        beside = tuple((row[0], row[2]) for row in found[1:])
        return RunningNode(node_id, name, failures, started, own, worker, cleanups.runs_always(declared), beside)
    return None


def overdue(run: Watched, node: RunningNode, grace_seconds: float, cleanup: Cleanup | None = None) -> Report:
    """The report that its worker should have sent: the run timed out in this node. Those beside it have not failed.

    Another worker runs the nodes that run always and are left (``cleanup``).
    """
    words = f"the run timed out after {run.limit_seconds} s in {node.type}"
    why = f"{words}; worker {node.worker!r} beats, and did not end it within {grace_seconds:g} s: the scheduler did"
    started = node.gmt_started if times.is_time(node.gmt_started) else None
    result = json_text({"error": why})
    if run.is_cancel_requested:
        said = f"{run.reason or 'canceled'}; {why}"[:REASON_LIMIT]
        end = InstanceReport(InstanceStatus.CANCELED, None, said, None, run.now)
        return _report(run, node, NodeReport(node.id, NodeStatus.CANCELED, None, started, run.now), end, cleanup)
    policy = replace(run.retry, **node.own_retry)
    may_retry = run.on_worker_lost != WorkerLostPolicy.FAIL and policy.why_not(OF_A_TIMEOUT) is None
    failures, of_instance = node.failures + 1, (run.failures or 0) + 1
    if may_retry and node.failures < policy.retries:
        delay = policy.delay(failures, run.id)
        said = f"retry {failures} of {policy.retries} after {times.span(delay)}: {why}"[:REASON_LIMIT]
        at = run.now + timedelta(seconds=delay)
        end = InstanceReport(InstanceStatus.PENDING, None, said, None, None, of_instance, at)
        return _report(run, node, NodeReport(node.id, NodeStatus.PENDING, result, started, run.now, failures), end)
    end = InstanceReport(InstanceStatus.FAILED, result, why[:REASON_LIMIT], None, run.now, of_instance)
    reported = NodeReport(node.id, NodeStatus.FAILED, result, started, run.now, failures)
    return _report(run, node, reported, end, cleanup)


def _report(
    run: Watched, node: RunningNode, reported: NodeReport, end: InstanceReport, cleanup: Cleanup | None = None
) -> Report:
    is_retried = end.status is InstanceStatus.PENDING
    beside, over_at = (NodeStatus.PENDING, None) if is_retried else (NodeStatus.CANCELED, run.now)
    nodes = [reported, *(NodeReport(one, beside, gmt_completed=over_at) for one, _ in node.beside)]
    if cleanup is not None and cleanup.left:
        known = {one.id for one in nodes}
        nodes += [NodeReport(one, NodeStatus.CANCELED) for one in cleanup.ended if one not in known]
        reported.result = reported.result or json_text({"error": end.reason})
        fails = end.status is InstanceStatus.FAILED
        end = InstanceReport(InstanceStatus.PENDING, None, end.reason, None, None, None, run.now, fails=fails)
    return Report(run.id, run.attempt or 0, nodes, end)


def end_overdue(connection: Connection, run: Watched, node: RunningNode, report: Report) -> None:
    """End a run as its worker should have, and avoid that worker for a retry.

    The transaction relies on that nothing has happened to the run since it was read.
    """
    worker_id = run.worker_id or 0
    reporting.lock(connection, worker_id, [(run.id, report.attempt)], at_once=True)
    for one, failures in ((node.id, node.failures), *node.beside):
        reporting.expect_running(connection, one, failures)
    reports.report(connection, worker_id, [report], at_once=True)
    reporting.blame(connection, run.id, node.worker, by="scheduler")
