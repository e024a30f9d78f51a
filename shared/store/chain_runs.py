"""The runs that other tasks follow: a row for each, until its end has been followed up.

The transaction that writes a fire, or that gives an instance to a worker, writes the row, if a task follows its task.
Where no task follows another (``any_chain``), of these statements one is executed, with each batch of fires: it looks
whether that is still so.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from rota.shared.database.constructs import (
    UtcNow,
    among,
    bound,
    by_index,
    found_by,
    ignore_conflicts,
    joined_ids,
    json_rows,
    split_ids,
    unindexed,
)
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.states import TERMINAL, InstanceStatus, Origin
from rota.shared.store.tables import (
    any_chain,
    schedule_chain,
    schedule_chain_run,
    schedule_instance,
    schedule_task,
)
from rota.shared.store.transitions import chaining

_run = schedule_chain_run.c
_instance = schedule_instance.c
_task = schedule_task.c
_link = schedule_chain.c

_scheduler: ColumnElement[str] = literal_column("'scheduler'")
_NOT_AGAIN: ColumnElement[Any] = literal_column("NULL")
_open = [status.value for status in InstanceStatus if status not in TERMINAL]

# Marking

IS_FOLLOWED = exists(select(_link.id).where(_link.after_name == _task.live_name).correlate(schedule_task))


_any_link = select(any_chain)


def any_link(connection: Connection) -> bool:
    """Whether any task follows another. It is read before the transaction."""
    return bool(read_before(connection, _any_link, {}).scalar())


def marking(chosen: Select[tuple[int, datetime]], again_of: ColumnElement[Any] = _NOT_AGAIN) -> Insert:
    """The statement that marks the instances of a SELECT: (id, gmt_create). One that is marked keeps its mark."""
    columns = ["schedule_instance_id", "instance_gmt_create", "again_of", "creator", "modifier"]
    found = chosen.add_columns(again_of, _scheduler, _scheduler)
    statement: Insert = ignore_conflicts(insert(schedule_chain_run))
    return statement.from_select(columns, found, include_defaults=False)


_fired = json_rows("fired", task="id", moment="time")
_mark_fires = marking(
    by_index(
        select(_instance.id, _instance.gmt_create)
        .join_from(
            _fired,
            schedule_instance,
            and_(
                _instance.schedule_task_id == _fired.c.task,
                _instance.schedule_datetime == _fired.c.moment,
                _instance.fire_key == literal_column("''"),
                _instance.run_number == literal_column("0"),
            ),
        )
        .join(schedule_task, _task.id == _instance.schedule_task_id)
        .where(IS_FOLLOWED),
        schedule_instance,
        "uq_schedule_instance_fire",
    )
)
_mark_if_any_link = marking(select(_link.id, UtcNow()).limit(1))
_named = select(_task.id).where(_task.live_name == bindparam("name")).scalar_subquery()
_mark_ahead = marking(
    by_index(
        select(_instance.id, _instance.gmt_create).where(
            _instance.schedule_task_id == _named,
            _instance.schedule_datetime > UtcNow(),
            _instance.run_number == literal_column("0"),
            unindexed(_instance.status).in_([InstanceStatus.PENDING.value, InstanceStatus.ASSIGNED.value]),
        ),
        schedule_instance,
        "uq_schedule_instance_fire",
    )
)
_chosen = by_index(
    select(_instance.id, _instance.gmt_create)
    .join_from(schedule_instance, schedule_task, _task.id == _instance.schedule_task_id)
    .where(among(_instance.id)),
    schedule_instance,
)
_mark_given = marking(
    _chosen.where(
        unindexed(_instance.status) == literal_column(f"'{InstanceStatus.ASSIGNED.value}'"),
        _instance.origin.not_in([Origin.REPLAY.value, Origin.SHARD.value]),
        IS_FOLLOWED,
    )
)
_mark_spread = marking(
    _chosen.where(
        unindexed(_instance.status) == literal_column(f"'{InstanceStatus.RUNNING.value}'"),
        _instance.origin != literal_column(f"'{Origin.REPLAY.value}'"),
        IS_FOLLOWED,
    )
)
_mark_again = marking(_chosen, again_of=_instance.id)


def mark_fires(connection: Connection, fires: Iterable[tuple[int, datetime]]) -> None:
    """Mark the runs of these fires, (task id, time), that this transaction has inserted, where others follow them."""
    if rows := sorted(fires):
        execute_later(connection, _mark_fires, {"rows": bound(rows)})


def rely_on_no_link(connection: Connection) -> None:
    """Let this transaction raise Unexpected if any task follows another by now: then it has to mark its fires."""
    execute_later(connection, _mark_if_any_link, {}, expected=0)


def mark_ahead(connection: Connection, names: Collection[str]) -> None:
    """Mark the fires to come of the tasks of these names that are written already: they are followed from now on."""
    for name in sorted(names):
        execute_later(connection, _mark_ahead, {"name": name})


def mark_given(connection: Connection, instance_ids: Collection[int]) -> None:
    """Mark those of these instances that this transaction gives to workers and others follow. A replay is no such."""
    if instance_ids:
        execute_later(connection, _mark_given, {"ids": sorted(instance_ids)})


def mark_spread(connection: Connection, instance_ids: Collection[int]) -> None:
    """The same of instances that this transaction lets run as their shards."""
    if instance_ids:
        execute_later(connection, _mark_spread, {"ids": sorted(instance_ids)})


def mark_again(connection: Connection, instance_ids: Collection[int]) -> None:
    """Mark these replays: what follows them is to run once more."""
    if instance_ids:
        chaining.count_for_itself(connection, instance_ids)
        execute_later(connection, _mark_again, {"ids": sorted(instance_ids)})


# Following

_on_page = (
    select(_run.id, _run.schedule_instance_id, _run.instance_gmt_create)
    .where(_run.id > bindparam("after"))
    .order_by(_run.id)
    .limit(bindparam("limit"))
    .subquery("page")
)
_is_over = or_(_instance.id.is_(None), _instance.status.not_in(_open))
"""What SQL has made of a status is no run that goes on."""

_page = (
    select(func.count(), func.max(_on_page.c.id), joined_ids(case((_is_over, _on_page.c.id))))
    .select_from(_on_page)
    .outerjoin(
        schedule_instance,
        and_(_instance.id == _on_page.c.schedule_instance_id, _instance.gmt_create == _on_page.c.instance_gmt_create),
    )
)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page of these rows says: how many there are, those whose runs have ended or are gone, and where the next
    page begins (0: these were the last)."""

    number: int
    ended: list[int]
    following: int


def page(connection: Connection, after_id: int, limit: int) -> Page:
    """At most ``limit`` rows after this id."""
    number, reached, ended = connection.execute(_page, {"after": after_id, "limit": limit}).one()
    return Page(number, split_ids(ended), int(reached) if number == limit else 0)


_remove = found_by(delete(schedule_chain_run).where(among(_run.id)))


def remove(connection: Connection, mark_ids: Sequence[int]) -> None:
    """Remove these rows. The transaction raises Unexpected if another scheduler has removed one of them."""
    execute_later(connection, _remove, {"ids": sorted(mark_ids)}, expected=len(mark_ids))
