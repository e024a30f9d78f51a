"""Which tasks are wanted, of a list, and the words by which they are found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

Tag = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^\S(.*\S)?$")]


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
