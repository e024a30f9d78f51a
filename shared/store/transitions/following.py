"""A worker claims what follows a run of a task that runs one at a time, in the transaction that reports the run.

The transaction first asks whether the turn of the next one has come, and its writes go by the answer. Each row is found
by its key alone, and each MIN reads one entry of an index: so the server has next to nothing to plan
(docs/decisions/0057-handing-a-turn-on.md).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)

from rota.shared.database.constructs import (
    BigId,
    UtcNow,
    by_index,
    found_by,
    ignore_conflicts,
    read_by,
    written,
)
from rota.shared.database.later import Later, execute_later
from rota.shared.database.questions import Question
from rota.shared.domain.states import CLAIM, SUCCEED, InstanceStatus, NodeStatus, OverlapPolicy
from rota.shared.store.tables import OVERLAP_SLOTS, schedule_instance, schedule_task, schedule_task_node
from rota.shared.store.transitions.claiming import (
    HAS_NO_LIMIT,
    START_NODES,
    START_NODES_TO_BEGIN,
    claimed,
    lets_run,
    may_start,
)
from rota.shared.store.transitions.guards import leaves
from rota.shared.store.transitions.reporting import Success

_instance = schedule_instance.c
_task = schedule_task.c
_node = schedule_task_node.c
_holder = schedule_instance.alias("holder")
_waiting, _earliest = schedule_instance.alias("waiting"), schedule_instance.alias("earliest")

TURNS = "ix_schedule_instance_turn"

_task_id = bindparam("task", type_=BigId)

_runs_alone = or_(
    _task.overlap_policy == OverlapPolicy.QUEUE.value,
    and_(_task.overlap_policy == OverlapPolicy.ALLOW.value, _task.max_instances == 1),
)
_task_lets_run = (
    select(and_(lets_run(bindparam("of_origin", type_=String)), HAS_NO_LIMIT, _runs_alone))
    .where(_task.id == _task_id)
    .with_for_update(read=True, skip_locked=True)  # so that nothing starts after ``off`` is committed
    .scalar_subquery()
)
_first_due = (
    read_by(select(func.min(_earliest.c.due_at)), _earliest, TURNS)
    .where(_earliest.c.turn_key == _task_id)
    .scalar_subquery()
)
_oldest = (
    read_by(select(func.min(_waiting.c.id)), _waiting, TURNS)
    .where(_waiting.c.turn_key == _task_id, _waiting.c.due_at == _first_due)
    .scalar_subquery()
)
_other_slot = (
    read_by(select(func.min(_holder.c.overlap_key)), _holder, "uq_schedule_instance_overlap_key")
    .where(_holder.c.overlap_key.between(bindparam("second_key"), bindparam("last_key")))
    .scalar_subquery()
)
"""Another slot than the first, in which a run of the task is: more of its runs could run at once before. In ``hand_on``
it may be that of the run that ends. The first slot is not asked for, because its key is unique."""


def _holds(row: ColumnElement[int], condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether this instance is there, nobody else has locked it, and the condition holds. Locks it."""
    found = by_index(select(condition), schedule_instance).where(_instance.id == row).with_for_update(skip_locked=True)
    return cast("ColumnElement[bool]", found.scalar_subquery())


_done, _next = bindparam("done", type_=BigId), bindparam("next", type_=BigId)
_is_mine = _instance.schedule_worker_node_id == bindparam("worker")
_may_follow = _holds(
    _next,
    and_(
        *may_start(),
        _instance.attempt == bindparam("attempt_read"),
        _instance.schedule_task_id == _task_id,
    ),
)
_may_succeed = _holds(_done, and_(_is_mine, leaves(SUCCEED), _instance.attempt == bindparam("attempt_done")))
_has_its_turn = and_(_task_lets_run, _oldest == _next, _other_slot.is_(None))
_may_claim = Question(and_(_may_follow, _has_its_turn))
_may_hand_on = Question(and_(_may_succeed, _may_follow, _has_its_turn))
_new = claimed(literal_column("0"))
_is_as_read = and_(leaves(CLAIM), _instance.attempt == bindparam("attempt_read"))
_claim_next = found_by(
    ignore_conflicts(
        update(schedule_instance).where(_instance.id == _next, _is_mine, _is_as_read, _may_claim.answer).values(**_new)
    )
)


def _text(name: str) -> ColumnElement[str]:
    return bindparam(name, type_=String)


def _either(claimed: Any, succeeded: Any) -> ColumnElement[Any]:
    """The new value of a column in the row that is claimed, and in the row that succeeds."""
    return case((_instance.id == _next, claimed), else_=succeeded)


