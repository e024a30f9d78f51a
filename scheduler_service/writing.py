"""Writing: what the materializer has decided for a batch of tasks, in one transaction each time."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from rota.shared.domain.deciding import recalled
from rota.shared.domain.errors import RotaError
from rota.shared.domain.planning import Decision, PlannedTask, TaskTerms
from rota.shared.domain.states import REASON_LIMIT, OnEnd
from rota.shared.store import (
    calendars,
    catch_ups,
    chain_runs,
    chains,
    deadlines,
    fires,
    follow_ups,
    locks,
    others_locks,
    overlap,
    plans,
    skips,
    unclaimed,
)
from rota.shared.store.fires import Fire
from rota.shared.store.plans import Advance
from rota.shared.store.transitions import canceling

log = logging.getLogger(__name__)

FIRES_IN_WRITE = 5_000
BYTES_IN_WRITE = 4 * 1024 * 1024
"""What one transaction inserts at most: below ``max_allowed_packet``, whose default is 16 MiB."""

EDITED_AWAY = "its task was edited before it was due"


@dataclass(slots=True)
class TaskWrite:
    """What a tick writes for one task."""

    advance: Advance
    fires: list[Fire] = field(default_factory=list)
    refused: str | None = None
    """Why the database refused its fires, which are then written without their param, and canceled."""

    @property
    def size(self) -> int:
        """About how many bytes its fires are."""
        return sum(200 + len(fire.param or "") for fire in self.fires)


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The moments of a batch, naive UTC."""

    now: datetime
    """When it was decided."""

    passed_from: datetime
    """Fires that passed earlier wait for no claim any more."""

    within_seconds: float
    """Leases that were taken longer ago have been decided about too long ago: a frozen scheduler took them."""


def portions(writes: Sequence[TaskWrite]) -> Iterator[Sequence[TaskWrite]]:
    """The writes of tasks, as many at a time as one transaction takes."""
    begun = count = size = 0
    for at, write in enumerate(writes):
        more, larger = len(write.fires), write.size
        if at > begun and (count + more > FIRES_IN_WRITE or size + larger > BYTES_IN_WRITE):
            yield writes[begun:at]
            begun, count, size = at, 0, 0
        count, size = count + more, size + larger
    yield writes[begun:]


