"""Which worker an instance is given to: the least loaded of those that can run its nodes and carry its labels."""

import heapq
import random
import threading
from collections.abc import Iterable, Mapping

from shared.domain.errors import InvalidInput
from shared.domain.nodes import PlannedNode
from shared.store.workers import LiveWorker

FULL = "every worker that fits is full"
"""Why an instance waits for room, and not for a worker."""

Needs = tuple[frozenset[str], frozenset[tuple[str, str]]]
"""What an instance needs of a worker: node types it can run, labels it carries."""

Entry = tuple[float, float, float, int]
"""A worker in a heap: the load it is chosen by, the share of its capacity that is taken, chance, its id."""


class Fleet:
    """The live workers as one batch fills them: what it gives counts at once.

    A worker's load is the share of its capacity that is taken, so that a large worker gets more than a small one. It
    may be given more than its capacity, by its prefetch: capacity bounds what runs, not what waits in its queue.

    What is late already where all slots are spoken for is most likely to wait. There the load counts in whole
    capacities: a worker is given as many as it runs at once before the next one is, so that what lies side by side in
    the tables is one worker's, and not many workers' at the same pages (docs/decisions/0013).

    Several threads may fill one fleet.
    """

    def __init__(self, workers: Iterable[LiveWorker]) -> None:
        self._workers = {worker.id: worker for worker in workers}
        self._given = {worker.id: worker.load for worker in self._workers.values()}
        self._heaps: dict[tuple[Needs, bool], list[Entry]] = {}
        self._lock = threading.Lock()

    def choose(self, needs: Needs, avoid: str | None = None, *, late: bool = False) -> int | None:
        """The id of the least loaded worker that fits and has room, and count the instance as given to it.

        ``avoid`` names a worker that is taken only if there is no other; ``late`` says that it is due already. None:
        nobody fits, or all that fit are full.
        """
        with self._lock:
            heap = self._heap(needs, late)
            first = self._least(heap, late)
            if first is None:
                return None
            chosen = first
            if avoid is not None and self._workers[first].name == avoid:
                entry = heapq.heappop(heap)
                chosen = self._least(heap, late) or first
                heapq.heappush(heap, entry)
            self._given[chosen] += 1
            return chosen

    def why_not(self, needs: Needs) -> str:
        """Why ``choose`` found nobody, in a sentence."""
        if not self._workers:
            return "no worker is live"
        types, labels = needs
        able = [worker for worker in self._workers.values() if types <= worker.node_types]
        if not able:
            return f"no live worker can run {', '.join(sorted(types))}"
        if not any(_carries(worker, labels) for worker in able):
            wanted = ", ".join(f"{name}={value}" for name, value in sorted(labels))
            return f"no live worker that can run it carries the labels {wanted}"
        return FULL

    def has_room(self) -> bool:
        """Whether any worker may be given one more."""
        with self._lock:
            return any(self._takes_more(worker) for worker in self._workers.values())

    def _heap(self, needs: Needs, late: bool) -> list[Entry]:
        heap = self._heaps.get((needs, late))
        if heap is None:
            types, labels = needs
            fitting = (w for w in self._workers.values() if types <= w.node_types and _carries(w, labels))
            heap = self._heaps[needs, late] = [self._entry(worker, late) for worker in fitting]
            heapq.heapify(heap)
        return heap

    def _least(self, heap: list[Entry], late: bool) -> int | None:
        """The top of the heap that has room; entries whose load grew since they were pushed are put back right."""
        while heap:
            load, _, _, worker_id = heap[0]
            worker = self._workers[worker_id]
            if not self._takes_more(worker):
                heapq.heappop(heap)
            elif load < self._load(worker, late):
                heapq.heapreplace(heap, self._entry(worker, late))
            else:
                return worker_id
        return None

    def _takes_more(self, worker: LiveWorker) -> bool:
        return self._given[worker.id] < worker.capacity + worker.prefetch

    def _entry(self, worker: LiveWorker, late: bool) -> Entry:
        share = self._given[worker.id] / worker.capacity
        return (self._load(worker, late), share, random.random(), worker.id)  # noqa: S311 - breaks ties

    def _load(self, worker: LiveWorker, late: bool) -> float:
        share = self._given[worker.id] / worker.capacity
        return share // 1 if late and share > 1 else share


def needs_of(nodes: Iterable[PlannedNode], labels: Mapping[str, str]) -> Needs:
    """What of a worker these nodes and labels need.

    Raises InvalidInput for labels that SQL made unusable.
    """
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise InvalidInput(f'required_labels must be a JSON object of strings, like {{"gpu": "a100"}}, not {labels!r}')
    return frozenset(node.type for node in nodes), frozenset(labels.items())


def _carries(worker: LiveWorker, labels: Iterable[tuple[str, str]]) -> bool:
    return all(worker.labels.get(name) == value for name, value in labels)
