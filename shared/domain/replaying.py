"""From which node a replay may begin. Pure."""

from collections.abc import Sequence
from typing import Any

from rota.shared.domain.errors import InvalidInput, NotPossible
from rota.shared.domain.sentences import close_to
from rota.shared.domain.states import NodeStatus


def start_of(instance_id: int, nodes: Sequence[Any], from_node: str) -> int:
    """The sequence of the node that a replay begins with. Those before it must have succeeded: their results are kept.

    ``nodes``: those of the instance, with ``sequence``, ``type``, ``category`` and ``status``. ``from_node`` is the
    node's type, with or without the task type before it, or its number in the instance. Raises InvalidInput for a node
    that the instance does not have, and NotPossible.

        start_of(17, nodes, "SEND")   # 2: REPORT_SEND
    """
    if not nodes:
        why = "no worker has had it, or it ran as its shards; replay it from its start"
        raise NotPossible(f"instance {instance_id} has no nodes: {why}")
    names = {name: node for node in nodes for name in (str(node.sequence), _short(node), node.type)}
    first = names.get(from_node)
    if first is None:
        near, there = close_to(from_node, names), ", ".join(node.type for node in nodes)
        raise InvalidInput(f"from_node {from_node!r} is no node of instance {instance_id}{near}; it has: {there}")
    for node in nodes:
        if node.sequence < first.sequence and node.status != NodeStatus.SUCCEED:
            raise NotPossible(
                f"instance {instance_id} cannot be replayed from {first.type}: {node.type}, which runs before it, "
                f"is {node.status} and left no result; begin there, or with the first node"
            )
    return int(first.sequence)


def _short(node: Any) -> str:
    return str(node.type).removeprefix(f"{node.category}_")
