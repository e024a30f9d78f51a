"""A worker claims instances that are assigned to it: one guarded UPDATE, in which the unique overlap key decides."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection, Update, and_, bindparam, case, exists, or_, select, update
from sqlalchemy.exc import IntegrityError

from rota.shared.database.constructs import UtcNow, among, by_index, by_primary_key, ignore_conflicts, unindexed
from rota.shared.database.later import Later, execute_later
from rota.shared.domain.states import CLAIM, PLANNED_ORIGINS, TaskStatus
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task, schedule_task_node
from rota.shared.store.transitions.guards import leaves

_instance = schedule_instance.c
_node = schedule_task_node.c
_task = schedule_task.c

_claim = by_primary_key(
    update(schedule_instance)
    .where(
        among(_instance.id),
        leaves(CLAIM, unindexed(_instance.status)),
        unindexed(_instance.schedule_worker_node_id) == bindparam("worker"),
        _instance.gmt_cancel_requested.is_(None),
    )
    .values(
        status=CLAIM.target.value,
        attempt=_instance.attempt + 1,
        overlap_slot=bindparam("slot"),
        gmt_started=case((_instance.due_at > UtcNow(), _instance.due_at), else_=UtcNow()),
        reason=None,
    )
)

_claim_free_slots = ignore_conflicts(_claim)
"""It leaves out the instances whose slot is taken, and does not say which."""

_start_nodes = by_primary_key(
    update(schedule_task_node)
    .where(among(_node.id, "nodes"))
    .values(status=CLAIM.first_node, gmt_started=UtcNow(), gmt_completed=None)
)
_start_nodes_to_begin = by_primary_key(
    update(schedule_task_node)
    .where(among(_node.id, "nodes"), _node.status != CLAIM.first_node)
    .values(status=CLAIM.first_node, gmt_started=None, gmt_completed=None)
)
"""Only for nodes of instances that this transaction has claimed or locked. Nobody else changes these nodes, so their
state is not checked. The first node of a run that may run at most once gets its ``gmt_started`` when the run begins: a
repeated claim must not take it away again."""

_unlocked_won = by_index(
    select(_instance.id).where(
        among(_instance.id),
        _instance.schedule_worker_node_id == bindparam("worker"),
        _instance.status == CLAIM.target.value,
    ),
    schedule_instance,
)
_won = _unlocked_won.with_for_update(read=True)


def claim(
    connection: Connection,
    worker_id: int,
    first_nodes: Mapping[int, int | None],
    slots: Sequence[tuple[int, int | None]],
    uncontested: Collection[int],
    *,
    to_begin: Collection[int] = (),
) -> set[int]:
    """Claim instances, each for its overlap slot, and start their first nodes; returns the ids of those that it won.

    ``first_nodes`` holds every instance that the worker wants, with the id of its first node that has not succeeded. It
    includes instances that the worker has claimed already, in a commit whose answer was lost. ``slots`` holds the
    instances to claim: (id, slot). The slots of the ``uncontested`` ids are probably free. If so, the number of changed
    rows shows that the worker won all of them. The other instances are read again. The instances in ``to_begin`` may
    run at most once: their nodes do not count as entered until the worker reports that they begin.
    """
    likely = [slot for slot in slots if slot[0] in uncontested]
    rest = [slot for slot in slots if slot[0] not in uncontested]
    won: set[int] = set()
    try:
        if _update(connection, _claim, likely, worker_id) == len(likely):
            won = {instance_id for instance_id, _ in likely}
    except IntegrityError:  # a slot was taken; the server has undone the whole statement
        rest = list(slots)
    _update(connection, _claim_free_slots, rest, worker_id)
    if unknown := [instance_id for instance_id in first_nodes if instance_id not in won]:
        won.update(connection.scalars(_won, {"ids": unknown, "worker": worker_id}))
    started = {i: node for i, node in first_nodes.items() if node is not None and i in won}
    if nodes := [node for i, node in started.items() if i not in to_begin]:
        execute_later(connection, _start_nodes, {"nodes": sorted(nodes)})
    if nodes := [node for i, node in started.items() if i in to_begin]:
        execute_later(connection, _start_nodes_to_begin, {"nodes": sorted(nodes)})
    return won


_task_wants_it = exists(
    select(_task.id).where(
        _task.id == _instance.schedule_task_id,
        _task.is_deleted == 0,
        or_(_task.status == TaskStatus.ON.value, _instance.origin.not_in([o.value for o in PLANNED_ORIGINS])),
    )
)
_is_as_read = and_(_instance.attempt == 0, exists(select(_node.id).where(owns_node, among(_node.id, "nodes"))))
_claim_unlocked = _claim_free_slots.where(_task_wants_it, _is_as_read)
_is_claimed = exists(
    select(_instance.id).where(
        owns_node,
        _instance.status == CLAIM.target.value,
        _instance.schedule_worker_node_id == bindparam("worker"),
    )
)
_start_claimed, _start_claimed_to_begin = _start_nodes.where(_is_claimed), _start_nodes_to_begin.where(_is_claimed)


def claim_at_once(
    connection: Connection,
    worker_id: int,
    slots: Sequence[tuple[int, int | None]],
    nodes: Collection[int],
    nodes_to_begin: Collection[int],
) -> list[Later]:
    """Claim instances that were read without locks, (id, slot), and start their first ``nodes``.

    Since they were read, another worker may have had them, or other nodes may have been pinned: so they must still have
    attempt 0 and these nodes. No statement needs the result of another. So on a server the whole transaction travels in
    one packet, and no lock is held over a round trip. The results tell how many of the nodes belong to instances that
    the worker won. (What an UPDATE IGNORE leaves out is counted, too.) ``won`` reads which those are.
    """
    first = [*nodes, *nodes_to_begin]
    for slot, ids in _by_slot(slots):
        values = {"ids": ids, "slot": slot, "worker": worker_id, "nodes": first}
        execute_later(connection, _claim_unlocked, values)
    return [
        execute_later(connection, statement, {"nodes": sorted(some), "worker": worker_id})
        for statement, some in ((_start_claimed, nodes), (_start_claimed_to_begin, nodes_to_begin))
        if some
    ]


def won(connection: Connection, worker_id: int, instance_ids: Collection[int]) -> set[int]:
    """Those of the instances that are ``running`` under the worker."""
    return set(connection.scalars(_unlocked_won, {"ids": sorted(instance_ids), "worker": worker_id}))


def _update(connection: Connection, statement: Update, slots: Sequence[tuple[int, int | None]], worker_id: int) -> int:
    return sum(
        connection.execute(statement, {"ids": ids, "slot": slot, "worker": worker_id}).rowcount
        for slot, ids in _by_slot(slots)
    )


def _by_slot(slots: Sequence[tuple[int, int | None]]) -> Iterable[tuple[int | None, list[int]]]:
    """The ids of the instances by slot. Few different slots occur: nearly all instances take the first, or none."""
    ids: dict[int | None, list[int]] = {}
    for instance_id, slot in slots:
        ids.setdefault(slot, []).append(instance_id)
    return ids.items()
