"""Placement: an instance goes to the least-loaded live worker that can run its nodes and carries its labels."""

import heapq
import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from rota.scheduler_service.floods import KEPT, Floods, without_kept
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.groups import Group
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.store.loads import LiveWorker
from rota.shared.store.node_types import Version

NO_LISTS: Mapping[Version, Sequence[PlannedNode]] = MappingProxyType({})

FULL = "every worker that fits is full"
"""Why an instance waits for room, and not for a worker."""

NOBODY = "no worker is live"
"""Why every instance waits, whatever it needs."""


class Needs(NamedTuple):
    """What an instance needs of a worker: node types that it can run, or a task type in any version; labels; slots."""

    node_types: frozenset[str]
    labels: frozenset[tuple[str, str]]
    task_type: str | None = None
    weight: int = 1
    """How many slots it takes. A worker with fewer cannot run it; one whose slots are not all taken may be given it."""


class Turn(NamedTuple):
    """The turn of an instance whose task runs one at a time."""

    after: int | None
    """The worker that has the turn before, and is to have this one, too."""

    is_far: bool
    """Whether it waits behind many: then it leaves room for others, and its worker counts as no more loaded."""


class Demand(NamedTuple):
    """What decides how much room an instance may take, and which worker is least loaded for it."""

    late: bool
    can_wait: bool
    floods: bool


Entry = tuple[float, float, float, int]
"""A worker in a heap: the load it is chosen by, the share of its capacity that is taken, chance, its id."""


