"""How long a worker waits before it retries a failed run. Pure."""

from rota.shared.domain.states import Backoff

LONGEST_DELAY_SECONDS = 3600.0


def retry_delay(failures: int, base_seconds: float, backoff: str) -> float:
    """Seconds to wait after the ``failures``-th failure; the first is 1.

    ``fixed`` waits ``base_seconds`` after each failure. ``exponential`` doubles the delay after each failure, up to an
    hour, or up to ``base_seconds`` if that is longer.

        retry_delay(3, 10, "exponential")   # 40.0
    """
    if backoff == Backoff.FIXED:
        return float(base_seconds)
    doubled = base_seconds * 2.0 ** min(failures - 1, 100)
    return min(max(LONGEST_DELAY_SECONDS, float(base_seconds)), doubled)
