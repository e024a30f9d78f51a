"""Parting a page of what is pending: what nobody wants any more, and what runs otherwise than on any worker."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from rota.scheduler_service.fitting import has_worker
from rota.scheduler_service.fleet import FleetSnapshot
from rota.scheduler_service.placing import why_never
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.waiting import superseded
from rota.shared.store import overlap, spreading, workers
from rota.shared.store.pending import Pending


def is_new(one: Pending, pinned: Collection[int]) -> bool:
    """Whether it is a fire that no worker has had: one whose nodes are pinned had a worker and lost it."""
    return one.is_planned and one.attempt == 0 and one.id not in pinned


def unwanted_of(
    page: Sequence[Pending], parents: Collection[int], pinned: Collection[int], now: datetime
) -> dict[int, str]:
    """The fires that wait for a worker and that nobody wants any more, each with the reason.

    ``parents``, which are to be spread, may wait for their overlap slots instead: the spreader decides about these.
    """
    due = [p for p in page if p.is_planned and p.due_at <= now]
    off = {p.id: overlap.OFF for p in due if p.task_status == TaskStatus.OFF}
    for_a_worker = (p for p in due if p.id not in off and p.slots is None and p.id not in parents)
    return superseded((p.waiting_fire for p in for_a_worker if is_new(p, pinned)), now) | off


def to_spread(
    page: Iterable[Pending], snapshot: FleetSnapshot, bound: Mapping[int, Sequence[PlannedNode]]
) -> dict[int, Pending]:
    """Those that run as their shards, and on no worker, by id. Of what no live worker can run, none does yet."""
    return {
        p.id: p
        for p in page
        if p.is_to_spread and why_never(p) is None and (p.has_shards or has_worker(p, snapshot, bound.get(p.id)))
    }


def stranded(connection: Connection, page: Iterable[Pending]) -> tuple[dict[int, str], dict[int, str]]:
    """The shards that nobody runs any more, and those that nobody runs yet, each with the reason.

    The parent has ended or the only worker is gone; or SQL has put the parent back, and it waits for its slot.
    """
    shards = {p.id: p for p in page if p.parent_id is not None}
    if not shards:
        return {}, {}
    lost, early = spreading.stranded(connection, {number: p.parent_id or 0 for number, p in shards.items()})
    only = {p.only_worker_id for p in shards.values() if p.only_worker_id is not None}
    gone = workers.not_live(connection, only) if only else {}
    for number, shard in shards.items():
        if shard.only_worker_id in gone and number not in lost and number not in early:
            lost[number] = f"it was for worker {gone[shard.only_worker_id]}"
    return lost, early