class Fleet:
    """The live workers, with their loads. What a duty gives to a worker counts at once.

    A worker's load is the share of its capacity that is taken, by what its rows say or by what it said, whichever is
    more. So a large worker gets more than a small one, and one with abandoned threads gets little, or nothing. A
    worker may be given more than its capacity, by its prefetch: capacity bounds what runs, not what waits in its queue.

    A late instance most likely waits where all slots are taken. For late instances the load therefore counts in whole
    capacities: one worker is given as many as it runs at once, then the next worker is. So neighbouring rows belong to
    one worker, and workers do not lock the same pages (docs/decisions/0013-fleets-on-few-cores.md).

    What can wait (``CATCH_UP_PRIORITY``) gets at most half of a worker's room. So what is due now always finds room,
    and the worker runs it first. A group that floods leaves a tenth of it (``Floods``).

    ``lists`` holds the nodes of each version of a task type that a worker carries. A version that is not among them is
    as if the worker did not carry the task type.

    Several threads may use one fleet.
    """

    def __init__(
        self,
        workers: Iterable[LiveWorker],
        lists: Mapping[Version, Sequence[PlannedNode]] = NO_LISTS,
        *,
        pool: str | None = None,
        floods: Floods,
    ) -> None:
        """``pool``: the workers are pools of this name, each as if it were a worker of its own."""
        self._pool = pool
        self._workers = {worker.id: worker for worker in workers}
        self._lists = lists
        self._given = {worker.id: worker.load for worker in self._workers.values()}
        self._aside = {worker.id: worker.aside for worker in self._workers.values()}
        self._more: Counter[int] = Counter()
        """How many slots those take beyond one for each that were given to a worker since."""

        self._heaps: dict[tuple[Needs, Demand], list[Entry]] = {}
        self.floods = floods
        self._given_of: Counter[Group] = Counter()
        self._much = KEPT * sum(worker.room for worker in self._workers.values())
        self._whys: dict[Needs, str] = {}
        self._lock = threading.Lock()
        self.listens = any(worker.wake_address is not None for worker in self._workers.values())
        """Whether any worker listens for wake-ups."""

    def choose(
        self,
        needs: Needs,
        avoid: str | None = None,
        *,
        late: bool = False,
        can_wait: bool = False,
        turn: Turn | None = None,
        group: Group = None,
    ) -> int | None:
        """Choose the least-loaded worker that fits and has room, and count the instance as given to it.

        ``avoid`` names a worker that is chosen only if there is no other; ``late``: the instance is due already;
        ``can_wait``: it leaves room for others; ``turn``: it waits for others of its task;
        ``group``: its group, or None for one that floods nothing. Returns the worker's id, or None where no worker fits
        or all that fit are full.
        """
        with self._lock:
            if group is not None:
                self.floods.see(group)
            demand = Demand(late, can_wait or (turn is not None and turn.is_far), self.floods.hold_back(group))
            if turn is not None and self._may_go_on(turn.after, needs, avoid):
                if self._takes_more(self._workers[turn.after], demand):
                    return self._give(turn.after, needs, turn, group)
                if turn.is_far:
                    return None
            heap = self._heap(needs, demand)
            first = self._least(heap, demand)
            if first is None:
                return None
            chosen = first
            if avoid is not None and self._workers[first].name == avoid:
                entry = heapq.heappop(heap)
                chosen = self._least(heap, demand) or first
                heapq.heappush(heap, entry)
            return self._give(chosen, needs, turn, group)

    @property
    def is_empty(self) -> bool:
        """Whether it has no worker."""
        return not self._workers

    def fitting(self, needs: Needs) -> list[int]:
        """The workers that fit, full or not."""
        return [worker.id for worker in self._workers.values() if self._fits(worker, needs)]

    def give_to(self, worker_id: int, needs: Needs) -> int | None:
        """Count an instance as given to the only worker that may run it, full or not; None if it does not fit."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or not self._can_run(worker, needs) or not _is_large(worker, needs):
                return None
            return self._give(worker_id, needs, None, None)

    def _may_go_on(self, worker_id: int | None, needs: Needs, avoid: str | None) -> TypeGuard[int]:
        """Whether the worker that has the turn before may have this one, too, if it has room."""
        worker = self._workers.get(worker_id or 0)
        if worker is None or worker.name == avoid:
            return False
        return worker.capacity > 0 and self._fits(worker, needs)

    def _give(self, worker_id: int, needs: Needs, turn: Turn | None, group: Group) -> int:
        self._given[worker_id] += needs.weight
        self._more[worker_id] += needs.weight - 1
        self._given_of[group] += needs.weight
        if group is not None and self._given_of[group] >= self._much:
            self.floods.note(group)
        if turn is not None and turn.is_far:
            self._aside[worker_id] += needs.weight
        return worker_id

    def nodes_of(self, worker_id: int, task_type: str) -> Sequence[PlannedNode]:
        """The nodes of a task type that this worker carries, in the version that it carries."""
        return self._lists[task_type, self._workers[worker_id].versions[task_type]]

    def wake_addresses(self, worker_ids: Iterable[int], *, also_full: bool = False) -> list[object]:
        """Where those of these workers listen for wake-ups that have free slots: the others begin nothing at once.

        ``also_full``: also the others, because a slot may have become free since the snapshot.
        """
        found = [one for worker_id in worker_ids if (one := self._workers.get(worker_id)) is not None]
        return [one.wake_address for one in found if one.wake_address is not None and (also_full or one.runs_more)]

    def why_not(self, needs: Needs) -> str:
        """Why ``choose`` found nobody, in a sentence that a row can hold. While a worker fits, that is ``FULL``."""
        said = self._whys.get(needs)
        if said is None:
            said = self._whys[needs] = self._why_not(needs)[:REASON_LIMIT]
        return said

    def _why_not(self, needs: Needs) -> str:
        has_pool = "" if self._pool is None else f"has the pool {self._pool!r}"
        if not self._workers:
            return f"no live worker {has_pool}" if has_pool else NOBODY
        able = [worker for worker in self._workers.values() if self._can_run(worker, needs)]
        if not able:
            that = f" that {has_pool}" if has_pool else ""
            return f"no live worker{that} can run {needs.task_type or ', '.join(sorted(needs.node_types))}"
        if not any(_carries(worker, needs.labels) for worker in able):
            wanted = ", ".join(f"{name}={value}" for name, value in sorted(needs.labels))
            that = f" and {has_pool}" if has_pool else ""
            return f"no live worker that can run it{that} carries the labels {wanted}"
        if not any(self._fits(worker, needs) for worker in able):
            what = "slots" if self._pool is None else f"threads in the pool {self._pool!r}"
            return f"no live worker that can run it has {needs.weight} {what}"
        return FULL

    def load_of(self, worker_id: int) -> int | None:
        """How many slots a worker's instances take, with what was given to it since; None for one that is not here."""
        with self._lock:
            return self._given.get(worker_id)

    def more_given(self, worker_id: int) -> int:
        """How many slots those take beyond one for each that were given to a worker since it was read."""
        return self._more[worker_id]

    def has_room(self, *, can_wait: bool = False, floods: bool = False) -> bool:
        """Whether any worker may be given one more; with ``can_wait`` or ``floods`` one that leaves room for others."""
        demand = Demand(late=False, can_wait=can_wait, floods=floods and self.floods.keep_room)
        with self._lock:
            return any(self._takes_more(worker, demand) for worker in self._workers.values())

    def _heap(self, needs: Needs, demand: Demand) -> list[Entry]:
        heap = self._heaps.get((needs, demand))
        if heap is None:
            fitting = (w for w in self._workers.values() if w.capacity > 0 and self._fits(w, needs))
            heap = self._heaps[needs, demand] = [self._entry(worker, demand.late) for worker in fitting]
            heapq.heapify(heap)
        return heap

    def _least(self, heap: list[Entry], demand: Demand) -> int | None:
        """The worker at the top of the heap that has room. Entries whose load has grown since are sorted in again."""
        while heap:
            load, _, _, worker_id = heap[0]
            worker = self._workers[worker_id]
            if not self._takes_more(worker, demand):
                heapq.heappop(heap)
            elif load < self._load(worker, demand.late):
                heapq.heapreplace(heap, self._entry(worker, demand.late))
            else:
                return worker_id
        return None

    def _fits(self, worker: LiveWorker, needs: Needs) -> bool:
        return self._can_run(worker, needs) and _carries(worker, needs.labels) and _is_large(worker, needs)

    def _can_run(self, worker: LiveWorker, needs: Needs) -> bool:
        if needs.task_type is None:
            return needs.node_types <= worker.node_types
        nodes = self._lists.get((needs.task_type, worker.versions.get(needs.task_type, "")))
        return nodes is not None and all(node.type in worker.node_types for node in nodes)

    def _takes_more(self, worker: LiveWorker, demand: Demand) -> bool:
        room = without_kept(worker.room) if demand.floods else worker.room
        if demand.can_wait:
            room = min(room, (worker.room + 1) // 2)
        return worker.capacity > 0 and self._given[worker.id] < room

    def _entry(self, worker: LiveWorker, late: bool) -> Entry:
        share = (self._given[worker.id] - self._aside[worker.id]) / worker.capacity
        return (self._load(worker, late), share, random.random(), worker.id)  # noqa: S311 - breaks ties

    def _load(self, worker: LiveWorker, late: bool) -> float:
        share = max(self._given[worker.id] - self._aside[worker.id], worker.said) / worker.capacity
        return share // 1 if late and share > 1 else share


def needs_of(
    nodes: Iterable[PlannedNode], labels: Mapping[str, str], task_type: str | None = None, weight: int = 1
) -> Needs:
    """What these nodes and labels need of a worker, or this task type in whatever version the worker carries.

    Raises InvalidInput for labels that SQL made unusable.
    """
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise InvalidInput(f'required_labels must be a JSON object of strings, like {{"gpu": "a100"}}, not {labels!r}')
    return Needs(frozenset(node.type for node in nodes), frozenset(labels.items()), task_type, weight)


def _is_large(worker: LiveWorker, needs: Needs) -> bool:
    """Whether it has so many slots. What takes one is left to it also while abandoned threads take all of them."""
    return needs.weight <= max(worker.capacity, 1)


def _carries(worker: LiveWorker, labels: Iterable[tuple[str, str]]) -> bool:
    return all(worker.labels.get(name) == value for name, value in labels)
