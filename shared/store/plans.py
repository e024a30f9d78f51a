"""The scheduler's view of tasks: which tasks are due, what their plans are, and how it advances the plans."""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
    update,
)

from rota.shared.database.constructs import (
    Listed,
    RowsUpdate,
    SecondsBefore,
    UtcNow,
    among,
    bound,
    by_index,
    joined_ids,
    json_rows,
    read_by,
    split_ids,
    stored_time,
)
from rota.shared.database.json_fields import fields_named
from rota.shared.database.later import execute_later
from rota.shared.domain.jsontext import json_value
from rota.shared.domain.planning import Decision, Missed, PlanInputs, Planned, PlannedTask, Skipped, TaskTerms
from rota.shared.domain.states import TaskStatus
from rota.shared.store import kinds, params
from rota.shared.store.tables import PLAN_INPUTS, any_chain, is_paused, schedule_task, schedule_task_lock

_task = schedule_task.c
_lock = schedule_task_lock.c

TERMS_KEPT = 10_000
"""How many different terms are cached in parsed form; many tasks have equal terms."""


@dataclass(slots=True)
class Advance:
    """The new state of one task's plan: its next fire (naive UTC), the numbers of fires not run, and an error.

    ``task`` is the task as it was read for the decision. ``skipped`` are the fires not run, and ``missed`` those that
    are left to the catch-up.
    """

    task: PlannedTask
    next_fire_at: datetime | None
    misfires: int = 0
    held_back: int = 0
    error: str | None = None
    skipped: Skipped | None = None
    missed: Missed | None = None

    @classmethod
    def of(cls, task: PlannedTask, decision: Decision) -> "Advance":
        """The new state of a plan by what was decided."""
        if decision.skipped is None:
            return cls(task, decision.next_fire_at, missed=decision.missed)
        numbers = (decision.misfires, decision.held_back)
        return cls(task, decision.next_fire_at, *numbers, skipped=decision.skipped, missed=decision.missed)


_leased = and_(
    _lock.schedule_task_id == _task.id,
    _lock.is_locked == 1,
    _lock.locked_at >= SecondsBefore(UtcNow(), bindparam("lease")),
    SecondsBefore(_lock.locked_at, bindparam("lease")) <= UtcNow(),
)


def _due(index: str, *condition: ColumnElement[bool]) -> Select[Any]:
    """Ids of tasks that nobody has leased, in the order of an index, so that the database stops reading at the limit.

    It is an outer join, not NOT EXISTS: of that, MariaDB makes a temporary table of all locks when many tasks are due.
    """
    free = select(_task.id).outerjoin_from(schedule_task, schedule_task_lock, _leased)
    found: Select[Any] = read_by(by_index(free, schedule_task, index), schedule_task_lock)
    return found.where(_lock.schedule_task_id.is_(None), *condition).limit(bindparam("limit"))


def _found(*condition: ColumnElement[bool]) -> Select[Any]:
    by, on, off = "ix_schedule_task_due", TaskStatus.ON.value, TaskStatus.OFF.value
    stale = _due("ix_schedule_task_stale", _task.plan_stale == 1, *condition)
    fires = _due(by, _task.status == on, _task.next_fire_at <= bindparam("horizon"), *condition)
    passed = _due(by, _task.status == off, _task.next_fire_at <= bindparam("now"), *condition)
    with_fires = fires.order_by(_task.next_fire_at).subquery().c.id
    without = [some.subquery().c.id for some in (stale, passed.order_by(_task.next_fire_at))]
    found = union_all(
        select(with_fires.label("fires"), null().label("other")), *(select(null(), task_id) for task_id in without)
    ).subquery("found")
    return select(joined_ids(found.c.fires), joined_ids(found.c.other), is_paused, any_chain)


_due_ids, _due_ids_of_known = _found(), _found(kinds.ARE_KNOWN)

OTHERS_SHARE = 4
"""One task of so many in a batch need have no fire, if there are such tasks: new plans are made, too, while more fires
are due than a batch takes."""


class Due(NamedTuple):
    """The tasks that a tick looks at, by their ids; whether all scheduling is paused; and whether any task follows
    another."""

    ids: list[int]
    is_paused: bool
    any_chain: bool


