"""The fires of a plan in a range of time: the newest, some of them, their number. Pure."""

from collections.abc import Sequence
from datetime import datetime

from rota.shared.domain.planning import TICK, PlanInputs, Skipped
from rota.shared.domain.states import SkipReason

COUNTED_EXACTLY = 50
"""``count`` counts up to so many fires one by one. It estimates the number of the others from the length of time that
they cover."""


def skipped(reason: SkipReason, inputs: PlanInputs, first: datetime, until: datetime) -> Skipped:
    """The fires from ``first`` (a fire) to ``until``, as they are skipped."""
    after = inputs.newest_until(first - TICK) if reason == SkipReason.OFF else None
    return Skipped(reason, first, newest(inputs, first, until), count(inputs, first, until), after)


def newest(inputs: PlanInputs, first: datetime, until: datetime) -> datetime:
    """The newest fire up to ``until``. ``first`` is a fire, too, even if SQL has set it to a time of its own."""
    return max(first, inputs.newest_until(until) or first)


def some_fires(
    inputs: PlanInputs, first: datetime, last: datetime, most: int, *, newest_first: bool = False
) -> tuple[list[datetime], datetime | None]:
    """At most ``most`` fires (at least one) from ``first``, a fire, up to ``last``, and the next one up to ``last``.

    None: there is no next one. With ``newest_first`` they go back in time, and ``last`` is the earlier time.
    """
    fires, following = [first], _beside(inputs, first, last, newest_first=newest_first)
    while following is not None and len(fires) < most:
        fires.append(following)
        following = _beside(inputs, following, last, newest_first=newest_first)
    return fires, following


def _beside(inputs: PlanInputs, fire: datetime, last: datetime, *, newest_first: bool) -> datetime | None:
    if newest_first:
        earlier = inputs.newest_until(fire - TICK)
        return earlier if earlier is not None and earlier >= last else None
    later = inputs.next_after(fire)
    return later if later is not None and later <= last else None


def count(inputs: PlanInputs, first: datetime, last: datetime) -> int:
    """How many fires there are from ``first`` (a fire) to ``last`` (naive UTC), both included.

    The number is an estimate if it is greater than ``COUNTED_EXACTLY``.
    """
    last = last if inputs.ends_at is None else min(last, inputs.ends_at)
    counted, following = some_fires(inputs, first, last, COUNTED_EXACTLY + 1)
    return len(counted) if following is None else estimated(counted, last)


def estimated(counted: Sequence[datetime], last: datetime) -> int:
    """About how many fires there are up to ``last``, of which the first (two at least) were counted."""
    average_distance = (counted[-1] - counted[0]) / (len(counted) - 1)
    return len(counted) + int((last - counted[-1]) / average_distance)


def fire_alike(one: PlanInputs, other: PlanInputs, first: datetime, last: datetime) -> bool:
    """Whether two plans have the same fires from ``first`` to ``last`` (naive UTC), both included.

    Of more than ``COUNTED_EXACTLY`` fires the first so many and the newest are compared.
    """
    some, others = (_first_fires(plan, first, last) for plan in (one, other))
    return some == others and (len(some) < COUNTED_EXACTLY or one.newest_until(last) == other.newest_until(last))


def _first_fires(inputs: PlanInputs, first: datetime, last: datetime) -> list[datetime]:
    begin = inputs.next_after(first - TICK)
    return [] if begin is None or begin > last else some_fires(inputs, begin, last, COUNTED_EXACTLY)[0]
