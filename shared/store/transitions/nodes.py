"""How the nodes that no report names follow a move of their instance: made from the move's declaration."""

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Connection, Update, case, exists, null, select, update

from rota.shared.database.constructs import UtcNow, among, by_index
from rota.shared.database.later import execute_later
from rota.shared.domain.states import Move, NodeStatus
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task_node

_instance = schedule_instance.c
_node = schedule_task_node.c


def follow(connection: Connection, move: Move, instance_ids: Collection[int]) -> None:
    """Change the nodes of the instances that have made this move in this transaction, as the move declares.

    If an instance is not in the move's target state, it has not made the move, and its nodes stay as they are.
    """
    if instance_ids:
        execute_later(connection, _following(move), {"ids": sorted(instance_ids)})


@cache
def _following(move: Move) -> Update:
    becomes = {old.value: new.value for old, new in move.nodes.items()}
    values: list[tuple[Any, Any]] = []
    if wait := _becoming(move, NodeStatus.PENDING):
        values.append((_node.gmt_started, case((_node.status.in_(wait), null()), else_=_node.gmt_started)))
    if fail := _becoming(move, NodeStatus.FAILED):
        values.append((_node.gmt_completed, case((_node.status.in_(fail), UtcNow()), else_=_node.gmt_completed)))
    # The state must come last. MariaDB and MySQL assign from left to right, so a later CASE would see the new state.
    values.append((_node.status, case(becomes, value=_node.status)))
    moved = select(_instance.id).where(owns_node, _instance.status == move.target.value)
    return (
        update(schedule_task_node)
        .where(
            among(_node.schedule_instance_id),
            _node.status.in_(list(becomes)),
            exists(by_index(moved, schedule_instance)),
        )
        .ordered_values(*values)
    )


def _becoming(move: Move, status: NodeStatus) -> list[str]:
    return [old.value for old, new in move.nodes.items() if new is status]
