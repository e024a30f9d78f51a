"""Fitting: what a pending instance needs of a worker, whether a live worker fits, and whether its nodes bind it."""

from collections.abc import Iterable, Mapping, Sequence

from rota.scheduler_service.fleet import FleetSnapshot
from rota.scheduler_service.placement import FULL, NOBODY, Needs, needs_of
from rota.shared.domain.errors import RotaError
from rota.shared.domain.nodes import PlannedNode
from rota.shared.store.pending import Pending


def needed(
    one: Pending, task_type: str, snapshot: FleetSnapshot, bound: Sequence[PlannedNode] | None
) -> tuple[Sequence[PlannedNode] | None, Needs]:
    """The nodes of an instance (None: its worker's version of the task type says them), and what it needs of a worker.

    ``bound``: nodes that it has already and that stay. Raises InvalidInput for a param that cannot be read, and
    UnknownType.
    """
    labels = one.required_labels or {}
    if bound is not None:
        return bound, needs_of(bound, labels, weight=one.weight)
    if isinstance(one.listed, RotaError):
        raise one.listed
    return snapshot.wanted(task_type, one.listed, labels, one.weight)


def fits(one: Pending, snapshot: FleetSnapshot, bound: Sequence[PlannedNode] | None) -> bool:
    """Whether a live worker can run the instance, full or not; or whether none is live at all."""
    try:
        _, needs = needed(one, one.task_type or "", snapshot, bound)
    except Exception:  # noqa: BLE001 - the assigner, which tries it too, says what is wrong
        return False
    return snapshot.of_pool(one.pool).why_not(needs) in (FULL, NOBODY)


def has_worker(one: Pending, snapshot: FleetSnapshot, bound: Sequence[PlannedNode] | None) -> bool:
    """Whether a live worker can run the instance, full or not."""
    try:
        _, needs = needed(one, one.task_type or "", snapshot, bound)
    except Exception:  # noqa: BLE001 - the assigner, which tries it too, says what is wrong
        return False
    return bool(snapshot.of_pool(one.pool).fitting(needs))


def binding(
    page: Iterable[Pending], snapshot: FleetSnapshot, pinned: Mapping[int, list[PlannedNode]]
) -> dict[int, list[PlannedNode]]:
    """The nodes that stay, by instance: all that are pinned, but for those that a deploy has left no worker for.

    Nodes of an instance that was never claimed give way if no live worker can run them and one can run its own list.
    No handler has been entered, and otherwise the instance would wait for a worker of the past. A replay from a node on
    waits for it: other nodes would not have the results that it keeps.
    """
    bound = dict(pinned)
    for one in page:
        nodes = bound.get(one.id) if one.attempt == 0 and one.from_sequence is None else None
        if nodes is not None and not fits(one, snapshot, nodes) and fits(one, snapshot, None):
            del bound[one.id]
    return bound
