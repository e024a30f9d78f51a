"""What every executor does: start a call, tell when it is through, and stop it as far as that is possible."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shared.domain.errors import InvalidInput, InvalidParam
from shared.domain.jsontext import storable
from worker_service.authoring import Node
from worker_service.context import NodeContext
from worker_service.values import checked_param


class Refused(Exception):
    """What a handler was to be given, or returned, cannot be used, and could not be the next time."""

    def __init__(self, cause: InvalidInput) -> None:
        super().__init__(str(cause))
        self.kind = type(cause).__name__


@dataclass(slots=True, eq=False)
class Call:
    """A node to execute; the context's param is as it was given, JSON."""

    node: Node
    context: NodeContext[Any]

    def checked(self) -> NodeContext[Any]:
        """The context as the handler is given it, with its param as the declared model.

        A model's validators are the task author's code, which may block or exit: call it where the handler runs.
        Raises Refused, and whatever they raise.
        """
        if self.node.param_model is None:
            return self.context
        try:
            return replace(self.context, param=checked_param(self.node.type, self.node.param_model, self.context.param))
        except InvalidParam as error:
            raise Refused(error) from None


@dataclass(frozen=True, slots=True)
class Failure:
    """What a handler raised: the sentence, its type, its traceback."""

    error: str
    type: str
    traceback: str
    final: bool = False
    """Whether it would be the same the next time."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an exception is."""
        if isinstance(error, Refused):
            return cls(storable(str(error)), error.kind, "", final=True)
        return cls(
            error=storable(f"{type(error).__name__}: {_message(error)}"),
            type=type(error).__name__,
            traceback=storable("".join(traceback.format_exception(error))),
        )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a handler's own exception class; its failure must be told all the same
        return "its message cannot be shown"


@dataclass(slots=True, eq=False)
class Outcome:
    """How a call ended; ``entered`` and ``left`` are CLOCK_BOOTTIME seconds at the handler's entry and end."""

    entered: float
    left: float
    result: Any = None
    failure: Failure | None = None
    stopped: bool = False
    """Whether it ended because it was told to stop; then ``result`` and ``failure`` say nothing."""


Done = Callable[[Outcome], None]


class Running(Protocol):
    """A call that was started."""

    def stop(self) -> None:
        """Stop it as far as possible: ``done`` is called with ``stopped``, at once or when it has ended."""
        ...


class Executor(Protocol):
    """Runs calls. ``done`` is called exactly once for each, from whatever thread."""

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        """Start a call; returns at once. ``later``: it may wait for ``begin``."""
        ...

    def begin(self) -> None:
        """Begin what was to start later."""
        ...

    def close(self) -> None:
        """Stop all and free what it holds; does not wait for threads, which cannot be stopped."""
        ...
