"""Giving: write what the assigner has placed, in one transaction, with the run numbers and the nodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from rota.shared.domain.nodes import PlannedNode
from rota.shared.store import deadlines, fires, locks, pools, run_numbers
from rota.shared.store.pending import Pending
from rota.shared.store.transitions import giving


class Placed(NamedTuple):
    """An instance with its worker, its nodes that have not succeeded, and the param to pin as JSON (None: its own).

    The params are there only while a portion is written.
    """

    instance: Pending
    worker: int
    nodes: Sequence[PlannedNode]
    keeps: bool
    """Whether it has these nodes from an earlier assignment."""

    param: str | None = None


def write(
    connection: Connection, token: str, got: set[int], placed: Sequence[Placed], *, at_once: bool = False
) -> list[int]:
    """Give those instances that are still pending and that nobody has locked; returns their ids.

    ``got``: the tasks that ``token`` has leased. The instances of others are left out. Raises Unexpected if another
    scheduler takes a lease over meanwhile. ``at_once``: it relies on ``token``'s holding all of the leases, and does
    not ask.
    """
    tasks = got & {p.task_id for p, *_ in placed}
    held = tasks if at_once else locks.kept(connection, token, tasks)
    free = giving.free_pending(connection, [p.id for p, *_ in placed if p.task_id in held])
    mine = [one for one in placed if one.instance.id in free]
    pinned = fires.pinned(connection, list(free))
    anew = [one.instance.id for one in mine if not _agree(pinned, one) and _may_replace(free, one)]
    for instance_id in anew:
        del pinned[instance_id]
    # Since the page was read, another scheduler may have pinned other nodes, or a worker may have handed the instance
    # back without nodes: those are for the next pass to place.
    mine = [one for one in mine if _agree(pinned, one)]
    numbers = run_numbers.last_of(connection, {p.fire for p, *_ in mine if p.run_number is None})
    rows = []
    for p, worker, _, _, param in mine:
        number = p.run_number
        if number is None:
            number = numbers[p.fire] = numbers.get(p.fire, 0) + 1
        rows.append((p.id, worker, number, param))
    # The leases are held since before all this was read. So nobody else has given one of these instances meanwhile:
    # who is pending still was pending all the time, and its nodes are those that were read.
    locks.release(connection, token, held)
    fires.unpin(connection, anew, attempt=0)
    giving.give(connection, rows)
    pools.note(connection, {p.id: pools.Place(p.pool, p.weight) for p, *_ in mine})
    fires.pin_nodes(connection, [(p.id, node) for p, _, nodes, *_ in mine if p.id not in pinned for node in nodes])
    deadlines.note(connection, {p.id: p.run_timeout_seconds for p, *_ in mine if p.run_timeout_seconds})
    return [p.id for p, *_ in mine]


def _may_replace(attempts: Mapping[int, int], one: Placed) -> bool:
    """Whether a list chosen anew replaces the nodes that the instance has.

    What a worker has claimed since the page was read keeps its nodes: a handler of it may have been entered.
    """
    return not one.keeps and attempts[one.instance.id] == 0


def _agree(pinned: Mapping[int, Sequence[PlannedNode]], one: Placed) -> bool:
    """Whether the nodes that were placed are those that the instance has; or it has none, and they were chosen anew."""
    there = pinned.get(one.instance.id, () if one.keeps else one.nodes)
    return [node.type for node in there] == [node.type for node in one.nodes]
