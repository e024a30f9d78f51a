"""What a node may be: its handler, where the handler runs, its timeout and its retries; anything else is refused."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.retry import Delay, Exceptions, LongestDelay, Percent, RetryFields, not_below
from rota.shared.domain.sentences import advice, close_to
from rota.shared.domain.states import Backoff
from rota.shared.domain.task import TaskDefinition, fault_sentence
from rota.worker_service.signatures import Execution

LONGEST_TIMEOUT_SECONDS = 31_536_000
"""A year, as for the timeout of a task."""

MOST_RETRIES = 1000
"""As for the retries of a task."""

RETRY_FIELDS = tuple(RetryFields.__annotations__)
FIELDS = ("timeout", "retries", "execution", "always", "after", *RETRY_FIELDS)
TYPE_FIELDS = ("param", "replace")


class _OwnRetry(BaseModel):
    """How a node is retried, as far as it says so itself. The limits are those of a task."""

    retry_delay_seconds: Delay | None = None
    retry_backoff: Backoff | None = None
    max_retry_delay_seconds: LongestDelay | None = None
    retry_jitter_percent: Percent | None = None
    retry_on: Exceptions = None
    never_retry: Exceptions = None

    @field_validator("max_retry_delay_seconds")
    @classmethod
    def _not_below_the_delay(cls, value: int | None, info: ValidationInfo) -> int | None:
        return not_below(value, info.data.get("retry_delay_seconds"))


def own_retry(node_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """How a node is retried, by the columns of a task; what is None or missing is the task's.

    Raises InvalidInput, which names every fault, and an unknown field.

        own_retry("REPORT_SEND", {"retry_on": [ConnectionError]})   # {"retry_on": ["ConnectionError"]}
    """
    refuse_unknown(node_type, given.keys() - set(RETRY_FIELDS))
    try:
        own = _OwnRetry.model_validate(dict(given))
    except ValidationError as error:
        faults = [f"{node_type}: {fault_sentence(fault)}" for fault in error.errors(include_url=False)]
        raise InvalidInput("\n".join(faults)) from None
    return own.model_dump(mode="json", exclude_none=True)


def check_limits(node_type: str, timeout: Any, retries: Any) -> None:
    """Check the timeout of a node, in seconds, and its number of retries; None is the task's.

    Raises InvalidInput.
    """
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= LONGEST_TIMEOUT_SECONDS):
        raise InvalidInput(
            f"{node_type}: timeout {timeout!r} must be more than 0 and at most {LONGEST_TIMEOUT_SECONDS:,} seconds"
            f"{advice(timeout)}"
        )
    if retries is not None and not (type(retries) is int and 0 <= retries <= MOST_RETRIES):
        raise InvalidInput(f"{node_type}: retries {retries!r} must be a whole number from 0 to {MOST_RETRIES:,}")


def check_always(node_type: str, always: Any) -> None:
    """Check whether a node runs always. Raises InvalidInput."""
    if not isinstance(always, bool):
        raise InvalidInput(f"{node_type}: always {always!r} must be True or False")


def refuse_unknown(node_type: str, unknown: Iterable[str]) -> None:
    """Raise InvalidInput if there are unknown fields of a node. It names the first, and those that there are."""
    for field in unknown:
        told = f"{field} is no field of a node{close_to(field, FIELDS)}; there are: {', '.join(FIELDS)}"
        raise InvalidInput(f"{node_type}: {told}")


def refuse_unknown_of_type(task_type: str, unknown: Iterable[str]) -> None:
    """Raise InvalidInput if there are unknown fields of a task type. It says where the first belongs."""
    for field in unknown:
        places = [f'to its nodes, .node("NAME", {field}=…)'] if field in FIELDS else []
        places += ["to the task, app.schedule"] if field in TaskDefinition.model_fields else []
        near = close_to(field, TYPE_FIELDS)
        told = f"; give it {' or '.join(places)}" if places else f"{near}; there are: {', '.join(TYPE_FIELDS)}"
        raise InvalidInput(f"task type {task_type}: {field} is no field of a task type{told}")


def function_of(handler: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of the handler runs: the function in a partial or a static method, the ``__call__`` of an object."""
    while isinstance(handler, functools.partial | staticmethod):
        handler = handler.func if isinstance(handler, functools.partial) else handler.__func__
    if inspect.isroutine(handler) or isinstance(handler, type):
        return handler
    called: Callable[..., Any] = type(handler).__call__
    return called


def execution_of(node_type: str, handler: Callable[..., Any], asked: Execution | None) -> Execution:
    """Where the handler of a node runs: as asked, or where its kind of function runs.

    Raises InvalidInput for what is no handler, or cannot run as asked.
    """
    if not callable(handler):
        raise InvalidInput(f"{node_type}: {handler!r} is not a function")
    if asked is not None and asked not in get_args(Execution):
        raise InvalidInput(f"{node_type}: execution {asked!r} is none of {', '.join(get_args(Execution))}")
    name = getattr(handler, "__qualname__", repr(handler))
    function = function_of(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{node_type}: {name} has a yield, so a call would not run it; let it return its result")
    if not _takes_the_context(handler):
        raise InvalidInput(f"{node_type}: {name} must take one argument, the NodeContext")
    is_async = inspect.iscoroutinefunction(function)
    if asked is None:
        return "async" if is_async else "thread"
    # A def around an async def may return the coroutine, or run it: its author knows.
    may_be_either = inspect.iscoroutinefunction(function_of(inspect.unwrap(function)))
    if is_async != (asked == "async") and (is_async or not may_be_either):
        kind = "an async def" if is_async else "a def"
        raise InvalidInput(f'{node_type}: {name} is {kind}, which cannot run with execution="{asked}"')
    return asked


def _takes_the_context(handler: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument. A decorated function is asked for the arguments of its decorator."""
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function of C need not say what it takes
        return True
    return True
