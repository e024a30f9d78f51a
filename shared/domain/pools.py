"""Pools: named sets of a worker's threads, each with its size. What runs in one takes none of the worker's slots."""

import re
from collections.abc import Collection
from typing import Any

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import is_text, object_in
from rota.shared.domain.sentences import close_to

LONGEST_NAME = 63
MOST_THREADS = 10_000
"""As many as a worker may have slots."""


def checked_name(name: Any) -> str:
    """The name of a pool. Raises InvalidInput for what is none."""
    if isinstance(name, str) and re.fullmatch(r"\S(.*\S)?", name) and len(name) <= LONGEST_NAME:
        return name
    raise InvalidInput(f"pool {name!r:.80}: a name has 1 to {LONGEST_NAME} characters, and no blank at its ends")


def checked_size(name: str, size: Any) -> int:
    """The size of a pool. Raises InvalidInput for what is none."""
    if type(size) is int and 1 <= size <= MOST_THREADS:
        return size
    raise InvalidInput(f"pool {name!r}: size {size!r} must be a whole number from 1 to {MOST_THREADS:,}")


def sizes_in(pools: Any) -> dict[str, int]:
    """The sizes of a worker's pools, as its row has them; without what SQL has spoiled.

    sizes_in({"images": 2})   # {"images": 2}
    """
    found = object_in(pools).items()
    return {name: size for name, size in found if is_text(name) and type(size) is int and 1 <= size <= MOST_THREADS}


def queue_of(size: int, capacity: int, prefetch: int) -> int:
    """How many instances a pool may be assigned beyond its size: for each thread as many as for a slot.

    queue_of(2, capacity=50, prefetch=10_000)   # 400
    """
    return min(prefetch, prefetch * size // max(1, capacity))


def unknown_pool(name: str, known: Collection[str]) -> str:
    """The sentence for a pool that nobody declares; it says which there are."""
    there = f"; there are: {', '.join(sorted(known))}" if known else "; there is none"
    return f"no worker has a pool {name!r}{close_to(name, known)}{there}; an app declares one with app.pool"
