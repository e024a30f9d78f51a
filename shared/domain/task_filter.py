"""Which tasks are wanted, of a list."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks are wanted: all for which everything holds that is given. ``like`` is a part of the name."""

    status: str | None = None
    like: str | None = None
    owner: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    """A task must have all of them."""


EVERY_TASK = TaskFilter()
