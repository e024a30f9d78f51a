"""A worker claims instances that are assigned to it: one guarded UPDATE, in which the unique overlap key decides."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    not_,
    null,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import (
    SecondsBefore,
    UtcNow,
    among,
    by_index,
    found_by,
    ignore_conflicts,
    read_by,
    unindexed,
)
from rota.shared.database.later import Later, execute_later
from rota.shared.domain.states import (
    CLAIM,
    LEFT,
    PLANNED_ORIGINS,
    NodeStatus,
    OverlapPolicy,
    TaskStatus,
    WorkerLostPolicy,
)
from rota.shared.store import limit_slots, params
from rota.shared.store.limit_slots import NOTHING, Taking
from rota.shared.store.shards import parent_runs
from rota.shared.store.tables import (
    MOST_ATTEMPTS,
    OVERLAP_SLOTS,
    owns_node,
    schedule_instance,
    schedule_limit,
    schedule_limit_slot,
    schedule_task,
    schedule_task_node,
)
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_limit = schedule_limit.c
_slot = schedule_limit_slot.c
_node = schedule_task_node.c
_task = schedule_task.c

NODES_IN_ORDER = "uq_schedule_task_node_order"

_its_task = _task.id == _instance.schedule_task_id
_is_shard = _instance.parent_id.is_not(None)
"""Its parent holds the overlap slot for all of its shards."""

_has_running_parent = or_(not_(_is_shard), parent_runs)
_takes_first_slot = and_(_task.overlap_policy == OverlapPolicy.SKIP.value, not_(_is_shard))
_holder = schedule_instance.alias("holder")
_has_holder = exists(
    read_by(select(_holder.c.id), _holder, "uq_schedule_instance_overlap_key")
    .where(_holder.c.overlap_key == _instance.schedule_task_id * OVERLAP_SLOTS)
    .correlate(schedule_instance)
)
_takes_no_slot = or_(_is_shard, and_(_task.overlap_policy == OverlapPolicy.ALLOW.value, _task.max_instances.is_(None)))
_slot_by_policy = select(case((_takes_first_slot, 0))).where(_its_task).scalar_subquery()


def lets_run(origin: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the task lets an instance of this origin run: it is not deleted, and is on, or the instance no fire."""
    is_no_fire = origin.not_in([one.value for one in PLANNED_ORIGINS])
    return and_(_task.is_deleted == 0, or_(_task.status == TaskStatus.ON.value, is_no_fire))


_is_on = lets_run(_instance.origin)


