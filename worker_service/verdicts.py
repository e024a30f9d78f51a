"""What a handler can say of itself: try again later, give up, end the run, or run once more at another time."""

import math
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.retry import YEAR_SECONDS
from rota.shared.domain.times import read_time


class Retry(RotaError):
    """The node fails, and is to run again: after ``in_``, seconds or a ``timedelta``, or after the delay of its task.

    It goes before ``retry_on`` and ``never_retry``. It uses up a retry, as any failure does: the node fails for good
    when none is left.
    Raises InvalidInput for an ``in_`` that is negative, or longer than a year.

        raise Retry("the file is not there yet", in_=300)
    """

    def __init__(self, reason: str = "the handler asks for a retry", in_: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.in_seconds = None if in_ is None else _seconds("Retry", in_)


class Fail(RotaError):
    """The node fails for good, whatever retries are left.

    raise Fail("the invoice was canceled")
    """

    def __init__(self, reason: str = "the handler gives up") -> None:
        super().__init__(reason)


class EndRun:
    """What a handler returns to end its run early, as a success: the nodes after it are skipped.

    ``result`` is the node's result, and the instance's.

        return EndRun({"new": 0})
    """

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result


class RunAgain:
    """What the last node of an instance returns if its task is to run once more: ``at`` a time, or ``in_`` so long.

    ``in_`` is in seconds, or a ``timedelta``, and counts from the end of the handler. A naive ``at`` is local time of
    the task's zone. ``result`` is the node's result. Raises InvalidInput unless exactly one of ``at`` and ``in_`` is
    given, and for an ``in_`` that is negative, or longer than a year.

        return RunAgain(in_=300, result={"sent": 3})
    """

    __slots__ = ("at", "in_seconds", "result")

    def __init__(self, *, at: datetime | None = None, in_: float | timedelta | None = None, result: Any = None) -> None:
        if (at is None) == (in_ is None):
            raise InvalidInput("RunAgain: give at=…, a datetime, or in_=…, seconds or a timedelta, and not both")
        if at is not None and not isinstance(at, datetime):
            raise InvalidInput(f"RunAgain at {at!r}: write a datetime")
        self.at = at
        self.in_seconds = None if in_ is None else _seconds("RunAgain", in_)
        self.result = result

    def moment(self, left: datetime, zone: ZoneInfo) -> datetime:
        """When it is to run (naive UTC), where the handler was ``left`` then (naive UTC), in the task's zone.

        Raises InvalidInput for a time that is out of range.
        """
        if self.at is None:
            return left + timedelta(seconds=self.in_seconds or 0)
        return read_time(self.at.isoformat(), zone)[0]


def _seconds(name: str, in_: object) -> float:
    seconds = in_.total_seconds() if isinstance(in_, timedelta) else in_
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and math.isfinite(seconds) and 0 <= seconds <= YEAR_SECONDS):  # type: ignore[arg-type, operator]
        raise InvalidInput(f"{name} in_ {in_!r}: write seconds, from 0 to {YEAR_SECONDS:,}, or a timedelta")
    return float(seconds)  # type: ignore[arg-type]