_hand_on = found_by(
    update(schedule_instance)
    .where(
        _instance.id.in_([_done, _next]),
        _is_mine,
        _instance.status == _either(InstanceStatus.ASSIGNED.value, InstanceStatus.RUNNING.value),
        _instance.attempt == _either(bindparam("attempt_read"), bindparam("attempt_done")),
        _may_hand_on.answer,
    )
    .values(
        status=_either(_new["status"], SUCCEED.target.value),
        attempt=_either(_new["attempt"], _instance.attempt),
        overlap_slot=_either(_new["overlap_slot"], _instance.overlap_slot),
        gmt_started=_either(_new["gmt_started"], _text("started")),
        gmt_completed=_either(null(), _text("ended")),
        reason=None,
        execution_result=_either(_instance.execution_result, _text("result")),
        gmt_modified=_either(_instance.gmt_modified, UtcNow()),
        modifier=_either(_instance.modifier, "worker"),
    )
)
_is_next_node = _node.id == bindparam("next_node")
_hand_on_nodes = found_by(
    update(schedule_task_node)
    .where(
        _node.id.in_([bindparam("node"), bindparam("next_node")]),
        _node.schedule_instance_id.in_([_done, _next]),
    )
    .values(
        status=case((_is_next_node, CLAIM.first_node), else_=SUCCEED.nodes[NodeStatus.RUNNING].value),
        gmt_started=case((_is_next_node, UtcNow()), else_=_text("node_started")),
        gmt_completed=case((_is_next_node, null()), else_=_text("node_ended")),
        execution_result=case((_is_next_node, _node.execution_result), else_=_text("node_result")),
    )
)


class Following(NamedTuple):
    """An instance of a task that runs one at a time, as it was read, with its first node that has not succeeded."""

    id: int
    attempt: int
    task: int
    origin: str
    node: int
    begins: bool
    """Whether it is to be committed apart that its first handler begins: it may run at most once."""


def claim_following(connection: Connection, worker_id: int, following: Iterable[Following]) -> list[Later]:
    """Claim instances of tasks that run one at a time, and start their first nodes.

    Each is claimed if nothing of its task runs, as this transaction has left it, and nothing older of it waits. Those
    that somebody has locked are passed over; the transaction waits only for a lock on a node, and for one on a run that
    has the first slot while the one that ended had another. The results tell how many nodes were started: where it is
    one, the instance was won.
    """
    started: list[Later] = []
    for one in following:
        answer = _may_claim.ask(connection, _turn(worker_id, one))
        fence = {"worker": worker_id, "attempt_read": one.attempt}
        execute_later(connection, _claim_next, {"next": one.id, **fence, **answer})
        start = START_NODES_TO_BEGIN if one.begins else START_NODES
        started.append(execute_later(connection, start, {"nodes": [one.node], "worker": worker_id}))
    return started


def hand_on(connection: Connection, worker_id: int, success: Success, following: Following) -> None:
    """End a run with success, and claim what follows it: all of it, or the transaction raises Unexpected.

    It raises that if the worker has lost the run or cannot win what follows, if somebody has locked one of the two, or
    if one has another node than was read. It waits as ``claim_following`` does. ``following`` does not begin apart, and
    has a greater id: the row that frees the slot is written before the one that takes it.
    """
    done, attempt, result, started, ended, node, node_result, node_started, node_ended = success
    answer = _may_hand_on.ask(connection, {"done": done, "attempt_done": attempt, **_turn(worker_id, following)})
    ids = {"done": done, "next": following.id}
    fence = {"worker": worker_id, "attempt_done": attempt, "attempt_read": following.attempt}
    end = {"result": result, "started": written(started), "ended": written(ended)}
    execute_later(connection, _hand_on, {**ids, **fence, **end, **answer}, expected=2)
    times = {"node_started": written(node_started), "node_ended": written(node_ended)}
    nodes = {"node": node, "next_node": following.node, "node_result": node_result, **times}
    execute_later(connection, _hand_on_nodes, {**ids, **nodes}, expected=2)


def _turn(worker_id: int, one: Following) -> dict[str, Any]:
    """The values of the question whether its turn has come."""
    first_key = one.task * OVERLAP_SLOTS
    keys = {"second_key": first_key + 1, "last_key": first_key + OVERLAP_SLOTS - 1}
    read = {"attempt_read": one.attempt, "of_origin": one.origin}
    return {"next": one.id, "task": one.task, "worker": worker_id, "ahead": 0.0, **read, **keys}
