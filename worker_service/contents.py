"""What an app holds: nodes, the task types that they belong to, tasks, limits and pools."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel

from rota.shared.domain.errors import NameTaken
from rota.shared.domain.events import (
    ROW_EVENTS,
    FiresEvent,
    Listener,
    RunEvent,
    SchedulerEvent,
    TaskEvent,
    WorkerEvent,
    checked_events,
    checked_listener,
    name_of,
)
from rota.shared.domain.node_order import After
from rota.shared.domain.task import TaskDefinition
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.worker_service.context import NodeContext
from rota.worker_service.limits import Limits
from rota.worker_service.param_schema import schema_of
from rota.worker_service.pools import Pools
from rota.worker_service.signatures import Execution
from rota.worker_service.sources import FileState

Result = Any
Handler = Callable[[NodeContext[Any]], Result | Awaitable[Result]]
ParamModel = type[BaseModel]
L = TypeVar("L", bound=Listener)
OfRuns = TypeVar("OfRuns", bound=Callable[[RunEvent], object])
OfFires = TypeVar("OfFires", bound=Callable[[FiresEvent], object])
OfTasks = TypeVar("OfTasks", bound=Callable[[TaskEvent], object])
OfWorkers = TypeVar("OfWorkers", bound=Callable[[WorkerEvent], object])
OfSchedulers = TypeVar("OfSchedulers", bound=Callable[[SchedulerEvent], object])


@dataclass(frozen=True, slots=True)
class Node:
    """A node type with its handler."""

    type: str
    category: str
    sequence: int
    handler: Handler
    execution: Execution
    timeout: float | None = None
    retries: int | None = None
    param_model: ParamModel | None = None
    retry: Mapping[str, Any] = field(default_factory=dict)
    """How it is retried, where its task does not say so: fields of ``RetryPolicy``."""

    always: bool = False
    """Whether it runs also after a node before it has ended the run."""

    after: After = None
    """The types of the nodes for which it waits; None: all before it."""

    @property
    def own_retry(self) -> dict[str, Any]:
        """The fields of ``RetryPolicy`` in which it goes before its task."""
        return {**self.retry, **({} if self.retries is None else {"retries": self.retries})}

    def declaration(self) -> NodeTypeDeclaration:
        """The node type as it is registered in the database: never a path to code.

        Raises InvalidInput for a model that JSON cannot describe.
        """
        always, after = self.always or None, None if self.after is None else list(self.after)
        declared = {"execution": self.execution, "timeout": self.timeout, "always": always, "after": after}
        defaults = {**declared, **self.own_retry}
        return NodeTypeDeclaration(
            type=self.type,
            category=self.category,
            sequence=self.sequence,
            defaults={name: value for name, value in defaults.items() if value is not None},
            param_schema=None if self.param_model is None else schema_of(self.type, self.param_model),
        )


class Contents(Limits, Pools):
    """The part of an app that holds what is declared."""

    def __init__(self) -> None:
        super().__init__()
        self.target: str | None = None
        """Where the app was loaded from, as ``module:app``. The worker's fork server loads it from there, too."""

        self.sources: dict[str, FileState] = {}
        """The files that its import read, each in the state in which it was read."""

        self._nodes: dict[str, Node] = {}
        self._types: dict[str, Any] = {}
        self._schedules: dict[str, TaskDefinition] = {}
        self._listeners: dict[str, list[Listener]] = {}

    @property
    def listeners(self) -> Mapping[str, Sequence[Listener]]:
        """The functions that are told what happens, by the events."""
        return self._listeners

    @overload
    def on(
        self, *events: Literal["started", "succeeded", "failed", "retried", "canceled"]
    ) -> Callable[[OfRuns], OfRuns]: ...

    @overload
    def on(self, *events: Literal["missed", "skipped"]) -> Callable[[OfFires], OfFires]: ...

    @overload
    def on(self, *events: Literal["task_added", "task_changed", "task_removed"]) -> Callable[[OfTasks], OfTasks]: ...

    @overload
    def on(
        self, *events: Literal["worker_joined", "worker_left", "worker_lost"]
    ) -> Callable[[OfWorkers], OfWorkers]: ...

    @overload
    def on(
        self, *events: Literal["scheduler_started", "scheduler_paused", "scheduler_resumed"]
    ) -> Callable[[OfSchedulers], OfSchedulers]: ...

    @overload
    def on(self, *events: str) -> Callable[[L], L]: ...

    def on(self, *events: str) -> Callable[[L], L]:
        """Call the function at these events, on another thread: it can break nothing that it listens to.

        When a run has ``started``, ``succeeded``, ``failed``, been ``retried`` or ``canceled``, its worker makes the
        call, with a ``RunEvent``, after the commit. Each of these is told at most once.

        What the rows say is certain (``missed``, ``task_changed``, ``worker_lost`` and so on, docs/authoring.md): one
        of the processes that have loaded the app tells it at least once, with a ``FiresEvent``, ``TaskEvent``,
        ``WorkerEvent`` or ``SchedulerEvent``.

        Raises InvalidInput for an event that does not exist, an ``async def``, and what takes no event.

            @app.on("failed", "canceled")
            def alert(event: RunEvent) -> None: ...
        """
        named = checked_events(events)

        def decorate(listener: L) -> L:
            checked_listener(listener)
            if ROW_EVENTS.intersection(named):
                name_of(listener)
            for event in dict.fromkeys(named):
                self._listeners.setdefault(event.value, []).append(listener)
            return listener

        return decorate

    @property
    def kinds(self) -> dict[str, dict[str, Any]]:
        """All that it holds: by the word for it, and then by its name."""
        return {
            "node type": self._nodes, "task type": self._types, "task": self._schedules, "limit": self._limits,
        }  # fmt: skip

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes, by their types."""
        return self._nodes

    @property
    def types_without_nodes(self) -> list[str]:
        """The task types that no node was declared of: their tasks could not run, unless each lists its nodes."""
        bare = self._types.keys() - {node.category for node in self._nodes.values()}
        lists = {task.type for task in self.schedules if "nodes" in (task.param or {})}
        needing = {task.type for task in self.schedules if "nodes" not in (task.param or {})}
        return sorted(bare - (lists - needing))

    @property
    def schedules(self) -> list[TaskDefinition]:
        """The tasks that the code declares."""
        return list(self._schedules.values())

    def add(self, node: Node) -> None:
        """Register a node.

        Raises NameTaken when its type is declared already.
        """
        if node.type in self._nodes:
            raise NameTaken(f"node type {node.type} is declared twice in this app")
        self._nodes[node.type] = node

    def surround(self, around: Callable[[Handler], Handler]) -> None:
        """Let each node and each listener that is declared so far be what ``around`` makes of it.

        app.surround(timed)
        """
        for name, node in self._nodes.items():
            self._nodes[name] = replace(node, handler=around(node.handler))
        for event, heard_by in self._listeners.items():
            self._listeners[event] = [_as_named(around(listener), listener) for listener in heard_by]

    def include(self, other: "Contents") -> None:
        """Add everything that another app has declared so far; what it has added before is there once.

        Raises NameTaken for a node type, a task type, a task or a limit that both declare.

            app.include(billing.app)
        """
        for what, own in self.kinds.items():
            more = other.kinds[what]
            if both := sorted(name for name in own.keys() & more.keys() if own[name] is not more[name]):
                raise NameTaken(f"{what} {both[0]!r} is declared by two apps")
        for what, own in self.kinds.items():
            own.update(other.kinds[what])
        for event, listeners in other.listeners.items():
            known = self._listeners.setdefault(event, [])
            known += [one for one in listeners if one not in known]


def _as_named(made: Any, listener: Listener) -> Any:
    """What was made of a listener, under the name by which Rota keeps what that has heard."""
    return made if made is listener else update_wrapper(made, listener)