def bounded(decision: Decision, param: str | None) -> Decision:
    """The decision, cut to as many fires as one transaction may write. The next tick goes on."""
    if len(decision.fires) <= 1:
        return decision
    most = max(1, BYTES_IN_WRITE // (200 + len(param or "")))
    if len(decision.fires) <= most:
        return decision
    return replace(decision, next_fire_at=decision.fires[most], fires=decision.fires[:most])


def aside(task: PlannedTask, why: str) -> TaskWrite:
    """The write that sets a task aside, because of an error of its own."""
    log.warning("task %r is set aside until it is edited: %s", task.name, why)
    return TaskWrite(Advance(task, None, error=why[:REASON_LIMIT]))


def without_param(write: TaskWrite, why: str) -> TaskWrite:
    """The write that cancels the fires of a task: the next ones run when somebody has corrected the param."""
    reason = f"the database refused the fire: {why}"[:REASON_LIMIT]
    log.warning("task %r: its fires are canceled: %s", write.advance.task.name, reason)
    fires = [replace(fire, param=None, worker_id=None, nodes=(), reason=reason) for fire in write.fires]
    return TaskWrite(write.advance, fires, refused=reason)


def write_tasks(
    connection: Connection,
    token: str,
    writes: Sequence[TaskWrite],
    times: "WriteTimes",
    *,
    wary: bool,
    at_once: bool,
    marks: bool = False,
) -> set[str]:
    """Write some tasks; returns the names of those that it passed over, because somebody else has locked them.

    Raises Unexpected if another scheduler takes a lease over meanwhile. ``at_once``: it relies on ``token``'s holding
    all of the leases, and does not ask. ``marks``: runs that are followed are marked; False relies on that none is.
    """
    tasks = {w.advance.task.id: w.advance.task for w in writes}
    terms_of = {i: task.terms for i, task in tasks.items()}
    replanned = _with(terms_of, lambda terms: terms.is_deleted or (terms.is_new_plan and terms.was_planned))
    turned_on = _with(terms_of, lambda terms: terms.was_turned_on and not terms.is_deleted)
    edited = replanned | turned_on
    free = others_locks.not_locked(connection, tasks, edited, times.passed_from) if wary else set(tasks)
    ours = free if at_once else locks.kept(connection, token, free, times.within_seconds)
    kept = [w for w in writes if w.advance.task.id in ours]
    dropped = unclaimed.ahead(connection, replanned & ours, times.now)
    last = {i: fire for i in replanned & ours if (fire := recalled(terms_of[i], times.now)) is not None}
    edited_away = unclaimed.recalled(connection, last, times.now)
    passed = unclaimed.passed(connection, turned_on & ours, times.passed_from, times.now)
    locks.release(connection, token, ours, times.within_seconds)
    unclaimed.drop(connection, dropped)
    canceling.pass_over(connection, dict.fromkeys(edited_away, EDITED_AWAY))
    canceling.pass_over(connection, {i: overlap.OFF for i in passed if i not in dropped})
    fires.materialize(connection, [fire for w in kept if w.refused is None for fire in w.fires])
    fires.refuse(connection, [fire for w in kept if w.refused is not None for fire in w.fires])
    followed = _of(kept, _with(terms_of, lambda terms: terms.inputs.follows_ends))
    follow_ups.mark(connection, [(fire.task_id, fire.schedule_datetime) for w in followed for fire in w.fires])
    stale = _of(kept, _with(terms_of, lambda terms: terms.is_stale))
    _advance(connection, [w.advance for w in kept])
    _write_chains(connection, kept, stale, marks=marks)
    _note_limits(connection, _of(kept, _with(terms_of, lambda terms: bool(terms.run_timeout_seconds))))
    return {task.name for i, task in tasks.items() if i not in free}


def _with(terms_of: Mapping[int, TaskTerms], so: Callable[[TaskTerms], bool]) -> set[int]:
    """The tasks whose terms are so. Most tasks have one of a few terms, and each of these is asked once."""
    found = {terms for terms in set(terms_of.values()) if so(terms)}
    return {task_id for task_id, terms in terms_of.items() if terms in found} if found else set()


def _of(writes: Sequence[TaskWrite], task_ids: Set[int]) -> Sequence[TaskWrite]:
    """Those of the writes that are of these tasks."""
    return [write for write in writes if write.advance.task.id in task_ids] if task_ids else ()


def _advance(connection: Connection, advances: Sequence[plans.Advance]) -> None:
    """Advance the plans, after the fires are written and before they are marked for chains.

    Whoever lets another task follow one of these changes its row: one of the two transactions waits for the other here.
    So either that one sees these fires, or this one sees the link.
    """
    plans.advance(connection, advances)
    used = [a.task.calendar_use for a in advances if a.task.terms.new_edition is not None]
    calendars.use(connection, [use for use in used if use is not None])
    skips.record(connection, [(a.task.id, a.skipped) for a in advances if a.skipped is not None])
    catch_ups.begin(connection, [(a.task, a.missed) for a in advances if a.missed is not None])


def _write_chains(
    connection: Connection, writes: Sequence[TaskWrite], stale: Sequence[TaskWrite], *, marks: bool
) -> None:
    links = {w.advance.task.id: before for w in stale if (before := _links(w)) is not None}
    chains.hold(connection, {name for before in links.values() for name in before})
    chains.link(connection, links)
    fired = [(fire.task_id, fire.schedule_datetime) for w in writes for fire in w.fires]
    if marks or links:
        chain_runs.mark_fires(connection, fired)
    elif fired:
        chain_runs.rely_on_no_link(connection)


def _links(write: TaskWrite) -> Mapping[str, OnEnd] | None:
    """The tasks that a task with a stale plan follows; None if these links stay as they are."""
    terms = write.advance.task.terms
    followed = terms.planned is not None and terms.planned.inputs.follows_tasks
    if terms.is_deleted or write.advance.error is not None or not terms.inputs.follows_tasks:
        return {} if followed else None
    try:
        return terms.inputs.before
    except RotaError:  # of what SQL has written
        return {}


def _note_limits(connection: Connection, writes: Sequence[TaskWrite]) -> None:
    limited = [(fire, limit) for w in writes if (limit := w.advance.task.terms.run_timeout_seconds) for fire in w.fires]
    given = [(f.task_id, f.schedule_datetime, f.worker_id, s) for f, s in limited if f.worker_id is not None]
    deadlines.note_fires(connection, given)
