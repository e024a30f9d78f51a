"""What became of a fire of a task, told from the rows."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control.documents import Document, fire_document, plan_of
from rota.shared.control.schedulers import obstacles
from rota.shared.control.tasks import Outcome
from rota.shared.database.transactions import Database
from rota.shared.domain.chains import why_not
from rota.shared.domain.errors import RotaError
from rota.shared.domain.explaining import Facts, Plan, Run, Stretch, Told, explain, of_run
from rota.shared.domain.states import OverlapPolicy, TaskStatus
from rota.shared.domain.times import is_time, read_time, written_utc, zone_of
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.store import catch_ups, chain_views, fire_rows, instances, limit_slots, skips, tasks


def why(database: Database, name: str, at: str | None = None) -> Outcome:
    """What became of the fire of a task ``at`` a time, and when the next fire is.

    Without ``at`` it is the newest fire that was due. A time without an offset is local time in the task's zone.
    Raises NotFound, or InvalidInput for a text that is no time.

        why(database, "nightly", "2026-11-19T03:00").document["outcome"]   # "ran"
    """
    now = database.clock.now()

    def read(connection: Connection) -> tuple[Document, str | None]:
        task = tasks.find(connection, name)
        moment, remark = (None, None) if at is None else read_time(at, zone_of(task.timezone))
        plan = _plan(task)
        fire = moment or _newest(connection, task, plan, now)
        facts = _facts(connection, task, plan, fire, now)
        return _document(connection, task, facts, fire), remark

    document, remark = database.read(read)
    return Outcome(document, [remark] if remark else [])


def _plan(task: Row[Any]) -> Plan:
    return Plan(
        plan_of(task),
        is_on=task.status == TaskStatus.ON,
        next_fire_at=task.next_fire_at if is_time(task.next_fire_at) else None,
        error=task.plan_error,
        is_stale=bool(task.plan_stale),
        gmt_create=task.gmt_create,
        overlap_policy=task.overlap_policy,
        max_instances=_most_at_once(task),
    )


def _most_at_once(task: Row[Any]) -> int | None:
    """``max_instances``, where it counts. SQL may have written anything there."""
    most = task.max_instances
    return most if task.overlap_policy == OverlapPolicy.ALLOW and isinstance(most, int) else None


def _newest(connection: Connection, task: Row[Any], plan: Plan, now: datetime) -> datetime | None:
    """The time of the newest fire that was due: by the trigger, if the task is so old; else by the rows."""
    try:
        due = None if plan.inputs.follows_ends else plan.inputs.newest_until(now)
    except RotaError:
        due = None
    if due is not None and due >= plan.gmt_create and not plan.is_stale:
        return due
    stretches = skips.newest(connection, task.id, fire_rows.LOOKED_AT)  # the newest may be of fires to come
    ends = [moment for row in stretches for moment in (row.first_fire, row.last_fire)]
    found = [fire_rows.newest_time(connection, task.id, now), *ends]
    return max((moment for moment in found if is_time(moment) and moment <= now), default=None)


def _facts(connection: Connection, task: Row[Any], plan: Plan, fire: datetime | None, now: datetime) -> Facts:
    """What the rows say of a fire; without a fire, of the task alone."""
    nobody_plans, nobody_gives = obstacles(connection, task)
    general = Facts(now, plan, nobody_plans=nobody_plans, nobody_gives=nobody_gives)
    if fire is None:
        return general
    rows = instances.of_fire(connection, task.id, fire, fire_rows.LOOKED_AT)
    live = fire_rows.live_workers(connection, rows)
    skipped = [Stretch(s.first_fire, s.last_fire, s.fires, s.reason) for s in skips.covering(connection, task.id, fire)]
    missed = catch_ups.covering(connection, task.id, fire)
    return replace(
        general,
        runs=[_run(row, is_live=row.schedule_worker_node_id in live) for row in rows],
        skipped=skipped,
        to_run=[Stretch(row.next_fire, row.last_fire, row.fires_left) for row in missed],
        holders=[number for number in fire_rows.holders(connection, task.id) if number not in {r.id for r in rows}],
        follows=_follows(connection, plan, fire),
        full_limit=None if task.limit_name is None else limit_slots.why_no_more(connection, task.limit_name),
    )


def _follows(connection: Connection, plan: Plan, fire: datetime) -> str | None:
    """Why a task that follows others has no run for a time; None if it follows none."""
    try:
        before = plan.inputs.before
        if not before:
            return None
        if not plan.inputs.admits(fire):
            return "its window or its calendar leaves that time out"
    except RotaError:
        return None
    return why_not(before.items(), chain_views.ended(connection, before, fire, ""))


def _run(row: Row[Any], *, is_live: bool) -> Run:
    times = (row.schedule_datetime, row.due_at, row.gmt_started, row.gmt_completed)
    nominal, due, started, completed = (moment if is_time(moment) else None for moment in times)
    number = row.schedule_worker_node_id
    worker = row.worker_name or (f"#{number} (removed)" if number else None)
    is_to_stop = row.gmt_cancel_requested is not None
    return Run(
        row.id, row.status, row.origin, nominal or row.gmt_create, due, started, completed, is_to_stop, row.reason,
        worker, is_live, row.failures, row.attempt or 0,
    )  # fmt: skip


def _document(connection: Connection, task: Row[Any], facts: Facts, fire: datetime | None) -> Document:
    following, remark = _next(connection, task, facts)
    document: Document = {"task": task.name, "timezone": task.timezone, "fire": None, "outcome": None, "why": None}
    document |= {"instances": [], "before": None, "after": None}
    if fire is not None:
        told = explain(fire, facts)
        runs = [(run, of_run(run, facts)) for run in facts.runs]
        of_runs = [_run_document(run, told_of_run) for run, told_of_run in runs]
        document |= {
            "fire": fire_document(fire, task),
            "outcome": told.outcome.value,
            "why": told.why,
            "instances": of_runs,
        }
        if not facts.runs and not facts.plan.has(fire):
            document |= _around(task, facts.plan, fire)
    following_document = None if following is None else fire_document(following, task)
    return document | {"next_fire": following_document, "remark": remark}


def _run_document(run: Run, told: Told) -> Document:
    late = None if run.gmt_started is None else (run.gmt_started - run.due).total_seconds()
    status = {"status": run.status, "worker": run.worker, "attempt": run.attempt, "late_seconds": late}
    return {"id": run.id, "origin": run.origin, **status, "outcome": told.outcome.value, "why": told.why}


def _around(task: Row[Any], plan: Plan, moment: datetime) -> Document:
    """The fires before and after a time at which there is none, by the trigger of now."""
    try:
        if plan.inputs.follows_ends or plan.inputs.follows_tasks:
            return {}
        found = {"before": plan.inputs.newest_until(moment), "after": plan.inputs.next_after(moment)}
    except RotaError:
        return {}
    return {name: None if one is None else fire_document(one, task) for name, one in found.items()}


def _next(connection: Connection, task: Row[Any], facts: Facts) -> tuple[datetime | None, str | None]:
    """The next fire of a task, and a remark: why there is none, or why nobody would write it."""
    plan, now = facts.plan, facts.now
    if plan.error is not None:
        return None, f"the scheduler has set the task aside: {plan.error}"
    if not plan.is_on:
        return None, "the task is off"
    try:
        computed = None if plan.inputs.follows_ends else plan.inputs.next_after(now)
    except RotaError as error:
        return None, f"it cannot fire: {error}"
    planned = None if plan.is_stale else plan.next_fire_at
    ahead = [fire_rows.next_written(connection, task.id, now), computed if plan.is_stale else planned]
    following = min((moment for moment in ahead if moment is not None), default=None)
    if following is not None:
        return following, facts.nobody_plans
    if plan.inputs.follows_ends:
        return None, "its next fire follows the end of the run that waits or goes on"
    words = trigger_of(plan.inputs).describe()
    remark = "the task runs only when asked" if words is None else "it does not fire any more"
    if plan.inputs.follows_tasks:
        remark = f"it fires {words}"
    if (asked := fire_rows.next_asked_for(connection, task.id)) is not None:
        remark += f"; a handler has asked for instance {asked[0]}, which is due at {written_utc(asked[1])}"
    return None, remark
