"""What type checkers know of the decorators of an app, and of their keywords."""

from collections.abc import Callable
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict

from pydantic import BaseModel
from typing_extensions import TypeVar

from rota.shared.domain.task_fields import TaskFields
from rota.worker_service.context import NodeContext

Execution = Literal["async", "thread", "process"]

P = TypeVar("P", bound=BaseModel | dict[str, Any], default=dict[str, Any])
"""A task type's param: its model, or a dict where none is declared."""
Model = TypeVar("Model", bound=BaseModel)
More = ParamSpec("More")
Returned = TypeVar("Returned")


class NodeDecorator(Protocol[P]):
    """Declares a handler, and returns it as it is. For type checkers: the handler's context has the type's param."""

    def __call__(
        self, handler: Callable[Concatenate[NodeContext[P], More], Returned], /
    ) -> Callable[Concatenate[NodeContext[P], More], Returned]:
        """Declare the handler."""


class OneNode(TaskFields, total=False):
    """The keywords of ``Rota.task`` beside ``param``, for type checkers."""

    name: str | None
    cron: str | None
    seconds: bool
    timezone: str
    timeout: float | None
    execution: Execution | None
    replace: bool


class NoMore(TypedDict):
    """No further keywords, for type checkers. At run time others are refused in a sentence."""
