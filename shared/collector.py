"""Settings of Python's cycle collector for a process that makes many short-lived objects."""

import gc

YOUNG = 20_000
"""Python collects after so many new containers. Its own default of 700 is too often here."""


def settle() -> None:
    """Set the collector. Call this once, when all long-lived objects of the process have been made.

    The collector then never examines the objects that exist now, and examines new ones less often. Without this, a
    worker of no-op handlers spent two fifths of its time in the collector (docs/decisions/0010-the-collector.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
