"""What is left to clean up of runs that nobody runs any more: their nodes that run always, as their types say."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from rota.shared.database.constructs import among, by_index
from rota.shared.database.later import read_before
from rota.shared.domain.jsontext import object_in
from rota.shared.domain.states import LEFT, InstanceStatus, NodeStatus
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task_node, schedule_task_node_type
from rota.shared.store.transitions import canceling
from rota.shared.store.transitions.canceling import CalledOff

_instance = schedule_instance.c
_node = schedule_task_node.c
_type = schedule_task_node_type.c

_nodes = by_index(
    select(_instance.id, _node.id, _node.status, _node.failures, _type.defaults)
    .join_from(schedule_instance, schedule_task_node, owns_node)
    .outerjoin(schedule_task_node_type, _type.id == _node.schedule_task_node_type_id)
    .where(among(_instance.id))
    .order_by(_instance.id, _node.sequence),
    schedule_instance,
)


def runs_always(defaults: Any) -> bool:
    """Whether a node type is declared to run always, by its column ``defaults``."""
    return object_in(defaults).get("always") is True


@dataclass(slots=True)
class Cleanup:
    """The nodes of a run that was cut: which one ran, which ones ``ended`` with it, and which are ``left``. Ids."""

    ran: int | None = None
    ended: list[int] = field(default_factory=list)
    """The one that ran first."""

    left: list[int] = field(default_factory=list)
    outlives_cancel: bool = False
    """Whether the one that ran runs always, and does not wait for a retry: a cancel does not end it."""

    had_ended: bool = False
    """Whether another node had ended the run before: what ran was a node that runs always."""

    @property
    def to_cancel(self) -> list[int]:
        """The nodes that a cancel ends, if what ran may run again."""
        return self.ended[1:] if self.outlives_cancel else self.ended


def of_runs(connection: Connection, ids: Collection[int]) -> dict[int, Cleanup]:
    """What is left of each of these running instances; without those that have nothing to clean up."""
    return _read(connection, ids, NodeStatus.RUNNING)


def call_off(connection: Connection, instance: Row[Any], reason: str, by: str) -> bool:
    """Cancel an instance that was read and waits, but for its nodes that run always; False if it has none.

    Nor has it any if it has ended but for these. If nothing else is left of it, it goes on. The transaction relies on
    that it waits as it was read.
    """
    found = _read(connection, [instance.id], NodeStatus.PENDING).get(instance.id) if instance.attempt else None
    if found is None or found.had_ended:
        return False
    one = CalledOff(instance.id, instance.status, instance.attempt, found.to_cancel)
    canceling.call_off(connection, one, reason, by, expected=1)
    return True


def skip(connection: Connection, worker_id: int, reasons: Mapping[int, str], canceled: Mapping[int, int]) -> None:
    """Cancel instances that are assigned to this worker and that its claim must not start, each with its reason.

    Those ``canceled`` after they had begun, with their attempts, are called off: nodes that run always are left.
    """
    found = _read(connection, canceled, NodeStatus.PENDING) if canceled else {}
    canceling.forget_requests(connection, worker_id, [i for i, one in found.items() if one.had_ended])
    for instance_id, one in sorted(found.items()):
        if not one.had_ended:
            called_off = CalledOff(instance_id, InstanceStatus.ASSIGNED.value, canceled[instance_id], one.to_cancel)
            canceling.call_off(connection, called_off, "canceled", "worker")
    canceling.skip(connection, worker_id, {i: why for i, why in reasons.items() if i not in found})


def _read(connection: Connection, ids: Collection[int], present: NodeStatus) -> dict[int, Cleanup]:
    """By instance: ``present`` is the state of the node that ran, or is the next to run."""
    found: dict[int, Cleanup] = {}
    if not ids:
        return found
    marked: set[int] = set()
    for instance_id, node_id, status, failures, defaults in read_before(connection, _nodes, {"ids": sorted(ids)}):
        one = found.setdefault(instance_id, Cleanup())
        if runs_always(defaults):
            marked.add(node_id)
        if status == present and one.ran is None:
            one.ran = node_id
            one.ended.insert(0, node_id)  # where nodes run beside each other, others wait before it
            one.outlives_cancel = node_id in marked and (present is NodeStatus.RUNNING or not failures)
        elif status in LEFT:
            (one.left if node_id in marked else one.ended).append(node_id)
        elif status != NodeStatus.SUCCEED:  # behind a node that is not marked, SQL has revived the run
            one.had_ended = one.had_ended or one.ran is None or one.ran in marked
    return {
        i: one for i, one in found.items() if one.ran is not None and (one.left or one.outlives_cancel or one.had_ended)
    }
