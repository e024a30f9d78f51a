"""Python's cycle collector, set for a process that makes many objects that live for a moment."""

import gc

YOUNG = 20_000
"""How many new containers start a collection (Python's own: 700)."""


def settle() -> None:
    """Call it once a process is composed.

    What is alive by now stays, and is not looked at again; the young are looked at less often. Without it a worker of
    no-op handlers spent two fifths of its own time in the collector (docs/decisions/0010-the-collector.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
