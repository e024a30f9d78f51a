"""How much memory Python takes."""

import gc
import tracemalloc
from collections.abc import Callable


def peak(work: Callable[[], object]) -> int:
    """The most bytes that Python held during the work, beyond those it held before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_beyond(work: Callable[[], object]) -> int:
    """The most bytes that Python held during the work, beyond those that its outcome holds."""
    gc.collect()
    tracemalloc.start()
    try:
        outcome = work()
        held, most = tracemalloc.get_traced_memory()
        del outcome
        return most - held
    finally:
        tracemalloc.stop()
