"""The interface of the executors: start a call, report its end, and stop it as far as possible."""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rota.shared.domain.errors import DetailedError, InvalidInput, InvalidParam
from rota.shared.domain.jsontext import storable
from rota.shared.domain.retry import names_of
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.values import checked_param
from rota.worker_service.verdicts import Fail, Retry

ERROR_CHARACTERS = 8_000
TRACEBACK_CHARACTERS = 30_000
"""How much of an exception is kept: the beginning of its sentence, and the end of its traceback."""


class Refused(Exception):
    """A handler's param or result is not valid. Another attempt would fail alike, so it is not retried."""

    def __init__(self, cause: InvalidInput) -> None:
        super().__init__(str(cause))
        self.kind = type(cause).__name__


class NoThread(Exception):
    """The machine refuses a thread (a limit of processes or of memory). The call was not begun, and never will be."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises NoThread."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise NoThread(str(error)) from None


@dataclass(slots=True, eq=False)
class Call:
    """A node to execute. The context's param is still JSON, unchecked."""

    node: Node
    context: NodeContext[Any]
    pool: str | None = None
    """The pool in whose threads a function runs; None: in the worker's own."""

    def checked(self) -> NodeContext[Any]:
        """The context for the handler, with its param as the declared model.

        Call it where the handler runs: a model's validators are the task author's code, and may block or exit. Raises
        Refused, and whatever the validators raise.
        """
        if self.node.param_model is None:
            return self.context
        try:
            return replace(self.context, param=checked_param(self.node.type, self.node.param_model, self.context.param))
        except InvalidParam as error:
            raise Refused(error) from None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a handler raised: its sentence, its type, its traceback."""

    error: str
    type: str
    traceback: str
    final: bool = False
    """Whether it is not retried: another attempt would fail alike, or the handler gives up."""

    kinds: Sequence[str] = ()
    """The names of the exception (``names_of``), by which it may be chosen. Empty: it is retried whatever it is."""

    retry_in: float | None = None
    """After how many seconds the handler asks for a retry; None: after the delay of its task."""

    details: dict[str, Any] = field(default_factory=dict)
    """What else is kept of it (``DetailedError``)."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure for an exception."""
        if isinstance(error, Refused):
            return cls(storable(str(error))[:ERROR_CHARACTERS], error.kind, "", final=True)
        return cls(
            error=storable(f"{type(error).__name__}: {_message(error)}")[:ERROR_CHARACTERS],
            type=type(error).__name__,
            traceback=storable("".join(traceback.format_exception(error)))[-TRACEBACK_CHARACTERS:],
            final=isinstance(error, Fail),
            kinds=() if isinstance(error, Retry) else names_of(type(error)),
            retry_in=error.in_seconds if isinstance(error, Retry) else None,
            details=_details(error),
        )


def _details(error: BaseException) -> dict[str, Any]:
    """What else is kept: of the error, or of that from which it was raised, such as the cancellation of a command."""
    found = next((one for one in (error, error.__cause__) if isinstance(one, DetailedError)), None)
    return {} if found is None else found.details


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception class is the handler's; its failure must be reported
        return "its message cannot be shown"


@dataclass(slots=True, eq=False)
class Outcome:
    """How a call ended. ``entered`` and ``left``: the timer's ``monotonic`` when the handler was entered and left.

    ``entered`` is None if the handler was not entered.
    """

    entered: float | None
    left: float
    result: Any = None
    failure: Failure | None = None
    stopped: bool = False
    """Whether the call ended because it was stopped. Of ``failure``, then only the details mean something."""

    finished: bool = False
    """Whether the call was stopped, and its handler finished all the same: it returned, and did not know of the stop.
    Then ``result`` is its result."""

    lingers: bool = False
    """Whether the handler still runs, though the call was stopped: its thread has not returned."""

    place: str | None = None
    """Where the handler stood when it was stopped, if its process has said so (``Running.standing``)."""


Done = Callable[[Outcome], None]


class Running(Protocol):
    """A call that was started."""

    @property
    def entered(self) -> float | None:
        """When the handler was entered, in seconds of the timer's ``monotonic``. None: it was not, so far."""
        ...

    def stop(self, *, asks: bool = False) -> None:
        """Ask the handler to end; it may tidy up. ``done`` is called with ``stopped`` when it has ended.

        A thread cannot be stopped: ``done`` is then called with ``lingers`` at once, and again when it has returned.
        ``asks``: a process is asked first where its handler stands; its outcome then has the ``place``.
        """
        ...

    def kill(self) -> None:
        """End the call that was stopped, since its grace is over: kill its processes, cancel its coroutine again.

        For a thread nothing can be done.
        """
        ...

    def standing(self) -> str | None:
        """The line of its own code in which the handler is now: ``/app/jobs.py:42 in fetch``. None: not known."""
        ...


class Executor(Protocol):
    """Runs calls. ``done`` is called on any thread, once for each call; or twice, the first time with ``lingers``."""

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        """Start a call; returns at once. With ``later``, the call may wait for ``begin``. Raises NoThread."""
        ...

    def begin(self) -> None:
        """Begin the calls that were started with ``later``."""
        ...

    def close(self) -> None:
        """Stop all calls and free all resources. Does not wait for threads: they cannot be stopped."""
        ...
