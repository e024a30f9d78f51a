"""The reason of a run that its worker has stopped, and whose handler still runs on its thread.

Such a run is ``running`` until the handler returns. Its reason says what then becomes of it.
"""

RETRY_WAITS = "waits until its handler returns"
"""It is to be retried."""

END_WAITS = "ends when its handler returns"
"""It has ended for good, but for its nodes that run always."""


def waits(reason: str | None) -> bool:
    """Whether this is the reason of a run that waits for its handler."""
    return (reason or "").startswith((RETRY_WAITS, END_WAITS))


def has_ended(reason: str | None) -> bool:
    """Whether this is the reason of a run that has ended, and whose handler still runs."""
    return (reason or "").startswith(END_WAITS)


def why(reason: str) -> str:
    """Why the run was stopped.

    why("ends when its handler returns: canceled by hand")   # "canceled by hand"
    why("canceled by hand")                                  # the same
    """
    return reason.partition(": ")[2] if waits(reason) else reason
