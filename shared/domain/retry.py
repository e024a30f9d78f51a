"""How long to wait before a failed run is tried again: pure."""

from shared.domain.states import Backoff

LONGEST_DELAY_SECONDS = 3600.0


def retry_delay(failures: int, base_seconds: float, backoff: str) -> float:
    """Seconds to wait after the ``failures``-th failure (from 1).

    ``fixed`` waits ``base_seconds`` each time; ``exponential`` doubles it each time, up to an hour or to
    ``base_seconds``, whichever is longer.

        retry_delay(3, 10, "exponential")   # 40.0
    """
    if backoff == Backoff.FIXED:
        return float(base_seconds)
    doubled = base_seconds * 2.0 ** min(failures - 1, 100)
    return min(max(LONGEST_DELAY_SECONDS, float(base_seconds)), doubled)