def due(
    connection: Connection, now: datetime, horizon: datetime, limit: int, lease_seconds: float, *, known: bool = False
) -> Due:
    """Ids of at most ``limit`` tasks that have a fire up to ``horizon`` or a stale plan; times are naive UTC.

    Tasks with a fire come first, the earliest before the others, so that an edit of very many tasks delays no fire. The
    others get a quarter of the batch, or what the fires leave. A task that is off is due only after its fire has
    passed: if somebody turns it on before, it still fires. Tasks that another scheduler has leased, not more than
    ``lease_seconds`` ago, are left out; with ``known`` also those of kinds that this Rota does not know. While all
    scheduling is paused, those with a fire are left out, too.
    """
    values = {"now": now, "horizon": horizon, "limit": limit, "lease": lease_seconds}
    found = connection.execute(_due_ids_of_known if known else _due_ids, values)
    fires_found, others_found, paused, chained = found.one()
    fires, listed = split_ids(fires_found), split_ids(others_found)
    if paused:
        return Due(list(dict.fromkeys(listed))[:limit], is_paused=True, any_chain=bool(chained))
    with_fires = set(fires)
    others = [task_id for task_id in dict.fromkeys(listed) if task_id not in with_fires]
    share = min(len(others), limit // OTHERS_SHARE)
    return Due((fires[: limit - share] + others)[:limit], is_paused=False, any_chain=bool(chained))


_TERMS: dict[str, ColumnElement[Any]] = {
    "type": _task.type,
    "is_stale": func.coalesce(_task.plan_stale, literal_column("0")),
    "gmt_create": case((_task.planned_inputs.is_(None), _task.gmt_create)),
    "misfire_policy": type_coerce(_task.misfire_policy, String),
    "misfire_grace_seconds": _task.misfire_grace_seconds,
    "priority": _task.priority,
    "required_labels": cast(type_coerce(_task.required_labels, String), String),
    "overlap_policy": type_coerce(_task.overlap_policy, String),
    "max_instances": _task.max_instances,
    "limit_name": _task.limit_name,
    "pool": _task.pool,
    "weight": _task.weight,
    "run_timeout_seconds": _task.run_timeout_seconds,
    "spread": type_coerce(_task.spread, String),
}
"""Fields of TaskTerms by their names. They are read as one JSON text, together with the texts that the plan depends on.
Most tasks have one of a few texts, and each text is parsed only once."""

_locked = (
    select(
        _task.id,
        _task.name,
        _task.next_fire_at,
        params.small(type_coerce(_task.param, String)),
        params.size_if_large(_task.param),
        _task.task_group,
        func.json_array(
            _task.plan_inputs,
            case((_task.plan_stale == literal_column("1"), _task.planned_inputs)),
            *_TERMS.values(),
            type_=String(),
        ),
    )
    .join(schedule_task_lock, _lock.schedule_task_id == _task.id)
    .where(among(_task.id), _lock.locked_by == bindparam("token"), _lock.is_locked == 1)
)


def locked(connection: Connection, token: str, task_ids: Collection[int]) -> list[PlannedTask]:
    """Read the tasks again, now that ``token`` holds their leases. Large params are left out."""
    rows = connection.execute(_locked, {"ids": sorted(task_ids), "token": token})
    return [
        PlannedTask(
            task_id, name, next_fire_at, None if param is None else str(param), _parsed_terms(terms), large or 0, group
        )
        for task_id, name, next_fire_at, param, large, group, terms in rows
    ]


@lru_cache(TERMS_KEPT)
def _parsed_terms(text: str) -> TaskTerms:
    """The terms of a row: its inputs, the text that its plan was made from if that is another, and ``_TERMS``."""
    inputs_text, planned_text, *fields = json.loads(text)
    stored, planned = _read_inputs(inputs_text), _planned(planned_text)
    terms = fields_named(_TERMS, fields)
    labels = terms["required_labels"]
    terms["required_labels"] = {} if labels is None else json_value(labels)
    terms["gmt_create"] = _moment(terms["gmt_create"])
    terms["is_stale"] = bool(terms["is_stale"])
    return TaskTerms(
        **terms,
        status=stored.status,
        is_deleted=stored.is_deleted,
        inputs=stored.inputs,
        inputs_text=inputs_text,
        planned=planned,
        # A plan is still right if the two texts differ only in the status, or in how they are written.
        needs_replan=terms["is_stale"] and (planned is None or planned.is_deleted or planned.inputs != stored.inputs),
    )


def _read_inputs(text: str) -> Planned:
    """The values in a text of ``plan_inputs``. An older Rota may have written fewer inputs; the others get defaults.

    Raises ValueError, TypeError, KeyError or RecursionError for any other text.
    """
    values = dict(zip(PLAN_INPUTS, json.loads(text), strict=False))
    for name, read in _READERS.items():
        if values.get(name) is not None:
            values[name] = read(values[name])
    return Planned(values.pop("status"), bool(values.pop("is_deleted")), PlanInputs(**values))


def _planned(text: str | None) -> Planned | None:
    """What a plan was made from, or None: SQL may have written any text into ``planned_inputs``."""
    if text is None:
        return None
    try:
        return _read_inputs(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def inputs_in(text: str) -> PlanInputs | None:
    """The inputs in a text of ``plan_inputs``; None if SQL has made it unreadable."""
    planned = _planned(text)
    return None if planned is None else planned.inputs


def _moment(text: str | None) -> Any:
    return None if text is None else stored_time(text)


_READERS: dict[str, Callable[[str], Any]] = {
    "trigger_spec": json_value,
    "starts_at": stored_time,
    "ends_at": stored_time,
}
"""The functions that read inputs which JSON cannot hold as they are; the other inputs need none."""


_move = RowsUpdate(
    schedule_task,
    lambda moved: (
        update(schedule_task)
        .where(moved.match, _task.next_fire_at == moved.c["old"])
        .values(next_fire_at=moved.c["next"])
    ),
    old="time",
    next="time",
)

_replanned = json_rows(
    "moved",
    id="id",
    old="time",
    next="time",
    misfires="int",
    held_back="int",
    is_new="int",
    inputs="json",
)
_replan = (
    update(schedule_task)
    .where(_task.id == _replanned.c.id, _task.next_fire_at.is_not_distinct_from(_replanned.c.old))
    .values(
        next_fire_at=_replanned.c.next,
        misfires=_task.misfires + _replanned.c.misfires,
        fires_held_back=_task.fires_held_back + _replanned.c.held_back,
        plan_error=case((_replanned.c.is_new == 0, _task.plan_error)),
        planned_inputs=_replanned.c.inputs,
    )
)

_aside = json_rows("aside", id="id", error="str", inputs="json")
_set_aside = (
    update(schedule_task)
    .where(_task.id == _aside.c.id)
    .values(next_fire_at=None, plan_error=_aside.c.error, planned_inputs=_aside.c.inputs)
)
"""It has no value of the row in it but the text of its inputs: whatever SQL wrote there, the row can be set aside. The
lease, which this transaction holds, takes the place of the old ``next_fire_at`` as the guard."""


def advance(connection: Connection, advances: Iterable[Advance]) -> None:
    """Advance plans, each only if the row's ``next_fire_at`` is still the one that was read.

    A new plan is recorded with the text of the inputs that the scheduler read. If somebody has edited the task since,
    the row's inputs differ from that text: the plan stays stale, and the next tick makes it anew. Only a new plan
    clears the error of the plan before it. A task whose advance has an error is set aside.
    """
    moved, replanned, aside = [], [], []
    for a in advances:
        terms = a.task.terms
        if a.error is not None:
            aside.append((a.task.id, a.error, terms.inputs_text))
        elif terms.is_stale or a.misfires or a.held_back or terms.is_new_plan or a.task.next_fire_at is None:
            counts = (a.misfires, a.held_back, int(terms.is_new_plan))
            replanned.append((a.task.id, a.task.next_fire_at, a.next_fire_at, *counts, terms.inputs_text))
        else:
            moved.append((a.task.id, a.task.next_fire_at, a.next_fire_at))
    if moved:
        ids, old, following = zip(*sorted(moved), strict=True)
        _move.later(connection, Listed(ids), Listed.of(old), Listed.of(following))
    if replanned:
        execute_later(connection, _replan, {"rows": bound(replanned)})
    if aside:
        execute_later(connection, _set_aside, {"rows": bound(aside)})
