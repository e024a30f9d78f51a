"""What every executor does: start a call, tell when it is through, and stop it as far as that is possible."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shared.domain.jsontext import storable
from worker_service.authoring import Node
from worker_service.context import NodeContext


@dataclass(frozen=True, slots=True)
class Call:
    """A node to execute."""

    node: Node
    context: NodeContext[Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """What a handler raised: the sentence, its type, its traceback."""

    error: str
    type: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an exception is."""
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


@dataclass(frozen=True, slots=True)
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

    def start(self, call: Call, done: Done) -> Running:
        """Start a call; returns at once."""
        ...

    def close(self) -> None:
        """Stop all and free what it holds; does not wait for threads, which cannot be stopped."""
        ...
