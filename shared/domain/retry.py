"""When a failed run is retried, after how long, and from where. Pure."""

import builtins
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field, ValidationInfo

from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import Backoff, OnRetry

LONGEST_DELAY_SECONDS = 3600.0
"""How far an exponential delay grows where no ``max_retry_delay_seconds`` says so."""

YEAR_SECONDS = 31_536_000

EXAMPLE = "such as requests.exceptions.Timeout"

MOST_BYTES = 4000
"""A list of exceptions has so many bytes of JSON at most."""

IN_A_FUNCTION = "<locals>"
"""A part of the name of a class that was made in a function."""

OF_A_TIMEOUT = ("TimeoutError", "OSError", "Exception", "BaseException")
"""A node that timed out counts as failed with this exception."""


class RetryFields(TypedDict, total=False):
    """How a node or a task is retried, as code gives it by keyword, for type checkers."""

    retry_delay_seconds: int
    retry_backoff: Literal["fixed", "exponential"]
    max_retry_delay_seconds: int | None
    retry_jitter_percent: int
    retry_on: Iterable[type[BaseException] | str] | None
    never_retry: Iterable[type[BaseException] | str] | None


def exception_name(kind: type[BaseException]) -> str:
    """The name of an exception: a built-in one has its own, any other also that of its module.

    exception_name(ConnectionError)        # "ConnectionError"
    exception_name(json.JSONDecodeError)   # "json.decoder.JSONDecodeError"
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def names_of(kind: type[BaseException]) -> list[str]:
    """The names of an exception's class and of all that it derives from: by each of them it may be chosen."""
    return [exception_name(one) for one in kind.__mro__ if issubclass(one, BaseException)]


def _names(given: Any, info: ValidationInfo) -> Any:
    """Exceptions as their names. Raises ValueError for what is none."""
    if given is None:
        return None
    if isinstance(given, str | type) or not isinstance(given, Iterable):
        raise ValueError(  # noqa: TRY004 - pydantic makes a fault of it
            f"{info.field_name} {given!r}: write a list of exceptions, such as [ConnectionError]"
        )
    names = list(dict.fromkeys(_name(one, info.field_name) for one in given))
    if (size := len(json_text(names).encode())) > MOST_BYTES:
        raise ValueError(
            f"{info.field_name} has {size:,} bytes as JSON; at most {MOST_BYTES:,} are kept: name a base class"
        )
    return names


def _name(given: Any, field: str | None) -> str:
    if isinstance(given, type) and issubclass(given, BaseException):
        return exception_name(given)
    if not isinstance(given, str) or not all(part.isidentifier() or part == IN_A_FUNCTION for part in given.split(".")):
        raise ValueError(f"{field} {given!r}: that is no exception; give its class or its name, {EXAMPLE}")
    known = getattr(builtins, given, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return exception_name(known)  # IOError is another name of OSError
    if "." not in given:
        raise ValueError(f"{field} {given!r}: no built-in exception has that name; write its module, too, {EXAMPLE}")
    return given


Delay = Annotated[int, Field(ge=0, le=86_400)]
LongestDelay = Annotated[int, Field(ge=1, le=YEAR_SECONDS)]
Percent = Annotated[int, Field(ge=0, le=100)]
Exceptions = Annotated[list[str] | None, BeforeValidator(_names)]


def not_below(longest: int | None, delay: int | None) -> int | None:
    """The longest delay, if it is no shorter than the first one. Raises ValueError."""
    if longest is not None and delay is not None and longest < delay:
        raise ValueError(f"max_retry_delay_seconds {longest} is less than retry_delay_seconds {delay}")
    return longest


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failures are retried. The fields are the columns of ``schedule_task``; a node may have some of its own.

    dataclasses.replace(RetryPolicy(retries=3), retry_backoff="fixed")
    """

    retries: int = 0
    retry_delay_seconds: int = 10
    retry_backoff: str = Backoff.EXPONENTIAL.value
    max_retry_delay_seconds: int | None = None
    retry_jitter_percent: int = 0
    retry_on: Sequence[str] | None = None
    never_retry: Sequence[str] | None = None
    on_retry: str = OnRetry.RESUME.value

    @property
    def restarts(self) -> bool:
        """Whether each attempt begins with the first node, whatever has succeeded before."""
        return self.on_retry == OnRetry.RESTART

    def why_not(self, kinds: Sequence[str]) -> str | None:
        """Why a failure with an exception of these names (``names_of``) is not retried; None if it may be.

        ``never_retry`` goes before ``retry_on``. A failure without names may always be.
        """
        if kinds and (never := next((kind for kind in kinds if kind in (self.never_retry or ())), None)):
            return f"never_retry has {never}"
        if kinds and self.retry_on is not None and set(kinds).isdisjoint(self.retry_on):
            return f"retry_on has only {', '.join(self.retry_on)}" if self.retry_on else "retry_on is empty"
        return None

    def delay(self, failures: int, instance_id: int) -> float:
        """Seconds to wait after a node's ``failures``-th failure; the first is 1.

        ``fixed`` waits ``retry_delay_seconds`` after each failure. ``exponential`` doubles the delay after each
        failure, up to ``max_retry_delay_seconds``; without that, up to an hour, or up to ``retry_delay_seconds`` if
        that is longer. The jitter then shortens the delay by up to ``retry_jitter_percent``. It follows from the
        instance and the number of the failure alone.

            RetryPolicy(retry_delay_seconds=10).delay(3, instance_id=7)   # 40.0
        """
        base = float(self.retry_delay_seconds)
        delay = base
        if self.retry_backoff != Backoff.FIXED:
            longest = LONGEST_DELAY_SECONDS if self.max_retry_delay_seconds is None else self.max_retry_delay_seconds
            delay = min(max(float(longest), base), base * 2.0 ** min(failures - 1, 100))
        return delay * (1 - self.retry_jitter_percent / 100 * _share(instance_id, failures))


def _share(instance_id: int, failures: int) -> float:
    """A number from 0 to 1, spread evenly over the instances and their failures, and always the same for one."""
    digest = hashlib.sha256(f"{instance_id}/{failures}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
