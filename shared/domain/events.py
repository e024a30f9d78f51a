"""What an app's listeners are told: of runs by the worker that runs them, and of all else from the rows.

Events of runs (``RUN_EVENTS``) are told at most once. Events from rows (``ROW_EVENTS``) are certain: each listener is
told at least once, by one of the processes that have loaded it.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.sentences import close_to


class EventName(StrEnum):
    """The events that a listener can be told."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    CANCELED = "canceled"
    MISSED = "missed"
    SKIPPED = "skipped"
    TASK_ADDED = "task_added"
    TASK_CHANGED = "task_changed"
    TASK_REMOVED = "task_removed"
    WORKER_JOINED = "worker_joined"
    WORKER_LEFT = "worker_left"
    WORKER_LOST = "worker_lost"
    SCHEDULER_STARTED = "scheduler_started"
    SCHEDULER_PAUSED = "scheduler_paused"
    SCHEDULER_RESUMED = "scheduler_resumed"


RUN_EVENTS = frozenset(
    {EventName.STARTED, EventName.SUCCEEDED, EventName.FAILED, EventName.RETRIED, EventName.CANCELED}
)
ROW_EVENTS = frozenset(EventName) - RUN_EVENTS


@dataclass(frozen=True, slots=True)
class RunEvent:
    """What became of a run. Times are aware, in UTC.

    @app.on("failed")
    def alert(event: RunEvent) -> None:
        send_mail(f"{event.task_name}: {event.reason}")
    """

    event: str
    at: datetime
    """When it was committed; of ``started``, when it began."""

    instance_id: int
    task_name: str
    schedule_datetime: datetime
    due_at: datetime
    attempt: int
    worker: str
    reason: str | None = None
    """Why it failed, is retried or was canceled."""

    retry_at: datetime | None = None
    """When it runs again, of ``retried``."""

    result_json: str | None = None
    """The result as JSON text, of ``succeeded``."""

    @property
    def result(self) -> Any:
        """The result, of ``succeeded``."""
        return None if self.result_json is None else json.loads(self.result_json)


@dataclass(frozen=True, slots=True)
class FiresEvent:
    """Fires of a task that do not run: ``missed`` or ``skipped``. Times are aware, in UTC.

    A stretch that goes on is told again, with its new end; ``fires`` counts all of it.

    @app.on("missed")
    def alert(event: FiresEvent) -> None:
        send_mail(f"{event.task_name}: {event.fires} fires from {event.first_fire} on were missed")
    """

    event: str
    at: datetime
    """When it was written."""

    task_id: int
    task_name: str | None
    """None: the task's row is gone."""

    reason: str
    """The word in ``schedule_skip.reason``: ``skip``, ``fire_once``, ``window`` or ``cap``; ``edited``, ``by_hand``.
    Of a fire that has an instance, the reason of that."""

    first_fire: datetime
    last_fire: datetime
    fires: int
    instance_id: int | None = None
    """The instance, of a fire that a worker has skipped for another run of its task."""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """A task was added, changed or removed, by the command line, a program or a worker's app. ``at`` is aware, in UTC.

    @app.on("task_changed")
    def tell(event: TaskEvent) -> None:
        print(f"{event.actor} has changed {event.task_name}: {event.old} is now {event.new}")
    """

    event: str
    at: datetime
    task_id: int
    task_name: str
    action: str
    """What was done: ``task.add``, ``task.set``, ``task.on``, ``task.off``, ``task.remove``."""

    actor: str
    face: str
    """By what it was done: ``cli``, or ``code`` (a client, or a worker's app)."""

    why: str | None
    old: Mapping[str, Any]
    """The fields that were changed, as they were; without a large param."""

    new: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker has joined, left as it was asked to, or was lost. ``at`` is aware, in UTC.

    @app.on("worker_lost")
    def page(event: WorkerEvent) -> None:
        call_somebody(f"{event.worker} on {event.host}: {event.reason}")
    """

    event: str
    at: datetime
    worker_id: int
    worker: str | None
    """Its name; None, as ``host`` and all that follows: its row is gone."""

    host: str | None
    pid: int | None
    version: str | None
    reason: str | None = None
    """Why it is dead."""


@dataclass(frozen=True, slots=True)
class SchedulerEvent:
    """A scheduler has started; or somebody has paused all scheduling, or resumed it. ``at`` is aware, in UTC.

    @app.on("scheduler_paused", "scheduler_resumed")
    def tell(event: SchedulerEvent) -> None:
        print(f"{event.event} by {event.actor}: {event.why}")
    """

    event: str
    at: datetime
    actor: str
    """Who did it; of ``scheduler_started``, the scheduler's name."""

    why: str | None = None
    host: str | None = None
    """Of ``scheduler_started``, as ``pid`` and ``version``."""

    pid: int | None = None
    version: str | None = None


RowEvent = FiresEvent | TaskEvent | WorkerEvent | SchedulerEvent
Listener = Callable[[Any], object]
"""It takes a ``RunEvent`` or a ``RowEvent``: which of them follows from the names of its events."""


def checked_events(events: tuple[str, ...]) -> list[EventName]:
    """The names of events. Raises InvalidInput for one that does not exist, and if there are none."""
    for event in events:
        if event not in list(EventName):
            near = close_to(event, EventName) if isinstance(event, str) else ""
            raise InvalidInput(f"there is no event {event!r}{near}; there are: {', '.join(EventName)}")
    if not events:
        raise InvalidInput(f"name the events, as in @app.on('failed'); there are: {', '.join(EventName)}")
    return [EventName(event) for event in events]


def checked_listener(listener: Listener) -> Listener:
    """A listener. Raises InvalidInput for what cannot be called with one event, and for an ``async def``."""
    name = getattr(listener, "__qualname__", repr(listener))
    if not callable(listener):
        raise InvalidInput(f"the listener {listener!r} is not a function")
    if inspect.iscoroutinefunction(listener):
        raise InvalidInput(f"the listener {name} is an async def; write a def, which runs on a thread of its own")
    try:
        inspect.signature(listener).bind(None)
    except TypeError:
        raise InvalidInput(f"the listener {name} must take one argument, the event") from None
    except ValueError:  # a function of C need not say what it takes
        pass
    return listener


NAME_LIMIT = 255


def name_of(listener: Listener) -> str:
    """Under which name it is kept how far a listener has been told: its module and its qualified name.

    Raises InvalidInput for what has none of its own, as a ``functools.partial``, a lambda and a function of a script,
    and for a name of more than 255 characters.

        name_of(jobs.alert)   # "jobs.alert"
    """
    module, qualified = getattr(listener, "__module__", None), getattr(listener, "__qualname__", None)
    if not module or not qualified or module == "__main__" or "<lambda>" in qualified:
        said = "has no name of its own, by which Rota keeps what it has heard"
        raise InvalidInput(f"the listener {listener!r} {said}; write a def in a module")
    if len(name := f"{module}.{qualified}") > NAME_LIMIT:
        raise InvalidInput(f"the name of the listener {name} has {len(name)} characters; {NAME_LIMIT} are the most")
    return name
