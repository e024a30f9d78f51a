"""How often a process looks that is woken, whatever is sent to it."""

REST_SECONDS = 0.05
REST_SHARE = 0.2
LONGEST_REST_SECONDS = 1.0
"""After a wake-up the next one waits for ``REST_SECONDS``. Where a look takes long, it waits for longer, up to
``LONGEST_REST_SECONDS``: looks that are asked for should take no more than ``REST_SHARE`` of the time."""

CLOSING_SECONDS = 5.0
"""How long a process that stops waits for the thread that listens."""


def rest_after(took: float, least: float = REST_SECONDS) -> float:
    """How many seconds the next look that is asked for has to wait, if the last one took so many."""
    return min(max(least, took / REST_SHARE), LONGEST_REST_SECONDS)
