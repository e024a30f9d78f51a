"""The board: memory that a worker and its guardian share. Each writes its own fields, and neither waits for the other.

The worker says that it goes on, how much it runs, and which runs its handlers are in. The guardian says until when the
worker's lease lasts, and how often somebody asked the worker to stop. A field is eight bytes, which the processor
writes as one. So a worker that holds Python's lock for a minute can still be read.
"""

import mmap
import threading
from collections import deque
from dataclasses import replace
from functools import wraps
from typing import Any

from rota.shared.store.workers import Load
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext

FIELD_BYTES = 8
_WORKER, _BUSY, _ABANDONED, _STARTED, _STOPS, _ANSWERED, _EXPIRES, _REGISTERING, _CELLS = range(9)


class Board:
    """Make it before the fork: both processes then see the same memory. ``handlers``: how many runs it has room for."""

    def __init__(self, handlers: int) -> None:
        memory = memoryview(mmap.mmap(-1, (_CELLS + 2 * handlers) * FIELD_BYTES))
        self._numbers = memory.cast("q")
        self._moments = memory.cast("d")
        self._free = deque(range(_CELLS, _CELLS + 2 * handlers, 2))

    # The worker's fields

    @property
    def registering(self) -> bool:
        """Whether the worker may have a row, though it has not told yet which."""
        return bool(self._numbers[_REGISTERING])

    @registering.setter
    def registering(self, registering: bool) -> None:
        self._numbers[_REGISTERING] = registering

    @property
    def worker_id(self) -> int:
        """The id of the worker's row. 0: it has not told yet."""
        return self._numbers[_WORKER]

    @worker_id.setter
    def worker_id(self, worker_id: int) -> None:
        self._numbers[_WORKER] = worker_id

    @property
    def load(self) -> Load:
        """What the worker says of itself at each heartbeat."""
        return Load(self._numbers[_BUSY], self._numbers[_ABANDONED], self._numbers[_STARTED])

    @load.setter
    def load(self, load: Load) -> None:
        self._numbers[_BUSY], self._numbers[_ABANDONED], self._numbers[_STARTED] = load

    @property
    def answered(self) -> float:
        """When the worker last said that it goes on, in seconds of CLOCK_BOOTTIME, which both processes read alike."""
        return self._moments[_ANSWERED]

    @answered.setter
    def answered(self, moment: float) -> None:
        self._moments[_ANSWERED] = moment

    # The guardian's fields

    @property
    def expires(self) -> float:
        """When the worker's lease ends, in seconds of CLOCK_BOOTTIME."""
        return self._moments[_EXPIRES]

    @expires.setter
    def expires(self, moment: float) -> None:
        self._moments[_EXPIRES] = moment

    @property
    def stops(self) -> int:
        """How many signals asked the guardian to stop the worker."""
        return self._numbers[_STOPS]

    @stops.setter
    def stops(self, stops: int) -> None:
        self._numbers[_STOPS] = stops

    # The runs whose handlers are entered

    def entered(self) -> list[tuple[int, int]]:
        """The runs in whose handlers the worker is: (instance id, id of the thread)."""
        cells = self._numbers[_CELLS:].tolist()
        return [(instance, thread) for instance, thread in zip(cells[::2], cells[1::2], strict=True) if instance]

    def watched(self, node: Node) -> Node:
        """The node, with a handler that notes here that it is entered and left. A child process holds up nobody."""
        handler: Any = node.handler

        @wraps(handler)
        async def coroutine(ctx: NodeContext[Any]) -> Any:
            cell = self._enter(ctx.instance_id)
            try:
                return await handler(ctx)
            finally:
                self._leave(cell)

        @wraps(handler)
        def function(ctx: NodeContext[Any]) -> Any:
            cell = self._enter(ctx.instance_id)
            try:
                return handler(ctx)
            finally:
                self._leave(cell)

        match node.execution:
            case "async":
                return replace(node, handler=coroutine)
            case "thread":
                return replace(node, handler=function)
            case _:
                return node

    def _enter(self, instance_id: int) -> int | None:
        try:
            cell = self._free.popleft()
        except IndexError:  # more handlers are left behind by stopped runs than there is room for
            return None
        self._numbers[cell + 1] = threading.current_thread().native_id or 0  # without a system call
        self._numbers[cell] = instance_id
        return cell

    def _leave(self, cell: int | None) -> None:
        if cell is not None:
            self._numbers[cell] = 0
            self._free.append(cell)
