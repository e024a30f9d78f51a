"""The order of a run's nodes, where some of them do not wait for all nodes before them (``after``)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.node_order import After, checked_after, waits_for
from rota.shared.domain.states import LEFT, NodeStatus
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.contents import Node

GOING_ON = {NodeStatus.SUCCEED.value: 0}
ENDED = {NodeStatus.SUCCEED.value: 0, NodeStatus.FAILED.value: 1}
"""In which order nodes stand, by their states."""

_sequence = attrgetter("sequence")


@dataclass(frozen=True, slots=True)
class Order:
    """For which nodes each node of a run waits, directly or by others. By their ids."""

    waits_for: Mapping[int, frozenset[int]]

    def ready(self, run: Run, done: int) -> list[NodeRun]:
        """The nodes that wait for none but the first ``done`` of the run."""
        ended = {node.id for node in run.nodes[:done]}
        return [node for node in run.nodes[done:] if self.waits_for[node.id] <= ended]

    def is_last(self, node: NodeRun) -> bool:
        """Whether it waits for all others."""
        return len(self.waits_for[node.id]) == len(self.waits_for) - 1

    def seen_by(self, node: NodeRun, run: Run, results: Mapping[int, Any]) -> dict[str, Any]:
        """The results of the nodes for which this one waits, by their names: another attempt sees no others.

        ``results``: those of the run, by the ids of the nodes.
        """
        waits_for = self.waits_for[node.id]
        seen = sorted((one for one in run.nodes if one.id in waits_for and one.id in results), key=_sequence)
        names = ((one, (one.type, one.type.removeprefix(f"{one.category}_"))) for one in seen)
        return {name: results[one.id] for one, both in names for name in both}


class Orders:
    """The orders of the runs of one worker. ``nodes``: what its app declares; ``always``: the types that run always."""

    def __init__(self, nodes: Mapping[str, Node], always: Collection[str]) -> None:
        self._after = {node.type: node.after for node in nodes.values() if node.after is not None}
        self._always = always

    def of(self, run: Run) -> Order | None:
        """The order of a run's nodes, which are in their sequence; None if each waits for all before it."""
        listed = run.param.get("nodes") if isinstance(run.param, dict) else None
        if listed is None and not self._after:
            return None
        types = [node.type for node in run.nodes]
        after = [self._after.get(name) for name in types] if listed is None else _listed(listed, types)
        if all(names is None for names in after):
            return None
        ids = [node.id for node in run.nodes]
        places = waits_for(types, after, self._always)
        return Order({ids[at]: frozenset(ids[place] for place in places[at]) for at in range(len(ids))})

    def sorted(self, run: Run) -> Run:
        """The run with those nodes first that have succeeded; what runs always keeps its place.

        If the run has ended but for nodes that run always, the others stand as if they had run in a row: behind those
        that have succeeded the ones that have failed, and then the rest.
        """
        goes_on = any(node.status in LEFT and node.type not in self._always for node in run.nodes)
        ranks = GOING_ON if goes_on else ENDED
        nodes: list[NodeRun] = []
        beside: list[NodeRun] = []
        for node in run.nodes:
            if node.type in self._always:
                nodes += [*sorted(beside, key=lambda one: ranks.get(one.status, 2)), node]
                beside = []
            else:
                beside.append(node)
        return replace(run, nodes=(*nodes, *sorted(beside, key=lambda one: ranks.get(one.status, 2))))


def in_a_row(run: Run) -> bool:
    """Whether no node that has succeeded stands behind one that is left to run."""
    left = next((at for at, node in enumerate(run.nodes) if node.status in LEFT), len(run.nodes))
    return all(node.status != NodeStatus.SUCCEED for node in run.nodes[left:])


def _listed(listed: Any, types: Sequence[str]) -> list[After]:
    """What the nodes say that a param lists. A replay with another param keeps the nodes that it has."""
    if not isinstance(listed, list) or len(listed) != len(types):
        return [None] * len(types)
    return [_said(item, types[:at]) for at, item in enumerate(listed)]


def _said(item: Any, before: Sequence[str]) -> After:
    """What an item of a list of nodes says; what SQL has spoiled waits for all before it."""
    try:
        return checked_after("", item.get("after"), before) if isinstance(item, dict) else None
    except InvalidInput:
        return None