def may_start() -> list[ColumnElement[bool]]:
    """The conditions that an instance is assigned to the worker, not canceled, and due within ``ahead`` seconds."""
    return [
        leaves(CLAIM, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _instance.gmt_cancel_requested.is_(None),
        _instance.attempt < MOST_ATTEMPTS,
        SecondsBefore(_instance.due_at, bindparam("ahead")) <= UtcNow(),
        SecondsBefore(_instance.schedule_datetime, bindparam("ahead")).is_not(None),  # SQL wrote no time
    ]


def claimed(slot: Any) -> dict[str, Any]:
    """The new values of an instance that a worker claims for this slot."""
    return {
        "status": CLAIM.target.value,
        "attempt": _instance.attempt + 1,
        "overlap_slot": slot,
        "gmt_started": case((_instance.due_at > UtcNow(), _instance.due_at), else_=UtcNow()),
        "reason": None,
    }


def unread_claim(slot: ColumnElement[Any], *of_task: ColumnElement[bool]) -> Update:
    """Claim those of some instances that may start now, each for a slot; those whose slot is taken are left out."""
    claimable = (
        by_index(
            select(_instance.id).where(
                among(_instance.id),
                *may_start(),
                exists(
                    select(_task.id)
                    .where(_its_task, _is_on, *of_task)
                    .with_for_update(read=True, skip_locked=True)  # so that nothing starts after ``off`` is committed
                ),
            ),
            schedule_instance,
        )
        .distinct()  # so that the server does not merge this into the UPDATE, which would then wait for locked rows
        .with_for_update(skip_locked=True)
        .subquery("claimable")
    )
    claim: Update = ignore_conflicts(
        update(schedule_instance).where(_instance.id == claimable.c.id).values(**claimed(slot))
    )
    return claim


_has_large_node = exists(
    read_by(select(_node.id), schedule_task_node, NODES_IN_ORDER)
    .where(owns_node, params.bytes_of_large(_node.param, _node.execution_result) > 0)
    .correlate(schedule_instance)
)
_is_small = and_(
    params.bytes_of_large(_instance.param) == 0,
    # A node that has not run has of the instance's param.
    or_(and_(_instance.attempt == 0, _instance.from_sequence.is_(None)), not_(_has_large_node)),
)
HAS_NO_LIMIT = _task.limit_name.is_(None)
_claim_by_policy = unread_claim(
    _slot_by_policy,
    or_(_takes_no_slot, and_(_takes_first_slot, not_(_has_holder))),
    _has_running_parent,
    _is_small,
    HAS_NO_LIMIT,
)
_claim_for_slot = unread_claim(bindparam("slot"), HAS_NO_LIMIT)

_is_left = _node.status.in_([status.value for status in LEFT])
_first = func.coalesce(func.min(case((_is_left, _node.sequence))), func.min(_node.sequence))
_unsucceeded = (
    read_by(
        select(_node.schedule_instance_id, _node.instance_gmt_create, _first.label("sequence")),
        schedule_task_node,
        NODES_IN_ORDER,
    )
    .where(among(_node.schedule_instance_id), _node.status != NodeStatus.SUCCEED.value)
    .group_by(_node.schedule_instance_id, _node.instance_gmt_create)
    .subquery("unsucceeded")
)
_may_run_once = _task.on_worker_lost == WorkerLostPolicy.FAIL.value
_start_first_nodes = (
    update(schedule_task_node)
    .where(
        _node.schedule_instance_id == _unsucceeded.c.schedule_instance_id,
        _node.instance_gmt_create == _unsucceeded.c.instance_gmt_create,
        _node.sequence == _unsucceeded.c.sequence,
        _node.status != CLAIM.first_node,
        _instance.id == _unsucceeded.c.schedule_instance_id,
        _instance.gmt_create == _unsucceeded.c.instance_gmt_create,
        unindexed(_instance.status) == CLAIM.target.value,
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _its_task,
    )
    .values(
        status=CLAIM.first_node,
        gmt_started=case((_may_run_once, null()), else_=UtcNow()),
        gmt_completed=None,
    )
    .with_hint(NODES_IN_ORDER)
)


def _claim_of_read(*condition: ColumnElement[bool], of_task: ColumnElement[bool]) -> Update:
    """Claim instances that were read, if they are as they were read and their task is on."""
    claim: Update = found_by(
        ignore_conflicts(
            update(schedule_instance)
            .where(
                among(_instance.id),
                leaves(CLAIM, unindexed(_instance.status)),
                unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
                _instance.gmt_cancel_requested.is_(None),
                _instance.attempt == bindparam("attempt_read"),
                *condition,
                exists(select(_task.id).where(_its_task, _is_on, of_task).with_for_update(read=True)),
            )
            .values(**claimed(bindparam("slot")))
        )
    )
    return claim


_has_this_limit = _task.limit_name == bindparam("limit")
_has_its_slot = exists(
    read_by(select(_slot.slot), schedule_limit_slot, "ix_schedule_limit_slot_holder")
    .where(
        _slot.limit_name == bindparam("limit"),
        _slot.schedule_instance_id == _instance.id,
        _slot.attempt == _instance.attempt + 1,
    )
    .correlate(schedule_instance)
)
_has_its_start = exists(
    by_index(select(_limit.id), schedule_limit, limit_slots.BY_NAME).where(
        _limit.name == bindparam("limit"),
        _limit.claim_token == bindparam("token"),
        _limit.max_running.is_(None),
        _limit.is_deleted == 0,
    )
)
_claim_read = _claim_of_read(of_task=HAS_NO_LIMIT)
_claim_with_slot = _claim_of_read(_has_its_slot, of_task=_has_this_limit)
_claim_at_rate = _claim_of_read(_has_its_start, of_task=_has_this_limit)
_is_claimed = exists(
    by_index(
        select(_instance.id).where(
            owns_node,
            unindexed(_instance.status) == CLAIM.target.value,
            unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        ),
        schedule_instance,
    )
)


def _start(moment: Any) -> Update:
    return found_by(
        update(schedule_task_node)
        .where(among(_node.id, "nodes"), _is_claimed)
        .values(status=CLAIM.first_node, gmt_started=moment, gmt_completed=None)
    )


START_NODES, START_NODES_TO_BEGIN = _start(UtcNow()), _start(None)


def claim_read(
    connection: Connection,
    worker_id: int,
    slots: Iterable[tuple[int, int | None, int]],
    nodes: Collection[int],
    nodes_to_begin: Collection[int],
    *,
    taking: Taking = NOTHING,
) -> list[Later]:
    """Claim instances that were read before, (id, slot, attempt), and start their first nodes.

    Those that have a limit are claimed if the transaction has got their part of it: ``taking``.

    Each must still have the attempt that was read: the worker may have been frozen since, and another one may have had
    the instance. No statement needs the result of another, so the transaction travels in
    one packet. The results tell how many of the nodes were started; where all were, the worker won all. (What an UPDATE
    IGNORE leaves out is counted as found.)
    """
    limit_slots.take(connection, taking)
    alike: dict[tuple[int | None, int, str | None], list[int]] = {}
    for instance_id, slot, attempt in slots:
        alike.setdefault((slot, attempt, taking.allowed.get(instance_id)), []).append(instance_id)
    for (slot, attempt, limit), ids in alike.items():
        values = {"ids": sorted(ids), "slot": slot, "attempt_read": attempt, "worker": worker_id}
        if limit is None:
            execute_later(connection, _claim_read, values)
        elif taking.limits[limit].state.max_running is None:
            execute_later(connection, _claim_at_rate, {**values, "limit": limit, "token": taking.token_of(limit)})
        else:
            execute_later(connection, _claim_with_slot, {**values, "limit": limit})
    limit_slots.empty_unused(connection, taking)
    return [
        execute_later(connection, statement, {"nodes": sorted(some), "worker": worker_id})
        for statement, some in ((START_NODES, nodes), (START_NODES_TO_BEGIN, nodes_to_begin))
        if some
    ]


def claim_unread(
    connection: Connection,
    worker_id: int,
    ids: Collection[int],
    ahead_seconds: float,
    slots: Sequence[tuple[int, int | None]] | None = None,
) -> None:
    """Claim those of the instances that may be claimed, and start their first nodes; the caller reads which those are.

    Nothing about them need be known: the statements ask whether an instance is due within ``ahead_seconds``, whether
    its task is on, and which slot it takes. They pass over those that somebody has locked. So on a server the whole
    transaction travels in one packet, and no lock is held over a round trip. Instances for whose slot more must be
    known than the task's policy are left out, and those with large params or results, unless ``slots`` says which slot
    they take: (id, slot).
    """
    values = {"worker": worker_id, "ahead": ahead_seconds}
    if slots is None:
        execute_later(connection, _claim_by_policy, {"ids": sorted(ids), **values})
    else:
        for slot, some in _by_slot(slots):
            execute_later(connection, _claim_for_slot, {"ids": sorted(some), "slot": slot, **values})
    execute_later(connection, _start_first_nodes, {"ids": sorted(ids), "worker": worker_id})


def _by_slot(slots: Sequence[tuple[int, int | None]]) -> Iterable[tuple[int | None, list[int]]]:
    """The ids of the instances by slot. Few different slots occur: nearly all instances take the first, or none."""
    ids: dict[int | None, list[int]] = {}
    for instance_id, slot in slots:
        ids.setdefault(slot, []).append(instance_id)
    return ids.items()
