"""What a node may be: its handler, where the handler runs, its timeout and its retries; anything else is refused."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_args

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.sentences import advice, close_to
from rota.worker_service.signatures import Execution

LONGEST_TIMEOUT_SECONDS = 31_536_000
"""A year, as for the timeout of a task."""

MOST_RETRIES = 1000
"""As for the retries of a task."""

FIELDS = ("timeout", "retries", "execution")


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


def refuse_unknown(node_type: str, unknown: Iterable[str]) -> None:
    """Raise InvalidInput if there are unknown fields of a node. It names the first, and those that there are."""
    for field in unknown:
        told = f"{field} is no field of a node{close_to(field, FIELDS)}; there are: {', '.join(FIELDS)}"
        raise InvalidInput(f"{node_type}: {told}")


def execution_of(node_type: str, handler: Callable[..., Any], asked: Execution | None) -> Execution:
    """Where the handler of a node runs: as asked, or where its kind of function runs.

    Raises InvalidInput for what is no handler, or cannot run as asked.
    """
    if not callable(handler):
        raise InvalidInput(f"{node_type}: {handler!r} is not a function")
    if asked is not None and asked not in get_args(Execution):
        raise InvalidInput(f"{node_type}: execution {asked!r} is none of {', '.join(get_args(Execution))}")
    name = getattr(handler, "__qualname__", repr(handler))
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidInput(f"{node_type}: {name} has a yield, so a call would not run it; let it return its result")
    is_async = inspect.iscoroutinefunction(handler)
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise InvalidInput(f"{node_type}: {name} must take one argument, the NodeContext") from None
    if asked is None:
        return "async" if is_async else "thread"
    if is_async != (asked == "async"):
        kind = "an async def" if is_async else "a def"
        raise InvalidInput(f'{node_type}: {name} is {kind}, which cannot run with execution="{asked}"')
    return asked
