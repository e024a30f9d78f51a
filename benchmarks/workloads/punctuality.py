"""What the workloads share that ask how late handlers start."""

from collections.abc import Collection, Mapping, Sequence

from benchmarks.cases import Outcome
from benchmarks.evidence import Start, check, curve, lateness

AHEAD_SECONDS = 8.0
"""How long before the first fire all is set up: longer than the look-ahead, so that it is materialized as usual."""


def punctuality(starts: Sequence[Start], expected: Collection[str], figures: Mapping[str, float]) -> Outcome:
    """How late they were, after they were checked. Raises WrongRun."""
    check(starts, expected)
    return Outcome({**lateness(starts), **figures}, curve(starts))
