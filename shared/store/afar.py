"""Claiming from afar: with a database in another zone, each round trip takes long.

``runs.claim`` takes several round trips, and holds locks over them. Here a worker reads without locks what it wants,
and then sends a whole transaction in one packet. What this cannot decide is left to ``runs.claim``
(docs/decisions/0030-few-round-trips.md).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from rota.shared.database.transactions import Database
from rota.shared.domain.states import OverlapPolicy, WorkerLostPolicy
from rota.shared.store import runs
from rota.shared.store.node_types import NodeTypeNames
from rota.shared.store.overlap import SkipCandidate, Waiting
from rota.shared.store.runs import Claim, Wanted
from rota.shared.store.transitions import claiming


def claim(
    database: Database,
    worker_id: int,
    instance_ids: Collection[int],
    now: datetime,
    types: NodeTypeNames,
    *,
    skip_candidates: Mapping[int, SkipCandidate],
    ahead: timedelta,
) -> tuple[Claim, set[int]]:
    """Claim instances as ``runs.claim`` does; returns also the ids that are left to it.

    Left are the instances that were not won and are due; those that were claimed before or may have to be skipped;
    those for which others of their task wait; and all of them, if somebody has locked one.
    """
    ids = sorted(instance_ids)
    wanted, time = database.read(lambda c: runs.read_wanted(c, worker_id, ids, types, lock=False))
    latest = now.max if time is None else time + ahead
    assigned = [row for row in wanted if row.terms.status == runs.ASSIGNED]
    mine = [row for row in assigned if row.due_at <= latest and row.id not in skip_candidates]
    held_up = [row for row in mine if row.holder_id is not None and row.overlap_policy == OverlapPolicy.SKIP]
    plain = _plain([row for row in mine if row.holder_id is None or row.overlap_policy != OverlapPolicy.SKIP])
    waiting = [Waiting(row.id, row.due_at) for row in assigned if row.due_at > latest]
    waiting += [Waiting(row.id, row.due_at, row.holder_id if row.due_at <= now else None) for row in held_up]
    left = set(ids) - {row.id for row in plain} - {one.id for one in waiting}
    won = _win(database, worker_id, plain)
    if won is None:
        return Claim([], waiting, time), left | {row.id for row in plain}
    not_won = [row for row in plain if row.id not in won]
    waiting += [Waiting(row.id, row.due_at) for row in not_won if row.due_at > now]
    left |= {row.id for row in not_won if row.due_at <= now}
    return Claim([row.run() for row in plain if row.id in won], waiting, time), left


def _win(database: Database, worker_id: int, plain: Sequence[Wanted]) -> set[int] | None:
    """Claim these in one packet; returns the ids of those that the worker won. None: somebody has locked one."""
    if not plain:
        return set()
    slots = [(row.id, None if row.overlap_policy == OverlapPolicy.ALLOW else 0) for row in plain]
    nodes: tuple[list[int], list[int]] = [], []
    for row in plain:
        nodes[row.terms.on_worker_lost == WorkerLostPolicy.FAIL].append(row.first_node or 0)
    counts = database.write_undisturbed(lambda c: claiming.claim_at_once(c, worker_id, slots, *nodes))
    if counts is None:
        return None
    ids = {row.id for row in plain}
    if sum(count.rows for count in counts) == len(ids):
        return ids
    return database.read(lambda c: claiming.won(c, worker_id, ids))


def _plain(rows: Sequence[Wanted]) -> list[Wanted]:
    """Those of the rows that only their task's one slot, or nothing, could stand in the way of: one of each task.

    They have not been claimed before, and have nodes.
    """
    tasks: set[int] = set()
    plain = []
    for row in rows:
        is_free = row.overlap_policy == OverlapPolicy.ALLOW and row.max_instances is None
        is_single = row.overlap_policy == OverlapPolicy.SKIP and row.schedule_task_id not in tasks
        if row.attempt == 0 and row.first_node is not None and row.may_run and (is_free or is_single):
            plain.append(row)
            tasks.add(row.schedule_task_id)
    return plain
